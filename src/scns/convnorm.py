"""Convolution and batch norm as one function, for training: statistics are taken while the convolution is written.

On a GPU in bfloat16 by the `kernels.convolutions`, elsewhere by torch, so that every machine tests the rest.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

_LAST = torch.channels_last


def _ours(*given: Tensor) -> bool:
    """Whether the kernels take these: bfloat16 on a GPU, with places that int32 holds."""
    return all(each.is_cuda and each.dtype == torch.bfloat16 and each.numel() < 2**31 for each in given)


@torch.library.custom_op("scns::convolve", mutates_args=())
def _convolve(x: Tensor, w: Tensor, stride: int, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(the convolution with zeros around x; of its channels the mean, 1 / sqrt(variance + eps), unbiased variance)."""
    y = _convolve_empty(x, w, stride, eps)[0]
    if _ours(x, y):
        from scns.kernels import convolutions

        x, w = x.contiguous(memory_format=_LAST), w.contiguous(memory_format=_LAST)
        return y, *convolutions.convolve(x, w, y, stride, eps)
    y.copy_(F.conv2d(x, w.to(x.dtype), stride=stride, padding=w.shape[2] // 2))
    var, mean = torch.var_mean(y.to(w.dtype), (0, 2, 3), correction=0)
    count = y.numel() // y.shape[1]
    return y, mean, (var + eps).rsqrt(), var * (count / max(1, count - 1))


@_convolve.register_fake
def _convolve_empty(x: Tensor, w: Tensor, stride: int, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    height, width = ((size - 1) // stride + 1 for size in x.shape[2:])
    y = torch.empty(x.shape[0], w.shape[0], height, width, dtype=x.dtype, device=x.device, memory_format=_LAST)
    mean, inverse, var = (w.new_empty(w.shape[0]) for _ in range(3))
    return y, mean, inverse, var


@torch.library.custom_op("scns::by_inputs", mutates_args=())
def _by_inputs(g: Tensor, w: Tensor, stride: int, height: int, width: int) -> Tensor:
    dx = _by_inputs_empty(g, w, stride, height, width)
    whole = height == stride * g.shape[2] and width == stride * g.shape[3]
    if _ours(g, dx) and whole and w.shape[1] >= 16:  # not the 3 of an image, which hardly ever needs a gradient
        from scns.kernels import convolutions

        convolutions.by_inputs(g.contiguous(memory_format=_LAST), w.contiguous(memory_format=_LAST), dx, stride)
        return dx
    return dx.copy_(conv2d_input(dx.shape, w.to(g.dtype), g, stride, w.shape[2] // 2))


@_by_inputs.register_fake
def _by_inputs_empty(g: Tensor, w: Tensor, stride: int, height: int, width: int) -> Tensor:
    shape = g.shape[0], w.shape[1], height, width
    return torch.empty(shape, dtype=g.dtype, device=g.device, memory_format=_LAST)


@torch.library.custom_op("scns::by_weights", mutates_args=())
def _by_weights(g: Tensor, x: Tensor, w: Tensor, stride: int) -> Tensor:
    dw = torch.empty_like(w, memory_format=_LAST)
    if _ours(g, x):
        from scns.kernels import convolutions

        convolutions.by_weights(g.contiguous(memory_format=_LAST), x.contiguous(memory_format=_LAST), dw, stride)
        return dw
    return dw.copy_(conv2d_weight(x, dw.shape, g, stride, w.shape[2] // 2))


@_by_weights.register_fake
def _by_weights_empty(g: Tensor, x: Tensor, w: Tensor, stride: int) -> Tensor:
    return torch.empty_like(w, memory_format=_LAST)


class _ConvNorm(torch.autograd.Function):
    """z = (y - mean) / sqrt(var + eps) * weight + bias of y = x * w; also the mean and unbiased variance of y."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, weight: Tensor, bias: Tensor, stride: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, inverse, var = _convolve(x, w, stride, eps)
        ctx.save_for_backward(x, w, weight, y, mean, inverse)
        ctx.stride = stride
        z = (y.to(w.dtype) - _each(mean)) * _each(inverse * weight) + _each(bias)
        return z.to(y.dtype), mean, var

    @staticmethod
    def backward(ctx: Any, gz: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """dy = scale (gz - mean(gz) - n mean(gz n)), with n = (y - mean) / sqrt(var + eps): statistics depend on y."""
        x, w, weight, y, mean, inverse = ctx.saved_tensors
        gz = gz.to(w.dtype)
        n = (y.to(w.dtype) - _each(mean)) * _each(inverse)
        d_bias, d_weight = gz.sum((0, 2, 3)), (gz * n).sum((0, 2, 3))
        count = y.shape[0] * y.shape[2] * y.shape[3]
        dy = (gz - _each(d_bias / count) - n * _each(d_weight / count)) * _each(weight * inverse)
        dy = dy.to(y.dtype)
        dx = _by_inputs(dy, w, ctx.stride, *x.shape[2:]) if ctx.needs_input_grad[0] else None
        return dx, _by_weights(dy, x, w, ctx.stride), d_weight, d_bias, None, None


def _each(channels: Tensor) -> Tensor:
    return channels[:, None, None]


class ConvNorm(nn.Module):
    """What `norm(conv(x))` gives in training, without the running statistics: the last batch's are left in `seen`."""

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, dtype: torch.dtype) -> None:
        super().__init__()
        self.conv, self.norm, self.dtype = conv, norm, dtype
        self.seen: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        z, mean, var = _ConvNorm.apply(
            x.to(self.dtype), self.conv.weight, self.norm.weight, self.norm.bias, self.conv.stride[0], self.norm.eps
        )
        self.seen = mean.detach(), var.detach()
        return z

    def taken(self) -> tuple[Tensor, Tensor]:
        """The last batch's mean and unbiased variance, once."""
        assert self.seen is not None
        seen, self.seen = self.seen, None
        return seen


def fits(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> bool:
    """Whether the kernels are for such a pair: a square kernel of 1 or 3, few channels, an ordinary batch norm."""
    side, stride, inputs, outputs = conv.kernel_size, conv.stride, conv.in_channels, conv.out_channels
    ordinary = norm.affine and norm.track_running_stats and norm.momentum is not None
    plain = conv.bias is None and conv.groups == 1 and conv.dilation == (1, 1) and conv.padding_mode == "zeros"
    square = side in ((1, 1), (3, 3)) and stride in ((1, 1), (2, 2)) and conv.padding == (side[0] // 2, side[0] // 2)
    first = inputs == 3 and side == (3, 3) and stride == (1, 1)  # 3 x 1 numbers are too few for a product
    few = outputs in (16, 32, 64) and (inputs in (16, 32, 64) or first)
    return ordinary and plain and square and few

"""A linear projection to unit length as one function, for training on a GPU: `kernels.heads`."""

from typing import Any

import torch
from torch import Tensor, nn

from scns import has


def fits(x: Tensor, linear: nn.Linear) -> bool:
    """Whether the kernels are for these: on a GPU, float32 weights, a power of two of outputs, places of int32."""
    weight, dim, width = linear.weight, linear.out_features, linear.in_features
    small = 16 <= dim <= 256 and dim & (dim - 1) == 0 and linear.bias is not None
    if not (has.TRITON and x.is_cuda and weight.dtype == torch.float32 and small):
        return False
    # A wrong shape is left to torch, which says what is wrong.
    return x.dim() == 2 and x.shape[1] == width and x.shape[0] * max(width, dim) < 2**31


def unit(x: Tensor, linear: nn.Linear) -> Tensor:
    """What `unit_rows(linear(x))` gives, of x [batch, width] in any precision, in the weights' precision."""
    return _Unit.apply(x, linear.weight, linear.bias)


@torch.library.custom_op("scns::project", mutates_args=())
def _project(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(z, 1 / length before)"""
    from scns.kernels import heads

    with torch.cuda.device_of(x):  # where Triton launches
        return heads.project(x.contiguous(), w.contiguous(), b)


@_project.register_fake
def _project_empty(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return w.new_empty(len(x), len(w)), w.new_empty(len(x))


@torch.library.custom_op("scns::project_by_inputs", mutates_args=())
def _by_inputs(dz: Tensor, z: Tensor, inverse: Tensor, w: Tensor, like: Tensor) -> Tensor:
    from scns.kernels import heads

    dx = _by_inputs_empty(dz, z, inverse, w, like)
    with torch.cuda.device_of(dz):
        heads.by_inputs(dz.contiguous(), z.contiguous(), inverse, w.contiguous(), dx)
    return dx


@_by_inputs.register_fake
def _by_inputs_empty(dz: Tensor, z: Tensor, inverse: Tensor, w: Tensor, like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


@torch.library.custom_op("scns::project_by_weights", mutates_args=())
def _by_weights(dz: Tensor, z: Tensor, inverse: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    from scns.kernels import heads

    with torch.cuda.device_of(dz):
        return heads.by_weights(dz.contiguous(), z.contiguous(), inverse, x.contiguous())


@_by_weights.register_fake
def _by_weights_empty(dz: Tensor, z: Tensor, inverse: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape[1], x.shape[1]), z.new_empty(z.shape[1])


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        z, inverse = _project(x, w, b)
        ctx.save_for_backward(x, w, z, inverse)
        return z

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, w, z, inverse = ctx.saved_tensors
        dx = _by_inputs(dz, z, inverse, w, x) if ctx.needs_input_grad[0] else None
        return dx, *_by_weights(dz, z, inverse, x)

"""Batch norm whose statistics are of the batches of all processes that train together, on any device.

torch's own SyncBatchNorm is for CUDA alone. With this one the weights after training do not depend on how many
processes shared the batches.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from scns.world import World


@dataclass
class Sync:
    """Who shares the statistics; `on` is False for a batch that every process sees whole."""

    world: World
    on: bool = True


def synchronise(modules: list[nn.Module], world: World) -> Sync:
    """Let the batch norms of modules share their statistics from now on; parameters and names stay as they are."""
    sync = Sync(world)
    for norm in (each for module in modules for each in module.modules() if isinstance(each, _BatchNorm)):
        norm.forward = partial(_forward, norm, sync)  # type: ignore[method-assign]
    return sync


def statistics(modules: list[nn.Module]) -> list[Tensor]:
    """The running means and variances of all batch norms."""
    norms = [each for module in modules for each in module.modules() if isinstance(each, _BatchNorm)]
    return [each for norm in norms for each in (norm.running_mean, norm.running_var) if each is not None]


def _forward(norm: _BatchNorm, sync: Sync, x: Tensor) -> Tensor:
    if not (norm.training and sync.on):
        return type(norm).forward(norm, x)
    plain = norm.weight is None  # a norm without weight and bias of its own
    weight = x.new_ones(norm.num_features) if plain else norm.weight
    y, mean, variance, count = _Normalise.apply(
        x, weight, torch.zeros_like(weight) if plain else norm.bias, norm.eps, sync.world
    )
    if norm.running_mean is not None and norm.running_var is not None:
        with torch.no_grad():
            share = norm.momentum
            if share is None:  # the mean of all batches so far
                assert norm.num_batches_tracked is not None
                share = 1 / float(norm.num_batches_tracked.add_(1))
            norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
            unbiased = variance * (count / (count - 1).clamp(min=1))
            norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), share)
    return y


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, world: World
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = _wide(x)
        over = [0, *range(2, x.ndim)]
        variance, mean = torch.var_mean(wide, over, correction=0)
        count = mean.new_full((1,), x.numel() // len(mean))
        every = world.gather(torch.cat([mean, variance, count])[None], [1] * world.size)  # [ranks, 2 channels + 1]
        means, variances, counts = every.split([len(mean), len(mean), 1], dim=1)
        count = counts.sum()
        share = counts / count
        mean = (share * means).sum(0)
        variance = (share * (variances + (means - mean).square())).sum(0)  # no difference of large squares
        deviation = (variance + eps).rsqrt()
        context.save_for_backward(x, weight, mean, deviation, count)
        context.over, context.world = over, world
        context.mark_non_differentiable(mean, variance, count)
        scale = deviation * weight
        y = wide * _per_channel(scale, x) + _per_channel(bias - mean * scale, x)
        return y.to(x.dtype), mean, variance, count

    @staticmethod
    def backward(context: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mean, deviation, count = context.saved_tensors
        gradient = _wide(gradient)
        standard = (_wide(x) - _per_channel(mean, x)) * _per_channel(deviation, x)
        for_weight, for_bias = (gradient * standard).sum(context.over), gradient.sum(context.over)
        first, second = (context.world.total(torch.cat([for_weight, for_bias])) / count).chunk(2)
        back = gradient - _per_channel(second, x) - standard * _per_channel(first, x)
        back = back * _per_channel(weight * deviation, x)
        return back.to(x.dtype), for_weight, for_bias, None, None


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize < 4 else x


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.ndim - 2))

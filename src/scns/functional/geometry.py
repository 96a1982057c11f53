"""What the losses compute with: one size for two maps, unit vectors, deviations and distances, safe at zero."""

import torch
import torch.nn.functional as F
from torch import Tensor

from scns.errors import InputError
from scns.functional.inputs import shapes


def match(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both maps [batch, channels, height, width] at the smaller one's size, the larger one average-pooled.

    The rule of AT, NST, FT, VID and FSP compares heights alone, so maps of different size must be square.
    (For VID pool before the regressor, which is not linear.) Where the sizes divide, plain average pooling
    gives the same numbers as the adaptive one and, unlike it, is deterministic on CUDA.
    """
    if first.ndim != 4 or second.ndim != 4:
        raise InputError(f"Maps are [batch, channels, height, width]; got {shapes(first, second)}.")
    if first.shape[2:] == second.shape[2:]:
        return first, second
    if first.shape[2] != first.shape[3] or second.shape[2] != second.shape[3]:
        raise InputError(
            f"Maps of different size must be square to be matched; got {shapes(first, second)}: pool them to one size."
        )
    size = min(first.shape[2], second.shape[2])
    return _pooled(first, size), _pooled(second, size)


def _pooled(map_: Tensor, size: int) -> Tensor:
    if map_.shape[2] == size:
        return map_
    if map_.shape[2] % size == 0:
        return F.avg_pool2d(map_, map_.shape[2] // size)
    return F.adaptive_avg_pool2d(map_, size)


def unit(vectors: Tensor, dim: int = -1) -> Tensor:
    """Vectors over max(length, 1e-12), as F.normalize has it, but a zero vector gets gradient 0 instead of 1e12."""
    length = torch.linalg.vector_norm(vectors, dim=dim, keepdim=True)
    return vectors * reciprocal(length.clamp_min(1e-12), where=length > 0)


def reciprocal(values: Tensor, where: Tensor) -> Tensor:
    """1 / values where the mask holds, and 0 with gradient 0 elsewhere."""
    return torch.where(where, torch.where(where, values, 1.0).reciprocal(), 0.0)


# Rounding of a mean leaves a constant row this far from 0, relative to its size: below it there is no variation.
_ROUNDING_STEPS = 32


def deviations(values: Tensor, over: int, size_over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Values minus their mean over a dimension, and the length of the result; both 0 where the values do not vary."""
    centred = values - values.mean(over, keepdim=True)
    length = torch.linalg.vector_norm(centred, dim=size_over, keepdim=True)
    whole = torch.linalg.vector_norm(values, dim=size_over, keepdim=True)
    varies = ~(length <= _ROUNDING_STEPS * torch.finfo(values.dtype).eps * whole)  # NaN stays NaN
    return torch.where(varies, centred, 0.0), torch.where(varies, length, 0.0)


def squared_distances(points: Tensor) -> Tensor:
    """Squared distances of all rows in float64 [rows, rows], exactly 0 where they drown in rounding."""
    wide = points.to(torch.float64)
    wide = wide - wide.mean(0)
    gram = wide @ wide.T
    sizes = gram.diagonal()[:, None] + gram.diagonal()[None, :]
    squared = sizes - 2 * gram
    rounding = 64 * torch.finfo(torch.float64).eps  # of sums over some thousand features
    return torch.where(squared <= rounding * sizes, 0.0, squared)  # NaN stays NaN

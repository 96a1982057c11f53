"""Latent mixup: interpolating a negative and an anchor in feature space.

kappa(z_-, z_*) = nu z_- + (1 - nu) z_*, nu ~ Beta(beta, beta). nu is the weight of the negative everywhere.
Coefficients are a function of uniform numbers with static shapes, so a captured training step needs no random
generator.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scns import checks
from scns.errors import InputError

_NODES = 4096  # table entries: linear interpolation between them is off by 1e-6 in probability at most
_FARTHEST = 18.5  # logit of 1 - 1e-8: beyond it the distribution is a power law to float32 precision
_SMALLEST = 2.0**-25  # the middle of the lowest cell of a 24-bit uniform number, in place of its edge 0


class BetaQuantile(nn.Module):
    """Beta(beta, beta) as a function of uniform numbers: `BetaQuantile(0.5)(uniform)`, elementwise.

    beta = 0 is a fair coin on {0, 1}, infinity is the constant 1/2. `fold` gives max(nu, 1 - nu), so that the
    negative dominates. The inverse distribution function is tabulated in y = logit(nu), where the density is
    proportional to cosh(y/2)^(-2 beta): smooth for every beta, and nothing underflows for small ones.
    """

    def __init__(self, beta: float, *, fold: bool = True) -> None:
        super().__init__()
        self.beta, self.fold = _checked(beta), fold
        surprise, logit, slope = _table(self.beta) if 0 < self.beta < math.inf else (np.zeros(1),) * 3
        self.surprise: Tensor  # -log P(logit further out than this node | its side), ascending
        self.logit: Tensor
        self.slope: Tensor  # of logit over surprise, to the next node; beyond the last one that of the power law
        for name, values in (("surprise", surprise), ("logit", logit), ("slope", slope)):
            self.register_buffer(name, torch.from_numpy(values).float(), persistent=False)

    def forward(self, uniform: Tensor) -> Tensor:
        """nu for each uniform number in [0, 1)."""
        if not isinstance(uniform, Tensor) or not uniform.is_floating_point():
            raise InputError("Uniform numbers must be a tensor of floating point; convert them with torch.as_tensor.")
        if self.beta == math.inf:
            return torch.full_like(uniform, 0.5)
        low = uniform < 0.5
        if self.beta == 0:
            return torch.ones_like(uniform) if self.fold else 1 - low.to(uniform.dtype)
        share = 2 * torch.where(low, uniform, 1 - uniform)  # P(further out | this side), uniform in [0, 1]
        surprise = -share.clamp_min(_SMALLEST).log()
        node = (torch.bucketize(surprise, self.surprise, right=True) - 1).clamp_min(0)
        logit = self.logit[node] + (surprise - self.surprise[node]) * self.slope[node]
        inner = torch.sigmoid(-logit)
        return 1 - inner if self.fold else torch.where(low, inner, 1 - inner)


def mixing_coefficients(
    shape: int | Sequence[int],
    beta: float,
    *,
    fold: bool = True,
    generator: torch.Generator | None = None,
    uniform: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """nu ~ Beta(beta, beta), float32 of `shape`: (batch, negatives) for one a pair, () for one a batch.

    `fold` (for pseudo-negatives) gives max(nu, 1 - nu); pass False where targets are mixed as well. The
    uniform numbers behind nu come from `generator` or are given as `uniform`, for instance by
    `scns.draws.uniform(seed, ...)`. Inside a captured step keep a `BetaQuantile` and call it.
    """
    sizes: Any = [shape] if checks.is_number(shape) else shape
    if not isinstance(sizes, Sequence) or any(not checks.is_whole(size) or size < 0 for size in sizes):
        raise InputError(f"The shape of mixing coefficients is whole numbers, (batch, negatives) say, not {shape!r}.")
    if generator is not None and not isinstance(generator, torch.Generator):
        given = type(generator).__name__
        raise InputError(f"The generator is of type {given}; give torch.Generator().manual_seed(0), say.")
    shape = tuple(int(size) for size in sizes)
    if uniform is None:
        place = device if device is not None or generator is None else generator.device
        uniform = torch.rand(shape, generator=generator, device=place)
    elif generator is not None:
        raise InputError("Mixing coefficients come from a generator or from uniform numbers; give one of the two.")
    elif isinstance(uniform, Tensor) and tuple(uniform.shape) != shape:
        raise InputError(
            f"The uniform numbers have shape {tuple(uniform.shape)}, but coefficients of {shape} are wanted."
        )
    place = uniform.device if isinstance(uniform, Tensor) else "cpu"
    return _quantile(_checked(beta), fold, str(place))(uniform)


def mix(negative: Tensor, anchor: Tensor, nu: Tensor | float) -> Tensor:
    """kappa = nu * negative + (1 - nu) * anchor, of the shape of `negative`.

    negative [..., dim]; anchor the same, or [batch, dim] for negatives [batch, m, dim]; nu a number, or a
    tensor of the shape of `negative` without its last axis. Use the same nu for the student's and the
    teacher's mixture of a pair.
    """
    if not isinstance(negative, Tensor) or not isinstance(anchor, Tensor):
        raise InputError("mix works on torch tensors; convert its inputs with torch.as_tensor.")
    if not negative.is_floating_point() or not anchor.is_floating_point():
        raise InputError(
            f"mix works on floating point, but these are {negative.dtype} and {anchor.dtype}; use .float()."
        )
    every, wanted = tuple(negative.shape), tuple(negative.shape[:-1])
    if not _spread(anchor, every) and not _spread(anchor, every[:-2] + every[-1:]):
        raise InputError(
            f"negative {every} needs an anchor of that shape, or [batch, dim] for [batch, m, dim]; this one is "
            f"{tuple(anchor.shape)}."
        )
    weight = torch.as_tensor(nu, dtype=negative.dtype, device=negative.device)
    if weight.dim() and not _spread(weight, wanted):
        raise InputError(f"nu has shape {tuple(weight.shape)}, but it must be one number or have shape {wanted}.")
    if anchor.dim() == negative.dim() - 1:
        anchor = anchor.unsqueeze(-2)
    weight = weight.unsqueeze(-1)
    return weight * negative + (1 - weight) * anchor


def _spread(given: Tensor, wanted: tuple[int, ...]) -> bool:
    """Whether it has as many axes as wanted, each of that size or 1, one for all."""
    return given.dim() == len(wanted) and all(a in (1, b) for a, b in zip(given.shape, wanted, strict=True))


def mixed_similarity(similarity: Tensor, nu: Tensor | float, normalize: bool = True) -> Tensor:
    """The anchor's similarity to its mixtures, from its similarity s to the negatives (unit vectors).

    nu s + 1 - nu, divided by |kappa| = sqrt((1 - 2 nu)^2 + 2 nu (1 - nu) (1 + s)) where `normalize` puts the
    mixtures back on the sphere. Equals `anchor @ mix(...)` without ever holding [batch, m, dim].
    """
    if not isinstance(similarity, Tensor) or not similarity.is_floating_point():
        raise InputError("Similarities must be a tensor of floating point; convert them with torch.as_tensor.")
    if similarity.dtype in (torch.float16, torch.bfloat16):
        similarity = similarity.float()
    weight = torch.as_tensor(nu, dtype=similarity.dtype, device=similarity.device)
    if weight.dim() and not _spread(weight, tuple(similarity.shape)):
        wanted = tuple(similarity.shape)
        raise InputError(f"nu has shape {tuple(weight.shape)}, but it must be one number or have shape {wanted}.")
    mixed = weight * similarity + (1 - weight)
    if not normalize:
        return mixed
    squared = (1 - 2 * weight).square() + 2 * weight * (1 - weight) * (1 + similarity)
    # A mixture shorter than 1e-3 (nu = 1/2 of opposite vectors) has no direction: its slope is cut at 500.
    return mixed * squared.clamp_min(1e-6).rsqrt()


def _checked(beta: float) -> float:
    if not checks.is_number(beta) or not beta >= 0:
        raise InputError(f"beta is {beta!r}, but it must lie between 0 (a fair coin) and infinity (always 1/2).")
    return float(beta)


@lru_cache(maxsize=32)
def _quantile(beta: float, fold: bool, device: str) -> BetaQuantile:
    return BetaQuantile(beta, fold=fold).to(device)


def _table(beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(surprise, logit, slope) at the nodes of the upper half, logit from 0 outwards, float64 [nodes + 1]."""
    reach = _reach(beta)
    logit = np.linspace(0, reach, _NODES + 1)
    points, weights = np.polynomial.legendre.leggauss(8)
    step = reach / _NODES
    inside = logit[:-1, None] + step / 2 * (1 + points)  # [nodes, points]
    masses = step / 2 * _density(inside, beta) @ weights
    tail = 0.0  # of the power law, with the first term of its correction
    if reach == _FARTHEST:
        tail = 4**beta * math.exp(-beta * reach) / beta * (1 - 2 * beta**2 / (beta + 1) * math.exp(-reach))
    beyond = np.append(np.cumsum(masses[::-1])[::-1] + tail, tail)
    surprise = np.log(beyond[0]) - np.log(np.maximum(beyond, 1e-300))
    return surprise, logit, np.append(np.diff(logit) / np.diff(surprise), 1 / beta)


def _reach(beta: float) -> float:
    """Where the table ends: the density is e^-46 of its peak there, or the power law has begun."""
    rest = math.expm1(min(23 / beta, 300))  # cosh(reach / 2) - 1; beyond e^300 the power law begins first
    return min(_FARTHEST, 2 * math.log1p(rest + math.sqrt(rest * (2 + rest))))


def _density(logit: np.ndarray, beta: float) -> np.ndarray:
    """cosh(y/2)^(-2 beta): the density of logit(nu), without its constant."""
    return np.exp(-2 * beta * np.log1p(2 * np.sinh(logit / 4) ** 2))

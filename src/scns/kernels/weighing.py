"""Integer weights of all samples for each anchor: `chances.as_integers` in 2 kernels, not 20.

The numbers are the same ones: float64, rounded before they are added up.
"""

# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from scns import chances

_UNIT = constexpr(float(chances.UNIT))
_ROUNDER = constexpr(2.0**52)  # added and taken away, it rounds a smaller float64 to the nearest whole number
_OPTIONS = {"WIDE": 2048, "num_warps": 8, "enable_fp_fusion": False}  # a product and a sum are rounded one by one


@triton.jit
def _integers(score, best, scale):
    """exp(scale * score - best) as integers up to 2^30, at least 1."""
    weight = tl.exp(score.to(tl.float64) * scale - best) * _UNIT
    return tl.maximum((weight + _ROUNDER) - _ROUNDER, 1.0).to(tl.int64)


@triton.jit(do_not_specialize=["count"])
def _sums(scores, start, stop, factor, best, total, count, WIDE: constexpr):
    """Of one anchor: the largest of scale * score, and the sum of the integers."""
    row, j, scale = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE), tl.load(factor)
    first, last = tl.load(start + row), tl.load(stop + row)
    top = tl.full((WIDE,), -float("inf"), dtype=tl.float64)
    for begin in range(0, count, WIDE):
        place = begin + j
        there = (place < count) & ((place < first) | (place >= last))
        score = tl.load(scores + row * count + place, mask=there, other=-float("inf"))
        top = tl.maximum(top, score.to(tl.float64) * scale)
    largest, sums = tl.max(top, 0), tl.zeros((WIDE,), dtype=tl.int64)
    for begin in range(0, count, WIDE):
        place = begin + j
        there = (place < count) & ((place < first) | (place >= last))
        score = tl.load(scores + row * count + place, mask=there, other=0.0)
        sums += tl.where(there, _integers(score, largest, scale), 0)
    tl.store(best + row, largest)
    tl.store(total + row, tl.sum(sums, 0))


@triton.jit(do_not_specialize=["count"])
def _weights(scores, start, stop, factor, best, more, weights, count, WIDE: constexpr):
    """A piece of one anchor's integers, with `more` for each; 0 from start to stop."""
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    there = (place < tl.load(start + row)) | (place >= tl.load(stop + row))
    score = tl.load(scores + row * count + place, mask=place < count, other=0.0)
    weight = _integers(score, tl.load(best + row), tl.load(factor)) + tl.load(more + row)
    tl.store(weights + row * count + place, tl.where(there, weight, 0), mask=place < count)


def sums(scores: Tensor, start: Tensor, stop: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """(largest scale * score, float64; sum of the integers) of each anchor without its own class, start to stop."""
    best = torch.empty(len(scores), dtype=torch.float64, device=scores.device)
    total = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
    _sums[(len(scores),)](scores, start, stop, factor, best, total, scores.shape[1], **_OPTIONS)
    return best, total


def weights(scores: Tensor, start: Tensor, stop: Tensor, factor: Tensor, best: Tensor, more: Tensor) -> Tensor:
    """int64 like the scores: the integers plus `more` of each anchor, 0 for its own class."""
    found = torch.empty(scores.shape, dtype=torch.int64, device=scores.device)
    grid = len(scores), triton.cdiv(scores.shape[1], _OPTIONS["WIDE"])
    _weights[grid](scores, start, stop, factor, best, more, found, scores.shape[1], **_OPTIONS)
    return found

"""Integer weights of all samples for each anchor, added up: `chances.as_integers` and a sum in 2 kernels, not 20.

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
def _sums(scores, start, stop, factor, best, sums, count, WIDE: constexpr):
    """Of one anchor: the largest of scale * score, and the sum of the integers in each piece of WIDE candidates."""
    row, j, scale = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE), tl.load(factor)
    first, last = tl.load(start + row), tl.load(stop + row)
    top = tl.full((WIDE,), -float("inf"), dtype=tl.float64)
    for begin in range(0, count, WIDE):
        place = begin + j
        there = (place < count) & ((place < first) | (place >= last))
        score = tl.load(scores + row * count + place, mask=there, other=-float("inf"))
        top = tl.maximum(top, score.to(tl.float64) * scale)
    largest, pieces = tl.max(top, 0), tl.cdiv(count, WIDE)
    for piece in range(0, pieces):
        place = piece * WIDE + j
        there = (place < count) & ((place < first) | (place >= last))
        score = tl.load(scores + row * count + place, mask=there, other=0.0)
        tl.store(sums + row * pieces + piece, tl.sum(tl.where(there, _integers(score, largest, scale), 0), 0))
    tl.store(best + row, largest)


@triton.jit(do_not_specialize=["count"])
def _ends(scores, start, stop, factor, best, before, more, ends, count, WIDE: constexpr):
    """The sums up to each candidate of one piece of a row: integers plus `more`, nothing from start to stop."""
    row, begin = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDE
    first, last, extra = tl.load(start + row), tl.load(stop + row), tl.load(more + row)
    place = begin + tl.arange(0, WIDE)
    there = (place < first) | (place >= last)
    score = tl.load(scores + row * count + place, mask=place < count, other=0.0)
    weight = tl.where(there, _integers(score, tl.load(best + row), tl.load(factor)) + extra, 0)
    left_out = tl.minimum(tl.maximum(begin, first), last) - first  # of the candidates before this piece
    already = tl.load(before + row * tl.num_programs(1) + tl.program_id(1)) + extra * (begin - left_out)
    tl.store(ends + row * count + place, already + tl.cumsum(weight, 0), mask=place < count)


def pieces(scores: Tensor) -> int:
    """How many pieces a row has."""
    return triton.cdiv(scores.shape[1], _OPTIONS["WIDE"])


def sums(scores: Tensor, start: Tensor, stop: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """(largest scale * score, float64 [batch]; sums of the integers, int64 [batch, pieces]) without start to stop."""
    best = torch.empty(len(scores), dtype=torch.float64, device=scores.device)
    found = torch.empty(len(scores), pieces(scores), dtype=torch.int64, device=scores.device)
    _sums[(len(scores),)](scores, start, stop, factor, best, found, scores.shape[1], **_OPTIONS)
    return best, found


def ends(
    scores: Tensor, start: Tensor, stop: Tensor, factor: Tensor, best: Tensor, before: Tensor, more: Tensor
) -> Tensor:
    """int64 like the scores: the integers plus `more` of each anchor, 0 for its own class, added up along the row."""
    found = torch.empty(scores.shape, dtype=torch.int64, device=scores.device)
    grid = len(scores), pieces(scores)
    _ends[grid](scores, start, stop, factor, best, before, more, found, scores.shape[1], **_OPTIONS)
    return found

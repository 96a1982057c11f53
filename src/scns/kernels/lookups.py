"""InfoNCE against gathered rows of a table: a row is read once, for the loss and its gradient.

    loss = log sum_j exp(scale <z, t_j> + w_j) - scale <z, t_0>,   dz = scale (sum_j p_j t_j - t_0),   p = softmax

Tables are constants, so that is all there is to know, and no similarity is ever stored.
"""

# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

_ROWS = 32  # of a table, at a time
_PROGRAMS = 1024  # about eight for each processor of a GPU: enough to hide how long memory takes
_NONE = constexpr(-1e30)  # below every score; finite, so that differences of two of them are numbers


@triton.jit(do_not_specialize=["batch", "count", "chunk"])
def _compare(
    z, first, second, rows, log_weights, most, sums, mixed, batch, count, chunk, scale,
    D: constexpr, WIDE: constexpr, ROWS: constexpr, WEIGHTED: constexpr,
):  # fmt: skip
    """A chunk of an anchor's rows: the largest score, the sum of exp(score - largest), and that sum of rows."""
    anchor, part, side = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    d, j = tl.arange(0, WIDE), tl.arange(0, ROWS)
    table = tl.multiple_of(first if side == 0 else second, 16)
    place = side * batch + anchor
    own = tl.load(z + place * D + d, mask=d < D, other=0.0)
    largest = tl.full((ROWS,), _NONE, dtype=tl.float32)  # each of ROWS places keeps its own until the end
    total = tl.zeros((ROWS,), dtype=tl.float32)
    mixture = tl.zeros((ROWS, WIDE), dtype=tl.float32)
    for start in range(part * chunk, tl.minimum(part * chunk + chunk, count), ROWS):
        there = start + j < count
        row = tl.load(rows + anchor * count + start + j, mask=there, other=0)
        if WEIGHTED:
            more = tl.load(log_weights + anchor * count + start + j, mask=there, other=0.0)
            there = there & (more > -float("inf"))  # what does not count is not read
        inside = there[:, None] & (d < D)[None, :]
        found = tl.load(table + row[:, None] * D + d[None, :], mask=inside, other=0.0)
        score = scale * tl.sum(found * own[None, :], 1)
        if WEIGHTED:
            score += more
        score = tl.where(there, score, _NONE)
        larger = tl.maximum(largest, score)
        shrunk, weight = tl.exp(largest - larger), tl.exp(score - larger)
        total = total * shrunk + weight
        mixture = mixture * shrunk[:, None] + weight[:, None] * found
        largest = larger
    top = tl.max(largest, 0)
    share = tl.exp(largest - top)
    place = place * tl.num_programs(1) + part
    tl.store(most + place, top)
    tl.store(sums + place, tl.sum(total * share, 0))
    tl.store(mixed + place * D + d, tl.sum(mixture * share[:, None], 0), mask=d < D)


@triton.jit(do_not_specialize=["batch", "count", "parts"])
def _conclude(
    z, first, second, rows, most, sums, mixed, loss, dz, batch, count, parts, scale,
    D: constexpr, WIDE: constexpr, PARTS: constexpr,
):  # fmt: skip
    """An anchor's loss and gradient, of its chunks."""
    anchor, side = tl.program_id(0), tl.program_id(1)
    d, p = tl.arange(0, WIDE), tl.arange(0, PARTS)
    table = tl.multiple_of(first if side == 0 else second, 16)
    place = side * batch + anchor
    own = tl.load(z + place * D + d, mask=d < D, other=0.0)
    positive = tl.load(table + tl.load(rows + anchor * count) * D + d, mask=d < D, other=0.0)
    largest = tl.load(most + place * parts + p, mask=p < parts, other=_NONE)
    top = tl.max(largest, 0)
    share = tl.exp(largest - top)
    total = tl.sum(tl.load(sums + place * parts + p, mask=p < parts, other=0.0) * share, 0)
    inside = (p < parts)[:, None] & (d < D)[None, :]
    mixture = tl.load(mixed + (place * parts + p)[:, None] * D + d[None, :], mask=inside, other=0.0)
    tl.store(loss + place, top + tl.log(total) - scale * tl.sum(own * positive, 0))
    tl.store(dz + place * D + d, scale * (tl.sum(mixture * share[:, None], 0) / total - positive), mask=d < D)


def info_nce(
    z: Tensor, first: Tensor, second: Tensor, rows: Tensor, log_weights: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """(losses [sides, batch], their gradients by z [sides, batch, dim]); side 0 goes with the first table."""
    (sides, batch, dim), count = z.shape, rows.shape[1]
    chunk = _ROWS * triton.cdiv(count, _ROWS * max(1, _PROGRAMS // (sides * batch)))
    parts = triton.cdiv(count, chunk)
    most, sums, loss = z.new_empty(sides, batch, parts), z.new_empty(sides, batch, parts), z.new_empty(sides, batch)
    mixed, dz = z.new_empty(sides, batch, parts, dim), torch.empty_like(z)
    sizes = dict(D=dim, WIDE=triton.next_power_of_2(dim))
    weighted = dict(ROWS=_ROWS, WEIGHTED=log_weights is not None)
    _compare[(batch, parts, sides)](
        z, first, second, rows, z if log_weights is None else log_weights, most, sums, mixed, batch, count, chunk,
        scale, **sizes, **weighted, num_warps=4,
    )  # fmt: skip
    _conclude[(batch, sides)](
        z, first, second, rows, most, sums, mixed, loss, dz, batch, count, parts, scale,
        **sizes, PARTS=triton.next_power_of_2(parts), num_warps=4,
    )  # fmt: skip
    return loss, dz

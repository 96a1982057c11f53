"""The k best columns of some rows, in one order whatever way they were found.

The last digits of a float32 product depend on how it was cut into blocks. So columns with nearly the same score are put
in order by their float64 products, ties to the smaller row number, and a score that could be rounded to either of two
float16 numbers is taken from its float64 product too. The result is the same for any chunk, block or order of rows.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

NEAR = 2.0**-20  # scores that float32 products may not tell apart: their error is about a tenth of this
SPARE = 16  # columns fetched beyond k, to see ties at the edge
PAIRS = 1 << 22  # floats of pairs multiplied at a time in float64: about 100 MB with what surrounds them


class Rows(Protocol):
    """Unit vectors by their places: a tensor, or a source that reads them."""

    def __getitem__(self, places: Tensor) -> Tensor: ...


def ranked(scores: Tensor, k: int, rows: Tensor, columns: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """(values, the caller's row numbers) of the k best columns, ties to the smaller row number.

    `scores` [r, c] are products of the unit vectors `rows` [r, dim] and `columns` [c, dim] and -inf where excluded.
    """
    values, chosen = sorted_best(scores, min(k + SPARE, scores.shape[1]))
    last = values[:, -1].clone()
    values, indices = in_exact_order(values, chosen, order[chosen], rows, columns)
    if values.shape[1] < scores.shape[1]:
        open_end = (values[:, k - 1] - last <= 2 * NEAR) & (last > -torch.inf)
        for number in open_end.nonzero()[:, 0].tolist():  # more ties than were fetched: settle the whole row
            every = torch.arange(len(order), device=order.device)
            whole = float64_products(rows, columns, torch.full_like(order, number), every)
            whole = torch.where(scores[number].isneginf(), -torch.inf, whole)
            best, found = by_score_then_index(whole[None], order[None])
            values[number, :k], indices[number, :k] = best[0, :k].float(), found[0, :k]
    return values[:, :k], indices[:, :k]


def in_exact_order(
    values: Tensor, chosen: Tensor, indices: Tensor, rows: Tensor, columns: Rows, pairs: int = PAIRS
) -> tuple[Tensor, Tensor]:
    """(values, the caller's rows `indices`), best first, of the columns `chosen` [r, m] with falling `values`."""
    row, place = _between_halves(values).nonzero().unbind(1)
    values[row, place] = float64_products(rows, columns, row, chosen[row, place], pairs).float()
    close = (values[:, :-1] - values[:, 1:] <= NEAR) & (values[:, 1:] > -torch.inf)
    tied = close.any(1).nonzero()[:, 0]
    if len(tied):
        pad = torch.nn.functional.pad
        row, place = (pad(close, (0, 1)) | pad(close, (1, 0)))[tied].nonzero().unbind(1)
        exact = values[tied].double()
        exact[row, place] = float64_products(rows, columns, tied[row], chosen[tied][row, place], pairs)
        exact, indices[tied] = by_score_then_index(exact, indices[tied])
        values[tied] = exact.float()
    return values, indices


def _between_halves(values: Tensor) -> Tensor:
    """Where the error of a float32 score decides which float16 number it becomes."""
    return (values - NEAR).half() != (values + NEAR).half()


def float64_products(rows: Tensor, columns: Rows, row: Tensor, column: Tensor, pairs: int = PAIRS) -> Tensor:
    """Products of pairs of rows and columns, summed in float64 and rounded to 2^-40, where equal sums are equal."""
    step = max(1, pairs // rows.shape[1])
    parts = zip(row.split(step), column.split(step), strict=True)
    sums = [(rows[r].double() * columns[c].double()).sum(1) for r, c in parts]
    return rounded(torch.cat(sums) if sums else rows.new_empty(0, dtype=torch.float64))


def rounded(sums: Tensor) -> Tensor:
    """Float64 sums without the digits that depend on the order of adding."""
    return (sums * 2.0**40).round() * 2.0**-40


def by_score_then_index(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    indices, by_index = indices.sort(dim=1, stable=True)
    values, by_value = values.gather(1, by_index).sort(dim=1, descending=True, stable=True)
    return values, indices.gather(1, by_value)


def sorted_best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """What scores.topk(k, dim=1) returns: through the k groups of columns with the largest maxima where that is faster.

    The k largest scores lie in the k groups with the largest maxima. A group is every m-th column, so that the maxima
    are m-wide vector operations; columns past the last whole group are candidates as they are.
    """
    rows, columns = scores.shape
    group = math.isqrt(columns // (2 * k))  # columns / group maxima and k * group candidates: about the least of both
    if group < 4 or scores.is_cuda:
        return scores.topk(k, dim=1)
    width = columns // group
    maxima = scores[:, : width * group].view(rows, group, width).amax(1)
    chosen = maxima.topk(k, dim=1, sorted=False).indices
    place = (chosen[:, :, None] + width * torch.arange(group)).view(rows, -1)
    rest = torch.arange(width * group, columns).expand(rows, -1)
    place = torch.cat([place, rest], 1)
    values, which = scores.gather(1, place).topk(k, dim=1)
    return values, place.gather(1, which)


def grouped_best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of every row, unordered: through the k groups with the largest maxima where that is less work."""
    rows, columns = scores.shape
    group = 64
    while group > 1 and (columns % group or columns // group < 4 * k):
        group //= 2
    if group < 8:
        return scores.topk(k, dim=1, sorted=False)
    grouped = scores.view(rows, columns // group, group)
    chosen = grouped.amax(2).topk(k, dim=1, sorted=False).indices  # [rows, k]: they hold the k largest scores
    inside = grouped.gather(1, chosen[:, :, None].expand(-1, -1, group)).view(rows, -1)
    values, place = inside.topk(k, dim=1, sorted=False)
    return values, chosen.gather(1, place // group) * group + place % group


@contextmanager
def true_float32() -> Iterator[None]:
    """Products keep all bits of float32 inside, whatever the process allows (TF32 keeps 10)."""
    if not torch.cuda.is_available():
        yield
        return
    settings: Any = torch.backends.cuda.matmul
    allowed = settings.allow_tf32
    settings.allow_tf32 = False
    try:
        yield
    finally:
        settings.allow_tf32 = allowed

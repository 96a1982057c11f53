"""Exact top-k cosine search with excluded columns.

Rows are sorted by class first, so that a row's excluded columns are one slice `start:stop` and excluding them costs a
fill of that slice instead of a mask over every score. Inside, rows and columns are places in that sorted order;
`Corpus.order` maps a place to the caller's row.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Progress = Callable[[int, int], None] | None

CPU_SCORES = 1 << 24  # scores held at a time: 64 MB of float32, small enough to stay in a large cache
_GPU_SCORES = 1 << 30  # 4 GB, or an eighth of the free memory where that is less
_NEAR = 2.0**-20  # scores that float32 products may not tell apart: their error is about a tenth of this
_SPARE = 16  # columns fetched beyond k, to see ties at the edge
_GATHER = 1 << 28  # floats gathered at a time when candidates are scored again: 1 GB


@dataclass(frozen=True)
class Corpus:
    """Unit rows sorted by class, and the slice of columns that each row may not take."""

    unit: Tensor  # float32 [n, dim]
    order: Tensor  # int64 [n]: the caller's row of each position
    labels: Tensor | None  # int64 [n], sorted; -1 = unlabelled
    start: Tensor  # int64 [n]
    stop: Tensor  # int64 [n]
    groups: Tensor | None = None  # int64 [n]: rows of one group are never paired

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True)
class Found:
    """The k best columns of some rows: the caller's row numbers (-1 = none), cosines, and the same-class score."""

    indices: Tensor  # int32 [rows, k]
    scores: Tensor  # float16 [rows, k]
    positive: Tensor | None  # float16 [rows]


def corpus(embeddings: Tensor, labels: Tensor | None, exclude: str | None, groups: Tensor | None) -> Corpus:
    """Sort rows by class (stably), scale them to unit length, and find each row's excluded slice."""
    place = torch.arange(len(embeddings), device=embeddings.device)
    order = place if labels is None else torch.argsort(labels, stable=True)
    ordered = None if labels is None else labels[order]
    if exclude is None:
        start, stop = torch.zeros_like(place), torch.zeros_like(place)
    elif exclude == "self" or ordered is None:
        start, stop = place, place + 1
    else:
        unlabelled = ordered < 0
        start = torch.where(unlabelled, place, torch.searchsorted(ordered, ordered))
        stop = torch.where(unlabelled, place + 1, torch.searchsorted(ordered, ordered, right=True))
    unit = torch.nn.functional.normalize(embeddings if labels is None else embeddings[order], dim=1)
    return Corpus(unit, order, ordered, start, stop, None if groups is None else groups[order])


def exact(
    data: Corpus,
    rows: Tensor,
    k: int,
    *,
    positive: str | float | None = None,
    chunk_rows: int | None = None,
    progress: Progress = None,
) -> Found:
    """The k best columns of the caller's `rows`, exactly (to float32 rounding), ties to the smaller row number."""
    rows, back = places(data, rows)
    home = back.argsort()  # results go straight to the caller's order: a second table would double the memory
    search = _Approximate(data, k) if data.unit.is_cuda else _Direct(data, k)
    chunk = chunk_rows or _chunk_rows(data.unit)
    result = empty(len(rows), k, rows.device, positive is not None)
    for start in range(0, len(rows), chunk):
        some = slice(start, min(start + chunk, len(rows)))
        scores = search.score(rows[some])
        if result.positive is not None:
            result.positive[home[some]] = _same_class(data, scores, rows[some], positive).half()
        _exclude(data, scores, rows[some])
        put(result, home[some], *search.rank(scores, rows[some]))
        if progress:
            progress(some.stop, len(rows))
    return result


def places(data: Corpus, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(ascending places of the caller's rows in the sorted corpus, where each row's result then stands)."""
    place = torch.empty_like(data.order)
    place[data.order] = torch.arange(len(data), device=data.order.device)
    ascending, by_place = place[rows].sort()
    back = torch.empty_like(by_place)
    back[by_place] = torch.arange(len(rows), device=rows.device)
    return ascending, back


def in_order(found: Found, back: Tensor) -> Found:
    """What was found, in the order of the caller's rows."""
    back = back.to(found.indices.device)
    own = None if found.positive is None else found.positive[back]
    return Found(found.indices[back], found.scores[back], own)


class _Direct:
    """Scores in float32, the best of them by `_sorted_best`."""

    def __init__(self, data: Corpus, k: int) -> None:
        self.data, self.k = data, k
        self.scores = data.unit.new_empty(0)  # reused: in fresh memory a narrow product takes twice as long

    def score(self, block: Tensor) -> Tensor:
        if len(self.scores) < len(block):
            self.scores = self.data.unit.new_empty(len(block), len(self.data))
        return torch.mm(take(self.data.unit, block), self.data.unit.T, out=self.scores[: len(block)])

    def rank(self, scores: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        return ranked(scores, self.k, take(self.data.unit, block), self.data.unit, self.data.order)


class _Approximate:
    """Scores in bfloat16 with float32 sums, more than k kept and scored again in float32.

    A row is proven right when its k-th float32 score is above the lowest kept approximate score plus the largest
    possible error, since nothing that was left out can then belong; other rows are searched again in float32.
    """

    _ERROR = 2.0**-8  # |x.y - bf16(x).bf16(y)| for unit vectors: two roundings of 2^-9 relative each
    _GROUP = 64

    def __init__(self, data: Corpus, k: int) -> None:
        self.data, self.k = data, k
        self.keep = min(len(data), k + k // 4 + 64)
        padding = -len(data) % self._GROUP  # whole groups, so that group maxima are one pass
        self.half = torch.nn.functional.pad(data.unit.bfloat16(), (0, 0, 0, padding))

    def score(self, block: Tensor) -> Tensor:
        scores = torch.mm(take(self.half, block), self.half.T, out_dtype=torch.float32)
        scores[:, len(self.data) :] = -torch.inf
        return scores

    def rank(self, scores: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        data = self.data
        rough, columns = _best(scores, self.keep)
        values = torch.empty_like(rough)
        step = max(1, _GATHER // (self.keep * data.unit.shape[1]))
        for a in range(0, len(block), step):
            some = slice(a, a + step)
            values[some] = (data.unit[columns[some]] * take(data.unit, block[some])[:, None]).sum(2)
        values = torch.where(rough.isneginf(), rough, values)
        values, indices = by_score_then_index(values, data.order[columns])
        floor = rough.amin(1)
        unproven = (floor > -torch.inf) & (values[:, self.k - 1] <= floor + self._ERROR)
        values, indices = values[:, : self.k], indices[:, : self.k]
        if bool(unproven.any()):
            again = unproven.nonzero()[:, 0]
            full = _float32_product(take(data.unit, block[again]), data.unit)
            _exclude(data, full, block[again])
            values[again], indices[again] = ranked(full, self.k, take(data.unit, block[again]), data.unit, data.order)
        return values, indices


def ranked(scores: Tensor, k: int, rows: Tensor, columns: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """(values, the caller's row numbers) of the k best columns, ties to the smaller row number.

    `scores` [r, c] are products of the unit vectors `rows` [r, dim] and `columns` [c, dim] and -inf where excluded. The
    last digits of a float32 product depend on how it was cut into blocks, so columns with nearly the same score are
    put in order by their float64 products: the result is the same for any chunk and any order of rows.
    """
    values, chosen = _sorted_best(scores, min(k + _SPARE, scores.shape[1]))
    last = values[:, -1].clone()
    values, indices = in_exact_order(values, chosen, rows, columns, order)
    if values.shape[1] < scores.shape[1]:
        open_end = (values[:, k - 1] - last <= 2 * _NEAR) & (last > -torch.inf)
        for number in open_end.nonzero()[:, 0].tolist():  # more ties than were fetched: settle the whole row
            every = torch.arange(len(order), device=order.device)
            whole = _float64_products(rows, columns, torch.full_like(order, number), every)
            whole = torch.where(scores[number].isneginf(), -torch.inf, whole)
            best, found = by_score_then_index(whole[None], order[None])
            values[number, :k], indices[number, :k] = best[0, :k].float(), found[0, :k]
    return values[:, :k], indices[:, :k]


def in_exact_order(
    values: Tensor, chosen: Tensor, rows: Tensor, columns: Tensor, order: Tensor
) -> tuple[Tensor, Tensor]:
    """(values, the caller's row numbers), best first, of the columns `chosen` [r, m] with falling scores `values`."""
    indices = order[chosen]
    close = (values[:, :-1] - values[:, 1:] <= _NEAR) & (values[:, 1:] > -torch.inf)
    tied = close.any(1).nonzero()[:, 0]
    if len(tied):
        pad = torch.nn.functional.pad
        row, place = (pad(close, (0, 1)) | pad(close, (1, 0)))[tied].nonzero().unbind(1)
        exact = values[tied].double()
        exact[row, place] = _float64_products(rows, columns, tied[row], chosen[tied][row, place])
        exact, indices[tied] = by_score_then_index(exact, indices[tied])
        values[tied] = exact.float()
    return values, indices


def _float64_products(rows: Tensor, columns: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Products of pairs of rows and columns, summed in float64 and rounded to 2^-40, where equal sums are equal."""
    step = max(1, (1 << 22) // rows.shape[1])
    pairs = zip(row.split(step), column.split(step), strict=True)
    sums = torch.cat([(rows[r].double() * columns[c].double()).sum(1) for r, c in pairs])
    return (sums * 2.0**40).round() * 2.0**-40


def _sorted_best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
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


def by_score_then_index(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    indices, by_index = indices.sort(dim=1, stable=True)
    values, by_value = values.gather(1, by_index).sort(dim=1, descending=True, stable=True)
    return values, indices.gather(1, by_value)


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
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


def _exclude(data: Corpus, scores: Tensor, block: Tensor) -> None:
    """Set the excluded columns of every row to -inf, in place."""
    start, stop = data.start[block], data.stop[block]
    if bool((stop - start == 1).all()):
        scores.scatter_(1, start[:, None], -torch.inf)
    elif (runs := _runs(start, stop)) is not None:
        for top, bottom, left, right in runs:
            scores[top:bottom, left:right] = -torch.inf
    else:
        scores.masked_fill_(_mask(start, stop, scores.shape[1]), -torch.inf)
    if data.groups is not None:
        same = data.groups[block][:, None] == data.groups[None]
        scores[:, : len(data)].masked_fill_(same & (data.groups[block] >= 0)[:, None], -torch.inf)


def _runs(start: Tensor, stop: Tensor) -> list[tuple[int, int, int, int]] | None:
    """Runs of rows with one excluded slice, or None where they are too short to be worth a loop."""
    left, counts = torch.unique_consecutive(start, return_counts=True)
    if len(left) > 64 and len(left) > len(start) // 8:
        return None
    bottom = counts.cumsum(0)
    right = stop[bottom - 1]
    return list(zip((bottom - counts).tolist(), bottom.tolist(), left.tolist(), right.tolist(), strict=True))


def _mask(start: Tensor, stop: Tensor, columns: int) -> Tensor:
    place = torch.arange(columns, device=start.device)
    return (place >= start[:, None]) & (place < stop[:, None])


def _same_class(data: Corpus, scores: Tensor, block: Tensor, kind: str | float | None) -> Tensor:
    """The similarity of each row to its own class: largest, mean or a quantile over the others; -inf if alone."""
    start, stop = data.start[block], data.stop[block]
    result = scores.new_full((len(block),), -torch.inf)
    runs = _runs(start, stop)
    if runs is None and kind == "max":
        others = _mask(start, stop, scores.shape[1]).scatter_(1, block[:, None], False)
        return scores.masked_fill(~others, -torch.inf).amax(1)
    for top, bottom, left, right in runs or _single_runs(start, stop):
        if right - left < 2:
            continue
        own = scores[top:bottom, left:right].clone()
        own.scatter_(1, (block[top:bottom] - left)[:, None], -torch.inf)
        if kind == "max":
            result[top:bottom] = own.amax(1)
        else:
            others = own.sort(dim=1, descending=True).values[:, :-1]  # the row itself is last
            result[top:bottom] = others.mean(1) if kind == "mean" else others.quantile(float(kind or 0), dim=1)
    return result


def _single_runs(start: Tensor, stop: Tensor) -> Iterator[tuple[int, int, int, int]]:
    for row, (left, right) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        yield row, row + 1, left, right


def empty(rows: int, k: int, device: torch.device, positive: bool = False) -> Found:
    return Found(
        torch.full((rows, k), -1, dtype=torch.int32, device=device),
        torch.full((rows, k), -torch.inf, dtype=torch.float16, device=device),
        torch.full((rows,), -torch.inf, dtype=torch.float16, device=device) if positive else None,
    )


def put(result: Found, rows: slice | Tensor, values: Tensor, indices: Tensor) -> None:
    width = values.shape[1]
    result.indices[rows, :width] = torch.where(values.isneginf(), -1, indices).int()
    result.scores[rows, :width] = values.half()


def take(matrix: Tensor, block: Tensor) -> Tensor:
    """Rows of a block: a view where they follow each other."""
    first, last = int(block[0]), int(block[-1])
    return matrix[first : last + 1] if last - first + 1 == len(block) else matrix[block]


def _chunk_rows(unit: Tensor) -> int:
    budget = CPU_SCORES
    if unit.is_cuda:
        budget = min(_GPU_SCORES, torch.cuda.mem_get_info(unit.device)[0] // 4 // 8)
    return max(16, min(budget // len(unit), 1 << 16))


def _float32_product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right.T in true float32, whatever the process allows (TF32 keeps 10 bits)."""
    settings: Any = torch.backends.cuda.matmul
    allowed = settings.allow_tf32
    settings.allow_tf32 = False
    try:
        return torch.mm(left, right.T)
    finally:
        settings.allow_tf32 = allowed

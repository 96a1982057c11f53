"""Exact top-k cosine search with excluded columns.

Rows are sorted by class first, so that a row's excluded columns are one slice `start:stop` and excluding them costs a
fill of that slice instead of a mask over every score. Inside, rows and columns are places in that sorted order;
`Layout.order` maps a place to the caller's row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scns.ranking import NEAR, SPARE, grouped_best, in_exact_order, ranked, sorted_best, true_float32
from scns.relatives import PRODUCTS, same_class

Progress = Callable[[int, int], None] | None

CPU_SCORES = 1 << 24  # scores held at a time: 64 MB of float32, small enough to stay in a large cache
GPU_SCORES = 1 << 30  # 4 GB, or an eighth of the free memory where that is less
_GROUPS = 16  # that are looked at one by one; more are told apart by a mask
_SHARE = 16  # excluded scores are listed, instead of masked, where they are at most one in so many
_GATHER = 1 << 28  # floats gathered at a time when candidates are scored again: 1 GB


@dataclass(frozen=True)
class Layout:
    """Rows sorted by class, and the slice of columns that each row may not take."""

    order: Tensor  # int64 [n]: the caller's row of each place
    labels: Tensor | None  # int64 [n], sorted; -1 = unlabelled
    start: Tensor  # int64 [n]
    stop: Tensor  # int64 [n]
    groups: Tensor | None  # int64 [n]: rows of one group are never paired

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True)
class Corpus(Layout):
    """A layout with its unit vectors."""

    unit: Tensor  # float32 [n, dim]


@dataclass(frozen=True)
class Found:
    """The k best columns of some rows: the caller's row numbers (-1 = none), cosines, and the same-class score."""

    indices: Tensor  # int32 [rows, k]
    scores: Tensor  # float16 [rows, k]
    positive: Tensor | None  # float16 [rows]


def layout(
    count: int, labels: Tensor | None, exclude: str | None, groups: Tensor | None, device: torch.device
) -> Layout:
    """`count` rows sorted by class (stably), with each row's excluded slice."""
    place = torch.arange(count, device=device)
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
    return Layout(order, ordered, start, stop, None if groups is None else groups[order])


def corpus(embeddings: Tensor, labels: Tensor | None, exclude: str | None, groups: Tensor | None) -> Corpus:
    """The layout of the rows, with the rows themselves scaled to unit length."""
    data = layout(len(embeddings), labels, exclude, groups, embeddings.device)
    unit = torch.nn.functional.normalize(embeddings if labels is None else embeddings[data.order], dim=1)
    return Corpus(data.order, data.labels, data.start, data.stop, data.groups, unit)


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
    search = Approximate(data.unit, k) if data.unit.is_cuda else Direct(data.unit, k)
    chunk = chunk_rows or _chunk_rows(data.unit)
    result = empty(len(rows), k, rows.device, positive is not None)
    if result.positive is not None and positive is not None:
        result.positive[home] = own_class(data, rows, positive)
    for start in range(0, len(rows), chunk):
        some = slice(start, min(start + chunk, len(rows)))
        put(result, home[some], *_rank(data, search, rows[some], k))
        if progress:
            progress(some.stop, len(rows))
    return result


def _rank(data: Corpus, search: "Direct | Approximate", block: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(values, the caller's row numbers) of the k best columns of the rows at the places `block`."""
    rows = take(data.unit, block)
    scores = search.score(rows)
    exclude_columns(data, scores, block)
    if isinstance(search, Direct):
        return ranked(scores, k, rows, data.unit, data.order)
    values, chosen, limit = search.best(scores, rows)
    unproven = ((values[:, k - 1] <= limit) & (limit > -torch.inf)).nonzero()[:, 0]
    values, indices = in_exact_order(values, chosen, data.order[chosen], rows, data.unit, _GATHER // 4)
    values, indices = values[:, :k], indices[:, :k]
    if len(unproven):
        again = _rank(data, Direct(data.unit, k), block[unproven], k)
        values[unproven], indices[unproven] = again
    return values, indices


def own_class(data: Corpus, rows: Tensor, kind: str | float) -> Tensor:
    """float16 [rows]: the similarity of the rows at ascending places to their class, -inf if alone in it."""
    products = PRODUCTS[data.unit.device.type]
    return same_class(data.start, data.stop, data.groups, data.unit, rows, kind, products, data.unit.shape[1]).half()


def places(data: Layout, rows: Tensor) -> tuple[Tensor, Tensor]:
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


class Direct:
    """Rows against a block of columns: scores in float32, the best of them with some to spare."""

    def __init__(self, columns: Tensor, k: int, space: Tensor | None = None) -> None:
        self.columns, self.keep = columns, min(k + SPARE, len(columns))
        self.space = columns.new_empty(0) if space is None else space  # reused: fresh memory takes twice as long

    def score(self, rows: Tensor) -> Tensor:
        size = len(rows) * len(self.columns)
        if self.space.numel() < size:
            self.space = self.columns.new_empty(size)
        scores = self.space[:size].view(len(rows), len(self.columns))
        with true_float32():
            return torch.mm(rows, self.columns.T, out=scores)

    def best(self, scores: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(falling values, columns, the limit that no column left out can be above)."""
        values, chosen = sorted_best(scores, self.keep)
        last = values[:, -1] + 2 * NEAR
        return values, chosen, last if self.keep < len(self.columns) else last.fill_(-torch.inf)


class Approximate:
    """Scores in bfloat16 with float32 sums, more than k kept and scored again in float32.

    A row is proven right when its k-th float32 score is above the lowest kept approximate score plus the largest
    possible error, since nothing that was left out can then belong; other rows are searched again in float32.
    """

    _ERROR = 2.0**-8  # |x.y - bf16(x).bf16(y)| for unit vectors: two roundings of 2^-9 relative each
    _GROUP = 64

    def __init__(self, columns: Tensor, k: int, gather: int = _GATHER) -> None:
        self.columns, self.gather = columns, gather
        self.keep = min(len(columns), k + k // 4 + 64)
        padding = -len(columns) % self._GROUP  # whole groups, so that group maxima are one pass
        self.half = torch.nn.functional.pad(columns.bfloat16(), (0, 0, 0, padding))

    def score(self, rows: Tensor) -> Tensor:
        scores = torch.mm(rows.bfloat16(), self.half.T, out_dtype=torch.float32)
        scores[:, len(self.columns) :] = -torch.inf
        return scores

    def best(self, scores: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(falling values, columns, the limit that no column left out can be above)."""
        rough, chosen = grouped_best(scores, self.keep)
        chosen.clamp_(max=len(self.columns) - 1)  # padding is kept only where too few columns are left, with -inf
        values = torch.empty_like(rough)
        step = max(1, self.gather // (self.keep * rows.shape[1]))
        for a in range(0, len(rows), step):
            some = slice(a, a + step)
            values[some] = (self.columns[chosen[some]] * rows[some, None]).sum(2)
        values = torch.where(rough.isneginf(), rough, values)
        values, by_value = values.sort(dim=1, descending=True)
        limit = rough.amin(1) + self._ERROR
        return values, chosen.gather(1, by_value), limit if self.keep < len(self.columns) else limit.fill_(-torch.inf)


def exclude_columns(data: Layout, scores: Tensor, block: Tensor, first: int = 0) -> None:
    """Set the excluded columns of the rows at `block` to -inf, in place; `scores` are those of columns from `first`."""
    width = min(scores.shape[1], len(data) - first)
    start, stop = ((each[block] - first).clamp(0, width) for each in (data.start, data.stop))
    if (runs := _runs(start, stop)) is not None:
        for top, bottom, left, right in runs:
            scores[top:bottom, left:right] = -torch.inf
    elif (total := int((stop - start).sum())) <= scores.numel() // _SHARE:
        scores[_listed(start.to(scores.device), stop.to(scores.device), total)] = -torch.inf
    else:
        start, stop = start.to(scores.device), stop.to(scores.device)
        scores.masked_fill_(_mask(start, stop, scores.shape[1]), -torch.inf)
    if data.groups is not None:
        own, others = (each.to(scores.device) for each in (data.groups[block], data.groups[first : first + width]))
        _exclude_groups(scores[:, :width], own, others)


def _exclude_groups(scores: Tensor, own: Tensor, others: Tensor) -> None:
    """Set the columns of each row's own group to -inf, in place; `own` and `others` are the groups of both."""
    kinds = own[own >= 0].unique().tolist()
    if len(kinds) > _GROUPS:
        scores.masked_fill_((own[:, None] == others) & (own >= 0)[:, None], -torch.inf)
        return
    for kind in kinds:  # all queries are one group: their columns are the same for every row
        rows, columns = own == kind, (others == kind).nonzero()[:, 0]
        if rows.all():
            scores.index_fill_(1, columns, -torch.inf)
        else:
            scores[rows.nonzero(), columns] = -torch.inf


def _listed(start: Tensor, stop: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """(row, column) of each of the `total` excluded columns."""
    size = stop - start
    rows = torch.repeat_interleave(torch.arange(len(size), device=size.device), size, output_size=total)
    before = size.cumsum(0) - size
    return rows, torch.arange(total, device=size.device) - before[rows] + start[rows]


def _runs(start: Tensor, stop: Tensor) -> list[tuple[int, int, int, int]] | None:
    """Runs of rows with one excluded slice, or None where they are too short to be worth a loop."""
    slices = (start << 32) + stop  # one number for both
    counts = torch.unique_consecutive(slices, return_counts=True)[1]
    if len(counts) > 64 and len(counts) > len(start) // 8:
        return None
    bottom = counts.cumsum(0)
    left, right = start[bottom - 1], stop[bottom - 1]
    return list(zip((bottom - counts).tolist(), bottom.tolist(), left.tolist(), right.tolist(), strict=True))


def _mask(start: Tensor, stop: Tensor, columns: int) -> Tensor:
    place = torch.arange(columns, device=start.device)
    return (place >= start[:, None]) & (place < stop[:, None])


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
        budget = min(GPU_SCORES, torch.cuda.mem_get_info(unit.device)[0] // 4 // 8)
    return max(16, min(budget // len(unit), 1 << 16))

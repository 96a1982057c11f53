"""How similar every row is to its own class: what a false negative is recognised by.

In float64, class by class, so that the result does not depend on how a search is cut into blocks. Classes of about the
same size are padded and multiplied together: many small ones cost no loop of their own.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from scns.ranking import Rows, rounded

PRODUCTS = {"cpu": 1 << 21, "cuda": 1 << 26}  # float64 products held at a time: 16 and 512 MB


def same_class(
    start: Tensor,
    stop: Tensor,
    groups: Tensor | None,
    unit: Rows,
    places: Tensor,
    kind: str | float,
    products: int,
    dim: int,
) -> Tensor:
    """Largest ("max"), "mean" or quantile similarity of the rows at ascending `places` to others of their class.

    float64 [rows]; -inf for a row alone. A class is the slice `start:stop` of its members; those of the row's own group
    are no others. `products` bounds what is held at a time.
    """
    result = torch.full((len(places),), -torch.inf, dtype=torch.float64, device=places.device)
    if len(places) == 0:
        return result
    left, counts = torch.unique_consecutive(start[places], return_counts=True)
    top = counts.cumsum(0) - counts
    sizes = stop[places[top]] - left
    for classes in _batches(counts.tolist(), sizes.tolist(), products, dim):
        some = torch.tensor(classes, device=places.device)
        width, height = int(sizes[some].max()), int(counts[some].max())
        chunk = max(1, products // (len(classes) * max(width, dim)))  # rows at a time: all, but of one large class
        column = left[some, None] + torch.arange(width, device=places.device)  # [classes, width]
        outside = column >= (left + sizes)[some, None]
        for first in range(0, height, chunk):
            row = top[some, None] + torch.arange(first, min(first + chunk, height), device=places.device)
            inside = row < (top + counts)[some, None]
            place = places[row.clamp(max=len(places) - 1)]  # [classes, rows]
            scores = _products(unit, place, column.clamp(max=len(start) - 1), products, dim)
            banned = outside[:, None] | (place[:, :, None] == column[:, None])
            if groups is not None:
                own, other = groups[place], groups[column.clamp(max=len(start) - 1)]
                banned |= (own[:, :, None] == other[:, None]) & (own >= 0)[:, :, None]
            scores.masked_fill_(banned.to(scores.device), -torch.inf)
            found = _reduced(scores, (~banned).sum(2).to(scores.device), kind)
            result[row[inside]] = found.to(result.device)[inside]
    return result


def _batches(counts: list[int], sizes: list[int], products: int, dim: int) -> Iterator[list[int]]:
    """Classes to take together, small ones first; one that is too large for `products` is alone."""
    batch: list[int] = []
    height = 0
    for each in sorted(range(len(sizes)), key=lambda number: sizes[number]):
        taller = max(height, counts[each])
        full = (len(batch) + 1) * max(taller * sizes[each], (taller + sizes[each]) * dim) > products
        if batch and (full or sizes[each] > 2 * sizes[batch[0]]):  # padding to twice the size is the most
            yield batch
            batch, taller = [], counts[each]
        batch, height = [*batch, each], taller
    yield batch


def _products(unit: Rows, rows: Tensor, columns: Tensor, products: int, dim: int) -> Tensor:
    """Float64 products of `rows` [classes, r] with `columns` [classes, c] of their class: [classes, r, c].

    Where the vectors are, or where `columns` is if those of one row are too many to be held there.
    """
    left = unit[rows.flatten()].view(*rows.shape, -1).double()
    parts = []
    for some in columns.split(max(1, products // (len(rows) * dim)), dim=1):
        right = unit[some.flatten()].view(*some.shape, -1).double()
        part = rounded(torch.bmm(left, right.mT))
        parts.append(part if columns.shape[1] <= products else part.to(columns.device))
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


def _reduced(scores: Tensor, others: Tensor, kind: str | float) -> Tensor:
    """One number a row [classes, r] of the finite ones of its scores [classes, r, c]: `others` [classes, r] of them."""
    if kind == "max":
        return scores.amax(2)
    falling = scores.sort(dim=2, descending=True).values
    if kind == "mean":
        sums = torch.where(falling.isneginf(), 0, falling).sum(2)
        return torch.where(others > 0, sums / others.clamp(min=1), -torch.inf)
    place = (1 - float(kind)) * (others - 1).clamp(min=0).double()  # between two of the falling scores
    above = place.floor().long()
    below = torch.minimum(above + 1, (others - 1).clamp(min=0))
    high, low = (falling.gather(2, at[:, :, None].expand(-1, scores.shape[1], 1))[..., 0] for at in (above, below))
    return torch.where(others > 0, high + (low - high) * (place - above), -torch.inf)

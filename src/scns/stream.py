"""The exact search for embeddings that do not fit: blocks of rows against blocks of columns, in `memory` bytes.

The k best of a block of rows stay on the device while the columns pass, read from where they lie. What is found is what
`search.exact` finds, bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scns import room
from scns.errors import InputError
from scns.ranking import NEAR, SPARE, by_score_then_index, float64_products, in_exact_order
from scns.relatives import same_class
from scns.search import (
    CPU_SCORES,
    GPU_SCORES,
    Approximate,
    Direct,
    Found,
    Layout,
    Progress,
    empty,
    exclude_columns,
    places,
    put,
)
from scns.source import Source

_LEAST_ROWS = 16  # of a block; below, reading the columns again and again would take all the time
_LEAST_COLUMNS = 1024
WORKSPACE = {"cpu": 0, "cuda": 34 << 20}  # of products themselves, where they have not been there before
_MOST_COLUMNS = {"cpu": 1 << 18, "cuda": 1 << 20}  # beyond, a tile of scores would have too few rows for a fast product


@dataclass(frozen=True)
class Plan:
    """How a search is cut so that it stays within its memory."""

    rows: int  # of a block whose best are kept while all columns pass
    columns: int  # of a block that is read while the one before is searched
    tile: int  # rows scored at a time
    spare: int  # bytes for putting what was found in order

    def told(self, rows: int, count: int) -> str:
        """The plan in words."""
        blocks, parts = -(-rows // self.rows), -(-count // self.columns)
        return f"{blocks:,} x {parts:,} blocks of {min(self.rows, rows):,} rows x {self.columns:,} columns"


def plan(
    count: int, dim: int, k: int, memory: int, fixed: int, device: torch.device | str, groups: bool = False
) -> Plan:
    """The largest blocks that `memory` bytes hold beside `fixed` ones: a quarter for rows, one for columns, and scores.

    A row block holds its vectors twice while it is read, and 12 bytes for each of its best; a column is there as read,
    as the next block, as a unit vector, and on a GPU in half precision. Scores are float32 with masks beside them.
    """
    cuda = torch.device(device).type == "cuda"
    fixed += WORKSPACE["cuda" if cuda else "cpu"]
    best = k + SPARE
    fetched = k + k // 4 + 64 if cuda else best
    a_row, a_column = 8 * dim + 12 * best + 64, (16 if cuda else 12) * dim
    a_score, beside = 8 if groups else 6, 40 * (best + fetched) + (64 * 12 * fetched if cuda else 0)
    least = min(count, max(_LEAST_COLUMNS, fetched))
    need = max(4 * _LEAST_ROWS * a_row, 4 * least * a_column, 4 * _LEAST_ROWS * (a_score * least + beside))
    given, memory = memory, memory - fixed
    if memory < need:
        raise InputError(
            f"memory={room.shown(given)} is too small for one block of {_LEAST_ROWS} rows and {least:,} columns of "
            f"{dim} numbers with k={k}; give at least {room.shown((fixed + need) * 1.05)}."
        )
    most = min(count, _MOST_COLUMNS["cuda" if cuda else "cpu"])
    columns = min(most, max(least, memory // 4 // a_column // 64 * 64))  # whole groups of 64
    scores = min(memory // 4 // a_score, GPU_SCORES if cuda else CPU_SCORES)
    tile = max(1, min(scores // columns, memory // 4 // (a_score * columns + beside)))
    return Plan(max(_LEAST_ROWS, memory // 4 // a_row), columns, tile, memory // 8)


def streamed(
    data: Layout,
    source: Source,
    rows: Tensor,
    k: int,
    cut: Plan,
    *,
    positive: str | float | None = None,
    progress: Progress = None,
) -> Found:
    """The k best columns of the caller's `rows`, as `search.exact` finds them; on the host, where `data` is."""
    rows, back = places(data, rows)
    home = back.argsort()
    order = data.order.to(source.device)
    result = empty(len(rows), k, rows.device, positive is not None)
    for start in range(0, len(rows), cut.rows):
        some = slice(start, min(start + cut.rows, len(rows)))
        if positive is not None and result.positive is not None:
            products = cut.spare // 48  # each is there up to four times, with its vectors and, for a quantile, sorted
            own = same_class(data.start, data.stop, data.groups, source, rows[some], positive, products, source.dim)
            result.positive[home[some]] = own.half()

        def advance(part: float, start: int = start, some: slice = some) -> None:
            if progress:
                progress(start + int(part * (some.stop - start)), len(rows))

        put(result, home[some], *_search_block(data, source, order, rows[some], k, cut, advance))
    return result


def _search_block(
    data: Layout,
    source: Source,
    order: Tensor,
    block: Tensor,
    k: int,
    cut: Plan,
    advance: Callable[[float], None],
    sure: bool = False,
) -> tuple[Tensor, Tensor]:
    """(values, the caller's row numbers) of the k best columns of the rows at the places `block`, on the host.

    sure=True scores in float32 on a GPU too: what the rows that half precision cannot settle need.
    """
    rows = source[block]
    best = _Best(len(block), min(k + SPARE, len(source)), source.device)
    space = rows.new_empty(0)
    for first, columns in source.blocks(cut.columns):
        quick = source.device.type == "cuda" and not sure
        search = Approximate(columns, k, gather=cut.spare // 8) if quick else Direct(columns, k, space)
        for top in range(0, len(block), cut.tile):
            some = slice(top, min(top + cut.tile, len(block)))
            scores = search.score(rows[some])
            exclude_columns(data, scores, block[some], first)
            best.take_in(some, first, *search.best(scores, rows[some]))
            del scores  # before the next are there
            advance((first + len(columns) * some.stop / len(block)) / len(source))
        if isinstance(search, Direct):
            space = search.space  # one piece of memory serves all blocks
        del columns, search  # before the next block is read
    del space
    values = torch.empty(len(block), k, dtype=torch.float32)
    indices = torch.empty(len(block), k, dtype=torch.int64)
    step = max(1, cut.spare // (100 * best.values.shape[1]))
    for top in range(0, len(block), step):
        some = slice(top, top + step)
        values[some], indices[some] = _settled(source, order, rows, best, some, k, cut)
    unsure = best.unsure(k)
    if len(unsure):
        if sure or source.device.type == "cpu":
            again = _whole_rows(data, source, block[unsure], k, cut)
        else:
            again = _search_block(data, source, order, block[unsure], k, cut, lambda part: None, sure=True)
        values[unsure], indices[unsure] = again
    return values, indices


class _Best:
    """The best columns so far of every row of a block, and the limit that no column left out can be above."""

    def __init__(self, rows: int, keep: int, device: torch.device) -> None:
        self.values = torch.full((rows, keep), -torch.inf, dtype=torch.float32, device=device)
        self.places = torch.zeros(rows, keep, dtype=torch.int64, device=device)
        self.limit = torch.full((rows,), -torch.inf, dtype=torch.float32, device=device)

    def take_in(self, some: slice, first: int, values: Tensor, chosen: Tensor, limit: Tensor) -> None:
        """Merge what a block of columns from place `first` has for the rows `some`."""
        keep = self.values.shape[1]
        both = torch.cat([self.values[some], values], 1)
        where = torch.cat([self.places[some], chosen + first], 1)
        values, which = both.topk(keep + 1, dim=1)
        self.values[some] = values[:, :keep]
        self.places[some] = where.gather(1, which[:, :keep])
        self.limit[some] = torch.stack([self.limit[some], limit, values[:, keep] + 2 * NEAR]).amax(0)

    def unsure(self, k: int) -> Tensor:
        """The rows whose k-th column is not known to be above all that were left out; on the host."""
        return ((self.values[:, k - 1] <= self.limit) & (self.limit > -torch.inf)).nonzero()[:, 0].cpu()


def _settled(
    source: Source, order: Tensor, rows: Tensor, best: _Best, some: slice, k: int, cut: Plan
) -> tuple[Tensor, Tensor]:
    """(values, the caller's row numbers) of the k best of some rows, in exact order, on the host."""
    chosen = best.places[some]
    pairs = cut.spare // 40  # a float of a pair is there as float32 and float64, of the row and of the column
    values, indices = in_exact_order(best.values[some].clone(), chosen, order[chosen], rows[some], source, pairs)
    return values[:, :k].cpu(), indices[:, :k].cpu()


def _whole_rows(data: Layout, source: Source, block: Tensor, k: int, cut: Plan) -> tuple[Tensor, Tensor]:
    """The same for rows with more ties than were fetched: every product in float64."""
    rows = source[block].cpu()
    values = torch.full((len(block), k), -torch.inf, dtype=torch.float64)
    indices = torch.full((len(block), k), len(data))
    step = max(1, cut.spare // (64 + 24 * source.dim))
    for first in range(0, len(source), step):
        every = torch.arange(first, min(first + step, len(source)))
        columns = source[every].cpu()
        for number in range(len(block)):
            row = torch.full_like(every, number)
            products = float64_products(rows, columns, row, every - first, cut.spare // 40)[None]
            exclude_columns(data, products, block[number : number + 1], first)
            both = torch.cat([values[number], products[0]]), torch.cat([indices[number], data.order[every]])
            found = by_score_then_index(both[0][None], both[1][None])
            values[number], indices[number] = found[0][0, :k], found[1][0, :k]
    return values.float(), indices

"""Embeddings that stay where they are, a mapped file or several, and are read as unit rows, block by block."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from scns.ahead import Ahead


class Source:
    """Unit vectors on `device` by their places in `order`: `source[places]`, or all of them in blocks."""

    def __init__(self, pieces: Sequence[Tensor], order: Tensor, device: torch.device | str) -> None:
        self.pieces, self.order, self.device = list(pieces), order, torch.device(device)
        self.starts = [0, *accumulate(len(piece) for piece in pieces)]
        self.dim = pieces[0].shape[1]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, places: Tensor) -> Tensor:
        into = torch.empty(len(places), self.dim, dtype=torch.float32)
        self._put(self.order[places.cpu()], into)
        return F.normalize(into.to(self.device), dim=1)

    def blocks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        """(first place, unit vectors [up to size, dim]) of block after block, each read while the last is used."""
        size = min(size, len(self))
        ahead = Ahead(self._put, (size, self.dim), torch.float32, self.device)
        firsts = range(0, len(self), size)
        ahead.start(self.order[:size])
        for first in firsts:
            block = ahead.take()
            if first + size < len(self):
                ahead.start(self.order[first + size : first + 2 * size])
            yield first, F.normalize(block, dim=1)

    def _put(self, rows: Tensor, into: Tensor) -> int:
        """The caller's `rows` in the first rows of a host buffer; how many there are."""
        into = into[: len(rows)]
        if len(self.pieces) == 1:
            _copy_rows(self.pieces[0], rows, into)
            return len(rows)
        where = torch.bucketize(rows, torch.tensor(self.starts[1:]), right=True)
        for number in torch.unique(where).tolist():
            here = (where == number).nonzero()[:, 0]
            into[here] = self.pieces[number][rows[here] - self.starts[number]].float()
        return len(rows)


def _copy_rows(piece: Tensor, rows: Tensor, into: Tensor) -> None:
    """Rows of a piece; those that follow each other are read as one."""
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
    if last - first + 1 == len(rows) and bool((rows.diff() == 1).all()):
        into.copy_(piece[first : last + 1])
    elif piece.dtype == into.dtype:
        torch.index_select(piece, 0, rows, out=into)
    else:
        into.copy_(piece[rows])

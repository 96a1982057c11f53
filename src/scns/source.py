"""Embeddings that stay where they are, a mapped file or several, and are read as unit rows, block by block."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor


class Source:
    """Unit vectors on `device` by their places in `order`: `source[places]`, or all of them in blocks.

    The next block is read by a thread while the present one is searched. For a GPU it goes through one of two pinned
    buffers and a stream of its own.
    """

    def __init__(self, pieces: Sequence[Tensor], order: Tensor, device: torch.device | str) -> None:
        self.pieces, self.order, self.device = list(pieces), order, torch.device(device)
        self.starts = [0, *accumulate(len(piece) for piece in pieces)]
        self.dim = pieces[0].shape[1]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, places: Tensor) -> Tensor:
        return F.normalize(self._read(self.order[places.cpu()]).to(self.device), dim=1)

    def blocks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        """(its first place, unit vectors [up to size, dim]) of block after block."""
        fetch = _Fetch(self, size) if self.device.type == "cuda" else None
        with ThreadPoolExecutor(1) as pool:
            begin = fetch or self._block
            waiting = pool.submit(begin, 0, size)
            for first in range(0, len(self), size):
                block = waiting.result()
                if fetch is not None:
                    fetch.release(first // size)
                if first + size < len(self):
                    waiting = pool.submit(begin, first + size, size)
                if fetch is not None:
                    fetch.await_copy(first // size)
                yield first, F.normalize(block, dim=1)

    def _block(self, first: int, size: int) -> Tensor:
        return self._read(self.order[first : first + size])

    def _read(self, rows: Tensor) -> Tensor:
        """float32 [rows, dim] on the host; rows that follow each other are read as one."""
        found = torch.empty(len(rows), self.dim)
        if len(self.pieces) == 1:
            first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, -1)
            if last - first + 1 == len(rows) and bool((rows.diff() == 1).all()):
                return found.copy_(self.pieces[0][first : last + 1])
            return found.copy_(self.pieces[0][rows])
        where = torch.bucketize(rows, torch.tensor(self.starts[1:]), right=True)
        for number in torch.unique(where).tolist():
            here = (where == number).nonzero()[:, 0]
            found[here] = self.pieces[number][rows[here] - self.starts[number]].float()
        return found


class _Fetch:
    """Blocks on their way to a GPU: two pinned buffers, two on the device, one stream."""

    def __init__(self, source: Source, size: int) -> None:
        self.source = source
        size = min(size, len(source))
        self.pinned = [torch.empty(size, source.dim, pin_memory=True) for _ in range(2)]
        self.there = [torch.empty(size, source.dim, device=source.device) for _ in range(2)]
        self.stream = torch.cuda.Stream(source.device)
        self.copied = [torch.cuda.Event() for _ in range(2)]
        self.used = [torch.cuda.Event() for _ in range(2)]

    def __call__(self, first: int, size: int) -> Tensor:
        side = first // size % 2
        host = self.source._block(first, size)
        self.copied[side].synchronize()  # the copy before last from this buffer
        pinned, there = self.pinned[side][: len(host)], self.there[side][: len(host)]
        pinned.copy_(host)
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.used[side])
            there.copy_(pinned, non_blocking=True)
            self.copied[side].record(self.stream)
        return there

    def release(self, number: int) -> None:
        """What was enqueued so far has used the other buffer."""
        self.used[(number + 1) % 2].record(torch.cuda.current_stream(self.source.device))

    def await_copy(self, number: int) -> None:
        torch.cuda.current_stream(self.source.device).wait_event(self.copied[number % 2])

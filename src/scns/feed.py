"""`Feed`: pixels that stay on the host, on their way to a step that reads them from a place that does not move.

A step asks for samples by number, as it would ask a data set on the device: `slot` says which row of `pixels` holds a
sample of the present batch. So the step is the same, it can be captured, and it gives the same weights.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from scns.ahead import Ahead
from scns.data import Images, Mapped


class Feed:
    """The pixels of one batch after another, gathered on the host while the device works on the batch before."""

    def __init__(self, images: Images, most: int) -> None:
        assert isinstance(images.pixels, Mapped)
        self.source, device = images.pixels, images.labels.device
        self.pixels = torch.zeros(most, *self.source.shape[1:], dtype=torch.uint8, device=device)
        self.slot = torch.zeros(len(images), dtype=torch.int64, device=device)  # of a sample in this batch
        self.rows = torch.arange(most, device=device)
        self.ahead = Ahead(self.source.put, tuple(self.pixels.shape), torch.uint8, device)
        self.jobs: list[tuple[Tensor, Tensor]] = []  # samples of the batches to come, last first: here and on the host

    def begin(self, batches: Iterable[Tensor]) -> None:
        """Say which samples the batches to come are made of; reading the first begins."""
        self.ahead.drop()
        here = list(batches)
        host = torch.cat(here).cpu().split([len(rows) for rows in here]) if here else ()
        self.jobs = list(zip(here, host, strict=True))[::-1]
        if self.jobs:
            self.ahead.start(self.jobs[-1][1])

    def supply(self) -> None:
        """Put the next batch where the step reads it, and begin to read the one after; before every step."""
        samples, _ = self.jobs.pop()
        found = self.ahead.take()
        self.pixels[: len(found)].copy_(found)
        self.slot[samples] = self.rows[: len(samples)]  # a sample that comes twice has its pixels in both rows
        if self.jobs:
            self.ahead.start(self.jobs[-1][1])


def feed(images: Images, most: int) -> Feed | None:
    """A feed of up to `most` samples at a time, where the images stay on the host."""
    return Feed(images, most) if isinstance(images.pixels, Mapped) else None

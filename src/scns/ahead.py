"""Reading from the host one job ahead of the device."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Generic, TypeVar

import torch
from torch import Tensor

Job = TypeVar("Job")

CUDA_CALLS = Lock()  # held while a graph is captured, during which no other thread may call CUDA, and by such calls


class Ahead(Generic[Job]):
    """What `read(job, buffer)` puts into the first rows of a buffer, as a tensor on the device.

    A thread reads the job that was started while the device works on what was taken before. There are two buffers; for
    a GPU they are pinned, with two more on the device that are filled on a stream of their own. So call in turn: start,
    take, start, take, ...: what was taken stays valid until the start after the next.
    """

    def __init__(
        self, read: Callable[[Job, Tensor], int], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.read, self.device = read, device
        cuda = device.type == "cuda"
        self.host = [torch.empty(shape, dtype=dtype, pin_memory=cuda) for _ in range(2)]
        self.there = [torch.empty(shape, dtype=dtype, device=device) for _ in range(2)] if cuda else self.host
        self.stream = torch.cuda.Stream(device) if cuda else None
        self.copied = [torch.cuda.Event() for _ in range(2)] if cuda else []
        self.used = [torch.cuda.Event() for _ in range(2)] if cuda else []
        self.side = 0  # of the next job
        self.pool = ThreadPoolExecutor(1)
        self.waiting: Future[tuple[int, int]] | None = None

    def start(self, job: Job) -> None:
        """Begin to read a job; its buffer is free once the device has done what it was told so far."""
        if self.stream is not None:
            self.used[self.side].record(torch.cuda.current_stream(self.device))
        self.waiting = self.pool.submit(self._fetch, job, self.side)
        self.side = 1 - self.side

    def take(self) -> Tensor:
        """The rows of the job that was started last; the device waits for them, the host for their reading alone."""
        assert self.waiting is not None
        side, count = self.waiting.result()
        self.waiting = None
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_event(self.copied[side])
        return self.there[side][:count]

    def drop(self) -> None:
        """Forget a job that nobody will take."""
        if self.waiting is not None:
            self.waiting.result()
            self.waiting = None

    def _fetch(self, job: Job, side: int) -> tuple[int, int]:
        if self.stream is None:
            return side, self.read(job, self.host[side])
        with CUDA_CALLS:
            self.copied[side].synchronize()  # the copy before last, from this buffer
        count = self.read(job, self.host[side])
        with CUDA_CALLS, torch.cuda.stream(self.stream):
            self.stream.wait_event(self.used[side])
            self.there[side][:count].copy_(self.host[side][:count], non_blocking=True)
            self.copied[side].record(self.stream)
        return side, count

"""CUDA graphs: warm up, capture, replay. The only file that knows of them."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from scns.ahead import CUDA_CALLS


class Replay:
    """`replay(size)` runs `body(size)`: from a captured graph on CUDA (one a size), directly elsewhere.

    Warming up changes parameters, tables and sums; everything in `state()` is put back before the capture, so a
    captured run starts where an eager one does. Tensors made outside must be kept alive by their owner: a graph holds
    no reference to them. Each graph is captured on a stream and with workspaces of its own, because others may run
    beside it. `before` is called ahead of every run and is no part of it.
    """

    def __init__(
        self,
        body: Callable[[int], None],
        state: Callable[[], Iterable[Tensor]],
        enabled: bool,
        *,
        before: Callable[[], None] | None = None,
        warm_up: int = 3,  # steps before a capture: algorithms are chosen and workspaces allocated in them
    ) -> None:
        self.before, self.warm_up = before, warm_up
        self.body, self.state, self.enabled = body, state, enabled and torch.cuda.is_available()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.streams: list[torch.cuda.Stream] = []

    def __call__(self, size: int) -> None:
        if self.before is not None:
            self.before()
        if not self.enabled:
            self.body(size)
            return
        if size not in self.graphs:
            with CUDA_CALLS:
                self.graphs[size] = self._capture(size)
        self.graphs[size].replay()

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        self.streams.append(stream)
        before = [tensor.detach().clone() for tensor in self.state()]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(1 if self.graphs else self.warm_up):  # another size has but its own algorithms to choose
                self.body(size)
                with torch.no_grad():
                    for tensor, value in zip(self.state(), before, strict=True):
                        tensor.copy_(value)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # NCCL's own thread looks at its events meanwhile, which is no fault of this one.
        mode = "thread_local" if dist.is_available() and dist.is_initialized() else "global"
        with _own_workspaces(), _no_garbage(), torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            self.body(size)
        return graph


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """What products need beside their operands becomes part of the graph's memory.

    torch keeps one such workspace for each stream and gives it to every graph of that stream. Of streams it has 32,
    after which the first comes again: graphs would write to one workspace at once, or to one freed with another graph.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Garbage waits: a graph of a finished run that is freed during a capture would spoil it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()

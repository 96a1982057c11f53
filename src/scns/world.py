"""The processes that train one run together: who this one is, and what passes between them.

torch.distributed does the work, torchrun starts the processes. A process alone is a world of one, in which everything
here returns what it was given. Tensors pass in rank order, so that what is put together is the same on every rank.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from scns.errors import AgreedError, InputError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process among those that train together; the default is alone."""

    rank: int = 0
    size: int = 1
    nccl: bool = False  # CUDA tensors pass by NCCL: a captured step may hold what passes

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def sizes(self, count: int) -> list[int]:
        """How many of `count` rows each rank takes: as equal as can be, the first ranks one more."""
        each, more = divmod(count, self.size)
        return [each + (rank < more) for rank in range(self.size)]

    def span(self, count: int) -> tuple[int, int]:
        """(start, stop): the rows of `count` that this rank takes."""
        sizes = self.sizes(count)
        start = sum(sizes[: self.rank])
        return start, start + sizes[self.rank]

    # --- tensors

    @torch.no_grad()
    def gather(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """All ranks' rows in rank order [sum of sizes, ...], without gradient."""
        if self.size == 1:
            return rows
        short = max(sizes) - len(rows)
        sent = torch.cat([rows, rows.new_zeros(short, *rows.shape[1:])]) if short else rows.contiguous()
        parts = [torch.empty(sent.shape, dtype=sent.dtype, device=sent.device) for _ in sizes]
        dist.all_gather(parts, sent)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def whole(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """All ranks' rows in rank order, for a loss that every rank computes from them alike.

        The gradient of that loss for its own rows is on every rank already, so nothing passes on the way back. It is
        multiplied by the number of ranks, because DistributedDataParallel averages the gradients of parameters.
        """
        return rows if self.size == 1 else _Whole.apply(rows, self, sizes, float(self.size))

    def joined_columns(self, columns: Tensor, sizes: list[int]) -> Tensor:
        """[rows, sum of sizes] of every rank's columns of `spread` rows, for a loss every rank computes alike."""
        return columns if self.size == 1 else _Whole.apply(columns.T, self, sizes, 1.0).T

    def spread(self, rows: Tensor) -> Tensor:
        """The same rows, of which each rank goes on to compute a part: gradients of all parts are added."""
        return rows if self.size == 1 else _Spread.apply(rows, self)

    def added(self, parts: Tensor) -> Tensor:
        """The sum of all ranks' parts, for a loss that every rank computes from it alike."""
        return parts if self.size == 1 else _Added.apply(parts, self)

    @torch.no_grad()
    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks, without gradient."""
        if self.size == 1:
            return values
        values = values.clone()
        dist.all_reduce(values)
        return values

    @torch.no_grad()
    def average_(self, tensors: list[Tensor]) -> None:
        """Replace tensors of one type by their mean over ranks, in one message."""
        if self.size == 1 or not tensors:
            return
        mean = self.total(torch.cat([tensor.flatten() for tensor in tensors])) / self.size
        for tensor, part in zip(tensors, mean.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    @torch.no_grad()
    def align_(self, tensors: list[Tensor]) -> None:
        """Replace tensors by rank 0's."""
        if self.size > 1:
            for tensor in tensors:
                sent = tensor.contiguous()
                dist.broadcast(sent, 0)
                tensor.copy_(sent)

    def collected(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """All ranks' rows in rank order on the host of rank 0, and no rows elsewhere: nowhere twice, on no device."""
        rows = rows.detach().cpu().contiguous()
        if self.size == 1:
            return rows
        if not self.leads:
            dist.send(rows.view(torch.uint8), 0)
            return rows[:0]
        whole = torch.empty(sum(sizes), *rows.shape[1:], dtype=rows.dtype)
        parts = whole.split(sizes)
        parts[0].copy_(rows)
        for rank in range(1, self.size):
            dist.recv(parts[rank].view(torch.uint8), rank)
        return whole

    # --- decisions

    def any(self, asked: int) -> int:
        """The largest number that a rank asks with; 0: nobody asks."""
        if self.size == 1:
            return asked
        said = torch.tensor(asked)  # on the host: nothing waits for a GPU
        dist.all_reduce(said, dist.ReduceOp.MAX)
        return int(said)

    def together(self, act: Callable[[], T]) -> T:
        """What `act` returns on rank 0, where alone it runs; its bad input is every rank's."""
        if self.size == 1:
            return act()
        outcome: list[Any] = [None, None]
        if self.leads:
            try:
                outcome[0] = act()
            except (InputError, OSError) as error:
                outcome[1] = error
        dist.broadcast_object_list(outcome, 0)
        if outcome[1] is not None:
            raise AgreedError(_said(outcome[1]), self.rank) from None
        return outcome[0]

    def each(self, act: Callable[[], T]) -> T:
        """What `act` returns here; bad input of any rank ends all of them with one sentence, which names the rank.

        Nothing may pass between ranks inside `act`: a rank that fails would leave the others waiting.
        """
        if self.size == 1:
            return act()
        found, failed = None, None
        try:
            found = act()
        except (InputError, OSError) as error:
            failed = _said(error)
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, (failed, socket.gethostname()))
        bad = [(rank, said, host) for rank, (said, host) in enumerate(every) if said is not None]
        if len(bad) == self.size and len({said for _, said, _ in bad}) == 1:
            raise AgreedError(bad[0][1], self.rank)
        if bad:
            rank, said, host = bad[0]
            raise AgreedError(f"Rank {rank} of {self.size} (on {host}): {said}", self.rank)
        return found  # type: ignore[return-value]

    def same(self, what: str, values: dict[str, Any], remedy: str) -> None:
        """Raise, on every rank, when another rank has other values than rank 0; the keys that differ are named."""
        if self.size == 1:
            return
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, (values, socket.gethostname()))
        first = every[0][0]
        for rank, (other, host) in enumerate(every):
            keys = [key for key in {**first, **other} if first.get(key) != other.get(key)]
            if keys:
                named = ", ".join(f"{key} ({other.get(key)!r} there, {first.get(key)!r} on rank 0)" for key in keys)
                raise AgreedError(
                    f"Rank {rank} (on {host}) has another {what} than rank 0: {named}; {remedy}.", self.rank
                )

    @contextmanager
    def alike(self) -> Iterator[None]:
        """Bad input that shows on every rank in the same way: one of them says it."""
        try:
            yield
        except InputError as error:
            if self.size == 1:
                raise
            raise AgreedError(str(error), self.rank) from None


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, world: World, sizes: list[int], factor: float) -> Tensor:
        start = sum(sizes[: world.rank])
        context.own, context.factor = slice(start, start + sizes[world.rank]), factor
        return world.gather(rows, sizes)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient[context.own] * context.factor, None, None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, world: World) -> Tensor:
        context.world = world
        return rows.view_as(rows)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return context.world.total(gradient.contiguous()), None


class _Added(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, parts: Tensor, world: World) -> Tensor:
        return world.total(parts.contiguous())

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _said(error: Exception) -> str:
    """An error as one sentence."""
    if isinstance(error, OSError) and error.strerror:
        return (
            f"{error.strerror}{f' {error.filename!r}' if error.filename else ''}; check the path and its permissions."
        )
    return str(error)

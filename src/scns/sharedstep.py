"""The training step of which several processes do a share each; the weights become those that one process would get.

The loss is a mean over the global batch. A method whose loss is a mean over samples computes it on its rank's share;
one that compares samples computes it on every rank from the features of the whole batch. DistributedDataParallel
averages the gradients of all ranks. Tables and queues are updated on every rank from the whole batch, in its order.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scns import augment
from scns.features import Batch, Features
from scns.methods import Method
from scns.share import Share
from scns.step import Member, Step, training
from scns.world import World


class _Seen(NamedTuple):
    """A batch, or a rank's share of one, and what both networks say of it."""

    batch: Batch
    student: Features
    teacher: Features | None


class SharedStep(Step):
    """`Step` for one process of several: it is called with the sizes of global batches and trains on its share."""

    warm_up = 11  # DistributedDataParallel times its first 10 steps, which a capture cannot hold

    def __init__(self, *arguments: Any, world: World, **options: Any) -> None:
        self.world, self.ranks = world, world.size
        super().__init__(*arguments, **options)
        side = torch.cuda.stream(torch.cuda.Stream(self.device)) if self.streams else nullcontext()
        with side:  # a capture cannot hold gradients that go by the default stream
            self.passes = [_averaging(self, member) for member in self.members]
        if self.streams:  # they go by the side stream, and a step waits for that
            _expect_other_streams()

    def _train_all(self, size: int) -> None:
        share = Share(self.world, size)
        index = self.order[self.place + self.rows[:size]]
        shared = told = None
        if any(not member.method.companions for member in self.members):
            shared = self._batch(share.own(index), share.count)
            told = self._ask(shared)
        for number, member in enumerate(self.members):
            with self._side(number):
                every, batch, said = index, shared, told
                if member.method.companions:
                    others = member.method.companion_index(index, self.epoch)
                    every = torch.cat([index, others.flatten()])
                    batch = self._batch(torch.cat([share.own(index), share.own(others).flatten()]), share.count)
                    said = self._ask(batch)
                assert batch is not None
                self._train_share(number, share, every, batch, said)
        self._join()

    def _train_share(self, number: int, share: Share, every: Tensor, own: Batch, told: Features | None) -> None:
        """Train a member on the rows `own` of the whole batch of samples `every`."""
        member = self.members[number]
        member.optimizer.zero_grad()
        if member.sync is not None:
            member.sync.on = share.divides
        with self._precision():
            losses = self.passes[number](share, every, own, told)
        seen, whole = self.passes[number].module.take()
        # The average of gradients over ranks is to be the gradient of the mean over all anchors.
        weight = 1.0 if member.whole or not share.divides else share.count * self.world.size / share.size
        (torch.stack(training(losses)).sum() * weight).backward()
        member.optimizer.step()
        with torch.no_grad():
            if member.main and type(member.method).after_step is not Method.after_step:
                member.after_step(*(whole or self.whole(share, every, seen, gradient=False)))
            member.names = list(losses)
            if share.divides or self.world.leads:  # what every rank computes is counted once
                labels = own.labels[: own.anchors]
                member.sums(member.totals, labels, seen.student.logits, list(losses.values()))

    def whole(self, share: Share, every: Tensor, seen: _Seen, gradient: bool) -> _Seen:
        """The whole batch, from this rank's share of it; of the images it has those of the share alone."""
        if not share.divides:
            return seen
        view = augment.number(self.dy[every], self.dx[every], self.flip[every], self.pad)
        batch = Batch(seen.batch.images, self.images.labels[every], every, view, self.epoch, share.size)
        return _Seen(batch, share.whole(seen.student, gradient), self._whole_teacher(share, batch, seen.teacher))

    def _whole_teacher(self, share: Share, batch: Batch, own: Features | None) -> Features | None:
        """What the teacher says of the whole batch: looked up where it can be, else passed between ranks."""
        if own is None or self.teacher is None:
            return None
        if self.told is not None:
            return self._ask(batch)
        return share.whole(own, False) if self.teacher.logits is None else self.teacher(batch)

    def _own(self, rows: Tensor) -> Tensor:
        return Share(self.world, len(rows)).own(rows)

    def _look(self, index: Tensor) -> Features:
        """What the teacher says of samples, each rank asking about its share of them."""
        share = Share(self.world, len(index))
        return share.whole(super()._look(share.own(index)), False)


class _Pass(nn.Module):
    """A forward pass around the parameters that are trained, and no other: what DistributedDataParallel is given."""

    def __init__(self, step: SharedStep, member: Member) -> None:
        super().__init__()
        self.trained = nn.ParameterList(member.optimizer.parameters)
        self.parts = (step, member)  # in a tuple: neither buffers nor frozen weights are this module's
        self.seen: tuple[_Seen, _Seen | None] | None = None

    def forward(self, share: Share, every: Tensor, own: Batch, told: Features | None) -> dict[str, Tensor]:
        step, member = self.parts
        student = member.student(own.images, features=True)
        if step.beside is not None:
            torch.cuda.current_stream(step.device).wait_stream(step.beside)
        seen = _Seen(own, student, told)
        whole = step.whole(share, every, seen, gradient=True) if member.whole else None
        self.seen = seen, whole
        if whole is not None:
            return member.losses(*whole)
        return share.balanced(member.losses(*seen), step.images.labels[every[: share.size]])

    def take(self) -> tuple[_Seen, _Seen | None]:
        """What the last pass saw: this rank's share, and the whole batch where the losses are of it."""
        assert self.seen is not None
        seen, self.seen = self.seen, None
        return seen


def _expect_other_streams() -> None:
    tell = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)  # not in every torch
    if tell is not None:
        tell(False)


def _averaging(step: SharedStep, member: Member) -> DistributedDataParallel:
    # A static graph may leave parameters without gradient, which then stay as they are, as they do in one process.
    return DistributedDataParallel(_Pass(step, member), static_graph=True, gradient_as_bucket_view=True)

"""One training step, from a place in the epoch's order to updated weights, for one student or several at once.

Everything a step reads or writes is a tensor that stays where it is: the order and views of the epoch, the place in it,
the learning rates, the sums of losses. So a step can be captured and replayed, and the host does nothing else in an
epoch.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from scns import augment
from scns.data import Images, epoch_table, padding
from scns.errors import InputError
from scns.features import Batch, Features
from scns.feed import feed
from scns.methods import Method
from scns.sgd import SGD
from scns.syncnorm import Sync
from scns.teacher import LOOK_PIXELS, Teacher
from scns.world import World

Losses = Callable[[Batch, Features, Features | None], dict[str, Tensor]]


@dataclass
class Member:
    """A student in training: its network, objective and optimiser, and what it has added up in this epoch."""

    student: nn.Module
    method: Method
    losses: Losses  # the method's own, or those of a stage before it
    optimizer: SGD
    main: bool = True  # False in a stage: tables are not updated then
    compiled: str = "no"  # or "network", "all"
    world: World = World()  # noqa: RUF009 (it is frozen)
    whole: bool = False  # its losses are of the whole batch on every rank
    sync: Sync | None = None  # of its batch norms
    lr: Tensor = field(init=False)
    names: list[str] = field(default_factory=list)
    # float32: for n losses, n sums; correct answers; answers; then n counts of the samples with a finite loss
    totals: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.lr = self.optimizer.lr
        self.totals = torch.zeros(_MOST_TERMS, device=self.lr.device)
        some, alone = self.compiled != "no", self.world.size == 1  # what passes between ranks is not compiled
        if some and self.sync is None:
            self.student = quicker(Shown(self.student, bool({"maps", "preacts"} & {*self.method.needs})), True)
        every = self.compiled == "all" and alone
        # These two are compiled once for all members whose methods differ in their arguments alone, losses often not.
        self.sums = quicker(_sums, some and alone)
        self.after_step = quicker(self.method.after_step, every or (some and alone and self.method.short_update))
        self.losses = quicker(self.losses, every)


class Shown(nn.Module):
    """A student that shows no maps where its method reads none: a compiled network takes zeros as their gradients."""

    def __init__(self, student: nn.Module, maps: bool) -> None:
        super().__init__()
        self.student, self.maps = student, maps

    def forward(self, images: Tensor, features: bool = True) -> Features:
        seen = self.student(images, features=features)
        return seen if self.maps or not features else Features(seen.logits, seen.embedding)


_MOST_TERMS = 32
MOST_LOSSES = (_MOST_TERMS - 2) // 2  # their sums, and for how many samples each was finite; right answers, and all
_MOST_SHAPES = 256  # compiled versions of one function: students x (full batch, tail); torch's own limit is 8


def quicker(part: Any, compiled: bool) -> Any:
    """The function or module compiled for the shapes it is called with, where that is asked for."""
    if not compiled:
        return part
    torch._dynamo.config.recompile_limit = _MOST_SHAPES
    torch._dynamo.config.accumulated_recompile_limit = 4 * _MOST_SHAPES
    from torch._functorch import config

    if hasattr(config, "backward_pass_autocast"):  # else what is kept out of autocast is cast in its backward pass
        config.backward_pass_autocast = "off"
    return torch.compile(part, dynamic=False)


class Step:
    """Members that see the same batches, and the same teacher."""

    warm_up = 3  # steps before a capture
    ranks = 1  # processes that look ahead together

    def __init__(
        self,
        images: Images,
        members: list[Member],
        teacher: Teacher | None,
        *,
        batch: int,
        seed: int,
        augmented: bool = True,
        bf16: bool = False,
    ) -> None:
        self.images, self.members, self.teacher = images, members, teacher
        self.batch, self.seed, self.augmented, self.bf16 = batch, seed, augmented, bf16
        self.pad = padding(images.size) if augmented else 0
        count, device = len(images), images.labels.device
        self.device = device
        self.order = torch.zeros(count, dtype=torch.int64, device=device)
        self.dy, self.dx = torch.zeros_like(self.order), torch.zeros_like(self.order)  # by sample
        self.flip = torch.zeros(count, dtype=torch.bool, device=device)
        self.place = torch.zeros((), dtype=torch.int64, device=device)
        self.epoch = torch.zeros((), dtype=torch.int64, device=device)
        self.rows = torch.arange(batch, device=device)
        self.streams = [torch.cuda.Stream(device) for _ in members] if device.type == "cuda" else []
        self.compiled = any(member.compiled != "no" for member in members)
        self.view = quicker(augment.view, self.compiled)
        self.ahead_place = torch.zeros_like(self.place)
        self.told = self._tables()  # what a live teacher says of every image's view of this epoch
        most = batch * (1 + max(member.method.companions for member in members))
        self.fed = feed(images, max([most, *self.ahead_sizes()]))
        asked = teacher is not None and self.told is None
        self.beside = torch.cuda.Stream(device) if self.streams and asked else None  # the teacher's

    def sizes(self, epoch: int) -> list[int]:
        """The batch sizes of an epoch: whole batches, and the last, smaller one."""
        order = self._own_order(epoch)
        count = len(self.images) if order is None else len(order)
        return _parts(count, self.batch)

    def begin(self, epoch: int, place: int = 0) -> None:
        """Draw the order and views of an epoch (from 1) and start it at `place`; sums start at zero with it."""
        table = epoch_table(len(self.images), self.seed, epoch, pad=self.pad, device=self.device)
        if self.augmented:
            for target, values in ((self.dy, table.dy), (self.dx, table.dx), (self.flip, table.flip)):
                target[table.order] = values
        order = self._own_order(epoch)
        order = table.order if order is None else order.to(self.device)
        self.order[: len(order)] = order
        self.epoch.fill_(epoch)
        self.place.fill_(place)
        self.ahead_place.zero_()
        for member in self.members:
            if place == 0:
                member.totals.zero_()
            if member.main:
                member.method.begin_epoch(epoch, fresh=place == 0)
        if self.fed is not None:
            self.fed.begin(self._samples(epoch, place))

    def supply(self) -> None:
        """Bring the samples of the next look ahead or step to the device, where they are not there; before each."""
        if self.fed is not None:
            self.fed.supply()

    @torch.no_grad()
    def _samples(self, epoch: int, place: int) -> Iterator[Tensor]:
        """The samples that every look ahead and every step from `place` on will ask for."""
        first = 0
        for size in self.ahead_sizes():
            start = min(first, len(self.images) - size)
            yield self._own(torch.arange(start, start + size, device=self.device))
            first += size
        first, method = 0, self.members[0].method  # a method with companions trains alone
        for size in self.sizes(epoch):
            if first >= place:
                index = self.order[first : first + size]
                others = [method.companion_index(index, self.epoch)] if method.companions else []
                yield torch.cat([self._own(index), *(self._own(each).flatten() for each in others)])
            first += size

    def _own(self, rows: Tensor) -> Tensor:
        """Of the rows of a batch, those that this process forwards."""
        return rows

    def __call__(self, size: int) -> None:
        """Train every member on the next `size` samples."""
        if self.compiled and size < self.batch:  # once an epoch: not worth the minutes of compiling for its size
            with torch.compiler.set_stance("force_eager"):
                self._train_all(size)
        else:
            self._train_all(size)
        self.place.add_(size)

    def _train_all(self, size: int) -> None:
        index = self.order[self.place + self.rows[:size]]
        shared = self._batch(index, size) if any(not m.method.companions for m in self.members) else None
        told = None if shared is None else self._ask(shared)
        for number, member in enumerate(self.members):
            with self._side(number):
                self._train(member, index, shared, told)
        self._join()

    def ahead_sizes(self) -> list[int]:
        """How many images the teacher looks at in each go before the epoch; none where it is asked in the steps."""
        if self.told is None or self.teacher is None:
            return []
        count, pixels = len(self.images), max(self.images.size, self.teacher.size) ** 2
        chunk = min(count, max(self.batch, self.ranks * LOOK_PIXELS // pixels))
        return [chunk] * -(-count // chunk)

    @torch.no_grad()
    def look_ahead(self, size: int) -> None:
        """Ask the live teacher about the views of `size` samples: a thousand at once cost half as much as in batches.

        A frozen teacher's answer depends on the view alone, so this is what it would say in the step.
        """
        assert self.teacher is not None and self.told is not None
        first = self.ahead_place.clamp(max=len(self.images) - size)  # the last go is a whole one too
        index = first + torch.arange(size, device=self.device)
        said = self._look(index)
        self.told.logits.index_copy_(0, index, said.logits)
        self.told.embedding.index_copy_(0, index, said.embedding)
        self.ahead_place.add_(size)

    def _look(self, index: Tensor) -> Features:
        assert self.teacher is not None
        return self.teacher(self._batch(index, len(index)))

    def _tables(self) -> Features | None:
        teacher = self.teacher
        wanted = {need for member in self.members for need in member.method.needs}
        if teacher is None or teacher.logits is not None or wanted & {"maps", "preacts"}:
            return None
        one = teacher.holds(self.images)
        if one is None:
            return None
        count = len(self.images)
        return Features(*(each.new_zeros(count, each.shape[1]) for each in (one.logits, one.embedding)))  # type: ignore[arg-type]

    def _train(self, member: Member, index: Tensor, shared: Batch | None, told: Features | None) -> None:
        batch = shared
        if member.method.companions:
            others = member.method.companion_index(index, self.epoch)
            batch = self._batch(torch.cat([index, others.flatten()]), len(index))
            told = self._ask(batch)
        assert batch is not None
        member.optimizer.zero_grad()
        with self._precision():
            seen = member.student(batch.images, features=True)
            if self.beside is not None:
                torch.cuda.current_stream(self.device).wait_stream(self.beside)
            losses = member.losses(batch, seen, told)
        torch.autograd.backward(training(losses))
        member.optimizer.step()
        with torch.no_grad():
            if member.main:
                member.after_step(batch, seen, told)
            member.names = list(losses)
            member.sums(member.totals, batch.of_anchors(batch.labels), seen.logits, list(losses.values()))

    def _ask(self, batch: Batch) -> Features | None:
        """The teacher's features: looked up, or asked for on a stream of its own beside the students' passes."""
        if self.told is not None:
            return Features(self.told.logits[batch.index], self.told.embedding[batch.index])
        if self.teacher is None or self.beside is None:
            return None if self.teacher is None else self.teacher(batch)
        self.beside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.beside):
            return self.teacher(batch)

    @torch.no_grad()
    def _batch(self, index: Tensor, anchors: int) -> Batch:
        images, view = self.view(self.images, index, self.dy, self.dx, self.flip, self.pad, self.fed)
        return Batch(images, self.images.labels[index], index, view, self.epoch, anchors)

    def _own_order(self, epoch: int) -> Tensor | None:
        """The order that a member's method insists on; such a member trains alone."""
        return self.members[0].method.epoch_order(self.batch, epoch) if self.members[0].main else None

    def _precision(self) -> torch.autocast | nullcontext:
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()

    def _side(self, number: int) -> torch.cuda.StreamContext | nullcontext:
        """Several students run beside each other on streams of their own; one runs where it is."""
        if len(self.members) == 1 or not self.streams:
            return nullcontext()
        self.streams[number].wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.streams[number])

    def _join(self) -> None:
        if len(self.members) > 1:
            for stream in self.streams:
                torch.cuda.current_stream(self.device).wait_stream(stream)

    def state(self) -> Iterable[Tensor]:
        """Every tensor that a step changes: what a warm-up must put back."""
        yield self.place
        for member in self.members:
            yield member.totals
            yield from (*member.student.parameters(), *member.student.buffers())
            yield from (*member.method.parameters(), *member.method.buffers())
            yield from member.optimizer.velocities


def _parts(count: int, size: int) -> list[int]:
    """`count` in parts of that size, and the last, smaller one."""
    return [size] * (count // size) + [count % size] * (count % size > 0)


def training(losses: dict[str, Tensor]) -> list[Tensor]:
    """The losses that have a gradient: others are looked at and no more. Without any, nothing would be trained."""
    found = [loss for loss in losses.values() if loss.requires_grad]
    if len(losses) > MOST_LOSSES:
        raise InputError(f"The method has {len(losses)} losses, and a step tells {MOST_LOSSES} at most; add some up.")
    if not found:
        given = f"the losses ({', '.join(losses)}) depend on nothing that is trained" if losses else "there is no loss"
        raise InputError(f"Nothing can be learned: {given}; give a term of the method a weight above 0.")
    return found


def _sums(totals: Tensor, labels: Tensor, logits: Tensor, losses: list[Tensor]) -> None:
    """Add a step to the totals of `Member`."""
    values = torch.stack([value.detach().float() for value in losses])
    answers = torch.stack([logits[: len(labels)].argmax(1) == labels, labels >= 0]).sum(1)
    finite = values - values == 0  # what isfinite says, in half the kernels
    parts = totals[: 2 * len(values) + 2].split([len(values), 2, len(values)])
    for part, added, times in zip(parts, (values, answers, finite), (len(labels), 1, len(labels)), strict=True):
        part.add_(added, alpha=times)


def chunk_of(student: nn.Module, images: Images) -> int:
    """Images that are evaluated at a time: the same while training and after, so that accuracies are equal."""
    usual = {"cpu": 250, "cuda": 2000}[next(student.parameters()).device.type]  # of the images' own size
    seen = getattr(student, "input_size", 0) or images.size
    return max(1, int(usual * min(1.0, (images.size / seen) ** 2)))


class Evaluation:
    """Counts a network's correct answers on every image, without augmentation, chunk by chunk."""

    def __init__(
        self,
        student: nn.Module,
        images: Images,
        *,
        chunk: int,
        bf16: bool = False,
        span: tuple[int, int] | None = None,  # (start, stop) of the images to look at; all by default
    ) -> None:
        self.start, self.stop = span or (0, len(images))
        self.student, self.images, self.chunk, self.bf16 = student, images, min(chunk, len(images)), bf16
        device = images.labels.device
        self.place = torch.zeros((), dtype=torch.int64, device=device)
        self.right = torch.zeros((), device=device)
        self.rows = torch.arange(self.chunk, device=device)
        self.fed = feed(images, self.chunk)

    def sizes(self) -> list[int]:
        return _parts(self.stop - self.start, self.chunk)

    def begin(self) -> None:
        self.place.fill_(self.start)
        self.right.zero_()
        if self.fed is not None:
            self.fed.begin(torch.arange(self.start, self.stop, device=self.place.device).split(self.chunk))

    def supply(self) -> None:
        """Bring the next chunk to the device, where it is not there; before each call."""
        if self.fed is not None:
            self.fed.supply()

    @torch.no_grad()
    def __call__(self, size: int) -> None:
        index = self.place + self.rows[:size]
        pixels, rows = augment.located(self.images, index, self.fed)
        pixels = augment.normalise(pixels[rows], self.images.mean, self.images.std)
        with torch.autocast(pixels.device.type, torch.bfloat16) if self.bf16 else nullcontext():
            logits = self.student(pixels)
        self.right.add_((logits.argmax(1) == self.images.labels[index]).sum())
        self.place.add_(size)

    def state(self) -> Iterable[Tensor]:
        return (self.place, self.right)

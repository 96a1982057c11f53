"""A few training steps of a method on the bundled images: what the tests of all methods share."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from torch import Tensor, nn

from scns import augment, datasets, methods, models, words
from scns.data import Images
from scns.features import Batch, Features, Shapes
from scns.methods import Method, Setting

EACH_CLASS = 16  # so that a batch of 16 can have one class


@cache
def pictures() -> Images:
    """The first images of every class of the bundled set, in order of class."""
    whole = datasets.load("cifar10-mini")
    return whole.subset(torch.cat([(whole.labels == c).nonzero()[:EACH_CLASS, 0] for c in range(whole.classes)]))


@cache
def inputs() -> Tensor:
    """Those images as a network takes them, at half their size: float32 [160, 3, 16, 16]."""
    images = pictures()
    return nn.functional.avg_pool2d(augment.normalise(images.pixels, images.mean, images.std), 2)


@cache
def frozen(name: str) -> models.Network:
    """An untrained teacher in eval mode whose batch norms have seen the images once."""
    with torch.random.fork_rng(devices=[]):  # what is built after it does not depend on whether it was cached
        torch.manual_seed(1)
        network = models.build(name, pictures().classes)
    with torch.no_grad():
        network(inputs()[::4])
    return network.eval().requires_grad_(False)


@cache
def embedded(name: str) -> Tensor:
    with torch.no_grad():
        return frozen(name)(inputs(), features=True).embedding


@cache
def shapes(name: str) -> Shapes:
    with torch.no_grad():
        return Shapes.of(frozen(name)(inputs()[:2], features=True))


def setting(student: str = "resnet8", teacher: str | None = "resnet8", seed: int = 0) -> Setting:
    """The images above, a student and perhaps a teacher; embeddings are the teacher's or else another network's."""
    return Setting(
        labels=pictures().labels,
        student=shapes(student),
        teacher=None if teacher is None else shapes(teacher),
        embeddings=lambda: embedded(teacher or "resnet8"),
        class_vectors=lambda: words.label_vectors(pictures().names),
        seed=seed,
    )


@dataclass
class Case:
    """A method with the networks it trains."""

    method: Method
    student: models.Network
    teacher: models.Network | None

    def features(self, batch: Batch) -> tuple[Features, Features | None]:
        """What both networks say, the student in train mode."""
        ours = self.student.train()(batch.images, features=True)
        with torch.no_grad():
            return ours, None if self.teacher is None else self.teacher(batch.images, features=True)

    def batches(self, size: int = 16, different: int = 2) -> Iterator[Batch]:
        """The first `different` batches of an order, again and again, an epoch each time; companions included."""
        order = self.method.epoch_order(size, 0)
        if order is None:
            order = torch.arange(len(pictures())).view(-1, EACH_CLASS).T.flatten()  # every class in every batch
        epoch = 0
        while True:
            for part in order[: size * different].split(size):
                yield self.batch(part, epoch)
            epoch += 1

    def batch(self, anchors: Tensor, epoch: int = 0) -> Batch:
        now = torch.tensor(epoch)
        index = anchors
        if self.method.companions:
            index = torch.cat([anchors, self.method.companion_index(anchors, now).flatten()])
        view = torch.zeros_like(index)
        return Batch(inputs()[index], pictures().labels[index], index, view, now, len(anchors))


def detached(features: Features) -> Features:
    """The same features as leaves that collect gradients."""
    each = (x.detach().clone().requires_grad_() for x in (features.logits, features.embedding))
    maps, preacts = (
        tuple(x.detach().clone().requires_grad_() for x in some) for some in (features.maps, features.preacts)
    )
    return Features(*each, maps, preacts)


def make(
    name: str, *, student: str = "resnet8", teacher: str | None = "resnet8", seed: int = 0, **arguments: object
) -> Case:
    """The method `name` with a fresh student; `seed` decides the initial parameters."""
    torch.manual_seed(seed)
    network = models.build(student, pictures().classes)
    method = methods.build(name, setting(student, teacher), **arguments)
    return Case(method, network, None if teacher is None else frozen(teacher))


@dataclass
class Run(Case):
    losses: list[dict[str, float]]  # of every step

    def fell(self, term: str) -> bool:
        """Whether the mean of a term over the last two steps is below that over the first two (the same batches)."""
        values = [step[term] for step in self.losses]
        return sum(values[-2:]) < sum(values[:2])


def run_steps(
    name: str,
    steps: int = 20,
    *,
    stage: str | None = None,
    student: str = "resnet8",
    teacher: str | None = "resnet8",
    size: int = 16,
    lr: float = 0.003,  # small enough for every default weight
    **arguments: object,
) -> Run:
    """A method after some steps of SGD in its main stage, or in the `stage` of that name."""
    case = make(name, student=student, teacher=teacher, **arguments)
    method, network = case.method, case.student
    losses_of, parameters = method, [*network.parameters(), *method.trained()]
    if stage is not None:
        found = next(each for each in method.stages() if each.name == stage)
        losses_of = found.losses
        parameters = [p for module in found.modules for p in module.parameters()]
        parameters += features_of(network) if found.student else []
    optimiser = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    told = []
    for batch in islice(case.batches(size), steps):
        ours, theirs = case.features(batch)
        losses = losses_of(batch, ours, theirs)
        optimiser.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()
        if stage is None:
            method.after_step(batch, ours, theirs)
        told.append({term: value.item() for term, value in losses.items()})
    return Run(method, network, case.teacher, told)


def features_of(network: models.Network) -> list[nn.Parameter]:
    """All parameters but the classifier's."""
    head = {id(p) for p in network.head.parameters()}
    return [p for p in network.parameters() if id(p) not in head]

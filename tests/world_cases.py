"""Small float64 trainings that give the same numbers however many processes share them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scns import augment, methods
from scns.data import Images
from scns.features import Batch, Features, Shapes
from scns.memory import divided
from scns.methods import Method, Setting
from scns.sgd import SGD
from scns.sharedstep import SharedStep
from scns.step import Member, Step
from scns.syncnorm import synchronise
from scns.teacher import Teacher
from scns.world import World

COUNT, BATCH, CLASSES = 35, 11, 3  # batches of 11, 11, 11 and 2: uneven shares, and fewer samples than four ranks


class Tiny(nn.Module):
    """Two convolutions with batch norm and a classifier, in float64."""

    def __init__(self, seed: int, width: int = 6) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.stem, self.stage = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, width, 3, 2, 1)
            self.norm1, self.norm2, self.fc = nn.BatchNorm2d(4), nn.BatchNorm2d(width), nn.Linear(width, CLASSES)
        self.double()

    def forward(self, images: Tensor, features: bool = False) -> Features | Tensor:
        first = self.norm1(self.stem(images.to(self.fc.weight.dtype)))
        second = self.norm2(self.stage(first.relu()))
        embedding = second.relu().mean((2, 3))
        logits = self.fc(embedding)
        return Features(logits, embedding, (first.relu(), second.relu()), (first, second)) if features else logits


class Told:
    """A frozen teacher, live or from a table, in float64."""

    holds = Teacher.holds

    def __init__(self, images: Images, cached: bool = False) -> None:
        self.network, self.size = Tiny(7).eval().requires_grad_(False), 0
        self.logits = self.embeddings = None
        if cached:
            whole = self.see(images.pixels.double() / 255)
            self.logits, self.embeddings = whole.logits, whole.embedding

    def see(self, images: Tensor) -> Features:
        return self.network(images, features=True)

    def __call__(self, batch: Batch) -> Features:
        if self.logits is None or self.embeddings is None:
            return self.see(batch.images)
        return Features(self.logits[batch.index], self.embeddings[batch.index])


@dataclass(frozen=True)
class Case:
    """A method and how it is trained."""

    method: str
    arguments: dict[str, Any] = field(default_factory=dict)
    teacher: str = "live"  # or "cached", "none"
    sharded: bool = False
    gather: bool = False  # the losses are of the whole batch although they need not be
    unlabelled: bool = False
    sync: bool = True
    stage: bool = False  # train the method's first stage


_SMALL: dict[str, Any] = {"dim": 5}
_FEW: dict[str, Any] = {**_SMALL, "sampler": "uniform", "negatives": 16}
CASES = {
    "infonce": Case("infonce", _FEW, "none"),
    "infonce, sharded": Case("infonce", _FEW, "none", sharded=True),
    "infonce, its own negatives": Case("infonce", {**_SMALL, "negatives": 16}, "none"),
    "infonce, all negatives, sharded": Case("infonce", {**_SMALL, "sampler": "all"}, "none", sharded=True),
    "infonce, matching, sharded": Case("infonce", {**_SMALL, "preset": "kd+lm", "negatives": 16}, sharded=True),
    "infonce, one side": Case("infonce", {**_FEW, "symmetric": False}, "cached"),
    "crd": Case("crd", {**_SMALL, "negatives": 16}),
    "crd, sharded": Case("crd", {**_SMALL, "negatives": 64}, sharded=True),
    "crd-lm": Case("crd-lm", {**_SMALL, "negatives": 16}),
    "oim": Case("oim", {**_SMALL, "queue": 24}, "none"),
    "rkd": Case("rkd"),
    "sp": Case("sp", {"weight": 20.0}),
    "cka": Case("cka"),
    "cc": Case("cc", _SMALL, "cached"),
    "pkt": Case("pkt", {"weight": 100.0}),
    "scns": Case("scns", {**_SMALL, "negatives": 16, "sampler": "uniform"}),
    "ce, unlabelled": Case("ce", {"kld": 1.0}, unlabelled=True),
    "kld": Case("kld", teacher="cached"),
    "fitnet": Case("fitnet", {"weight": 1.0, "layer": 1}),
    "fitnet, gathered": Case("fitnet", {"weight": 1.0, "layer": 1}, gather=True),
    "ft": Case("ft", {"weight": 10.0}),
    "ft, first stage": Case("ft", {"weight": 10.0}, stage=True),
    "ab, first stage": Case("ab", stage=True),
    "at": Case("at", {"weight": 10.0}),
    "nst": Case("nst", {"weight": 1.0}),
    "vid": Case("vid"),
    "fsp": Case("fsp", {"weight": 1.0}),
    "pc": Case("pc", _SMALL),
    "ce-lm": Case("ce-lm", teacher="none"),
}


@contextmanager
def doubled() -> Iterator[None]:
    """Whole runs in float64: in float32 a few steps at a usual learning rate blow rounding up to the third digit."""
    single, before = augment.normalise.__defaults__, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    augment.normalise.__defaults__ = (torch.float64,)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        augment.normalise.__defaults__ = single


def pictures(unlabelled: bool) -> Images:
    generator = torch.Generator().manual_seed(5)
    pixels = torch.randint(0, 256, (COUNT, 3, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(COUNT) % CLASSES
    if unlabelled:
        labels = torch.where(torch.arange(COUNT) % 4 == 1, -1, labels)
    return Images(pixels, labels, ("a", "b", "c"), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def trained(case: Case, world: World, steps: int = 20) -> dict[str, Tensor]:
    """Everything that training changes, after some steps: weights, gradients, tables, sums."""
    images, student = pictures(case.unlabelled), Tiny(1)
    teacher = None if case.teacher == "none" else Told(images, case.teacher == "cached")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        method = _method(case, images, student, teacher, world)
    for module in (*student.modules(), *method.modules()):
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None  # as `Run` has it
    sync = None
    whole = case.gather or method.whole_batch or case.sharded
    if case.sync and world.size > 1:
        sync = synchronise([student] if whole else [student, method], world)
    member = _member(case, student, method, world, whole, sync)
    kind: Any = SharedStep if world.size > 1 else Step
    options = {"world": world} if world.size > 1 else {}
    step = kind(images, [member], teacher, batch=BATCH, seed=3, **options)
    sums = torch.zeros_like(member.totals)
    epoch = 0
    while steps > 0:
        epoch += 1
        step.begin(epoch)
        for size in step.ahead_sizes():
            step.look_ahead(size)
        for size in step.sizes(epoch)[:steps]:
            step(size)
            steps -= 1
        sums += world.total(member.totals)
    tables = dict(method.state_dict())
    for name, part in divided(method):
        tables[name] = part.collected(tables[name])
    gradients = {f"gradient {i}": p.grad for i, p in enumerate(member.optimizer.parameters)}
    changed = {**{f"student {name}": value for name, value in student.state_dict().items()}, **tables, "sums": sums}
    changed |= {name: value for name, value in gradients.items() if value is not None}
    return {name: value.detach().clone().contiguous() for name, value in changed.items()}


def _method(case: Case, images: Images, student: nn.Module, teacher: Told | None, world: World) -> Method:
    sample = torch.zeros(2, 3, 8, 8)
    setting = Setting(
        labels=images.labels,
        student=Shapes.of(student.eval()(sample, features=True)),
        teacher=None if teacher is None else Shapes.of(teacher.see(sample)),
        seed=3,
        world=world,
        divided=case.sharded,
    )
    student.train()
    return methods.build(case.method, setting, **case.arguments).double()


def _member(case: Case, student: nn.Module, method: Method, world: World, whole: bool, sync: Any) -> Member:
    losses, trained = method.forward, [*student.parameters(), *method.trained()]
    if case.stage:
        stage = method.stages()[0]
        losses, trained = stage.losses, [p for module in stage.modules for p in module.parameters()]
        if stage.student:
            trained += [p for name, p in student.named_parameters() if not name.startswith("fc")]
    optimizer = SGD(trained, 0.05, 0.9, 1e-3, False)
    return Member(student, method, losses, optimizer, main=not case.stage, world=world, whole=whole, sync=sync)


def gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of every tensor, relative to its size; inf where they do not correspond."""
    names = one.keys() | other.keys()
    return {name: _gap(one.get(name), other.get(name)) for name in sorted(names)}


def _gap(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None or one.shape != other.shape:
        return float("inf")
    one, other = one.double(), other.double()
    if not bool(one.isfinite().all() & other.isfinite().all()):
        return float("inf")
    size = max(1.0, float(one.abs().max())) if one.numel() else 1.0
    return float(F.l1_loss(one, other, reduction="none").max()) / size if one.numel() else 0.0

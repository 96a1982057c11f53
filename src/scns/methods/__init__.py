"""Training objectives: one file each, named after the method, with a class `Objective(Method)`.

A method's keyword arguments are its hyper-parameters, with the paper's values as defaults (those of `infonce` are what
was measured best); `PRESETS` of its module holds other published values by name. Where None stands for a value that
depends on others, `effective` of its module says which. `build` finds a method by the name of its file.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from numbers import Integral, Real
from types import ModuleType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scns import functional, plugins, projection
from scns.errors import InputError, unknown
from scns.features import Batch, Features, Shapes
from scns.functional.inputs import check_positive
from scns.memory import FeatureTable, unit_rows
from scns.world import World

if TYPE_CHECKING:
    from scns.recipe import Recipe


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}


@dataclass(frozen=True)
class Setting:
    """What a method is built for."""

    labels: Tensor  # int64 [n]: of the training set; -1 = unlabelled
    student: Shapes
    teacher: Shapes | None = None
    embeddings: Callable[[], Tensor] | None = None  # a frozen network's embedding of every training sample, [n, dim]
    class_vectors: Callable[[], Tensor] | None = None  # word vectors of the label names, [classes, dim]
    answers: Callable[[], Tensor] | None = None  # the frozen network's logits of every training sample, [n, classes]
    seed: int = 0
    world: World = World()  # noqa: RUF009 (it is frozen)  # the processes that train together
    divided: bool = False  # True: each of them holds its share of the tables with a row a sample

    @property
    def classes(self) -> int:
        return self.student.classes

    def believed(self) -> Tensor:
        """The labels, int64 [n]; unlabelled samples have the frozen network's answer, where there is one.

        It says who may be whose positive or negative: else unlabelled samples would be negatives of their own class.
        """
        if self.answers is None or int(self.labels.min()) >= 0:
            return self.labels
        return torch.where(self.labels < 0, self.answers().argmax(1).to(self.labels.device), self.labels)


@dataclass(frozen=True)
class Stage:
    """Training that comes before the main one: `losses` of (batch, student, teacher), over `modules` of the method."""

    name: str
    epochs: int  # never more than the run's own are trained
    losses: Callable[[Batch, Features, Features], dict[str, Tensor]]
    modules: list[nn.Module] = field(default_factory=list)
    student: bool = False  # train the student's feature layers too (all but the classifier)
    lr: float | None = None  # None: that of the main stage

    def __post_init__(self) -> None:
        check_positive(f"epochs of the stage '{self.name}'", self.epochs, zero=True)
        if self.lr is not None:
            check_positive(f"lr of the stage '{self.name}'", self.lr)


class Method(nn.Module):
    """A training objective: may own parameters (projections) and buffers (tables, queues).

    Total loss = ce * cross-entropy + kld * distillation of logits + the method's own terms.
    """

    needs: tuple[str, ...] = ()  # of "teacher", "logits", "embedding", "maps", "preacts"
    # Whether a sample's loss depends on others of its batch: processes that train together then all compute it of the
    # whole batch. False: each computes it of its share, and the mean is taken of the shares.
    whole_batch = True
    fewest = 1  # samples that its losses need in a batch, the last of an epoch included
    companions = 0  # how many samples beside each anchor a step forwards, chosen by `companion_index`
    short_update = True  # False: `after_step` is of thousands of operations, which take minutes to compile

    def __init__(self, setting: Setting, *, ce: float = 1.0, kld: float = 0.0, temperature: float = 4.0) -> None:
        super().__init__()
        for name, value in (("ce", ce), ("kld", kld)):
            check_positive(name, value, zero=True)
        check_positive("temperature", temperature)
        self.ce, self.kld, self.temperature = ce, kld, temperature
        self.labelled = int(setting.labels.min()) >= 0  # all samples are
        if setting.teacher is None and ("teacher" in self.needs or kld):
            raise InputError(f"The method '{self.name()}' needs a teacher; give one, or use 'ce' or 'infonce'.")

    @classmethod
    def name(cls) -> str:
        return cls.__module__.rsplit(".", 1)[-1].replace("_", "-")

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        """Named scalar losses, already weighted; the step adds them up."""
        return self.classification(batch, student, teacher)

    def begin_epoch(self, epoch: int, fresh: bool) -> None:
        """Called before every epoch, outside the captured step; `fresh` is False where a run resumes within one."""

    def after_step(self, batch: Batch, student: Features, teacher: Features | None) -> None:
        """Update tables and queues: no gradient, inside the captured step."""

    def companion_index(self, index: Tensor, epoch: Tensor) -> Tensor:
        """Sample numbers int64 [batch, companions] to forward beside the anchors `index`."""
        raise NotImplementedError

    def epoch_order(self, batch: int, epoch: int) -> Tensor | None:
        """The order of an epoch's samples, where the method must choose it (whole batches); None: a random order."""
        return None

    def stages(self) -> list[Stage]:
        """What is trained before the main stage, in order."""
        return []

    def trained(self) -> Iterator[nn.Parameter]:
        """The parameters that train in the main stage."""
        yield from self.parameters()

    def classification(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        """The two terms on logits that every method may have, on the anchors; unlabelled ones (-1) have no first."""
        losses = {}
        logits = batch.of_anchors(student.logits)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.ce:
            loss = self._cross_entropy(logits, batch.of_anchors(batch.labels))
            losses["ce"] = loss if self.ce == 1 else self.ce * loss
        if self.kld:
            assert teacher is not None
            loss = functional.kld(logits, batch.of_anchors(teacher.logits), self.temperature)
            losses["kld"] = loss if self.kld == 1 else self.kld * loss
        return losses

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over labelled samples; 0 where there is none."""
        if self.labelled:  # so the mean cannot be of none
            return F.cross_entropy(logits, labels, ignore_index=-1)
        total = F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum")
        return total / (labels >= 0).sum().clamp(min=1)


class Head(nn.Module):
    """A linear projection to `dim` numbers, scaled to unit length; in full precision, also inside autocast.

    It is too small for half precision to pay: casting its weights and numbers there and back takes 8 kernels a step.
    """

    def __init__(self, width: int, dim: int = 128) -> None:
        super().__init__()
        self.linear = nn.Linear(width, dim)

    def forward(self, embedding: Tensor) -> Tensor:
        if projection.fits(embedding, self.linear):
            return projection.unit(embedding, self.linear)
        with torch.autocast(embedding.device.type, enabled=False):
            return unit_rows(self.linear(embedding.to(self.linear.weight.dtype)))

    @torch.no_grad()
    def write(self, table: FeatureTable, rows: Tensor, embedding: Tensor) -> None:
        """Move the table's `rows`, none twice and all in it, towards what this head makes of their embeddings."""
        whole = not table.part.divided and rows.shape == embedding.shape[:1]
        if whole and projection.fits(embedding, self.linear) and projection.moves(table.features, self.linear):
            filled = None if table.full else table.filled
            projection.move(embedding, self.linear, rows, table.features, filled, table.momentum)
        else:
            table.update(rows, self(embedding), distinct=True)


def names() -> list[str]:
    """Every method's name."""
    return sorted(plugins.names(sys.modules[__name__]))


def module(name: str) -> ModuleType:
    """The file of the method `name`."""
    return plugins.find(sys.modules[__name__], "method", name)


def build(name: str, setting: Setting, *, preset: str | None = None, **arguments: object) -> Method:
    """The method `name` for a setting, with the values of a preset and then of `arguments` over its defaults."""
    check_arguments(name, arguments)
    if not isinstance(setting.labels, Tensor) or not isinstance(setting.student, Shapes):
        given = f"{type(setting.labels).__name__} and {type(setting.student).__name__}"
        raise InputError(
            f"A Setting takes labels, an int64 tensor [n], and scns.features.Shapes(classes, width), not {given}."
        )
    if not isinstance(setting.teacher, Shapes | None):
        given = type(setting.teacher).__name__
        raise InputError(f"The teacher of a Setting is scns.features.Shapes(classes, width), not {given}.")
    for what, asked in (
        ("embeddings", setting.embeddings), ("class_vectors", setting.class_vectors), ("answers", setting.answers)
    ):  # fmt: skip
        if asked is not None and not callable(asked):
            given = type(asked).__name__
            raise InputError(f"{what} of a Setting is a function that gives them, not {given}; write lambda: {what}.")
    labels = setting.labels
    lowest, highest = (int(end) for end in labels.aminmax()) if labels.numel() else (0, 0)
    if labels.dtype != torch.int64 or labels.dim() != 1 or not len(labels) or lowest < -1 or highest >= setting.classes:
        ends = f", from {lowest} to {highest}" if labels.numel() else ""
        raise InputError(
            f"A Setting takes labels, int64 [n] from -1 (none) to {setting.classes - 1}, its last class, but these are "
            f"{labels.dtype} {tuple(labels.shape)}{ends}."
        )
    around = {"teacher": setting.teacher is not None, "divided": setting.divided}
    return module(name).Objective(setting, **resolved(name, preset or "", arguments, **around))


def hyperparameters(name: str) -> dict[str, object]:
    """The arguments of a method and their defaults."""
    return dict(_defaults(module(name).Objective.__init__))


@cache
def _defaults(initialise: Callable[..., None]) -> dict[str, object]:
    skipped = ("self", "setting")
    asked = inspect.signature(initialise).parameters
    return {key: p.default for key, p in asked.items() if key not in skipped and p.kind is p.KEYWORD_ONLY}


def check_arguments(name: str, arguments: dict[str, Any]) -> None:
    """Refuses arguments that the method lacks, and values of another kind than it asks for."""
    known = hyperparameters(name)
    asked = inspect.signature(module(name).Objective.__init__).parameters
    for key, value in arguments.items():
        if key not in known:
            raise unknown(f"argument of '{name}'", key, known)
        kind = asked[key].annotation
        kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)  # those of `float | None`
        if all(each in _KINDS for each in kinds) and not any(_is(value, each) for each in kinds):
            expected = " or ".join(_KINDS[each] for each in kinds)
            raise InputError(f"{key} of '{name}' must be {expected}, but it is {value!r}.")


def _is(value: object, kind: object) -> bool:
    if kind in (int, float):  # numpy's too; true, false and NaN are no numbers here
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool) and value == value
    return value is None if kind is NoneType else isinstance(value, cast(type, kind))


def of_recipe(recipe: "Recipe") -> dict[str, Any]:
    """Every argument of a recipe's method with the value it takes."""
    around = {"teacher": bool(recipe.teacher and recipe.distil), "divided": recipe.tables == "sharded"}
    return resolved(recipe.method, recipe.preset, recipe.arguments, **around)


def resolved(
    name: str, preset: str, arguments: dict[str, Any], *, teacher: bool = False, divided: bool = False
) -> dict[str, Any]:
    """Every argument of a method with the value it takes: given, of the preset ("": none), or the default.

    What None stands for may depend on whether there is a teacher to distil, and on whether tables are divided.
    """
    presets: dict[str, dict[str, object]] = getattr(module(name), "PRESETS", {})
    if preset and preset not in presets:
        raise unknown(f"preset of '{name}'", preset, presets)
    taken = {**hyperparameters(name), **presets.get(preset, {}), **arguments}
    effective = getattr(module(name), "effective", None)
    return taken if effective is None else effective(taken, teacher=teacher, divided=divided)


def paired(student: tuple, teacher: tuple, pair: str, what: str) -> Iterator[tuple]:
    """Layers of student and teacher, one to one; lists of different length are an error unless pair="shallow"."""
    if pair not in ("exact", "shallow"):
        raise unknown("pair", pair, ["exact", "shallow"])
    if len(student) != len(teacher) and pair == "exact":
        raise InputError(
            f"The student has {len(student)} {what} {_sizes(student)}, the teacher {len(teacher)} {_sizes(teacher)}; "
            "pass pair='shallow' to pair them from the input side and leave the rest out."
        )
    yield from zip(student, teacher, strict=False)


def _sizes(layers: tuple) -> list[tuple[int, ...]]:
    return [tuple(x.shape[1:]) if isinstance(x, torch.Tensor) else tuple(x) for x in layers]

"""`Recipe`: everything a run depends on, in one frozen, validated object."""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, get_args, get_origin, get_type_hints

from scns.errors import InputError, unknown

CHOICES = {
    "schedule": ("steps", "cosine"),
    "teacher_mode": ("live", "cached"),
    "precision": ("tf32", "fp32", "bf16"),
    "device": ("auto", "cpu", "cuda"),
}


@dataclass(frozen=True)
class Recipe:
    """A training run. A method's hyper-parameters stand in `arguments`; on the command line, `--set method.k=500`."""

    # what is trained, on what
    data: str = "cifar10-mini"
    root: str = "data"  # the folder that holds the data set
    size: int = 0  # pixels, for data sets with a choice of size; 0: the data set's own
    student: str = "resnet8"
    method: str = "ce"
    preset: str = ""  # of the method
    arguments: dict[str, Any] = field(default_factory=dict)  # of the method
    words: str = "glove"  # word vectors of the label names, for class-level negatives
    # the teacher
    teacher: str = ""  # a run folder, or a weights file together with teacher_network
    teacher_network: str = ""
    teacher_mode: str = "live"  # "cached": one forward a sample, without augmentation
    teacher_size: int = 0  # input pixels of the teacher; 0: the student's
    # how
    epochs: int = 200
    batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "steps"
    milestones: tuple[int, ...] = ()  # the learning rate drops after these epochs (counted from 1)
    decay: float = 0.1
    warmup: int = 0  # epochs of linearly rising learning rate
    augment: bool = True
    # on which part of the data
    validation: float = 0.0  # share of the training set held out
    subset: int = 0  # training images used; 0: all
    labelled: int = 0  # labels kept for each class, the other images are unlabelled; 0: all
    seed: int = 0
    data_seed: int = -1  # of order, crops and splits; -1: the same as seed
    # with what
    device: str = "auto"
    precision: str = "tf32"
    compile: bool = False
    graph: bool = True  # capture the step in a CUDA graph, where there is CUDA
    deterministic: bool = False
    evaluate_every: int = 1  # epochs; the last is always evaluated
    checkpoint_every: int = 0  # epochs; 0: as often as 2 % of the run's time allows

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown(name, getattr(self, name), choices)
        limits = {"epochs": 1, "batch": 1, "evaluate_every": 1, "subset": 0, "labelled": 0, "warmup": 0, "size": 0}
        for name, least in limits.items():
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} must be at least {least}.")
        for name in ("lr", "decay"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name}={getattr(self, name)} must be above 0 and finite.")
        if not 0 <= self.momentum < 1 or self.weight_decay < 0:
            raise InputError(
                f"momentum={self.momentum} must be in [0, 1) and weight_decay={self.weight_decay} at least 0."
            )
        if not 0 <= self.validation < 1:
            raise InputError(f"validation={self.validation} must be at least 0 and below 1.")
        if self.nesterov and not self.momentum:
            raise InputError("nesterov=true needs a momentum above 0.")
        if list(self.milestones) != sorted(set(self.milestones)) or any(m < 1 for m in self.milestones):
            raise InputError(f"milestones={list(self.milestones)} must be rising epoch numbers from 1.")
        if self.teacher_network and not self.teacher:
            raise InputError(f"teacher_network={self.teacher_network} needs teacher=: a file with its weights.")

    @property
    def order_seed(self) -> int:
        return self.seed if self.data_seed < 0 else self.data_seed

    def learning_rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 1: it drops for epochs after a milestone."""
        if epoch <= self.warmup:
            return self.lr * epoch / (self.warmup + 1)
        if self.schedule == "cosine":
            done = (epoch - 1 - self.warmup) / max(1, self.epochs - self.warmup)
            return self.lr * 0.5 * (1 + math.cos(math.pi * done))
        return self.lr * self.decay ** sum(epoch > milestone for milestone in self.milestones)

    def with_settings(self, settings: list[str]) -> "Recipe":
        """The recipe with `key=value` words applied, typed as the recipe's fields; `method.key` is an argument."""
        changed: dict[str, Any] = {}
        arguments = dict(self.arguments)
        for word in settings:
            key, separator, text = word.partition("=")
            if not separator:
                raise InputError(f"'{word}' must be key=value, such as epochs=20 or method.k=500.")
            if key.startswith("method."):
                arguments[key.removeprefix("method.")] = _guess(text)
            else:
                changed[key] = _typed(key, text)
        return replace(self, **changed, arguments=arguments)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def from_dict(values: dict[str, Any], where: str) -> Recipe:
    """A recipe from parsed TOML or JSON; unknown keys and wrong types are named."""
    hints = get_type_hints(Recipe)
    for key in values:
        if key not in hints:
            raise unknown(f"recipe key in {where}", key, hints)
    return Recipe(**{key: _checked(key, value, where) for key, value in values.items()})


def differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """The keys in which two recipes differ, apart from where they run."""
    free = ("device", "root", "checkpoint_every", "evaluate_every")
    return {
        f.name: (getattr(one, f.name), getattr(other, f.name))
        for f in fields(Recipe)
        if f.name not in free and getattr(one, f.name) != getattr(other, f.name)
    }


def _typed(key: str, text: str) -> Any:
    hints = get_type_hints(Recipe)
    if key not in hints or key == "arguments":
        raise unknown("recipe key", key, [name for name in hints if name != "arguments"])
    return _checked(key, text if hints[key] is str else _guess(text), "--set")


def _checked(key: str, value: Any, where: str) -> Any:
    wanted = get_type_hints(Recipe)[key]
    if get_origin(wanted) is tuple:
        value = tuple(value) if isinstance(value, list | tuple) else (value,) if value != "" else ()
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in value):
            raise InputError(
                f"{key}={value} in {where} must be a list of {get_args(wanted)[0].__name__}s, such as 100,150."
            )
        return value
    plain = get_origin(wanted) or wanted
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, plain) or (isinstance(value, bool) and plain is not bool):
        raise InputError(f"{key}={value!r} in {where} must be of type {plain.__name__}, not {type(value).__name__}.")
    return value


def _guess(text: str) -> Any:
    """true/false, a number, a list of numbers, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("none", "null"):
        return None
    if "," in text:
        return [_guess(part) for part in text.split(",") if part]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text

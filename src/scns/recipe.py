"""`Recipe`: everything a run depends on, in one frozen, validated object."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any, get_origin, get_type_hints

from scns.errors import InputError, unknown

_CHOICES = {
    "schedule": ("steps", "cosine"),
    "on_missing": ("error", "uniform"),
    "teacher_mode": ("live", "cached"),
    "precision": ("tf32", "fp32", "bf16"),
    "device": ("auto", "cpu", "cuda"),
    "data_on": ("auto", "device", "host"),
    "compile": ("no", "network", "all"),
    "gather": ("auto", "always", "never"),
    "tables": ("replicated", "sharded"),
}
_LEAST = {
    "epochs": 1,
    "batch": 1,
    "evaluate_every": 1,
    "checkpoint_every": 0,
    "subset": 0,
    "labelled": 0,
    "warmup": 0,
    "size": 0,
    "input_size": 0,
    "teacher_size": 0,
    "seed": 0,
    "data_seed": -1,
}
_LARGEST = 3.4e38  # of float32
_PIXELS = 8192  # of a side: more are a slip of the keyboard
_SEEDS = 2**63  # seeds are below it: TOML's whole numbers and the keys of what is drawn are signed 64 bits
_MEANT = {
    "learning_rate": "lr",
    "batch_size": "batch",
    "num_epochs": "epochs",
    "wd": "weight_decay",
    "dataset": "data",
    "model": "student",
    "temperature": "method.temperature (of distilled logits) or method.tau (of the contrast)",
    "tau": "method.tau",
}  # what other programs call a key
_EXPECTED = {
    int: "a whole number, such as 20",
    float: "a number, such as 0.05",
    bool: "true or false",
    str: "text",
    tuple: "whole numbers, such as 100,150",
    dict: "a table of the method's arguments",
}
FREE = (
    "device",
    "root",
    "data_on",
    "checkpoint_every",
    "evaluate_every",
    "tables",
)  # may change from one start of a run to the next
CHANCE = ("seed", "data_seed", *FREE)  # in which runs of one setting differ
_OWN = ("folder", "shards")  # data sets that are whatever lies in root


@dataclass(frozen=True)
class Recipe:
    """A training run. A method's hyper-parameters stand in `arguments`; on the command line, `--set method.k=500`."""

    # what is trained, on what
    data: str = "cifar10-mini"  # see: scns data list
    root: str = "data"  # the folder that holds the data set
    data_on: str = "auto"  # where pixels lie: on the device where they fit, else on the host, sent batch by batch
    size: int = 0  # pixels, for data sets with a choice of size; 0: the data set's own
    student: str = "resnet8"  # see: scns models
    weights: str = ""  # a file of weights that the student starts from; "": random ones
    input_size: int = 0  # pixels at which the student sees the images, resized on the device; 0: their own
    method: str = "ce"  # see: scns methods
    preset: str = ""  # of the method
    arguments: dict[str, Any] = field(default_factory=dict)  # of the method
    words: str = "glove"  # vectors of the label names for class-level negatives, or a file; "": the teacher's centroids
    on_missing: str = "error"  # a label without any known word; "uniform": it is as near to all classes
    # the teacher
    teacher: str = ""  # a run folder, a weights file together with teacher_network, or bundled:wrn-16-2-cifar10
    teacher_network: str = ""  # the network of a weights file: see scns models
    teacher_mode: str = "live"  # "cached": one forward a sample, without augmentation
    teacher_size: int = 0  # input pixels of the teacher; 0: those of its run, or the images' own
    distil: bool = True  # False: the teacher names neighbours and nothing else
    # how
    epochs: int = 200
    batch: int = 64  # images a step
    lr: float = 0.05
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "steps"  # of the learning rate: drops after the milestones; or "cosine", to 0 at the end
    milestones: tuple[int, ...] = ()  # the learning rate drops after these epochs (counted from 1)
    decay: float = 0.1  # by this factor
    warmup: int = 0  # epochs of linearly rising learning rate
    augment: bool = True  # random crops and flips
    # on which part of the data
    validation: float = 0.0  # share of the training set held out
    subset: int = 0  # training images used; 0: all
    labelled: int = 0  # labels kept for each class, the other images are unlabelled; 0: all
    seed: int = 0  # of the first weights and, unless data_seed is given, of all else that is drawn
    data_seed: int = -1  # of all but the weights: order, crops, splits, negatives, mixing; -1: the same as seed
    # with what
    device: str = "auto"  # CUDA where there is one; or "cpu", "cuda"
    precision: str = "tf32"  # on CUDA; or "fp32", "bf16"
    compile: str = "no"  # "network", views, tables and sums: for some minutes of training or more; "all": losses too
    graph: bool = True  # capture the step in a CUDA graph, where there is CUDA
    deterministic: bool = False  # the same bits on every CUDA run
    # several processes that train together, under torchrun: `batch` is that of all of them
    sync_batch_norm: bool = False  # batch norms share their statistics: the same weights for any number of processes
    gather: str = "auto"  # which losses are of the whole batch: those that compare samples; or "always", "never"
    tables: str = "replicated"  # tables with a row a sample; or "sharded": each process holds its share of the rows
    evaluate_every: int = 1  # epochs; the last is always evaluated
    checkpoint_every: int = 0  # epochs; 0: as often as 2 % of the run's time allows

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, _checked(each.name, getattr(self, each.name)))
        if self.device.startswith("cuda:"):
            number = self.device.removeprefix("cuda:")
            raise InputError(
                f"device={self.device} is set from outside: device=cuda and CUDA_VISIBLE_DEVICES={number}."
            )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown(name, getattr(self, name), choices)
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)} must be at least {least}.")
        self._check_numbers()
        if self.teacher_network and not self.teacher:
            raise InputError(f"teacher_network={self.teacher_network} needs teacher=: a file with its weights.")

    def _check_numbers(self) -> None:
        for name in _LEAST:
            if getattr(self, name) >= _SEEDS:
                raise InputError(f"{name}={getattr(self, name)} must be below 2^63 = {_SEEDS}.")
        for name in ("lr", "decay"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name}={getattr(self, name)} must be above 0 and finite.")
        for name in ("lr", "decay", "weight_decay"):
            if _LARGEST < getattr(self, name) < math.inf:
                raise InputError(f"{name}={getattr(self, name)} must be at most {_LARGEST:g}, the largest float32.")
        for name in ("size", "input_size", "teacher_size"):
            if getattr(self, name) > _PIXELS:
                raise InputError(f"{name}={getattr(self, name)} is a side of an image in pixels; at most {_PIXELS:,}.")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum={self.momentum} must be at least 0 and below 1.")
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay={self.weight_decay} must be at least 0 and finite.")
        if not 0 <= self.validation < 1:
            raise InputError(f"validation={self.validation} must be at least 0 and below 1.")
        if self.nesterov and not self.momentum:
            raise InputError("nesterov=true needs a momentum above 0.")
        if list(self.milestones) != sorted(set(self.milestones)) or any(m < 1 for m in self.milestones):
            raise InputError(f"milestones={list(self.milestones)} must be rising epoch numbers from 1.")

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

    def with_settings(self, settings: Sequence[str]) -> "Recipe":
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
                changed[key] = _typed(key, text, changed.get("method", self.method))
        return replace(self, **changed, arguments=arguments)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_toml(self) -> str:
        """The recipe as a TOML file that `load_recipe` reads back to an equal one."""
        values = self.as_dict()
        arguments = values.pop("arguments")
        lines = [f"{key} = {_toml(value)}" for key, value in values.items()]
        if arguments:
            lines += ["", "[arguments]", *(f"{json.dumps(key)} = {_toml(value)}" for key, value in arguments.items())]
        return "\n".join(lines) + "\n"


def from_dict(values: dict[str, Any], where: str) -> Recipe:
    """A recipe from parsed TOML or JSON; unknown keys and wrong types are named."""
    for key in values:
        if key not in _types():
            raise unknown(f"recipe key in {where}", key, _types(), _MEANT)
    try:
        return Recipe(**values)
    except InputError as error:
        raise InputError(f"In {where}: {error}") from None


def differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """The keys in which two recipes differ, apart from where they run."""
    return {
        each.name: (getattr(one, each.name), getattr(other, each.name))
        for each in fields(Recipe)
        if each.name not in FREE and getattr(one, each.name) != getattr(other, each.name)
    }


def own_root(recipe: Recipe) -> dict[str, str]:
    """Where a person's own images lie: in another folder they are another data set. Of a published one, nothing."""
    return {"root": os.path.normpath(recipe.root)} if recipe.data in _OWN else {}


@cache
def _types() -> dict[str, Any]:
    """The type of each key: str, int, float, bool, tuple or dict."""
    return {key: get_origin(kind) or kind for key, kind in get_type_hints(Recipe).items()}


def _typed(key: str, text: str, method: str) -> Any:
    """A word of the command line as the type of its key."""
    if key not in _types() or key == "arguments":
        meant = {key: f"method.{key}"} if key not in _MEANT and _takes(method, key) else _MEANT
        raise unknown("recipe key", key, [name for name in _types() if name != "arguments"], meant)
    return _checked(key, text if _types()[key] is str else _guess(text))


def _takes(method: str, key: str) -> bool:
    from scns import methods  # with torch, which a recipe without mistakes need not wait for

    return method in methods.names() and key in methods.hyperparameters(method)


def _checked(key: str, value: Any) -> Any:
    """The value as the type of its key: whole numbers are numbers, lists are tuples."""
    wanted = _types()[key]
    if wanted is type(value) and wanted not in (tuple, dict):
        return value
    if wanted is tuple:
        value = tuple(value) if isinstance(value, list | tuple) else (value,) if value != "" else ()
        fits = all(isinstance(each, int) and not isinstance(each, bool) for each in value)
        shown = list(value)
    else:
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        fits = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
        shown = value
    if not fits:
        raise InputError(f"{key} must be {_EXPECTED[wanted]}, but it is {shown!r}.")
    return _plain(value) if wanted is dict else value


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as a run folder keeps them, so that a recipe equals itself read back; "none" is None."""
    try:
        plain = json.loads(json.dumps(arguments))
    except (TypeError, ValueError):
        raise InputError(f"arguments={arguments!r} must be numbers, texts, true or false, or lists of them.") from None
    return {key: None if value == "none" else value for key, value in plain.items()}


def _guess(text: str) -> Any:
    """true/false, none, a number, a list of them, or the text itself."""
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


def as_text(value: Any) -> str:
    """A value as `--set key=` takes it."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    if isinstance(value, float):
        return repr(value)  # inf and nan are TOML's words too
    return json.dumps(value)  # TOML writes texts, whole numbers and truth as JSON does

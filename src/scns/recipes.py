"""Named recipes: functions that return a `Recipe`. The first line of each says what it is.

`scns recipes` lists them; `scns train NAME` runs one.
"""

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from scns.errors import InputError, unknown
from scns.recipe import Recipe, from_dict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def cifar10(student: str = "resnet20", method: str = "ce", **changes: object) -> Recipe:
    """CIFAR-10 as in the paper: lr 0.01, batch 128, 200 epochs, decay at 100 and 150."""
    base = Recipe(data="cifar10", student=student, method=method, epochs=200, batch=128, lr=0.01, milestones=(100, 150))
    return _changed(base, changes)


def cifar100(student: str = "resnet20", method: str = "ce", **changes: object) -> Recipe:
    """CIFAR-100 as in the paper: lr 0.05, batch 64, 200 epochs, decay every 25 epochs after 100."""
    base = Recipe(data="cifar100", student=student, method=method, milestones=(100, 125, 150, 175))
    return _changed(base, changes)


def cifar100_repdistiller(student: str = "resnet20", method: str = "ce", **changes: object) -> Recipe:
    """CIFAR-100 with RepDistiller's schedule: 240 epochs, decay after 150, 180 and 210."""
    base = Recipe(data="cifar100", student=student, method=method, epochs=240, milestones=(150, 180, 210))
    return _changed(base, changes)


def tiny_imagenet(student: str = "resnet14", method: str = "ce", **changes: object) -> Recipe:
    """Tiny-ImageNet-200 as in the paper: batch 64, 100 epochs, decay every 20."""
    base = Recipe(data="tiny-imagenet-200", student=student, method=method, epochs=100, milestones=(20, 40, 60, 80))
    return _changed(base, changes)


def _mini(method: str, **changes: object) -> Recipe:
    base = Recipe(
        data="cifar10-mini", student="resnet8", method=method, epochs=20, batch=64, lr=0.05, schedule="cosine"
    )
    return _changed(base, changes)


def mini_ce() -> Recipe:
    """Bundled images, resnet8, cross-entropy: the first thing to try (about a minute on 2 cores)."""
    return _mini("ce")


def mini_kld() -> Recipe:
    """Bundled images, resnet8, distillation of logits; needs --set teacher=RUN."""
    return _mini("kld")


def mini_uniform() -> Recipe:
    """Bundled images, resnet8, InfoNCE with uniform negatives."""
    return _mini("infonce", arguments={"sampler": "uniform", "negatives": 256})


def mini_class() -> Recipe:
    """Bundled images, resnet8, InfoNCE with class-level negatives from word vectors."""
    return _mini("infonce", arguments={"sampler": "class", "k": 2, "negatives": 256})


def mini_instance() -> Recipe:
    """Bundled images, resnet8, InfoNCE with instance-level negatives; needs --set teacher=RUN for the neighbours."""
    return _mini("infonce", arguments={"sampler": "instance", "k": 100, "negatives": 256})


def names() -> dict[str, str]:
    """Every named recipe and its first line."""
    return {
        name.replace("_", "-"): (inspect.getdoc(function) or "").split("\n")[0]
        for name, function in _functions().items()
    }


def named(name: str) -> Recipe:
    """The recipe of that name."""
    functions = _functions()
    key = name.replace("-", "_")
    if key not in functions:
        raise unknown("recipe", name, [each.replace("_", "-") for each in functions])
    return functions[key]()


def load_recipe(name_or_path: str) -> Recipe:
    """A recipe by name, or from a .toml or .json file."""
    if name_or_path.endswith((".toml", ".json")) or "/" in name_or_path:
        return _read(Path(name_or_path))
    return named(name_or_path)


def _read(path: Path) -> Recipe:
    """A recipe from a file; its key `extends` names a recipe to start from."""
    if not path.exists():
        raise InputError(f"The recipe '{path}' does not exist; give a .toml or .json file, or a name of: scns recipes.")
    try:
        values = json.loads(path.read_text()) if path.suffix == ".json" else tomllib.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"'{path}' cannot be read: {error}.") from None
    if not isinstance(values, dict):
        raise InputError(f"'{path}' must hold keys and values.")
    base: dict[str, Any] = named(str(values.pop("extends"))).as_dict() if "extends" in values else {}
    return from_dict({**base, **values}, f"'{path}'")


def _functions() -> dict[str, Callable[..., Recipe]]:
    found = inspect.getmembers(sys.modules[__name__], inspect.isfunction)
    return {name: f for name, f in found if inspect.signature(f).return_annotation is Recipe and _is_recipe(name, f)}


def _is_recipe(name: str, function: Callable[..., Recipe]) -> bool:
    return function.__module__ == __name__ and not name.startswith("_") and name not in ("named", "load_recipe")


def _changed(base: Recipe, changes: dict[str, Any]) -> Recipe:
    return replace(base, **changes)

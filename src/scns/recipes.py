"""Named recipes: functions that return a `Recipe`. The first line of each says what it is.

`scns recipes` lists them, `scns recipes NAME` prints one as TOML, `scns train NAME` runs one. Accuracies stand here
when they were measured with the very command, and not before; after +- stands the standard deviation over seeds.
Estimates of time are those of `scns sweep --dry-run`.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from scns.errors import InputError, unknown
from scns.recipe import Recipe, from_dict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_OF_A_RUN = ("version", "format", "resolved")  # what a run's recipe.json holds beside the recipe
_DEMO = {"weight": 1.0, "negatives": 256, "ce": 0.1, "kld": 0.9}  # ce and kld as in demo-answers


def cifar10(student: str = "resnet20", method: str = "ce", **changes: Any) -> Recipe:
    """CIFAR-10 as in the paper: lr 0.01, batch 128, 200 epochs, decay after 100 and 150.

    Command: scns train cifar10 --set root=data
    Other rows: --set student=wrn-16-1 --set method=infonce --set preset=t1-class
    Epochs and milestones are ours: the paper does not say.
    Expected accuracy with --precision bf16 --set compile=network (seeds 0 to 2, +- their standard deviation): resnet20
    91.03 % +- 0.16, resnet32 91.68 % +- 0.12; the paper prints 91.14 and 92.49. Others not yet measured.
    Time: resnet20 alone 1.01 s an epoch on one NVIDIA H200 (two epochs timed), so about 3.5 min.
    """
    base = Recipe(data="cifar10", student=student, method=method, epochs=200, batch=128, lr=0.01, milestones=(100, 150))
    return replace(base, **changes)


def cifar10_teacher(student: str = "wrn-16-2", **changes: Any) -> Recipe:
    """CIFAR-10, a good small teacher: wrn-16-2, lr 0.1 with Nesterov momentum, batch 128, cosine over 200 epochs.

    Command: scns train cifar10-teacher --set root=data --precision bf16 --set compile=network --out runs/teacher
    Expected accuracy: 94.14 % +- 0.21 (seeds 0 to 2, their standard deviation) in 125 s on one NVIDIA H200.
    """
    base = Recipe(data="cifar10", student=student, epochs=200, batch=128, lr=0.1, nesterov=True, schedule="cosine")
    return replace(base, **changes)


def cifar100(student: str = "resnet20", method: str = "ce", **changes: Any) -> Recipe:
    """CIFAR-100 as in the paper: lr 0.05, batch 64, 200 epochs, decay every 25 epochs after 100.

    Command: scns train cifar100 --set root=data
    A teacher: scns train cifar100 --set student=resnet110 --out runs/resnet110
    A student of it: scns train cifar100 --set method=kld --set teacher=runs/resnet110 --out runs/kld
    Expected accuracy: resnet20 68.43 % (seed 0) in 325 s on one NVIDIA H200; with --precision bf16 and
    --set compile=network 69.19 % +- 0.14 (seeds 0 to 2, their standard deviation), and resnet110 73.63 % (seed 0).
    Time with a live resnet110 as teacher, by distillation of logits: 2.37 s an epoch on one NVIDIA H200 without its
    tests, so about 8 min.
    """
    base = Recipe(data="cifar100", student=student, method=method, milestones=(100, 125, 150, 175))
    return replace(base, **changes)


def cifar100_repdistiller(student: str = "resnet20", method: str = "ce", **changes: Any) -> Recipe:
    """CIFAR-100 with RepDistiller's schedule: 240 epochs, decay after 150, 180 and 210.

    Command: scns train cifar100-repdistiller --set root=data
    A teacher: scns train cifar100-repdistiller --set student=resnet110 --out runs/resnet110
    Another method with its weights: --set method=at --set preset=repdistiller --set teacher=runs/resnet110
    Expected accuracy with --precision bf16 --set compile=network (seeds 0 to 2, +- their standard deviation): resnet20
    69.47 % +- 0.36; RepDistiller publishes 69.06 %, and 74.31 % for resnet110, which is not yet measured here.
    Time: resnet20 alone 1.60 s an epoch on one NVIDIA H200 (two epochs timed), so about 6.5 min.
    """
    base = Recipe(data="cifar100", student=student, method=method, epochs=240, milestones=(150, 180, 210))
    return replace(base, **changes)


def cifar100_repdistiller_kd() -> Recipe:
    """CIFAR-100 with RepDistiller's schedule and its distillation of logits; needs a teacher.

    Command: scns train cifar100-repdistiller-kd --set teacher=runs/resnet110 --set root=data
    Expected accuracy with --precision bf16 --set compile=network (seeds 0 to 2, +- their standard deviation):
    70.70 % +- 0.56 with a resnet110 of 73.63 %; RepDistiller publishes 70.67 % with one of 74.31 %.
    Time: one student alone 2.37 s an epoch on one NVIDIA H200 without its tests, so about 10 min.
    """
    return cifar100_repdistiller(method="kld", preset="repdistiller")


def cifar100_repdistiller_crd() -> Recipe:
    """CIFAR-100 with RepDistiller's schedule and CRD, 16,384 negatives; needs a teacher.

    Command: scns train cifar100-repdistiller-crd --set teacher=runs/resnet110 --set root=data
    Its negatives are drawn without repetition, which here takes longer: --set method.distinct=true
    Expected accuracy with --precision bf16 --set compile=network (seeds 0 to 2, +- their standard deviation):
    71.33 % +- 0.17 with a resnet110 of 73.63 %; RepDistiller publishes 71.46 % with one of 74.31 %.
    Time: one student alone 2.76 s an epoch on one NVIDIA H200 without its tests, so about 11 min.
    """
    return cifar100_repdistiller(method="crd", preset="repdistiller", arguments={"distinct": False})


def tiny_imagenet(student: str = "resnet14", method: str = "ce", **changes: Any) -> Recipe:
    """Tiny-ImageNet-200 as in the paper: batch 64, 100 epochs, decay every 20.

    Command: scns train tiny-imagenet --set root=data
    With a teacher of 256 px: --set method=kld --set teacher=RUN --set teacher_size=256 --set teacher_mode=cached
    The learning rate is ours: the paper does not say.
    Expected accuracy with --precision bf16 --set compile=network (seed 0): resnet14 47.44 %.
    Time: resnet14 alone 4.30 s an epoch on one NVIDIA H200 (two epochs timed), so about 7 min.
    """
    base = Recipe(data="tiny-imagenet-200", student=student, method=method, epochs=100, milestones=(20, 40, 60, 80))
    return replace(base, **changes)


def _mini(method: str, **changes: Any) -> Recipe:
    base = Recipe(
        data="cifar10-mini", student="resnet8", method=method, epochs=20, batch=64, lr=0.05, schedule="cosine"
    )
    return replace(base, **changes)


def mini_ce() -> Recipe:
    """Bundled images, resnet8, cross-entropy: the first thing to try.

    Command: scns train mini-ce --out runs/mini-ce
    Expected accuracy: 49.85 % on test (measured: seed 0, one CPU thread, torch 2.13).
    Time: 29 s with OMP_NUM_THREADS=2 on 2 CPU cores (50.15 % then: two threads add in another order).
    """
    return _mini("ce")


def mini_kld() -> Recipe:
    """Bundled images, resnet8, distillation of logits; needs a teacher.

    Command: scns train mini-kld --set teacher=runs/mini-ce (after: scns train mini-ce --out runs/mini-ce)
    Expected accuracy: 47.80 % on test (measured: seed 0, one CPU thread, torch 2.13).
    Time: 53 s with OMP_NUM_THREADS=2 on 2 CPU cores (46.50 % then).
    """
    return _mini("kld")


def mini_uniform() -> Recipe:
    """Bundled images, resnet8, InfoNCE with uniform negatives.

    Command: scns train mini-uniform
    Expected accuracy: 50.70 % on test (measured: seed 0, one CPU thread, torch 2.13).
    Time: 31 s with OMP_NUM_THREADS=2 on 2 CPU cores (49.45 % then).
    """
    return _mini("infonce", preset="t1-infonce", arguments={"negatives": 256})


def mini_class() -> Recipe:
    """Bundled images, resnet8, InfoNCE with class-level negatives from word vectors.

    Command: scns train mini-class
    Expected accuracy: 50.80 % on test (measured: seed 0, one CPU thread, torch 2.13).
    Time: 30 s with OMP_NUM_THREADS=2 on 2 CPU cores (51.05 % then).
    """
    return _mini("infonce", preset="t1-class", arguments={"negatives": 256})


def mini_instance() -> Recipe:
    """Bundled images, resnet8, InfoNCE with instance-level negatives; needs a teacher to name the neighbours.

    Command: scns train mini-instance --set teacher=runs/mini-ce (after: scns train mini-ce --out runs/mini-ce)
    Expected accuracy: 49.90 % on test (measured: seed 0, one CPU thread, torch 2.13).
    Time: 31 s with OMP_NUM_THREADS=2 on 2 CPU cores (50.65 % then).
    """
    return _mini("infonce", preset="t1-instance", distil=False, arguments={"k": 100, "negatives": 256})


def mini_own() -> Recipe:
    """Bundled images, resnet8, InfoNCE with its defaults: negatives drawn by the network's own features, no teacher.

    Command: scns train mini-own
    Expected accuracy: 49.60 % on test (measured: seed 0, one CPU thread, torch 2.13).
    Time: 33 s with OMP_NUM_THREADS=2 on 2 CPU cores (50.00 % then).
    """
    return _mini("infonce")


def _demo(method: str, **changes: Any) -> Recipe:
    """A student that has 25 labels a class and the bundled teacher's word on every image."""
    base = Recipe(
        data="cifar10-mini",
        student="resnet8",
        method=method,
        labelled=25,
        teacher="bundled:wrn-16-2-cifar10",
        teacher_mode="cached",
        epochs=12,
        batch=32,  # in a few epochs, more and smaller steps come further
        lr=0.05,
        schedule="cosine",
    )
    return replace(base, **changes)


def demo_labels() -> Recipe:
    """Of `scns demo`: resnet8 on 250 labelled images, no teacher.

    Command: scns train demo-labels --out runs/demo-labels
    Expected accuracy: 35.00 % on test (measured: seed 0, one CPU thread, torch 2.13). Time: 10 s in the demo, on 2
    CPU cores.
    """
    return _demo("ce", labelled=0, subset=250, teacher="", teacher_mode="live", epochs=60)


def demo_answers() -> Recipe:
    """Of `scns demo`: the same 250 labels, and the bundled teacher's logits of all 2,500 images.

    Command: scns train demo-answers --out runs/demo-answers
    Expected accuracy: 47.45 % on test (measured: seed 0, one CPU thread, torch 2.13). Time: 20 s in the demo, on 2
    CPU cores.
    """
    return _demo("kld")


def demo_uniform() -> Recipe:
    """Of `scns demo`: labels, logits and InfoNCE against the teacher's embeddings, with uniform negatives.

    Command: scns train demo-uniform --out runs/demo-uniform
    Expected accuracy: 49.20 % on test (measured: seed 0, one CPU thread, torch 2.13). Time: 22 s in the demo, on 2
    CPU cores.
    """
    return _demo("infonce", preset="kd-infonce", arguments=_DEMO)


def demo_class() -> Recipe:
    """Of `scns demo`: labels, logits and InfoNCE, with negatives of the 2 classes whose names are most alike.

    Command: scns train demo-class --out runs/demo-class
    Expected accuracy: 49.90 % on test (measured: seed 0, one CPU thread, torch 2.13). Time: 24 s in the demo, on 2
    CPU cores.
    """
    return _demo("infonce", preset="kd-class", arguments={"k": 2, **_DEMO})


def demo_instance() -> Recipe:
    """Of `scns demo`: labels, logits and InfoNCE, with negatives among the 100 images most similar to the teacher.

    Command: scns train demo-instance --out runs/demo-instance
    Expected accuracy: 48.35 % on test (measured: seed 0, one CPU thread, torch 2.13). Time: 22 s in the demo, on 2
    CPU cores.
    """
    return _demo("infonce", preset="kd-instance", arguments={"k": 100, **_DEMO})


def demo_own() -> Recipe:
    """Of `scns demo`: labels, logits and InfoNCE with its defaults: negatives drawn by the table they are held against.

    Command: scns train demo-own --out runs/demo-own
    Expected accuracy: 49.20 % on test (measured: seed 0, one CPU thread, torch 2.13). Time: 25 s in the demo, on 2
    CPU cores.
    """
    return _demo("infonce", arguments={"ce": _DEMO["ce"], "kld": _DEMO["kld"]})


def names() -> dict[str, str]:
    """Every named recipe and its first line."""
    return {name: about(name).split("\n")[0] for name in sorted(each.replace("_", "-") for each in _functions())}


def about(name: str) -> str:
    """What a named recipe is, the command that runs it, and what to expect of it."""
    return inspect.getdoc(_function(name)) or ""


def named(name: str) -> Recipe:
    """The recipe of that name."""
    return _function(name)()


def load_recipe(name_or_path: str | Path, settings: Sequence[str] = ()) -> Recipe:
    """A recipe by name, or from a .toml or .json file, with `key=value` settings as of `scns train --set`.

    recipe = scns.load_recipe("mini-class", ["epochs=2", "method.k=3"])
    run = scns.fit(recipe, "runs/first")   # run.student is the network, run.result what `scns train` prints
    """
    if not isinstance(name_or_path, str | Path):
        raise InputError(f"A recipe is a name or the path of a file, not {type(name_or_path).__name__}: scns recipes.")
    if isinstance(settings, str) or not all(isinstance(setting, str) for setting in settings):
        raise InputError(f'Settings are a list of key=value, such as ["epochs=2"], but this is {settings!r}.')
    given = str(name_or_path)
    if not given.endswith((".toml", ".json")) and "/" not in given:
        return named(given).with_settings(settings)
    recipe, noted = _read(Path(given))
    changed = recipe.with_settings(settings)
    if not noted or (changed.method, changed.preset) != (recipe.method, recipe.preset):
        return changed  # what the run left to the defaults of another method or preset says nothing of this one
    from scns.checkpoint import as_it_was  # with torch, which lists of recipes need not wait for

    return as_it_was(recipe, noted).with_settings(settings)


def _read(path: Path) -> tuple[Recipe, dict[str, Any]]:
    """A recipe from a file, and what a run noted of its arguments; the key `extends` names a recipe to start from."""
    if (path / "recipe.json").is_file():
        raise InputError(f"'{path}' is a run folder, not a recipe; its recipe is '{path / 'recipe.json'}'.")
    table, _, row = str(path).partition("/")
    if re.fullmatch(r"t[123]", table) and not path.suffix:
        raise InputError(
            f"'{path}' is no cell, which is {table}/ROW/COLUMN as 'scns recipes {table}' names them; all of a row: "
            f"scns sweep {table} --rows {row.partition('/')[0]}"
        )
    if not path.is_file():
        raise InputError(f"The recipe '{path}' does not exist; give a .toml or .json file, or a name of: scns recipes.")
    try:
        text = path.read_text(encoding="utf-8-sig")  # whatever the locale; editors of Windows begin with a mark
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise InputError(f"'{path}' cannot be read: {error}.") from None
    if not isinstance(values, dict):
        raise InputError(f"'{path}' must hold keys and values.")
    noted = values.get("resolved", {})
    values = {key: value for key, value in values.items() if key not in _OF_A_RUN}
    base: dict[str, Any] = named(str(values.pop("extends"))).as_dict() if "extends" in values else {}
    return from_dict({**base, **values}, f"'{path}'"), noted


def _function(name: str) -> Callable[..., Recipe]:
    functions = _functions()
    key = name.replace("-", "_")
    if key not in functions:
        raise unknown("recipe", name, [each.replace("_", "-") for each in functions])
    return functions[key]


@cache
def _functions() -> dict[str, Callable[..., Recipe]]:
    found = inspect.getmembers(sys.modules[__name__], inspect.isfunction)
    return {name: f for name, f in found if inspect.signature(f).return_annotation is Recipe and _is_recipe(name, f)}


def _is_recipe(name: str, function: Callable[..., Recipe]) -> bool:
    return function.__module__ == __name__ and not name.startswith("_") and name not in ("named", "load_recipe")

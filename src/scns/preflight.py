"""What can be said against a recipe before anything is loaded: names, arguments, a missing teacher, the device."""

from typing import Any

import torch

from scns import checks, datasets, methods, models
from scns.errors import InputError, unknown
from scns.methods._sampler import check_given
from scns.recipe import Recipe

_BY_EMBEDDINGS = ("instance", "mixed", "soft")  # samplers that need embeddings: a frozen network's, or the table's
_TRAIN_ONE = "train one first (scns train mini-ce --out runs/mini-ce), then add --set teacher=runs/mini-ce"


def check(recipe: Recipe) -> None:
    """Raise for names that do not exist and for a teacher that the method needs and the recipe lacks."""
    datasets.describe(recipe.data)
    for network in (recipe.student, recipe.teacher_network):
        if network and network not in models.names():
            raise unknown("network", network, models.names())
    methods.check_arguments(recipe.method, recipe.arguments)
    chosen = methods.of_recipe(recipe)
    needs = methods.module(recipe.method).Objective.needs
    _check_teacher(recipe, "teacher" in needs or bool(chosen.get("kld")), chosen)


def check_used(recipe: Recipe) -> None:
    """Raise for an argument that a new run is given and its sampler does not have: others of it would be equal runs."""
    check_given(recipe.arguments, methods.of_recipe(recipe).get("sampler"))


def check_device(recipe: Recipe) -> None:
    """Raise where this machine lacks the device that the recipe asks for, or the device its precision."""
    if choose_device(recipe).type == "cpu" and recipe.precision == "bf16":
        raise InputError("precision=bf16 is for CUDA devices; on the CPU use precision=fp32.")


def choose_device(recipe: Recipe) -> torch.device:
    """The device a recipe is trained on: what it asks for, or CUDA where there is one."""
    asked = None if recipe.device == "auto" else checks.place(recipe.device)
    return asked or torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _check_teacher(recipe: Recipe, distils: bool, chosen: dict[str, Any]) -> None:
    sampler = chosen.get("sampler")
    if distils and not recipe.teacher:
        raise InputError(f"The method '{recipe.method}' needs a teacher; {_TRAIN_ONE}.")
    if distils and not recipe.distil:
        raise InputError(f"The method '{recipe.method}' distils its teacher, so distil=false cannot be.")
    if sampler in _BY_EMBEDDINGS and not chosen.get("refresh") and not recipe.teacher:
        if sampler == "soft" and recipe.tables == "sharded" and "refresh" in chosen:
            raise InputError(
                "The sampler 'soft' draws by the whole table, which no process has with tables=sharded, or else by a "
                f"teacher's embeddings; use tables=replicated or method.sampler=uniform, or {_TRAIN_ONE}."
            )
        table = " (or method.refresh=1: the method's own table)" if "refresh" in chosen and sampler != "mixed" else ""
        raise InputError(
            f"The sampler '{sampler}' needs a teacher, whose embeddings name the neighbours{table}; {_TRAIN_ONE}."
        )
    if sampler == "class" and not recipe.words and not recipe.teacher:
        raise InputError("words='' takes the classes' centroids by a teacher; give teacher=, or words=glove.")
    if recipe.teacher_size and not recipe.teacher:
        raise InputError(f"teacher_size={recipe.teacher_size} needs teacher=: a run folder or a weights file.")

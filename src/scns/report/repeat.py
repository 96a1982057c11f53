"""The line that repeats a run."""

import shlex
from dataclasses import replace
from functools import cache
from typing import Any

from scns import recipes
from scns.checkpoint import as_it_was, resolved
from scns.errors import InputError
from scns.recipe import Recipe, as_text, differences


def command(recipe: Recipe, path: str) -> str:
    """`scns train NAME --set ...`, from the named recipe that is nearest, or from the run's own recipe.json."""
    out = ["--out", f"again/{path}"]  # a folder of its own, below which the cell of a table keeps its name
    # Where tables lie is no part of a setting, but a default may go by it: its value is then part of the line.
    wanted = as_it_was(replace(recipe, tables="replicated"), resolved(recipe))
    meant = resolved(wanted)
    apart = {name: len(differences(base, wanted).keys() - {"arguments", "preset"}) for name, base in _named().items()}
    lines: dict[str, list[str]] = {}
    for name in sorted(apart, key=lambda each: apart[each]):  # the nearest first: lines of others are longer
        if lines and min(map(len, lines.values())) < len(["scns", "train", name]) + 2 * apart[name]:
            break
        if (line := _from(name, _named()[name], wanted, meant)) is not None:
            lines[name] = line
    if not lines:
        return shlex.join(["scns", "train", f"{path}/recipe.json", *out])
    return shlex.join([*min((lines[name] for name in apart if name in lines), key=len), *out])


@cache
def _named() -> dict[str, Recipe]:
    return {name: recipes.named(name) for name in recipes.names()}


def _from(name: str, base: Recipe, recipe: Recipe, meant: dict[str, Any]) -> list[str] | None:
    """The words that make the recipe of a named one; None where the command line cannot say it."""
    meant = meant if base.method == recipe.method else {}
    changed = {key: new for key, (_, new) in differences(base, recipe).items() if key != "arguments"}
    if meant:  # a preset is what it means
        changed.pop("preset", None)
    if recipe.root != base.root:  # no part of a setting, but without it the line finds no images
        changed["root"] = recipe.root
    settings = [f"{key}={as_text(value)}" for key, value in changed.items()]
    try:
        given, before = (meant, resolved(base.with_settings(settings))) if meant else (recipe.arguments, base.arguments)
        new = {key: value for key, value in given.items() if key not in before or before[key] != value}
        settings += [f"method.{key}={as_text(value)}" for key, value in new.items()]
        made = base.with_settings(settings)
    except InputError:
        return None
    words = [word for setting in settings for word in ("--set", setting)]
    left = {*differences(made, recipe)} - ({"preset", "arguments"} if meant and resolved(made) == meant else set())
    return None if left else ["scns", "train", name, *words]

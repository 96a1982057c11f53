"""The paper's search: a grid judged on 5 % of the training images, the winner trained again on all of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from scns.errors import InputError
from scns.plan import check_folders
from scns.recipe import Recipe
from scns.sweep import Job, Outcome, sweep
from scns.train import Watch

SHARE = 0.05  # of the training images held out, as in the paper


@dataclass(frozen=True)
class Trial:
    """One point of the grid: its settings (`key=value`), and its validation accuracy after the last epoch."""

    settings: tuple[str, ...]
    outcome: Outcome
    validation: float | None


@dataclass(frozen=True)
class Tuned:
    """All trials, the best of them, and the run of its settings on all training images."""

    trials: list[Trial]
    best: Trial
    final: Outcome


def points(grid: list[str]) -> list[tuple[str, ...]]:
    """The settings of every point of a grid given as words like "method.k=100,500"."""
    axes: dict[str, list[str]] = {}
    for word in grid:
        key, separator, values = word.partition("=")
        listed = list(dict.fromkeys(value.strip() for value in values.split(",") if value.strip()))
        if not separator or not key or not listed:
            raise InputError(f"--grid '{word}' must be key=value,value, such as method.k=100,500.")
        if key in axes:
            together = ",".join(dict.fromkeys([*axes[key], *listed]))
            raise InputError(f"--grid names {key} twice; give all of its values at once: --grid {key}={together}")
        if key == "validation":
            raise InputError(
                "--grid validation would judge its points on unlike images; give one share: --set validation=0.1"
            )
        axes[key] = listed
    if not axes:
        raise InputError("There is nothing to tune; give at least one --grid, such as --grid method.k=100,500.")
    return list(product(*([f"{key}={value}" for value in listed] for key, listed in axes.items())))


def jobs(recipe: Recipe, grid: list[str], out: Path) -> list[tuple[tuple[str, ...], Job]]:
    """A job for every point, each with the same images held out."""
    base = replace(recipe, validation=recipe.validation or SHARE)
    listed = []
    for settings in points(grid):
        name = "_".join(word.removeprefix("method.") for word in settings).replace("/", "-")
        listed.append((settings, Job(base.with_settings(list(settings)), out / "grid" / name)))
    return listed


def tune(
    recipe: Recipe,
    grid: list[str],
    out: Path,
    *,
    pack: int = 1,
    say: Callable[[str], None] = print,
    watch: Watch | None = None,
) -> Tuned:
    """Run the grid, choose by validation accuracy after the last epoch, train the winner on all images in `out`/best.

    Started again, it goes on where it stopped. Test accuracy plays no part in the choice.
    """
    listed = jobs(recipe, grid, out)
    check_folders([job for _, job in listed])
    outcomes = sweep([job for _, job in listed], pack=pack, say=say, watch=watch)
    trials = [Trial(settings, o, _validation(o)) for (settings, _), o in zip(listed, outcomes, strict=True)]
    judged = [trial for trial in trials if trial.validation is not None]
    if not judged:
        raise InputError(f"No point of the grid finished; the first says: {outcomes[0].error}")
    best = max(judged, key=lambda trial: trial.validation or 0.0)
    chosen = replace(recipe.with_settings(list(best.settings)), validation=0.0)
    try:
        check_folders([Job(chosen, out / "best")])
    except InputError as error:  # of a smaller grid, say
        raise InputError(
            f"The winner is {' '.join(best.settings)}, but {error} Or move that folder away and give the same command "
            "again: the grid is kept."
        ) from None
    return Tuned(trials, best, sweep([Job(chosen, out / "best")], say=say, watch=watch)[0])


def _validation(outcome: Outcome) -> float | None:
    if outcome.result is None:
        return None
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (outcome.job.out / "log.jsonl").read_text().splitlines()
    ]
    return lines[-1].get("validation")

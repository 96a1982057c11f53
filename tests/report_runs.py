"""Finished run folders that were never trained, for the tests of results, figures and the report page."""

from dataclasses import replace
from pathlib import Path

from scns import tables
from scns.checkpoint import Folder
from scns.recipe import Recipe


def put(
    path: Path, recipe: Recipe, test: float, history: list[float] | None = None, *, epochs: int = 6, **more: float
) -> Path:
    """A run with that history, or else one that climbed to its accuracy in so many epochs; `more` is in its result."""
    folder = Folder(path)
    folder.open(recipe)
    history = history or [round(test * (i + 1) / epochs, 2) for i in range(epochs)]
    folder.log([{"epoch": i + 1, "test": value} for i, value in enumerate(history)])
    folder.finish({"test": test, "seconds": 60.0, "epochs": recipe.epochs, "seed": recipe.seed, **more})
    return path


def put_cell(out: Path, name: str, accuracies: list[float], **changes: object) -> None:
    """Runs of a table's cell with seeds 0, 1, ..."""
    cell = tables.cell(name)
    for seed, test in enumerate(accuracies):
        put(tables.folder(cell.run, seed, out), replace(cell.recipe, seed=seed, data_seed=0, **changes), test)

"""Which cells of the paper's tables a run gives: by its place in a sweep's folder, or else by its recipe."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from scns import methods, tables
from scns.checkpoint import Folder
from scns.errors import InputError
from scns.recipe import Recipe, differences
from scns.tables import Cell

# A run may differ in these from its cell and still be compared with the paper: chance, speed, and where things lie.
_SPEED = ("precision", "compile", "graph", "deterministic", "gather", "tables", "data_on")
_NEUTRAL = ("seed", "data_seed", "teacher", *_SPEED)
_ABOVE = 4  # folders above a run in which its teacher is looked for: those of a sweep, and one around them


def cells_of(path: Path, recipe: Recipe) -> list[Cell]:
    """The cells that a run gives: those of its folder in a sweep's layout, or those whose very recipe it has."""
    placed = tables.of_run(tables.run_at(path.absolute()))
    return placed or _by_recipe().get(_key(effective(recipe, path), teacher_network(path, recipe)), [])


def changes(path: Path, recipe: Recipe, cell: Cell) -> tuple[str, ...]:
    """The keys in which a run, and the teacher it had, differ from those of the table."""
    changed = _differing(effective(recipe, path), cell)
    taught, own = teacher_recipe(path, recipe), tables.of_run(cell.teacher) if cell.teacher else []
    if taught is not None and own:
        changed += [f"teacher.{key}" for key in _differing(effective(taught), own[0])]
    return tuple(changed)


def _differing(recipe: Recipe, cell: Cell) -> list[str]:
    """A teacher of t2 that started from weights, as the paper's did, differs in nothing by that; its notes say it."""
    wanted = tables.started(cell.recipe, recipe.weights) if recipe.weights and tables.starts(cell) else cell.recipe
    return [key for key in differences(recipe, effective(wanted)) if key not in _NEUTRAL]


def notes(path: Path, recipe: Recipe, cell: Cell) -> str:
    """What a reader of a cell must know, by what the run's teacher was."""
    taught = teacher_recipe(path, recipe) if cell.teacher else recipe
    return cell.notes if taught is None else tables.notes(cell, taught)


def teacher_recipe(path: Path, recipe: Recipe) -> Recipe | None:
    """The recipe of the run that taught, where its folder is found: at its path, or beside a run that was moved."""
    if not recipe.teacher or recipe.teacher_network:
        return None
    given = Path(recipe.teacher)
    # t1/ce/resnet20-0 taught t1/instance-scns-k5/resnet20-0: of a table's run the last part alone is no name.
    counts = (3, 2) if tables.run_at(given) else (3, 2, 1)
    beside = [above / Path(*given.parts[-count:]) for count in counts for above in path.absolute().parents[:_ABOVE]]
    # A relative path is one of the folder that the sweep ran in; from elsewhere it may lead to another sweep's teacher.
    for place in (given, *beside) if given.is_absolute() else (*beside, given):
        if (place / "recipe.json").is_file():
            try:
                return Folder(place).recipe()
            except InputError:
                return None
    return None


def teacher_network(path: Path, recipe: Recipe) -> str:
    """The network that taught a run; "" without one, and where nothing says which it was."""
    if not recipe.teacher or recipe.teacher_network:
        return recipe.teacher_network
    taught = teacher_recipe(path, recipe)
    if taught is not None:
        return taught.student
    named = tables.of_run(tables.run_at(Path(recipe.teacher)))
    return named[0].recipe.student if named else ""


def effective(recipe: Recipe, path: Path | None = None) -> Recipe:
    """The recipe with every argument of its method written out: as the run at `path` noted them, or as they are now.

    What the run could not note, an argument that is newer than it, has its default: that is what runs did before.
    """
    noted = Folder(path).resolved() if path is not None else {}
    try:
        arguments = {**methods.of_recipe(recipe), **noted}
    except InputError:  # a method or preset that this version lacks stays as it is written
        arguments = noted
    return replace(recipe, preset="", arguments=arguments) if arguments else recipe


@cache
def _by_recipe() -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in (tables.cell(name) for table in tables.TABLES for name in tables.names(table, everything=True)):
        teacher = tables.of_run(cell.teacher)[0].recipe.student if cell.teacher else ""
        begun = [tables.started(cell.recipe, "a file")] if tables.starts(cell) else []
        for recipe in (cell.recipe, *begun):
            found.setdefault(_key(effective(recipe), teacher), []).append(cell)
    return found


def _key(recipe: Recipe, teacher: str) -> str:
    """All that a recipe says of what is learnt, and its teacher's network: a run with the key of a cell is the cell."""
    standard = differences(recipe, Recipe())  # without what may change from start to start of a run
    told = {key: own for key, (own, _) in standard.items() if key not in (*_NEUTRAL, "teacher_network", "weights")}
    return json.dumps([told, teacher, bool(recipe.weights)], sort_keys=True)

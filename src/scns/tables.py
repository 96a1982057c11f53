"""The paper's three tables as recipes: every printed cell by name, such as `t3/instance-scns-k50/resnet110-resnet20`.

A name is table/row/column. Rows are named after the method, then what the paper varies: `b0.5` is beta, `k50` what is
printed behind k: a number of classes (t1), or the denominator of |D|/50 and |V|/50. "InfoNCE + X-SCNS" is `x-scns`; the
hyphen and the plus of "InfoNCE-LM" and "InfoNCE + LM" stay: `infonce-lm-b0.5`, `infonce+lm-b0.5`. Columns are the
network (t1), or teacher-student.

Three kinds of cells exist beyond the printed ones, and are selected only by a pattern that names them: rows the paper
lacks but its claims need (t3/infonce, uniform negatives), columns with the width that "wrn-16-1" and "wrn-40-1"
probably had (the teachers' accuracies are those of wrn-16-2 and wrn-40-2), and a column of t2 whose teacher sees the
images at their own 64 px, which needs neither ImageNet's weights nor a day: resnet34-stem3-resnet14.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from scns import recipes
from scns.errors import InputError, unknown
from scns.recipe import Recipe
from scns.rows import Column, Row, columns_of, rows_of

TABLES = {"t1": "CIFAR-10, supervised", "t2": "Tiny-ImageNet-200, distillation", "t3": "CIFAR-100, distillation"}

_MAPS = ("at", "sp", "vid", "ft")  # they read the teacher's feature maps, which are not cached
_PAIRED = ("at", "vid")  # they compare stage by stage; a 7x7-stem teacher has one more than the student
_PIXELS = 256  # of t2's ImageNet networks, the paper's teachers
_HASHED = r"-[0-9a-f]{8}"  # what published files have behind the network's name: resnet50-0676ba61.pth


@dataclass(frozen=True)
class Cell:
    """A cell: its recipe, the run that gives it (cells may share one), and the run of its teacher ("": none)."""

    name: str
    table: str
    row: Row
    column: Column
    recipe: Recipe
    run: str
    teacher: str
    notes: str  # what a reader must know to compare it with the paper

    @property
    def printed(self) -> bool:
        return bool(self.row.paper) and self.column.printed


def is_name(words: str) -> bool:
    """Whether words have the form of a cell's name; a recipe's file in folders of such names does not."""
    return bool(re.fullmatch(r"t\d+/[^/]+/[^/]+", words)) and not words.endswith((".toml", ".json"))


def names(table: str, *, everything: bool = False) -> list[str]:
    """The names of a table's printed cells; with `everything`, also of the rows and columns beyond them."""
    return [each.name for each in _cells(_known(table)).values() if everything or each.printed]


def cell(name: str) -> Cell:
    """The cell of that name."""
    table, _, _ = name.partition("/")
    cells = _cells(_known(table))
    if name not in cells:
        raise unknown("cell", name, cells)
    return cells[name]


def find(name: str) -> Cell:
    """The cell of that name, or the first one that a run of that name gives: t3/teacher/resnet110, t3/ce/resnet20."""
    table, _, _ = name.partition("/")
    runs = {each.run: each for each in reversed(_cells(_known(table)).values())}
    if name not in _cells(table) and name not in runs:
        raise unknown("cell", name, dict.fromkeys([*_cells(table), *runs]))
    return _cells(table).get(name) or runs[name]


def of_run(run: str) -> list[Cell]:
    """The cells that a run gives, such as both columns of one student without teacher; none for another name."""
    table = run.partition("/")[0]
    return [each for each in _cells(table).values() if each.run == run] if table in TABLES else []


def select(table: str, rows: str = "", columns: str = "") -> list[Cell]:
    """The cells whose row and column match glob patterns, several of them with commas; "": all that are printed."""
    cells = _cells(_known(table)).values()
    row_names, column_names = ({getattr(each, part).slug for each in cells} for part in ("row", "column"))
    wanted_rows = _matching(f"row of {table}", rows, row_names)
    wanted_columns = _matching(f"column of {table}", columns, column_names)
    return [
        each
        for each in cells
        if (each.row.slug in wanted_rows if rows else each.row.paper)
        and (each.column.slug in wanted_columns if columns else each.column.printed)
    ]


def folder(run: str, seed: int, out: Path) -> Path:
    """Where a run of a table lies: OUT/t3/kld/resnet110-resnet20-0; an OUT that is called t3 already is not doubled."""
    table, row, column = run.split("/")
    return (out if out.name == table else out / table) / row / f"{column}-{seed}"


def run_at(path: Path) -> str:
    """The name of the run that lies at a path, or ""."""
    parts = path.parts[-3:]
    if len(parts) < 3 or not re.fullmatch(r".+-\d+", parts[2]):
        return ""
    run = "/".join((*parts[:2], parts[2].rsplit("-", 1)[0]))
    return run if of_run(run) else ""


def published(network: str, folder: Path) -> Path | None:
    """The file of a network's published weights in a folder, such as resnet50-0676ba61.pth; None without one."""
    short = re.escape(network.removesuffix("-imagenet"))
    wanted = re.compile(rf"{short}(-imagenet|{_HASHED})?\.(safetensors|pth|pt)")
    found = sorted(path for path in folder.iterdir() if wanted.fullmatch(path.name))
    if len(found) > 1:
        listed = " and ".join(path.name for path in found)
        raise InputError(f"'{folder}' has {listed}, all of them weights of {network}; leave one there.")
    return found[0] if found else None


def starts(cell: Cell) -> bool:
    """Whether a cell is a teacher of t2 that the paper started from ImageNet's weights."""
    return cell.table == "t2" and cell.row.slug == "teacher" and cell.column.imagenet


def started(recipe: Recipe, weights: str) -> Recipe:
    """The recipe of a t2 teacher that starts from a file of weights: fine-tuned without crops and flips, as printed."""
    return replace(recipe, weights=weights, augment=False)


def notes(cell: Cell, teacher: Recipe) -> str:
    """The notes of a cell whose teacher, or which itself as a teacher, has that recipe instead of the table's."""
    return _notes(cell.table, cell.row, cell.column, cell.teacher, teacher)


def _known(table: str) -> str:
    if table not in TABLES:
        raise unknown("table", table, TABLES)
    return table


def _matching(kind: str, patterns: str, known: Iterable[str]) -> set[str]:
    """The names that any of the patterns matches; each must match one."""
    found: set[str] = set()
    for pattern in filter(None, (each.strip() for each in patterns.split(","))):
        matched = {name for name in known if fnmatchcase(name, pattern)}
        if not matched:
            raise unknown(kind, pattern, known)
        found |= matched
    return found


@cache
def _cells(table: str) -> dict[str, Cell]:
    made = [_cell(table, row, column) for row in rows_of(table) for column in columns_of(table)]
    return {each.name: each for each in made}


def _cell(table: str, row: Row, column: Column) -> Cell:
    base = {"t1": recipes.cifar10, "t2": recipes.tiny_imagenet, "t3": recipes.cifar100}[table]
    is_teacher, alone = row.slug == "teacher", row.method in ("ce", "ce-lm")
    recipe = base(column.teacher if is_teacher else column.student, row.method)
    arguments = {**row.arguments, **({"pair": "shallow"} if table == "t2" and row.method in _PAIRED else {})}
    recipe = replace(recipe, preset=row.preset, arguments=arguments)
    run, teacher = f"{table}/{row.slug}/{column.slug}", ""
    if table == "t1" and row.slug.startswith("instance"):
        teacher = f"t1/ce/{column.slug}"
        recipe = replace(recipe, distil=False)
    elif table != "t1" and alone:
        run = f"{table}/{row.slug}/{recipe.student}"  # one run for all columns with that network
    elif table != "t1":
        teacher = f"{table}/teacher/{column.teacher}"
    if teacher:
        recipe = replace(recipe, teacher=str(folder(teacher, 0, Path("runs"))))
    pixels = _PIXELS if column.imagenet else 0
    if pixels and teacher and row.method not in _MAPS:
        recipe = replace(recipe, teacher_mode="cached")
    if pixels and is_teacher:
        recipe = replace(recipe, input_size=pixels)
    told = _notes(table, row, column, teacher, Recipe(input_size=pixels))
    return Cell(f"{table}/{row.slug}/{column.slug}", table, row, column, recipe, run, teacher, told)


def _notes(table: str, row: Row, column: Column, teacher: str, beginning: Recipe) -> str:
    """What a reader of a cell must know; of `beginning` how t2's teacher began, which the paper's did otherwise."""
    found, is_teacher = [], row.slug == "teacher"
    if table == "t1" and teacher:
        found.append("neighbours by the same network after cross-entropy")
    if table == "t2" and (teacher or is_teacher):
        pixels = f"{beginning.input_size} px" if beginning.input_size else "the images' own size"
        file = Path(beginning.weights).name
        scratch = f"from scratch at {pixels}; the paper's started from ImageNet's weights"
        found.append(f"teacher: started from {file}, at {pixels}" if file else f"teacher: {scratch}")
    if not column.printed and column.paper and (teacher or is_teacher or table == "t1"):
        wider, narrow = column.teacher or column.student, column.paper.partition("/")[0]
        found.append(f"{wider} instead of {narrow}, as the paper probably had")
    return "; ".join(found)

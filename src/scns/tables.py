"""The paper's three tables as recipes: every printed cell by name, such as `t3/instance-scns-k50/resnet110-resnet20`.

A name is table/row/column. Rows are named after the method, then what the paper varies: `b0.5` is beta, `k50` what is
printed behind k: a number of classes (t1), or the denominator of |D|/50 and |V|/50. "InfoNCE + X-SCNS" is `x-scns`; the
hyphen and the plus of "InfoNCE-LM" and "InfoNCE + LM" stay: `infonce-lm-b0.5`, `infonce+lm-b0.5`. Columns are the
network (t1), or teacher-student.

Two kinds of cells exist beyond the printed ones, and are selected only by a pattern that names them: rows the paper
lacks but its claims need (t3/infonce, uniform negatives), and columns with the width that "wrn-16-1" and "wrn-40-1"
probably had: the teachers' accuracies are those of wrn-16-2 and wrn-40-2.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from scns import recipes
from scns.errors import InputError, unknown
from scns.recipe import Recipe

TABLES = {"t1": "CIFAR-10, supervised", "t2": "Tiny-ImageNet-200, distillation", "t3": "CIFAR-100, distillation"}

_BETAS = (0.01, 0.05, 0.1, 0.2, 0.5)
_NETWORKS = {"resnext32x4": "resnext29-32x4d"}  # printed -> ours
_WIDER = {"wrn-16-1": "wrn-16-2", "wrn-40-1": "wrn-40-2"}  # printed -> probable
_MAPS = ("at", "sp", "vid", "ft")  # they read the teacher's feature maps, which are not cached
_PAIRED = ("at", "vid")  # they compare stage by stage; a 7x7-stem teacher has one more than the student
_PIXELS = 256  # of t2's pretrained teachers, in the paper


@dataclass(frozen=True)
class Row:
    """A method with its hyper-parameters; `paper` is the printed method, "" for a row the paper lacks."""

    slug: str
    method: str
    preset: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    paper: str = ""
    value: float | None = None  # the printed beta or k, or the denominator of k

    @property
    def title(self) -> str:
        name = self.paper or f"{self.slug} (not in the paper)"
        return name if self.value is None else f"{name}, {self.slug.rsplit('-', 1)[1]}"


@dataclass(frozen=True)
class Column:
    """A network, or a teacher and its student, by our names; `paper` is what is printed."""

    slug: str
    teacher: str
    student: str
    paper: str
    printed: bool = True  # False: the probable width instead of the printed one


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
    notes: str

    @property
    def printed(self) -> bool:
        return bool(self.row.paper) and self.column.printed


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


def pretrained(cell: Cell, weights: Path) -> Cell:
    """A t2 cell whose teacher is a file of weights for the 200 classes, seen at 256 px, instead of a run."""
    if cell.table != "t2" or not cell.recipe.teacher:
        raise InputError(f"'{cell.name}' has no pretrained teacher; weights files are for the students of t2.")
    network = cell.column.teacher
    found = [path for ending in (".safetensors", ".pth", ".pt") if (path := weights / f"{network}{ending}").is_file()]
    if not found:
        raise InputError(f"There is no {network}.safetensors, .pth or .pt in '{weights}'; put it there.")
    changed = replace(cell.recipe, teacher=str(found[0]), teacher_network=network, teacher_size=_PIXELS)
    return replace(cell, recipe=changed, teacher="", notes=f"teacher: weights from {found[0].name}, at {_PIXELS} px")


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
    made = [_cell(table, row, column) for row in _rows(table) for column in _columns(table)]
    return {each.name: each for each in made}


def _cell(table: str, row: Row, column: Column) -> Cell:
    base = {"t1": recipes.cifar10, "t2": recipes.tiny_imagenet, "t3": recipes.cifar100}[table]
    is_teacher, alone = row.slug == "teacher", row.method in ("ce", "ce-lm")
    recipe = base(column.teacher if is_teacher else column.student, row.method)
    arguments = {**row.arguments, **({"pair": "shallow"} if table == "t2" and row.method in _PAIRED else {})}
    recipe = replace(recipe, preset=row.preset, arguments=arguments)
    run, teacher, notes = f"{table}/{row.slug}/{column.slug}", "", ""
    if table == "t1" and row.slug.startswith("instance"):
        teacher = f"t1/ce/{column.slug}"
        recipe = replace(recipe, distil=False)
        notes = "neighbours by the same network after cross-entropy"
    elif table != "t1" and alone:
        run = f"{table}/{row.slug}/{recipe.student}"  # one run for all columns with that network
    elif table != "t1":
        teacher = f"{table}/teacher/{column.teacher}"
    if teacher:
        recipe = replace(recipe, teacher=str(folder(teacher, 0, Path("runs"))))
    if table == "t2" and teacher:
        recipe = replace(recipe, teacher_mode="live" if row.method in _MAPS else "cached")
    if table == "t2" and (teacher or is_teacher):
        notes = "teacher: from scratch at 64 px; the paper's is ImageNet's, fine-tuned at 256 px"
    return Cell(f"{table}/{row.slug}/{column.slug}", table, row, column, recipe, run, teacher, notes)


def _columns(table: str) -> list[Column]:
    if table == "t1":
        printed = ["resnet20", "resnet32", "resnet110", "wrn-16-1", "wrn-40-1", "resnext32x4"]
        single = [Column(name, "", _NETWORKS.get(name, name), name) for name in printed]
        return single + [Column(wide, "", wide, name, printed=False) for name, wide in _WIDER.items()]
    if table == "t2":
        pairs = [
            ("resnet152", "resnet56"), ("resnet152", "resnet44"), ("resnet50", "resnet20"), ("resnet50", "resnet32"),
            ("resnet152", "resnet32"), ("densenet121", "resnet32"), ("resnet50", "resnet8"), ("resnet50", "resnet14"),
            ("resnet34", "resnet14"), ("resnet50", "resnet32x4"),
        ]  # fmt: skip
        return [Column(f"{t}-{s}", f"{t}-imagenet", s, f"{t}/{s}") for t, s in pairs]
    pairs = [
        ("resnet110", "resnet20"), ("resnet110", "resnet8"), ("wrn-16-1", "resnet14"),
        ("wrn-16-1", "resnet32"), ("wrn-40-1", "resnet20"), ("wrn-40-1", "resnet14"),
    ]  # fmt: skip
    wider = [Column(f"{_WIDER[t]}-{s}", _WIDER[t], s, f"{t}/{s}", printed=False) for t, s in pairs if t in _WIDER]
    return [Column(f"{t}-{s}", t, s, f"{t}/{s}") for t, s in pairs] + wider


def _rows(table: str) -> list[Row]:
    return {"t1": _supervised, "t2": _tiny, "t3": _cifar100}[table]()


def _supervised() -> list[Row]:
    return [
        Row("ce", "ce", paper="Cross-Entropy"),
        Row("ce-lm-b0.5", "ce-lm", "t1", {"beta": 0.5}, "Cross-Entropy + LM", 0.5),
        Row("infonce", "infonce", "t1-infonce", paper="InfoNCE"),
        *_mixtures("t1-infonce-lm", "t1-infonce+lm"),
        *(_scns("class", "t1-class", k, k) for k in (1, 2, 5)),
        *(_scns("instance", "t1-instance", n, 1 / n) for n in (5, 10, 20, 100, 500)),
    ]


def _cifar100() -> list[Row]:
    printed = [
        Row("teacher", "ce", paper="Teacher (Cross-Entropy)"),
        Row("ce", "ce", paper="Student (Cross-Entropy)"),
        Row("kld", "kld", paper="Student (Cross-Entropy + KLD)"),
        *_mixtures("kd-lm", "kd+lm"),
        *(_scns("class", "kd-class", n, 1 / n) for n in (100, 50, 20, 10, 5)),
        *(_scns("instance", "kd-instance", n, 1 / n) for n in (100, 50, 20, 10, 5)),
    ]
    taken = {row.slug for row in printed} | {"class-scns", "instance-scns"}  # k of those: class k20, instance k50
    further = [replace(row, paper="") for row in _distilling() if row.slug not in taken]
    return [*printed, Row("infonce", "infonce", "kd-infonce"), *further]


def _tiny() -> list[Row]:
    further = [
        Row("teacher", "ce"),
        Row("ce", "ce"),
        Row("infonce", "infonce", "kd-infonce"),
        Row("infonce-lm", "infonce", "kd-lm"),
    ]
    return _distilling() + further


def _distilling() -> list[Row]:
    """The rows of t2."""
    return [
        *(Row(name.lower(), name.lower(), paper=name) for name in ("KLD", "AT", "SP", "PKT", "CC", "VID", "FT", "CRD")),
        Row("siamese-pc", "pc", "siamese", paper="Siamese-PC"),
        Row("contrastive-pc", "pc", "contrastive", paper="Contrastive-PC"),
        Row("contrastive-cka-rbf", "cka", "contrastive-rbf", paper="Contrastive-CKA (RBF)"),
        Row("contrastive-cka-linear", "cka", "contrastive", paper="Contrastive-CKA (Linear)"),
        Row("crd-lm", "crd-lm", paper="CRD-LM"),
        Row("class-scns", "infonce", "kd-class", paper="InfoNCE + Class-SCNS"),
        Row("instance-scns", "infonce", "kd-instance", paper="InfoNCE + Instance-SCNS"),
        Row("infonce-lm-class-scns", "infonce", "kd-lm-class", paper="InfoNCE-LM + Class-SCNS"),
        Row("infonce-lm-instance-scns", "infonce", "kd-lm-instance", paper="InfoNCE-LM + Instance-SCNS"),
    ]


def _mixtures(alone: str, beside: str) -> list[Row]:
    """InfoNCE-LM (mixtures alone) and InfoNCE + LM (beside the original negatives), for every beta."""
    return [
        Row(f"infonce{sign}lm-b{beta}", "infonce", preset, {"beta": beta}, paper, beta)
        for sign, preset, paper in (("-", alone, "InfoNCE-LM"), ("+", beside, "InfoNCE + LM"))
        for beta in _BETAS
    ]


def _scns(level: str, preset: str, printed: int, k: float) -> Row:
    paper = f"InfoNCE + {level.capitalize()}-SCNS"
    return Row(f"{level}-scns-k{printed}", "infonce", preset, {"k": k}, paper, printed)

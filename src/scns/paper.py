"""The numbers that the paper prints: its three tables of accuracies, and what follows from them."""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scns.errors import InputError, unknown

_FILE = Path(__file__).parent / "assets" / "paper_tables.json"


@dataclass(frozen=True)
class Cell:
    """One printed accuracy. `column` is the student (t1) or "teacher/student" (t2, t3)."""

    table: str
    section: str
    row: str
    method: str
    column: str
    student: str
    value: float  # percent
    teacher: str | None = None
    hyper: dict[str, Any] = field(default_factory=dict)  # as printed: "beta", "k", or "k_denominator" of "k_of"
    doubt: str = ""  # why the number is probably a misprint

    @property
    def beta(self) -> float | None:
        """The parameter of latent mixup, where the row has one."""
        return self.hyper.get("beta")

    @property
    def k(self) -> int | None:
        """The nearest classes or samples that negatives come from; fractions are of 100 classes or 50,000 samples."""
        return next((self.hyper[name] for name in ("k", "k_at_100", "k_at_50000") if name in self.hyper), None)


class Table(NamedTuple):
    """A printed table: accuracies in percent, row by row as printed."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray  # float64 [rows, columns]


def tables() -> dict[str, str]:
    """The tables' names and what each holds."""
    return {name: about["title"] for name, about in _read()["tables"].items()}


def cells(table: str) -> tuple[Cell, ...]:
    """The cells of "t1" (CIFAR-10), "t2" (Tiny-ImageNet-200) or "t3" (CIFAR-100), row by row as printed."""
    if table not in _read()["tables"]:
        raise unknown("table", table, _read()["tables"])
    return tuple(Cell(**cell) for cell in _read()["cells"] if cell["table"] == table)


def table(name: str) -> Table:
    """A table as rows x columns, in the printed order."""
    listed = cells(name)
    rows = tuple(dict.fromkeys(cell.row for cell in listed))
    columns = tuple(dict.fromkeys(cell.column for cell in listed))
    found = {(cell.row, cell.column): cell.value for cell in listed}
    values = np.array([[found[row, column] for column in columns] for row in rows])
    return Table(tables()[name], rows, columns, values)


def epochs_to_converge() -> dict[str, int]:
    """The epochs that the paper prints for resnet32 taught by wrn-16-1 on CIFAR-100, by the kind of negatives."""
    return dict(_read()["epochs_to_converge"])


def methods(name: str) -> Table:
    """A table without the row of the teachers' own accuracies."""
    title, rows, columns, values = table(name)
    kept = [i for i, row in enumerate(rows) if not row.startswith("Teacher")]
    return Table(title, tuple(rows[i] for i in kept), columns, values[kept])


def scores(accuracies: ArrayLike) -> np.ndarray:
    """score = (a - min a) / (max a - min a) along each row, [rows, columns]; 0.5 in a row that is constant."""
    values = np.asarray(accuracies, dtype=float)
    if values.ndim != 2 or not values.size:
        raise InputError(f"Accuracies [rows, columns] are needed, but their shape is {values.shape}.")
    if not np.isfinite(values).all():
        raise InputError("Some accuracies are missing or not finite; leave out the rows or columns that hold them.")
    lowest = values.min(axis=1, keepdims=True)
    spread = values.max(axis=1, keepdims=True) - lowest
    return np.where(spread > 0, (values - lowest) / np.where(spread > 0, spread, 1), 0.5)


@cache
def _read() -> dict[str, Any]:
    return json.loads(_FILE.read_text(encoding="utf-8"))

"""Run folders -> one table: mean, deviation and number of last-epoch test accuracies, beside the printed ones.

Reported is the accuracy after the last epoch and, where a run held out validation images, the test accuracy at the
epoch that was best on them; never the best on test.
"""

import csv
import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scns import paper, recognise, tables
from scns.checkpoint import AGAIN, Folder, run_folders
from scns.errors import InputError
from scns.files import atomic
from scns.recipe import CHANCE, Recipe, as_text, own_root
from scns.tables import Cell

_NAMED = 3  # settings in which lines of one name differ, in words; the files have them all
_SEEDS = 8  # seeds of a line that are listed where some are missing
_SMALLER = ("data", "size", "input_size", "subset", "labelled", "epochs", "validation", "student")


@dataclass(frozen=True)
class Entry:
    """A finished run, or one that diverged, as a cell of a table (or none): a run that two cells share is two entries.

    Of a run that `diverged` there is the sentence that says so, and no accuracy: test is nan.
    """

    path: Path
    recipe: Recipe
    cell: Cell | None
    test: float
    validated: float | None  # on test, at the epoch that was best on validation
    seconds: float
    changed: tuple[str, ...]  # recipe keys that differ from the cell's own, its teacher's included
    notes: str = ""  # what a reader must know to compare it with the paper, such as how its teacher began
    diverged: str = ""

    @property
    def shrunken(self) -> bool:
        return any(key.removeprefix("teacher.") in _SMALLER for key in self.changed)

    @property
    def taught(self) -> tuple[str, ...] | None:
        """In what the teacher that it distils is not that of its cell; None where it distils none."""
        if self.cell is None or not self.cell.teacher or not self.recipe.distil:
            return None
        begun = (self.notes,) if self.notes != self.cell.notes else ()
        return (*(key for key in self.changed if key.startswith("teacher.")), *begun)


@dataclass(frozen=True)
class Line:
    """The runs of one cell, or of one recipe, that differ in their seed alone: n finished, others may have diverged."""

    name: str
    table: str
    row: str
    column: str
    data: str
    student: str
    method: str
    epochs: int
    subset: int
    n: int
    mean: float | None  # None where all have diverged
    deviation: float | None  # sample standard deviation; None for one run
    validated: float | None
    validated_deviation: float | None
    seconds: float
    seeds: tuple[int, ...]
    shrunken: bool
    changed: tuple[str, ...]
    printed: float | None  # the paper's; None where it has none, or where the runs are not what it ran
    difference: float | None
    notes: str = ""
    apart: tuple[str, ...] = ()  # the settings in which lines of this name differ: "precision=bf16"
    diverged: tuple[int, ...] = ()  # the seeds of runs that came to no end, which mean and deviation are without

    @property
    def remark(self) -> str:
        """In what the runs are not the paper's or those of another line, saw few images, or lack seeds; else ""."""
        more = [f"and {len(self.apart) - _NAMED} more"] if len(self.apart) > _NAMED else []
        return "; ".join(filter(None, (self._compared, ", ".join([*self.apart[:_NAMED], *more]), self._seeds)))

    @property
    def _seeds(self) -> str:
        """Which they are, where some are left out that a sweep of as many would have: means are of other chances."""
        usual = sorted(self.seeds) == list(range(self.n)) or len({*self.seeds}) < self.n  # more than their seeds differ
        more = f" and {self.n - _SEEDS} more" if self.n > _SEEDS else ""
        return "" if usual else f"seed{'s' * (self.n > 1)} {', '.join(map(str, sorted(self.seeds)[:_SEEDS]))}{more}"

    @property
    def lost(self) -> str:
        """How many diverged; else ""."""
        return f"{len(self.diverged)} of {self.n + len(self.diverged)} diverged" if self.diverged else ""

    @property
    def _compared(self) -> str:
        if not self.table:
            told = f"subset={self.subset}" in self.apart[:_NAMED]
            return f"{self.subset:,} images" if self.subset and not told else ""
        own = [key for key in self.changed if not key.startswith("teacher.")]
        keys = ", ".join(own or self.changed)  # a teacher mostly shares what was changed; the files have it all
        return f"{'shrunken' if self.shrunken else 'changed'}: {keys}" if keys else ""


@dataclass(frozen=True)
class Results:
    """What a folder of runs holds: those that finished, those that diverged, and why others are `skipped`."""

    entries: list[Entry]
    skipped: dict[Path, str]
    diverged: list[Entry] = field(default_factory=list)

    @property
    def lines(self) -> list[Line]:
        """Also those of which every run has diverged."""
        return [line for line, _ in self._every]

    @cached_property
    def groups(self) -> list[tuple[Line, list[Entry]]]:
        """Each line with its finished runs, of which it has some."""
        return [(line, [each for each in group if not each.diverged]) for line, group in self._every if line.n]

    @cached_property
    def _every(self) -> list[tuple[Line, list[Entry]]]:
        groups: dict[str, list[Entry]] = {}
        for entry in sorted([*self.entries, *self.diverged], key=_order):
            groups.setdefault(kind(entry), []).append(entry)
        return _told_apart([(_line(group), group) for group in groups.values()])


def read(folder: str | Path) -> Results:
    """The runs below a folder that finished or diverged, by table and path; others are skipped and named."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"There is no folder '{folder}'; give the one that holds your runs, or train some: scns sweep mini-ce"
        )
    every: list[Entry] = []
    paths, skipped = run_folders(folder)
    for path in paths:
        try:
            every += _entries(path)
        except InputError as error:
            skipped[path] = str(error)
    seen: dict[tuple[str, int, int], Path] = {}
    entries: list[Entry] = []
    lost: list[Entry] = []
    for entry in sorted(every, key=lambda each: bool(each.diverged)):  # one that finished stands for its recipe
        key = (kind(entry), entry.recipe.seed, entry.recipe.order_seed)
        if key in seen:
            but = f"; this one diverged: {entry.diverged}" if entry.diverged else "."
            skipped[entry.path] = f"repeats '{seen[key]}': the same recipe and seed{but}"
        else:
            seen[key] = entry.path
            (lost if entry.diverged else entries).append(entry)
    if not entries:
        told = {each.path: each.diverged for each in lost} | skipped
        why = "".join(f" ({path.name}: {reason.rstrip('.')})" for path, reason in list(told.items())[:1])
        raise InputError(f"There is no finished run in '{folder}'{why}; train some with: scns sweep mini-ce")
    return Results(sorted(entries, key=_order), dict(sorted(skipped.items())), sorted(lost, key=_order))


def write_csv(lines: Iterable[Line], path: str | Path) -> None:
    """A row for each line; lists are words with spaces between."""
    with atomic(Path(path)) as temporary, open(temporary, "w", newline="", encoding="utf-8", errors="replace") as file:
        writer = csv.writer(file)
        writer.writerow([each.name for each in fields(Line)])
        for line in lines:
            values = (getattr(line, each.name) for each in fields(Line))
            writer.writerow([" ".join(map(str, value)) if isinstance(value, tuple) else value for value in values])


def as_dict(results: Results) -> dict[str, Any]:
    """The table, what diverged and what was skipped, ready for JSON."""
    skipped = {str(path): reason for path, reason in results.skipped.items()}
    lost = {str(each.path): each.diverged for each in results.diverged}
    return {"lines": [asdict(line) for line in results.lines], "diverged": lost, "skipped": skipped}


@cache
def printed_values() -> dict[tuple[str, str, float | None, str], float]:
    """The paper's accuracies by (table, method, beta or k as printed, column)."""
    found = {}
    for each in (cell for name in paper.tables() for cell in paper.cells(name)):
        value = next((each.hyper[key] for key in ("beta", "k", "k_denominator") if key in each.hyper), None)
        found[each.table, each.method, value, each.column] = each.value
    return found


def _entries(path: Path) -> list[Entry]:
    folder = Folder(path)
    recipe = folder.recipe()
    if not folder.finished:
        lost = folder.diverged()
        if lost is None:
            raise InputError("it is not finished; the command that started it goes on.")
        return _as_cells(Entry(path, recipe, None, math.nan, None, lost["seconds"], (), diverged=lost["reason"]))
    try:
        result = json.loads((path / "result.json").read_text())
    except OSError as error:
        raise InputError(f"result.json cannot be read ({error.strerror}); check its permissions.") from None
    except ValueError as error:
        raise InputError(f"result.json cannot be read ({error}); {AGAIN}.") from None
    try:
        test, seconds = float(result["test"]), float(result["seconds"])
        validated = float(result["best_test"]) if "best_test" in result else None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"result.json does not say test and seconds as numbers; {AGAIN}.") from None
    if not math.isfinite(test):
        raise InputError(f"result.json has test={test}; {AGAIN}.")
    return _as_cells(Entry(path, recipe, None, test, validated, seconds, ()))


def _as_cells(run: Entry) -> list[Entry]:
    """A run as every cell that it is; as it is where it is none."""
    path, recipe = run.path, run.recipe
    made = [
        replace(
            run, cell=cell, changed=recognise.changes(path, recipe, cell), notes=recognise.notes(path, recipe, cell)
        )
        for cell in recognise.cells_of(path, recipe)
    ]
    return made or [run]


def kind(entry: Entry) -> str:
    """What the runs of one line share."""
    return json.dumps([entry.cell and entry.cell.name, _settings(entry), entry.changed, entry.notes], sort_keys=True)


def _settings(entry: Entry) -> dict[str, Any]:
    """The recipe of a run without what is chance, every argument of its method written out."""
    hidden = (*CHANCE, "teacher", "weights") if entry.cell is not None else CHANCE  # of a table, known by its name
    written_out = recognise.effective(entry.recipe, entry.path)
    return {key: value for key, value in written_out.as_dict().items() if key not in hidden} | own_root(entry.recipe)


def _told_apart(groups: list[tuple[Line, list[Entry]]]) -> list[tuple[Line, list[Entry]]]:
    """The same; lines that share their name with others say in which settings they differ.

    Beside lines of other epochs with the same data and student, lines of no table say theirs: a table's cell says it
    where they are not its own.
    """
    told = [_words(entries[0]) for _, entries in groups]
    lengths: dict[tuple[str, str], set[int]] = {}
    for line, _ in groups:
        lengths.setdefault((line.data, line.student), set()).add(line.epochs)
    namesakes: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for (line, _), own in zip(groups, told, strict=True):
        namesakes.setdefault((line.name, line.data, line.student), []).append(own)
    made = []
    for (line, entries), own in zip(groups, told, strict=True):
        every = namesakes[line.name, line.data, line.student]
        differing = {key for key, value in own.items() if any(each.get(key) != value for each in every)}
        if not line.table and len(lengths[line.data, line.student]) > 1:
            differing.add("epochs")
        apart = [f"{key}={value}" for key, value in own.items() if key in differing]
        made.append((replace(line, apart=tuple(apart)), entries))
    return made


def _words(entry: Entry) -> dict[str, str]:
    """The settings of a run as `scns train --set` takes them."""
    settings = _settings(entry)
    arguments = {f"method.{key}": value for key, value in settings.pop("arguments").items()}
    return {key: as_text(value) for key, value in (settings | arguments).items()}


def _order(entry: Entry) -> tuple[int, int, list[list[tuple[int, str]]]]:
    """By cell, then by folder, in which own-4 comes before own-16, and both before own-200-4, another kind of own."""
    name = entry.path.name.removesuffix(f"-{entry.recipe.seed}")
    kind = name.rstrip("0123456789")
    place = [_natural(str(entry.path.parent / kind)), _natural(name), _natural(entry.path.name)]
    if entry.cell is None:
        return len(tables.TABLES), 0, place
    every = tables.names(entry.cell.table, everything=True)
    return list(tables.TABLES).index(entry.cell.table), every.index(entry.cell.name), place


def _natural(text: str) -> list[tuple[int, str]]:
    """A key by which numbers in a text are in order of their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", text)]


def _line(group: list[Entry]) -> Line:
    first = group[0]
    recipe, cell = first.recipe, first.cell
    finished = [entry for entry in group if not entry.diverged]
    accuracies = [entry.test for entry in finished]
    validated = [entry.validated for entry in finished if entry.validated is not None]
    printed = _printed(cell) if cell is not None and not first.changed else None
    name = cell.name if cell is not None else first.path.name.removesuffix(f"-{recipe.seed}")
    line = Line(
        name=name,
        table=cell.table if cell else "",
        row=cell.row.slug if cell else "",
        column=cell.column.slug if cell else "",
        data=recipe.data,
        student=recipe.student,
        method=recipe.method,
        epochs=recipe.epochs,
        subset=recipe.subset,
        n=len(finished),
        mean=mean(accuracies) if accuracies else None,
        deviation=_deviation(accuracies),
        validated=mean(validated) if validated else None,
        validated_deviation=_deviation(validated),
        seconds=mean(entry.seconds for entry in finished or group),
        seeds=tuple(entry.recipe.seed for entry in finished),
        shrunken=first.shrunken,
        changed=first.changed,
        printed=printed,
        difference=None,
        notes=first.notes,
        diverged=tuple(entry.recipe.seed for entry in group if entry.diverged),
    )
    return line if printed is None or line.mean is None else replace(line, difference=line.mean - printed)


def _deviation(values: list[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _printed(cell: Cell) -> float | None:
    """The paper's accuracy of a cell; that of "wrn-16-1" also stands beside wrn-16-2, which it probably was."""
    return printed_values().get((cell.table, cell.row.paper, cell.row.value, cell.column.paper))

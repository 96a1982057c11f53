"""What the figures draw, out of run folders; where the runs do not have it, one sentence says what to run.

Runs stand in one figure only where they share data, schedule and size, so that colours and lines compare methods and
nothing else. Full runs of the paper's tables come before shrunken ones; of several groups the largest is drawn.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np

from scns import curves, recognise, tables
from scns.errors import InputError
from scns.phrases import count
from scns.recipe import CHANCE, own_root
from scns.results import Entry, Results, kind
from scns.rows import BASELINES, Row

_APART = (
    "method", "preset", "arguments", "words", "on_missing", "student", "distil", "teacher", "teacher_mode",
    "teacher_network",
)  # fmt: skip
_VARIED = ("k", "beta", "sampler", "weight", "lm_weight", "mixture")  # arguments of InfoNCE that its rows differ in


Accuracies = dict[float | None, list[float]]  # by beta or k; None without one


class Grid(NamedTuple):
    """Mean accuracies of one table's runs, complete: every method has every pair."""

    title: str
    pairs: list[str]
    methods: list[str]
    groups: dict[str, str]  # of the methods: "KLD", "SoTA Baselines", "Ours" (the paper's), or in words
    values: np.ndarray  # [pairs, methods]
    left_out: str  # what had to go, as a sentence; "" if nothing


class Line(NamedTuple):
    """Accuracy against one hyper-parameter, for one network: value -> (mean, deviation or nan)."""

    label: str
    points: dict[float, tuple[float, float]]
    plain: tuple[float, float] | None  # the same without the hyper-parameter: InfoNCE on uniform negatives


class Sweeps(NamedTuple):
    """The lines of each kind of InfoNCE on one data set."""

    title: str
    lines: dict[str, list[Line]]  # by the paper's name of the method
    left_out: str


METHODS = {
    "InfoNCE-LM": "beta", "InfoNCE + LM": "beta", "InfoNCE + Class-SCNS": "k", "InfoNCE + Instance-SCNS": "k",
}  # fmt: skip


def grid(results: Results, table: str, *, pairs: int = 1) -> Grid:
    """The accuracies of a table's methods on at least `pairs` pairs, without the teachers' own."""
    entries = [each for each in results.entries if each.cell and each.cell.table == table]
    entries = [each for each in entries if each.cell and each.cell.row.slug != "teacher"]
    # A student without a teacher is in every column of its own, also in those of a width that nobody trained.
    trained = {each.cell.column for each in entries if each.cell and (each.cell.teacher or each.cell.column.printed)}
    entries = [each for each in entries if each.cell and each.cell.column in trained]
    some = "'*'" if table == "t1" else "'resnet110-*'" if table == "t3" else "'resnet50-*'"
    needed = f"train them: scns sweep {table} --rows 'ce,*scns*' --columns {some}"
    if not entries:
        raise InputError(f"No run is of table {table} ({tables.TABLES[table]}); {needed}")
    chosen, dropped = _alike(entries, _scale)
    chosen, unlike = _one_kind_a_cell(chosen)
    accuracies: dict[tuple[str, str], list[float]] = {}
    rows = {}
    for entry in chosen:
        assert entry.cell is not None
        rows[entry.cell.row.slug] = entry.cell.row
        accuracies.setdefault((entry.cell.column.slug, entry.cell.row.slug), []).append(entry.test)
    kept_pairs, kept_rows, gone = _complete(accuracies)
    if len(kept_rows) < 2 or len(kept_pairs) < pairs:
        shared = f"{count(len(kept_rows), 'method')} on {count(len(kept_pairs), 'column')}"
        raise InputError(f"Runs of {table} share {shared}, but the figure needs 2 methods on {pairs}; {needed}")
    values = np.array([[mean(accuracies[pair, row]) for row in kept_rows] for pair in kept_pairs])
    names = [rows[row].title for row in kept_rows]
    groups = {name: _group(rows[row]) for name, row in zip(names, kept_rows, strict=True)}
    left_out = " ".join(filter(None, (dropped, unlike, gone)))
    return Grid(f"{table} by runs on {_scale_in_words(chosen)}", kept_pairs, names, groups, values, left_out)


def sweeps(results: Results) -> dict[str, Sweeps]:
    """By data set, the runs of InfoNCE that differ in beta or k, a line for each network."""
    found: dict[str, list[Entry]] = {}
    for entry in {each.path: each for each in results.entries}.values():  # a run that two cells share is one run
        if entry.recipe.method == "infonce":
            found.setdefault(entry.recipe.data, []).append(entry)
    made = {data: _sweeps(entries) for data, entries in found.items()}
    made = {data: each for data, each in made.items() if any(map(len, each.lines.values()))}
    if not made:
        raise InputError(
            "No network was trained with two values of beta or of k; train some: "
            "scns tune mini-class --grid method.k=1,2,5"
        )
    return made


def curves_by_pair(results: Results, folder: Path) -> tuple[dict[str, dict[str, list[float]]], list[str]]:
    """Test accuracies by epoch: of each data set, teacher and student, the mean over seeds of each setting.

    A run that is not finished has a curve of its own. Second, a sentence for each run without a curve.
    """
    single, left_out = curves.read_curves(folder)
    made: dict[str, dict[str, list[float]]] = {}
    for line, entries in results.groups:
        labels = [each.path.relative_to(folder).as_posix() for each in entries]
        labels = [folder.resolve().name if label == "." else label for label in labels]
        drawn = [single.pop(label) for label in labels if label in single]
        if not drawn:
            continue  # without a curve, or drawn already: a student without a teacher is in several columns
        shortest = min(map(len, drawn))
        averaged = [mean(each[epoch] for each in drawn) for epoch in range(shortest)]
        several = f" (mean of {len(drawn)})" if len(drawn) > 1 else ""
        name = entries[0].cell.row.title if entries[0].cell else line.name
        pair = made.setdefault(f"{entries[0].recipe.data}, {_network(entries[0])}", {})
        pair[_unused(name + several, labels[0], pair)] = averaged
    told = [each.relative_to(folder).as_posix() for each in results.skipped if (each / "result.json").exists()]
    single = {label: values for label, values in single.items() if label not in told}  # copies of others, say
    if single:
        made[""] = single
    return made, left_out


def _unused(name: str, other: str, taken: Collection[str]) -> str:
    return f"{name}, {other}" if name in taken else name


def _sweeps(entries: list[Entry]) -> Sweeps:
    chosen, dropped = _alike(entries, _scale_of_infonce, prefer=lambda each: _kind(each)[1] is not None)
    found: dict[str, dict[str, dict[str, Accuracies]]] = {method: {} for method in (*METHODS, "InfoNCE")}
    for entry in chosen:
        method, value = _kind(entry)
        if method:
            kinds = found[method].setdefault(_network(entry), {})
            kinds.setdefault(_beside(entry), {}).setdefault(value, []).append(entry.test)
    lines: dict[str, list[Line]] = {method: [] for method in METHODS}
    unlike = 0
    for method in METHODS:
        for network, kinds in found[method].items():
            kind_of, best = max(kinds.items(), key=lambda each: _most(each[1]))
            unlike += sum(_most(each)[1] for each in kinds.values() if each is not best)
            if len(best) > 1:
                taught = json.loads(kind_of)[-1]
                plain = [
                    each for key, each in found["InfoNCE"].get(network, {}).items() if json.loads(key)[-1] == taught
                ]
                # Of several kinds of uniform runs none is the line's baseline.
                known = _spread(plain[0][None]) if len(plain) == 1 else None
                values = sorted((x for x in best if x is not None), key=_order)
                points = {x: _spread(best[x]) for x in values}
                lines[method].append(Line(network, points, known))
    return Sweeps(f"Runs on {_scale_in_words(chosen)}", lines, " ".join(filter(None, (dropped, _unlike(unlike)))))


def _beside(entry: Entry) -> str:
    """What the runs of one line have in common beside its beta or k."""
    recipe = entry.recipe
    arguments = recognise.effective(recipe, entry.path).arguments
    shared = {key: value for key, value in arguments.items() if key not in METHODS.values()}
    taught = entry.taught if entry.cell is not None else (recipe.distil and recipe.teacher)
    return json.dumps([shared, recipe.words, recipe.on_missing, taught], sort_keys=True)


def _most(accuracies: Accuracies) -> tuple[int, int]:
    return len(accuracies), sum(map(len, accuracies.values()))


def _kind(entry: Entry) -> tuple[str, float | None]:
    """The paper's name of a run of InfoNCE, and its beta or k; ("", None) for another one."""
    arguments = recognise.effective(entry.recipe, entry.path).arguments
    sampler, mixed = arguments["sampler"], arguments["lm_weight"]
    if sampler == "uniform" and mixed:
        return "InfoNCE + LM" if arguments["weight"] else "InfoNCE-LM", float(arguments["beta"])
    if sampler == "uniform":
        return "InfoNCE", None
    if sampler in ("class", "instance") and not mixed and arguments["k"] is not None:
        return f"InfoNCE + {sampler.capitalize()}-SCNS", float(arguments["k"])
    return "", None


def _order(k: float) -> tuple[bool, float]:
    """Shares of the images or classes before numbers of them."""
    return k >= 1, k


def _network(entry: Entry) -> str:
    """The student, and who taught it; of a table's cell its column, also where other networks stand in for it."""
    recipe = entry.recipe
    if entry.cell is not None and (entry.cell.teacher or entry.cell.table == "t1"):
        return entry.cell.column.slug.replace("-resnet", " → resnet")
    if not (recipe.teacher and recipe.distil):
        return recipe.student
    return f"{recognise.teacher_network(entry.path, recipe) or 'a teacher'} → {recipe.student}"


def _alike(
    entries: Sequence[Entry], scale: Callable[[Entry], str], prefer: Callable[[Entry], bool] = bool
) -> tuple[list[Entry], str]:
    """The largest group of entries of one scale, full runs first, and a sentence on what is not in it."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(scale(entry), []).append(entry)

    def size(group: list[Entry]) -> tuple[bool, int]:
        return any(each.cell is not None and not each.changed for each in group), sum(map(prefer, group))

    best = max(groups.values(), key=size)
    others = len(entries) - len(best)
    verb = "is" if others == 1 else "are"
    return best, f"{count(others, 'run')} of another schedule or size {verb} not in it." if others else ""


def _one_kind_a_cell(entries: list[Entry]) -> tuple[list[Entry], str]:
    """Of every cell the runs of one line of the results, those as printed first, and all by one kind of teacher."""
    taught: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        if entry.taught is not None:
            taught.setdefault(entry.taught, []).append(entry)
    best = max(taught.values(), key=_first, default=[])
    cells: dict[str, dict[str, list[Entry]]] = {}
    for entry in entries:
        if entry.taught is None or entry.taught == best[0].taught:
            assert entry.cell is not None
            cells.setdefault(entry.cell.name, {}).setdefault(kind(entry), []).append(entry)
    chosen = [entry for kinds in cells.values() for entry in max(kinds.values(), key=_first)]
    return chosen, _unlike(len(entries) - len(chosen))


def _first(group: list[Entry]) -> tuple[bool, int]:
    return not group[0].changed, len(group)


def _unlike(number: int) -> str:
    verb = "is" if number == 1 else "are"
    return f"{count(number, 'run')} of another teacher or other arguments {verb} not in it." if number else ""


def _scale(entry: Entry) -> str:
    """What runs of one figure share."""
    hidden = (*_APART, *CHANCE)
    values = {key: value for key, value in entry.recipe.as_dict().items() if key not in hidden}
    return json.dumps(values | own_root(entry.recipe), sort_keys=True)


def _scale_of_infonce(entry: Entry) -> str:
    arguments = recognise.effective(entry.recipe, entry.path).arguments
    shared = {key: value for key, value in arguments.items() if key not in _VARIED}
    return _scale(entry) + json.dumps(shared, sort_keys=True)


def _complete(accuracies: Iterable[tuple[str, str]]) -> tuple[list[str], list[str], str]:
    """Pairs and rows of which every combination is there, the emptiest left out one by one; and which went."""
    there = set(accuracies)
    pairs, rows = (list(dict.fromkeys(key[side] for key in accuracies)) for side in (0, 1))
    gone: list[str] = []
    while True:
        missing = {pair: sum((pair, row) not in there for row in rows) / len(rows) for pair in pairs}
        missing |= {row: sum((pair, row) not in there for pair in pairs) / len(pairs) for row in rows}
        worst = max(missing, key=lambda name: missing[name])
        if not missing[worst]:
            return pairs, rows, f"Not all runs are there, so it is without {', '.join(gone)}." if gone else ""
        gone.append(worst)
        (pairs if worst in pairs else rows).remove(worst)


def _group(row: Row) -> str:
    if row.method == "ce":
        return "cross-entropy alone"
    if row.slug == "own":
        return "scns's defaults"
    published = row.method in BASELINES or row.slug == "infonce"  # InfoNCE on uniform negatives is older, too
    return "KLD" if row.method == "kld" else "SoTA Baselines" if published else "Ours"


def _scale_in_words(entries: Sequence[Entry]) -> str:
    """The data of runs, and what was changed in them."""
    keys = dict.fromkeys(key for each in entries for key in each.changed if not key.startswith("teacher."))
    kind = "shrunken" if entries[0].shrunken else "changed"
    told = f"{kind}: {', '.join(keys)}" if keys else "with other teachers" if entries[0].changed else ""
    return f"{entries[0].recipe.data} ({told})" if told else entries[0].recipe.data


def _spread(values: list[float]) -> tuple[float, float]:
    return mean(values), stdev(values) if len(values) > 1 else math.nan

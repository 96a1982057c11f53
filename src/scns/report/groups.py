"""What the page compares: runs that differ in their seed alone, and what they gain over uniform negatives."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from scns import recognise
from scns.claims import OF_THE_METHOD, Difference, paired, pooled, quantile
from scns.recipe import own_root
from scns.report.svg import Curve
from scns.results import Entry, Line, Results

NAMED = 3  # settings in which curves of one name differ, in words; the recipes have them all
_POINTS = 400  # of a curve: more than a screen shows, and a page of 100 runs stays below 5 MB


@dataclass(frozen=True)
class Group:
    """A line of the results with its runs; `gain` is its paired difference to the runs with uniform negatives."""

    line: Line
    entries: list[Entry]
    uniform: bool  # it is the baseline
    gain: Difference | None


def groups(results: Results) -> list[Group]:
    """The lines of the results, each with its runs and its gain over the same seeds with uniform negatives."""
    found = results.groups
    baselines: dict[str, dict[int | None, dict[str, float]]] = {}  # by setting and number of negatives
    for _, entries in found:
        if _is_uniform(entries[0]):
            there, number = baselines.setdefault(_setting(entries[0]), {}), negatives(entries[0])
            # Two that differ in something else than their number are nobody's baseline.
            there[number] = {} if number in there else {_seeds(entry): entry.test for entry in entries}
    made = []
    for line, entries in found:
        setting, own = _setting(entries[0]), {_seeds(entry): entry.test for entry in entries}
        is_uniform, there = _is_uniform(entries[0]), baselines.get(setting, {})
        # Where there are several, that of as many negatives.
        known = next(iter(there.values())) if len(there) == 1 else there.get(negatives(entries[0]), {})
        made.append(Group(line, entries, is_uniform, None if is_uniform else paired(own, known)))  # type: ignore[arg-type]
    return made


def by_number(own: Sequence[Group]) -> list[tuple[list[Curve], list[str], Group]]:
    """Accuracy with its 95 % interval by the number of negatives, of runs that share all but their method.

    Intervals are by the deviation of seeds pooled over all points: of two seeds alone they would be 13 errors wide.
    A curve is a method with all its arguments; one of them has two numbers. Beside the curves what has none, in words,
    and a group that shares what all of them share.
    """
    sorted_out: dict[str, dict[str, list[Group]]] = {}
    for group in own:
        sorted_out.setdefault(_setting(group.entries[0]), {}).setdefault(_kind(group.entries[0]), []).append(group)
    made = []
    for kinds in sorted_out.values():
        drawn = [[each for each in some if negatives(each.entries[0]) is not None] for some in kinds.values()]
        if max(len({negatives(each.entries[0]) for each in some}) for some in drawn) < 2:
            continue
        others = [each.line for some in kinds.values() for each in some if negatives(each.entries[0]) is None]
        told = [f"{line.name} {line.mean:.2f}" for line in others]
        every = [[entry.test for entry in each.entries] for some in drawn for each in some]
        deviation, freedom = pooled(every)
        half = quantile(freedom) * deviation if freedom else math.inf  # of one run
        first = next(iter(kinds.values()))[0]
        curves = [_by_number(some, half) for some in drawn if some]
        names = [each.name for each in curves]
        settings = [_but_number(some[0].line) for some in drawn if some]
        curves = [
            replace(each, name=f"{each.name} ({more})") if more and names.count(each.name) > 1 else each
            for each, more in zip(curves, settings, strict=True)
        ]
        made.append((curves, told, first))
    return made


def _but_number(line: Line) -> str:
    """In what a line differs from its namesakes, the number of negatives apart."""
    return ", ".join([each for each in line.apart if not each.startswith("method.negatives=")][:NAMED])


def _by_number(some: list[Group], half: float) -> Curve:
    some = sorted(some, key=lambda group: negatives(group.entries[0]) or 0)
    numbers = [negatives(group.entries[0]) or 0 for group in some]
    return Curve(
        some[0].line.name.removesuffix(f"-{numbers[0]}"),
        numbers,
        [mean(entry.test for entry in group.entries) for group in some],
        [half / math.sqrt(len(group.entries)) for group in some],
    )


def negatives(entry: Entry) -> int | None:
    """How many a run draws for an anchor; None where it draws none."""
    chosen = recognise.effective(entry.recipe, entry.path).arguments
    return None if "negatives" not in chosen or chosen.get("sampler") == "all" else int(chosen["negatives"])


def _kind(entry: Entry) -> str:
    """The method with all that it is given but the number of negatives."""
    chosen = recognise.effective(entry.recipe, entry.path)
    given = {key: value for key, value in chosen.arguments.items() if key != "negatives"}
    return json.dumps([chosen.method, chosen.preset, chosen.words, given], sort_keys=True)


def curve(group: Group, name: str) -> Curve | None:
    """The mean over seeds of the test accuracy, after the epochs that all of them evaluated; None below two epochs.

    Seeds whose log cannot be read are not in it, which its name then says.
    """
    histories = [found for entry in group.entries if (found := history(entry.path))]
    if not histories:
        return None
    epochs = sorted(set.intersection(*(set(each) for each in histories)))
    if len(epochs) < 2:
        return None
    epochs = epochs[:: -math.ceil(len(epochs) / _POINTS)][::-1]  # the last one stays
    accuracies = [mean(each[epoch] for each in histories) for epoch in epochs]
    every = "" if len(histories) == len(group.entries) else f" of {len(group.entries)}"
    seeds = f" (mean of {len(histories)}{every})" if len(group.entries) > 1 else ""
    return Curve(name + seeds, epochs, accuracies)


def history(path: Path) -> dict[int, float]:
    """The test accuracy by epoch of a run's main stage; nothing where its log cannot be read."""
    try:
        lines = [json.loads(line) for line in (path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        found = {int(line["epoch"]): float(line["test"]) for line in lines if "test" in line and "stage" not in line}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {epoch: found[epoch] for epoch in sorted(found) if math.isfinite(found[epoch])}


def _is_uniform(entry: Entry) -> bool:
    """InfoNCE on uniform negatives as they are drawn, without mixtures."""
    if entry.recipe.method != "infonce":
        return False
    chosen = recognise.effective(entry.recipe, entry.path).arguments
    return chosen["sampler"] == "uniform" and not chosen["lm_weight"] and not chosen["correct"]


def _setting(entry: Entry) -> str:
    """What runs share that are compared: all but the method, where it runs, and chance; also who teaches them."""
    hidden = (*OF_THE_METHOD, "seed")
    values = {key: value for key, value in entry.recipe.as_dict().items() if key not in hidden}
    cell = entry.cell and [entry.cell.table, entry.cell.column.slug]
    taught_by = entry.recipe.teacher if entry.recipe.distil else ""
    return json.dumps([cell, taught_by, values | own_root(entry.recipe)], sort_keys=True)


def _seeds(entry: Entry) -> str:
    return f"{entry.recipe.seed} {entry.recipe.order_seed}"


def by_data(found: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each data set, in the order of its first; of a person's own, several have their folders' names."""
    roots = [own_root(group.entries[0].recipe).get("root", "") if group.entries else "" for group in found]
    several: dict[str, set[str]] = {}
    for group, root in zip(found, roots, strict=True):
        several.setdefault(group.line.data, set()).update({root} - {""})
    names = [Path(root).resolve().name for root in {*roots} - {""}]
    made: dict[str, list[Group]] = {}
    for group, root in zip(found, roots, strict=True):
        full = Path(root).resolve()  # the page may go to others, who need not know where it lay
        own = "/".join(full.parts[-2:]) if names.count(full.name) > 1 else full.name
        told = f"{group.line.data} {own}" if root and len(several[group.line.data]) > 1 else group.line.data
        made.setdefault(told, []).append(group)
    return made


def paths(own: Sequence[Group]) -> list[Path]:
    """The folders of the runs, each once."""
    return list(dict.fromkeys(entry.path for group in own for entry in group.entries))

"""What the page compares: runs that differ in their seed alone, and what they gain over uniform negatives."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from scns import recognise
from scns.claims import OF_THE_METHOD, Difference, paired
from scns.report.svg import Curve
from scns.results import Entry, Line, Results

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
    baselines: dict[str, dict[str, float]] = {}
    doubtful = set()
    for _, entries in found:
        for entry in entries if _is_uniform(entries[0]) else ():
            known = baselines.setdefault(_setting(entry), {})
            doubtful |= {_setting(entry)} if _seeds(entry) in known else set()
            known[_seeds(entry)] = entry.test
    made = []
    for line, entries in found:
        setting, own = _setting(entries[0]), {_seeds(entry): entry.test for entry in entries}
        is_uniform = _is_uniform(entries[0])
        # Two kinds of uniform runs, say with 256 and 1,024 negatives: neither is the baseline of the others.
        known = {} if is_uniform or setting in doubtful else baselines.get(setting, {})
        made.append(Group(line, entries, is_uniform, paired(own, known)))  # type: ignore[arg-type]
    return made


def curve(group: Group) -> Curve | None:
    """The mean over seeds of the test accuracy, after the epochs that all of them evaluated; None below two epochs."""
    histories = [history(entry.path) for entry in group.entries]
    epochs = sorted(set.intersection(*(set(each) for each in histories)))
    if len(epochs) < 2:
        return None
    epochs = epochs[:: -math.ceil(len(epochs) / _POINTS)][::-1]  # the last one stays
    accuracies = [mean(each[epoch] for each in histories) for epoch in epochs]
    seeds = f" (mean of {len(histories)})" if len(histories) > 1 else ""
    return Curve(group.line.name + seeds, epochs, accuracies)


def history(path: Path) -> dict[int, float]:
    """The test accuracy by epoch of a run's main stage; nothing where its log cannot be read."""
    try:
        lines = [json.loads(line) for line in (path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        found = {int(line["epoch"]): float(line["test"]) for line in lines if "test" in line and "stage" not in line}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {epoch: found[epoch] for epoch in sorted(found) if math.isfinite(found[epoch])}


def _is_uniform(entry: Entry) -> bool:
    """InfoNCE on uniform negatives, without mixtures."""
    if entry.recipe.method != "infonce":
        return False
    chosen = recognise.effective(entry.recipe, entry.path).arguments
    return chosen["sampler"] == "uniform" and not chosen["lm_weight"]


def _setting(entry: Entry) -> str:
    """What runs share that are compared: all but the method, where it runs, and chance."""
    hidden = (*OF_THE_METHOD, "seed")
    values = {key: value for key, value in entry.recipe.as_dict().items() if key not in hidden}
    cell = entry.cell and [entry.cell.table, entry.cell.column.slug]
    return json.dumps([cell, bool(entry.recipe.teacher and entry.recipe.distil), values], sort_keys=True)


def _seeds(entry: Entry) -> str:
    return f"{entry.recipe.seed} {entry.recipe.order_seed}"


def by_data(found: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each data set, in the order of its first."""
    made: dict[str, list[Group]] = {}
    for group in found:
        made.setdefault(group.line.data, []).append(group)
    return made


def paths(own: Sequence[Group]) -> list[Path]:
    """The folders of the runs, each once."""
    return list(dict.fromkeys(entry.path for group in own for entry in group.entries))

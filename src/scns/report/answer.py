"""How the page opens: what was run, and what came out, in sentences."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scns.claims import LEAST
from scns.phrases import count
from scns.report.groups import Group, by_data, paths
from scns.report.markup import text
from scns.results import Entry

_MANY = 20  # settings, of which one is told apart by chance


def what(found: Sequence[Group], runs: dict[Path, Entry]) -> str:
    """One paragraph: what was run."""
    data = [f"{name} ({count(len(paths(own)), 'run')})" for name, own in by_data(found).items()]
    methods = sorted({entry.recipe.method for entry in runs.values()})
    hours = sum(entry.seconds for entry in runs.values()) / 3600
    time = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    hardware = sorted({str(_result(path).get("hardware", "")) for path in runs} - {""})
    on = f" on {', '.join(hardware)}" if hardware else ""
    told = f"{count(len(found), 'setting')} (seeds apart); data: {', '.join(data)}; methods: {', '.join(methods)}."
    added = ", added up over runs, also those that trained at once" if len(runs) > 1 else ""
    return f"<p>{text(told)} {time} of training{text(on)}{added}.</p>"


def answer(found: Sequence[Group]) -> str:
    """What came out, in sentences."""
    said = [_against_paper(found)]
    said += [_against_uniform(data, own) for data, own in by_data(found).items() if any(each.gain for each in own)]
    if len(said) == 1 and not any(group.uniform for group in found):
        said.append("No run has uniform negatives, so there is no difference to them.")
    paragraphs = "".join(f"<p>{each}</p>" for each in said)
    return f'<section class="answer" aria-label="The answer">{paragraphs}</section>'


def _against_paper(found: Sequence[Group]) -> str:
    # Cells that share their runs and their printed number, such as both widths of a teacher, are one comparison.
    distinct = {
        (tuple(paths([group])), group.line.printed): group.line.difference
        for group in found
        if group.line.difference is not None
    }
    differences = list(distinct.values())
    if not differences:
        shrunken = sum(group.line.shrunken for group in found)
        why = f" (shrunken cells: {shrunken})" if shrunken else ""
        return f"<b>Nothing here is comparable with the paper</b>: no setting is a cell of its tables in full{why}."
    above = sum(each > 0 for each in differences)
    below = sum(each < 0 for each in differences)
    return (
        f"<b>{count(len(differences), 'result')} compared with the paper</b>: {above} above it, {below} below, "
        f"by {_range(differences)} points."
    )


def _range(values: list[float]) -> str:
    """From the lowest to the highest: their mean would be one of cells that have nothing in common."""
    low, high = min(values), max(values)
    return f"{low:+.2f} to {high:+.2f}" if low < high else f"{low:+.2f}"


def _against_uniform(data: str, own: Sequence[Group]) -> str:
    """How many settings are above and below uniform negatives beyond chance, and the one furthest above.

    That is one of those with enough pairs, where there are such: among single pairs, the largest is mostly luck.
    """
    gains = [(group, group.gain) for group in own if group.gain is not None]
    above, below = (sum(gain.sign == sign for _, gain in gains) for sign in (1, -1))
    several = [(group, gain) for group, gain in gains if gain.n >= LEAST] or gains
    best, gain = max(several, key=lambda pair: pair[1].mean)
    chosen = f", the largest of {len(several)} and so a flattered one" if len(several) > 1 else ""
    among = f" of those with {LEAST} pairs and more" if len(several) < len(gains) else ""
    judged = sum(gain.n >= LEAST for _, gain in gains)
    # One interval in twenty leaves 0 out by chance.
    told = (
        f" Each is judged by its own 95 % interval: of {judged} that differ in nothing, about {judged / 20:.0f} would"
    )
    chance = f"{told} be above or below." if judged >= _MANY else ""
    return (
        f"<b>{count(len(gains), 'setting')} on {text(data)} compared with uniform negatives</b>: {above} above, "
        f"{below} below, {len(gains) - above - below} undecided.{chance} The largest mean difference{among} has "
        f"{text(best.line.name)} ({text(best.line.student)}): {text(str(gain))}{chosen}."
    )


def _result(path: Path) -> dict[str, Any]:
    return json.loads((path / "result.json").read_text(encoding="utf-8"))

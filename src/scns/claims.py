"""Paired differences of runs with the same seeds, and which of the paper's claims they bear out.

A difference is taken between two runs that share table, scale, column and seed; its 95 % interval is Student's t over
such pairs. Intervals are not corrected for there being several.
"""

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

from scns import models, recognise
from scns.curves import accuracies, epochs_to_converge
from scns.errors import InputError
from scns.recipe import FREE
from scns.results import Entry, Results
from scns.rows import BASELINES

# Student's t, 97.5 %, for 1, 2, ... 30 degrees of freedom.
_T = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139, 2.200985,
    2.178813, 2.160369, 2.144787, 2.13145, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963, 2.079614, 2.073873,
    2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.04523, 2.042272,
)  # fmt: skip
_NORMAL = 1.959964  # the same for infinitely many
LEAST = 3  # pairs that decide: two equal differences look certain and are not

OF_THE_METHOD = (
    "method", "preset", "arguments", "words", "on_missing", "distil", "teacher", "teacher_mode", "data_seed", *FREE,
)  # fmt: skip

Key = tuple[object, ...]
Values = dict[Key, float]


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and its 95 % interval; one pair has no interval."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def sign(self) -> int:
        """1 or -1 where the interval of three pairs or more is on one side of zero, else 0."""
        return ((self.low > 0) - (self.high < 0)) * (self.n >= LEAST)

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.mean:+.2f} (one pair, no interval)"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}], {self.n} pairs"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and what the runs say: "holds", "fails" or "undecided".

    `shrunken`: from runs that are smaller than the paper's, or changed otherwise.
    """

    letter: str
    text: str
    verdict: str
    evidence: str
    shrunken: bool = False


def quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, tabled up to 30; beyond, z + (z^3 + z) / 4f + (5z^5 + 16z^3 + 3z) / 96f^2."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = _NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def paired(one: Values, other: Values) -> Difference | None:
    """one - other over the keys that both have; None without any."""
    found = [one[key] - other[key] for key in one if key in other]
    return interval(found) if found else None


def interval(values: list[float]) -> Difference:
    """mean +- t * s / sqrt(n)."""
    middle = mean(values)
    if len(values) < 2:
        return Difference(middle, -math.inf, math.inf, 1)
    half = quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Difference(middle, middle - half, middle + half, len(values))


def pooled(groups: Iterable[list[float]]) -> tuple[float, int]:
    """(standard deviation of a value about its group's mean, degrees of freedom), of all groups together; 0 of none."""
    several = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    squares = sum(stdev(values) ** 2 * (len(values) - 1) for values in several)
    return math.sqrt(squares / freedom) if freedom else 0.0, freedom


def claims(results: Results) -> list[Claim]:
    """The paper's six claims, (a) to (f), judged by the runs of its tables: full ones, or else shrunken ones."""
    runs = [entry for entry in results.entries if entry.cell is not None]
    full = [entry for entry in runs if not entry.changed]
    judges = (
        ("a", "instance-level negatives converge no later than class-level, these no later than uniform", _converge),
        ("b", "InfoNCE + LM is at least as good as InfoNCE-LM", _beside),
        ("c", "the best k lies inside the range", _interior),
        ("d", "LM with SCNS beats either alone", _combined),
        ("e", "KLD is a strong baseline", _baseline),
        ("f", "a larger teacher does not always help", _larger),
    )
    found = []
    for letter, text, judge in judges:
        verdict, evidence = judge(full)
        changed = not evidence
        if changed:
            verdict, evidence = judge(runs)
        found.append(Claim(letter, text, verdict, evidence or "no runs to compare", changed and bool(evidence)))
    return found


def values(entries: Iterable[Entry], *rows: str, by_value: bool = False, unlike: bool = False) -> Values:
    """Test accuracies of the rows that a glob pattern matches, by what pairs share; `by_value`: beta or k too.

    Rows that are `unlike` have no arguments to share. Where several runs share all of it, nobody knows which is meant:
    none is taken.
    """
    found: dict[Key, dict[Path, float]] = {}
    for each in entries:
        if each.cell and any(fnmatchcase(each.cell.row.slug, row) for row in rows):
            found.setdefault(_key(each, by_value, unlike), {})[each.path] = each.test
    return {key: only for key, runs in found.items() for only in runs.values() if len(runs) == 1}


def _key(entry: Entry, by_value: bool = False, unlike: bool = False) -> Key:
    assert entry.cell is not None
    recipe, cell = entry.recipe, entry.cell
    scale = json.dumps({key: value for key, value in recipe.as_dict().items() if key not in OF_THE_METHOD})
    value = cell.row.value if by_value else None
    given = "" if unlike else _own_arguments(entry)
    return cell.table, cell.column.slug, recipe.order_seed, scale, entry.taught, given, value


def _own_arguments(entry: Entry) -> str:
    """Those that its cell gives otherwise: of runs that were given the same, each row's meet."""
    assert entry.cell is not None
    if "arguments" not in entry.changed:
        return ""
    given = recognise.effective(entry.recipe, entry.path).arguments
    printed = recognise.effective(entry.cell.recipe).arguments
    return json.dumps({key: given[key] for key in sorted(given) if given[key] != printed.get(key)})


def _verdict(differences: list[tuple[str, Difference | None]]) -> tuple[str, str]:
    """All above zero: holds; one below: fails; else undecided. And the numbers."""
    there = [(name, each) for name, each in differences if each is not None]
    evidence = "; ".join(f"{name} {each}" for name, each in there)
    signs = [each.sign for _, each in there]
    if -1 in signs:
        return "fails", evidence
    if len(there) < len(differences) or not there or 0 in signs:
        return "undecided", evidence
    return "holds", evidence


def _converge(entries: list[Entry]) -> tuple[str, str]:
    several: dict[str, dict[Key, list[float]]] = {"infonce": {}, "class": {}, "instance": {}}
    for each in entries:
        level = each.cell.row.slug.split("-scns")[0] if each.cell else ""
        if level in several:
            with suppress(InputError):  # too few epochs, or not tested after each of them
                found = epochs_to_converge(accuracies(each.path / "log.jsonl"))
                several[level].setdefault(_key(each), []).append(found)
    speed = {level: {key: mean(all_k) for key, all_k in found.items()} for level, found in several.items()}
    return _verdict(
        [
            ("epochs, class - instance", paired(speed["class"], speed["instance"])),
            ("uniform - class", paired(speed["infonce"], speed["class"])),
        ]
    )


def _beside(entries: list[Entry]) -> tuple[str, str]:
    beside = values(entries, "infonce+lm-b*", by_value=True)
    alone = values(entries, "infonce-lm-b*", by_value=True)
    return _verdict([("points", paired(beside, alone))])


def _interior(entries: list[Entry]) -> tuple[str, str]:
    """Holds where some inner k is above both ends, fails where an end is above every inner k."""
    verdicts, told = [], []
    for table in ("t1", "t3"):
        for level in ("class", "instance"):
            rows = {
                each.cell.row.slug: each.cell.row.arguments["k"]
                for each in entries
                if each.cell and each.cell.table == table and each.cell.row.slug.startswith(f"{level}-scns-k")
            }
            ordered = sorted(rows, key=lambda slug: rows[slug])
            if len(ordered) < 3:
                continue
            accuracy = {slug: _of(entries, table, slug) for slug in ordered}
            verdict, best = _peak(ordered, accuracy)
            verdicts.append(verdict)
            told.append(f"{table} {level}: {best}")
    if not verdicts:
        return "undecided", ""
    decided = set(verdicts)
    return (verdicts[0] if len(decided) == 1 else "fails" if "fails" in decided else "undecided"), "; ".join(told)


def _peak(ordered: list[str], accuracy: dict[str, Values]) -> tuple[str, str]:
    ends, inner = (ordered[0], ordered[-1]), ordered[1:-1]
    against = {slug: [paired(accuracy[slug], accuracy[end]) for end in ends] for slug in inner}
    signs = {slug: [each.sign if each else 0 for each in found] for slug, found in against.items()}
    shared = set.intersection(*({*found} for found in accuracy.values()))  # means of others would be of unlike runs
    best = max(ordered, key=lambda slug: sum(accuracy[slug][key] for key in shared))
    told = f"best {best}" if shared else "nothing was run with every k"
    if any(found == [1, 1] for found in signs.values()):
        return "holds", told
    if any(all(found[end] == -1 for found in signs.values()) for end in (0, 1)):
        return "fails", told
    return "undecided", told


def _combined(entries: list[Entry]) -> tuple[str, str]:
    found: list[tuple[str, Difference | None]] = []
    for level, alone in (
        ("class", ("class-scns", "class-scns-k20")),
        ("instance", ("instance-scns", "instance-scns-k50")),
    ):
        both = values(entries, f"infonce-lm-{level}-scns")
        if both:
            scns = values(entries, *alone)
            mixed = values(entries, "infonce-lm", "infonce-lm-b0.5")
            found += [(f"over {level}-SCNS", paired(both, scns)), ("over InfoNCE-LM", paired(both, mixed))]
    return _verdict(found)


def _baseline(entries: list[Entry]) -> tuple[str, str]:
    """KLD over each published method, and over the best other on the widest student, where the paper has +2.35."""
    kld = values(entries, "kld", unlike=True)
    others = [(name, values(entries, name, unlike=True)) for name in BASELINES]
    found: list[tuple[str, Difference | None]] = [
        (f"over {name}", paired(kld, other)) for name, other in others if other
    ]
    wide = [each for each in entries if each.cell and each.cell.column.student == "resnet32x4"]
    rows = dict.fromkeys(each.cell.row.slug for each in wide if each.cell)
    there = [(name, values(wide, name, unlike=True)) for name in rows if name not in ("kld", "ce", "teacher")]
    against = [(name, paired(kld, other)) for name, other in there]
    most = max((each.n for _, each in against if each is not None), default=0)
    known = [(name, each) for name, each in against if each is not None and each.n == most]
    if known:  # one row for all seeds: the best of each seed would be above any row that is as good as the others
        name, best = min(known, key=lambda each: each[1].mean)
        found.append((f"on resnet32x4 over {name}, the best of {len(known)},", best))
    elif there:  # others were run there, KLD was not: this half cannot be judged
        found.append(("on resnet32x4", None))
    return _verdict(found)


def _larger(entries: list[Entry]) -> tuple[str, str]:
    """Holds where for some student the larger of two teachers is worse, fails where it is better for all."""
    sides: dict[tuple[str, str], dict[str, Values]] = {}
    for each in entries:
        if each.cell is None or not each.cell.teacher or each.cell.table == "t1":
            continue
        key = (*(part for i, part in enumerate(_key(each)) if i != 1), each.cell.row.slug)  # all but the column
        taught = sides.setdefault((each.cell.table, each.recipe.student), {})
        taught.setdefault(each.cell.column.teacher, {})[key] = each.test
    told, signs = [], []
    for (table, student), teachers in sides.items():
        ordered = sorted(teachers, key=_size)
        for small, large in pairwise(ordered):
            difference = paired(teachers[large], teachers[small])
            if difference is not None:
                signs.append(difference.sign)
                told.append(f"{table} {student}: {large} over {small} {difference}")
    verdict = "holds" if -1 in signs else "fails" if signs and all(sign == 1 for sign in signs) else "undecided"
    return verdict, "; ".join(told)


def _of(entries: list[Entry], table: str, slug: str) -> Values:
    return values([each for each in entries if each.cell and each.cell.table == table], slug)


@cache
def _size(network: str) -> int:
    return models.parameters(models.outline(network, 100))

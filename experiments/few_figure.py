"""Tables and figure of the runs that few_negatives.py left in a folder, or few_embeddings.py in a .jsonl file.

  python experiments/few_figure.py docs/results/few --picture few.png
  python experiments/few_figure.py docs/results/few --against own        paired with another kind than uniform
  python experiments/few_figure.py docs/results/few --numbers 256,1024,4096                       of these numbers alone
  python experiments/few_figure.py docs/results/few --numbers 16 --course course.png              epoch by epoch
  python experiments/few_figure.py docs/results/few docs/results/few110                           both teachers together
  python experiments/few_figure.py docs/results/heads.jsonl --picture heads.png                   retrieval by heads

Prints, as Markdown: test accuracy after the last epoch with its 95 % interval; the paired differences from the sum
over all negatives ("all") and from as many uniform ones, over the seeds that both have; the p-value of the latter, by
Holm's correction for all comparisons of one number; in which epoch 60, 65 and 68 % were first reached, on average over
seeds; the spread of the estimated log-denominator in the last epochs; and how many corrected uniform negatives reach
the same accuracy, read off their curve. Intervals and differences are for points of three seeds and more. Then the
means alone by kind and number; then each kind against uniform negatives over all numbers and seeds, by the signs of
all pairs and by the means of seeds that have every number, which is the safer of the two. Of several folders, such
as one a teacher, that last table alone: pairs and seeds of each folder for themselves, put together. The figure has
every point: its intervals are by the spread of seeds pooled over all points of several, as if that were the same for
all. --course draws one number of negatives through training: accuracy less that of --against after the same epoch, a
moving mean over five tests, and the spread of the estimated log-denominator.
"""

import argparse
import json
import math
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import matplotlib

from scns.claims import interval, pooled, quantile

MARKS = (60, 65, 68)  # %, of the early curves
LEAST = 3  # seeds: two have an interval of 13 standard errors
COLOURS = {
    "uniform": "#9e9e9e", "uniform-corrected": "#424242", "class": "#7b3294", "instance": "#d95f02",
    "mixed-corrected": "#e78ac3", "soft": "#66a61e", "soft-200": "#a6d854", "own": "#1f6fb4", "own-200": "#80b1d3",
    "mined": "#b2182b", "mined-margin": "#ef8a62", "mined-uniform": "#c9a227",
}  # fmt: skip
MARKERS = dict(zip(COLOURS, "osv^PDdX<>ph", strict=True))  # some of the colours are one to colour-blind readers
LINES = {"all": "-", "kld": "--", "ce": ":"}


class Point(NamedTuple):
    """A kind of negatives and their number; 0 for kinds without one."""

    kind: str
    number: int


class Ended(NamedTuple):
    """What is kept of a finished run."""

    test: float
    curve: dict[int, float]  # test accuracy by epoch
    spreads: dict[int, float]  # of the log-denominator's error by epoch; empty where it was not noted

    @property
    def spread(self) -> float:
        """That of the last two epochs noted; nan where none was."""
        return mean(list(self.spreads.values())[-2:]) if self.spreads else math.nan


def point_of(name: str) -> tuple[Point, int]:
    """(point, seed) of a run's folder: own-200-16-0 is 16 negatives of the kind own-200, seed 0."""
    stem, _, seed = name.rpartition("-")
    found = re.fullmatch(r"(.+)-(\d+)", stem)
    if found and stem not in LINES:
        return Point(found[1], int(found[2])), int(seed)
    return Point(stem, 0), int(seed)


def read(folder: Path) -> dict[Point, dict[int, Ended]]:
    """The finished runs of a folder, or of a file with a line for each, by point and seed."""
    found: dict[Point, dict[int, Ended]] = defaultdict(dict)
    for line in lines(folder) if folder.suffix == ".jsonl" else []:
        found[Point(line["kind"], line["number"])][line["seed"]] = Ended(
            line["test"], {}, {0: line["deviation"]} if "deviation" in line else {}
        )
    for path in sorted(folder.glob("*/result.json")):
        point, seed = point_of(path.parent.name)
        curve = {line["epoch"]: line["test"] for line in lines(path.parent / "log.jsonl") if "test" in line}
        # A run that went on from a checkpoint noted some epochs twice: the last word counts.
        spreads = {line["epoch"]: line["deviation"] for line in lines(path.parent / "denominator.jsonl")}
        found[point][seed] = Ended(json.loads(path.read_text())["test"], curve, spreads)
    return dict(sorted(found.items()))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reached(runs: dict[int, Ended], mark: float) -> str:
    """The mean epoch after which the runs were first seen with that accuracy; "-" if one never was."""
    firsts = [next((epoch for epoch, test in run.curve.items() if test >= mark), None) for run in runs.values()]
    return "-" if None in firsts or not firsts else f"{mean(n for n in firsts if n is not None):.1f}"


def differences(runs: dict[int, Ended], reference: dict[int, Ended]) -> list[float]:
    """Those of the seeds that both have."""
    return [run.test - reference[seed].test for seed, run in runs.items() if seed in reference]


def difference(runs: dict[int, Ended], reference: dict[int, Ended]) -> str:
    """The paired difference from the reference, with its 95 % interval."""
    return known_to(differences(runs, reference))


def known_to(values: list[float]) -> str:
    """Their mean and its 95 % interval; "-" where they are too few for one."""
    if len(values) < LEAST:
        return "-"
    found = interval(values)
    return f"{found.mean:+.2f} +- {found.high - found.mean:.2f}"


def p_value(values: list[float]) -> float:
    """Two-sided, of Student's t for a mean of 0: the density, summed between -t and t by Simpson's rule."""
    spread = stdev(values)
    if spread == 0:
        return 0.0 if mean(values) else 1.0
    freedom, t = len(values) - 1, abs(mean(values)) / spread * math.sqrt(len(values))
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    heights = [scale * (1 + (t * i / 1000) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(1001)]
    inner = 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return max(0.0, 1 - 2 * t / 3000 * (heights[0] + inner + heights[-1]))


def holm(p: dict[Any, float]) -> dict[Any, float]:
    """p-values corrected for how many they are: the smallest times all of them, the next times one fewer, ..."""
    corrected, least = {}, 0.0
    for place, name in enumerate(sorted(p, key=lambda name: p[name])):
        least = max(least, min(1.0, p[name] * (len(p) - place)))
        corrected[name] = least
    return corrected


def worth(accuracy: float, uniform: list[tuple[int, float]]) -> str:
    """How many corrected uniform negatives have that accuracy, on the straight lines between (log number, accuracy)."""
    if len(uniform) < 2:
        return "-"
    if accuracy <= uniform[0][1]:
        return f"<= {uniform[0][0]}"
    for (few, low), (many, high) in pairwise(uniform):
        if low <= accuracy <= high and high > low:
            share = (accuracy - low) / (high - low)
            return f"{few * (many / few) ** share:.0f}"
    return f"> {uniform[-1][0]}"


def table(runs: dict[Point, dict[int, Ended]], against: str = "uniform") -> list[str]:
    """The rows of the Markdown table; a kind to pair with that has no number is paired with all."""
    corrected: dict[Point, float] = {}
    for number in {point.number for point in runs if point.number}:
        pairs = {
            p: differences(runs[p], baseline(runs, p, against))
            for p in runs
            if p.number == number and p.kind != against
        }
        corrected |= holm({point: p_value(both) for point, both in pairs.items() if len(both) >= LEAST})
    reference = runs.get(Point("all", 0), {})
    uniform = [
        (point.number, mean(run.test for run in each.values()))
        for point, each in runs.items()
        if point.kind == "uniform-corrected" and len(each) >= LEAST
    ]
    heads = [
        "negatives",
        "M",
        "test %",
        "n",
        "from all",
        f"from {against}",
        "p",
        *(f"epochs to {mark} %" for mark in MARKS),
    ]
    rows = [[*heads, "spread of log sum", "worth in corrected uniform"]]
    for point, each in runs.items():
        found = interval([run.test for run in each.values()])
        half = f" +- {found.high - found.mean:.2f}" if len(each) >= LEAST else ""
        spreads = [run.spread for run in each.values()]
        rows.append([
            point.kind, str(point.number or ""), f"{found.mean:.2f}{half}", str(len(each)),
            "" if point.kind == "all" else difference(each, reference),
            "" if point.kind == against else difference(each, baseline(runs, point, against)),
            shown(corrected[point]) if point in corrected else "",
            *(reached(each, mark) for mark in MARKS),
            f"{mean(spreads):.2f}" if not math.isnan(sum(spreads)) else "",
            worth(found.mean, uniform) if point.number else "",
        ])  # fmt: skip
    return markdown(rows)


def grid(runs: dict[Point, dict[int, Ended]]) -> list[str]:
    """Mean accuracy of each kind (rows) and number of negatives (columns), with how many seeds it is of."""
    numbers = sorted({point.number for point in runs if point.number})
    rows = [["negatives", *(f"M = {number:,}" for number in numbers)]]
    for kind in dict.fromkeys(point.kind for point in runs if point.number):
        found = [runs.get(Point(kind, number), {}) for number in numbers]
        rows.append(
            [kind, *(f"{mean(run.test for run in each.values()):.2f} ({len(each)})" if each else "" for each in found)]
        )
    return markdown(rows)


def over_numbers(folders: list[dict[Point, dict[int, Ended]]], against: str) -> list[str]:
    """Each kind beside `against`, over all pairs of one number and one seed; p is the sign test's, by Holm corrected.

    That takes pairs as independent; those of one seed are not quite. The last column does not: the mean over all
    numbers by seed, and the interval of these means. Pairs are made within a folder.
    """
    kinds = dict.fromkeys(p.kind for runs in folders for p in runs if p.number and p.kind != against)
    points = {kind: [_beside(runs, kind, against) for runs in folders] for kind in kinds}
    found = {
        kind: [each for pairs in points[kind] for one, other in pairs for each in differences(one, other)]
        for kind in kinds
        if all(points[kind])
    }
    found = {kind: both for kind, both in found.items() if both}
    corrected = holm({kind: sign_test(both) for kind, both in found.items()})
    rows = [["negatives", f"pairs with {against}", "better in", "mean difference", "p of the signs", "mean by seed"]]
    for kind, both in found.items():
        better = sum(each > 0 for each in both)
        means = [each for pairs in points[kind] for each in by_seed(pairs)]
        by_means = f"{known_to(means)} ({len(means)})" if len(means) >= LEAST else "-"
        rows.append([kind, str(len(both)), str(better), f"{mean(both):+.2f}", shown(corrected[kind]), by_means])
    return markdown(rows)


def _beside(
    runs: dict[Point, dict[int, Ended]], kind: str, against: str
) -> list[tuple[dict[int, Ended], dict[int, Ended]]]:
    """The runs of a kind, number by number, and those that they are paired with."""
    points = [(runs[p], baseline(runs, p, against)) for p in runs if p.kind == kind]
    return [(each, reference) for each, reference in points if reference]


def by_seed(pairs: list[tuple[dict[int, Ended], dict[int, Ended]]]) -> list[float]:
    """The difference of each pair of points, averaged by seed, of the seeds that have them all."""
    seeds = set.intersection(*({*runs} & {*reference} for runs, reference in pairs))
    return [mean(runs[seed].test - reference[seed].test for runs, reference in pairs) for seed in sorted(seeds)]


def sign_test(values: list[float]) -> float:
    """Two-sided, for as many below 0 as above; zeros are left out."""
    better, worse = sum(each > 0 for each in values), sum(each < 0 for each in values)
    tail = sum(math.comb(better + worse, i) for i in range(min(better, worse) + 1)) / 2 ** (better + worse)
    return min(1.0, 2 * tail)


def shown(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def baseline(runs: dict[Point, dict[int, Ended]], point: Point, against: str) -> dict[int, Ended]:
    """What a point is paired with: that kind with as many negatives, or without a number where it has none."""
    return runs.get(Point(against, point.number)) or runs.get(Point(against, 0), {})


def markdown(rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


def draw(runs: dict[Point, dict[int, Ended]], times: dict[str, float], measure: str, picture: Path) -> None:
    """Accuracy and error of the denominator against the number of negatives; accuracy against time, where measured.

    Points of fewer than three seeds are hollow. Kinds stand a little beside each other, so that intervals can be told
    apart.
    """
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    deviation, freedom = pooled([run.test for run in each.values()] for each in runs.values())
    numbers = sorted({point.number for point in runs if point.number})
    kinds = [kind for kind in COLOURS if any(point.kind == kind for point in runs)]  # changed settings: in the table
    figure, panels = plt.subplots(1, 3 if times else 2, figsize=(16 if times else 12, 5), layout="constrained")
    left, right = panels[0], panels[1]
    for kind, line in LINES.items():
        if Point(kind, 0) in runs:
            ended = [run.test for run in runs[Point(kind, 0)].values()]
            half = quantile(freedom) * deviation / math.sqrt(len(ended))
            left.axhspan(mean(ended) - half, mean(ended) + half, color="black", alpha=0.06, linewidth=0)
            left.axhline(mean(ended), color="black", linestyle=line, linewidth=1, label=kind)
    for place, kind in enumerate(kinds):
        points = [point for point in runs if point.kind == kind]
        means = [mean(run.test for run in runs[point].values()) for point in points]
        halves = [quantile(freedom) * deviation / math.sqrt(len(runs[point])) for point in points]
        aside = [point.number * 1.06 ** (place - (len(kinds) - 1) / 2) for point in points]
        style: dict[str, Any] = {"color": COLOURS[kind], "marker": MARKERS[kind], "markersize": 5, "linewidth": 1.2}
        left.errorbar(aside, means, halves, elinewidth=0.7, label=kind, **style)
        spreads = [mean(run.spread for run in runs[point].values()) for point in points]
        right.plot(aside, spreads, **style)
        weak = [i for i, point in enumerate(points) if len(runs[point]) < LEAST]
        hollow: dict[str, Any] = {"markersize": 4, "color": "white", "markeredgecolor": COLOURS[kind], "zorder": 3}
        hollow |= {"marker": MARKERS[kind], "linestyle": "none"}
        for panel, values in ((left, means), (right, spreads)):
            panel.plot([aside[i] for i in weak], [values[i] for i in weak], **hollow)
        timed = [i for i, point in enumerate(points) if _name(point) in times]
        for size, i in enumerate(timed, 2):  # the larger, the more negatives
            one: dict[str, Any] = style | {"markersize": 2.5 * size, "elinewidth": 0.7}
            panels[2].errorbar([times[_name(points[i])]], means[i : i + 1], halves[i : i + 1], **one)
        if timed:
            panels[2].plot([times[_name(points[i])] for i in timed], [means[i] for i in timed], color=COLOURS[kind])
    left.set(ylabel=measure)
    told = f"95 % intervals by the deviation of seeds pooled over all points, {deviation:.2f}"
    few = any(len(each) < LEAST for point, each in runs.items() if point.kind in kinds)
    left.set_title(f"{told}\nhollow: one seed or two" if few else told, fontsize=9)
    right.set(yscale="log", ylabel="spread of the estimated log sum")
    for panel in (left, right):
        panel.set(xscale="log", xlabel="negatives of each anchor", xlim=(numbers[0] / 2, numbers[-1] * 2))
        panel.set_xticks(numbers, [f"{number:,}" for number in numbers])
        panel.minorticks_off()
    marks = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]
    right.set_yticks(marks, [f"{mark:g}" for mark in marks])
    if times:
        panels[2].set(xlabel="seconds an epoch, one student alone", ylabel=measure)
        shown_there = [f"{number:,}" for number in numbers if any(name.endswith(f"-{number}") for name in times)]
        panels[2].set_title(f"small to large: {', '.join(shown_there)} negatives", fontsize=9)
        for kind in LINES:
            if kind in times and Point(kind, 0) in runs:
                value = mean(run.test for run in runs[Point(kind, 0)].values())
                panels[2].plot([times[kind]], [value], "k*", markersize=10, zorder=3)
                panels[2].annotate(kind, (times[kind], value), xytext=(0, -16), textcoords="offset points", ha="center")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(picture, dpi=130)


def _name(point: Point) -> str:
    return f"{point.kind}-{point.number}"


def course(runs: dict[Point, dict[int, Ended]], number: int, against: str, picture: Path) -> None:
    """Accuracy less that of `against` after the same epoch, and the spread of the log sum, through training."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for kind in (*COLOURS, *LINES):
        each, reference = runs.get(Point(kind, number if kind in COLOURS else 0), {}), runs[Point(against, number)]
        seeds = [seed for seed in each if seed in reference]
        if not seeds:
            continue
        style: dict[str, Any] = {
            "color": COLOURS.get(kind, "black"),
            "linestyle": LINES.get(kind, "-"),
            "linewidth": 1.3,
            "marker": MARKERS.get(kind),
            "markersize": 4.5,
        }
        tested = set.intersection(*({*each[seed].curve} & {*reference[seed].curve} for seed in seeds))
        epochs = sorted(tested)
        gains = [mean(each[seed].curve[e] - reference[seed].curve[e] for seed in seeds) for e in epochs]
        smooth = [mean(gains[max(0, i - 2) : i + 3]) for i in range(len(gains))]
        left.plot(epochs, smooth, label=f"{kind} ({len(seeds)})", markevery=4, **style)
        noted = sorted(set.intersection(*({*run.spreads} for run in each.values())))
        right.plot(noted, [mean(run.spreads[e] for run in each.values()) for e in noted], **style)
    left.set(xlabel="epoch", ylabel=f"test accuracy less that of {against}, points")
    left.set_title(f"{number} negatives; mean of (seeds), moving mean over five tests", fontsize=9)
    right.set(xlabel="epoch", ylabel="spread of the estimated log sum", yscale="log")
    marks = [0.2, 0.5, 1, 2]
    right.set_yticks(marks, [f"{mark:g}" for mark in marks])
    right.minorticks_off()
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(picture, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="where the runs are: a folder, or a .jsonl file")
    parser.add_argument("--against", default="uniform", help="the kind of negatives that others are paired with")
    parser.add_argument("--numbers", default="", metavar="M,...", help="of these numbers of negatives alone")
    parser.add_argument("--picture", type=Path, help="the figure to write")
    parser.add_argument("--course", type=Path, metavar="PICTURE", help="draw one number of negatives through training")
    given = parser.parse_args()
    for picture in (given.picture, given.course):
        if picture and not picture.parent.is_dir():
            parser.error(f"'{picture.parent}' is no folder; make it, or give another place for the picture.")
        if picture and len(given.folders) > 1:
            parser.error(f"'{picture}' can show one folder; name one of the {len(given.folders)}.")
    wanted = [word for word in given.numbers.replace(" ", "").split(",") if word]
    read_in = [chosen(parser, folder, wanted, given.against) for folder in given.folders]
    together = over_numbers(read_in, given.against)
    if len(read_in) > 1:
        print(*together, sep="\n")
        return
    folder, runs = given.folders[0], read_in[0]
    if given.course and (len(wanted) != 1 or Point(given.against, int(wanted[0])) not in runs):
        parser.error("--course draws one number against a kind that has it; give one with --numbers, such as 16.")
    if given.picture and not any(len(each) > 1 for each in runs.values()):
        parser.error(f"'{folder}' has one seed of each point; a picture with intervals needs two of some.")
    print(*table(runs, given.against), "", *grid(runs), "", *together, sep="\n")
    times = {line["point"]: line["epoch_s"] for line in lines(folder / "times.jsonl")}
    if given.course:
        course(runs, int(wanted[0]), given.against, given.course)
    if given.picture:
        heads = folder.suffix == ".jsonl"
        draw(runs, times, "mean average precision, %" if heads else "test accuracy, %", given.picture)


def chosen(
    parser: argparse.ArgumentParser, folder: Path, wanted: list[str], against: str
) -> dict[Point, dict[int, Ended]]:
    """The finished runs of a folder, of the wanted numbers alone where some are named."""
    runs = read(folder)
    for number in wanted:
        if number not in {str(point.number) for point in runs if point.number}:
            parser.error(f"--numbers '{number}' has no finished run in '{folder}'.")
    runs = {point: each for point, each in runs.items() if not (wanted and point.number) or str(point.number) in wanted}
    if not runs:
        parser.error(f"'{folder}' has no finished runs; make them with experiments/few_negatives.py.")
    if against not in {point.kind for point in runs}:
        parser.error(f"--against '{against}' has no finished run in '{folder}'.")
    return runs


if __name__ == "__main__":
    main()

"""The paper's figures as functions of accuracies: from its printed numbers, or from anybody's runs."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from torch import Tensor

from scns import paper, plots, words
from scns.curves import MARKED, WINDOW, WITHIN, epochs_to_converge
from scns.errors import InputError
from scns.figure_data import METHODS, Line
from scns.plots import COLOURS, STYLES, new_figure, plain

_MARKERS = ("o", "s", "^", "D", "v", "P")
_DARK = 0.55  # share of the colour map below which white text is the more readable
_GROUPS = {"KLD": "#E69F00", "SoTA Baselines": "#56B4E9", "Ours": "#009E73"}  # sections of t2; Okabe and Ito's colours
_GROUP_NAMES = {"KLD": "KLD", "SoTA Baselines": "published before", "Ours": "the paper's own"}


def class_heatmap(names: Sequence[str], vectors: Tensor, title: str, rows: list[int]) -> Figure:
    """Cosine and sampling probability of some of the classes."""
    cosine, probability = words.class_cosines(vectors), words.class_probabilities(vectors)
    drawn_title = f"sampling probability over {len(names) - 1} classes"
    parts = (each[rows][:, rows].numpy() for each in (cosine, probability))
    return plots.class_heatmap([names[row] for row in rows], *parts, title=title, drawn_title=drawn_title)


def accuracy_heatmap(
    pairs: Sequence[str], methods: Sequence[str], accuracies: ArrayLike, *, normalised: bool, title: str = ""
) -> Figure:
    """Accuracies [pairs, methods] as colours, each written into its cell, and their average as the last row.

    With `normalised` the colour is `paper.scores` of the row, and the last row is the average of the scores.
    """
    values = np.asarray(accuracies, dtype=float)
    if values.shape != (len(pairs), len(methods)) or not values.size:
        raise InputError(f"{len(pairs)} pairs and {len(methods)} methods do not fit accuracies of {values.shape}.")
    scores = paper.scores(values)  # also where they are not shown: it refuses what is not finite
    colours = scores if normalised else values
    colours = np.vstack([colours, colours.mean(axis=0)])  # [pairs + 1, methods]
    texts = [[f"{value:.2f}" for value in row] for row in [*values, colours[-1]]]
    figure = new_figure(0.55 * len(methods) + 3.6, 0.34 * len(pairs) + 3.6)  # inches: "52.22" fits a cell at 9 points
    axes = figure.add_subplot()
    lowest, highest = (0.0, 1.0) if normalised else (float(values.min()), float(values.max()))
    image = axes.imshow(colours, cmap="viridis", aspect="auto", vmin=lowest, vmax=highest)
    for row, written in enumerate(texts):
        for column, text in enumerate(written):
            shade = "white" if colours[row, column] < lowest + _DARK * (highest - lowest) else "black"
            weight = "bold" if colours[row, column] == colours[row].max() else "normal"
            axes.text(column, row, text, ha="center", va="center", color=shade, fontsize=9, fontweight=weight)
    axes.axhline(len(pairs) - 0.5, color="white", linewidth=5)
    axes.set_xticks(
        range(len(methods)),
        [_plain(name) for name in methods],
        rotation=40,
        ha="right",
        rotation_mode="anchor",
        fontsize=10,
    )
    axes.set_yticks(range(len(pairs) + 1), [*(_plain(name) for name in pairs), "Average Score"], fontsize=10)
    axes.tick_params(length=0)
    axes.set_title(_wrapped(title, figure), fontsize=11)
    label = "score in its row" if normalised else "test accuracy (%)"
    figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01, label=label)
    return figure


def paper_heatmap(table: str, *, normalised: bool) -> Figure:
    """The heat-map of "t2" (Tiny-ImageNet-200) or "t3" (CIFAR-100): pairs of teacher and student against methods.

    The paper's own picture for CIFAR-100 has 16 methods whose numbers it does not print; t3 is what it prints.
    """
    title, rows, columns, values = paper.methods(table)
    pairs = [column.replace("/", " → ") for column in columns]
    kind = "colour: each row from its worst to its best method" if normalised else "colour: accuracy"
    return accuracy_heatmap(
        pairs,
        [row.replace("beta=", "β=") for row in rows],
        values.T,
        normalised=normalised,
        title=f"{title}, as the paper prints it; {kind}",
    )


def beta_and_k(
    lines: Mapping[str, Sequence[Line]], *, title: str = "", doubts: Mapping[tuple[str, str, float], str] | None = None
) -> Figure:
    """Accuracy against beta of latent mixup and against k of the two samplers: a panel per method, a line per network.

    `doubts` are remarks on points, by method, network and value.
    """
    figure = new_figure(11.0, 7.6)
    panels = figure.subplots(2, 2, sharey=True, gridspec_kw={"hspace": 0.08})
    networks = list(dict.fromkeys(line.label for drawn in lines.values() for line in drawn))
    shown: dict[str, Any] = {}
    for axes, (method, hyper) in zip(panels.flat, METHODS.items(), strict=True):
        _sweep(axes, method, hyper, lines.get(method, ()), networks)
        for (where, network, value), remark in (doubts or {}).items():
            if where == method:
                place, height = _places(lines[method])[value], _accuracy(lines[method], network, value)
                axes.annotate(
                    remark, (place, height), xytext=(8, -3), textcoords="offset points", fontsize=8, color="0.3"
                )
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    for axes in panels[:, 0]:
        axes.set_ylabel("test accuracy (%)")
    ordered = [_plain(name) for name in networks[::-1]]
    figure.legend([shown[name] for name in ordered], ordered, loc="outside right center", frameon=False)
    points = [point for drawn in lines.values() for line in drawn for point in line.points.values()]
    bars = "" if all(math.isnan(deviation) for _, deviation in points) else "; bars: standard deviation over seeds"
    figure.suptitle(_plain(title) + bars, fontsize=12)
    return figure


def paper_beta_and_k() -> Figure:
    """The figure of t1: CIFAR-10, trained with labels, six networks."""
    listed = paper.cells("t1")
    plain = {cell.column: cell.value for cell in listed if cell.method == "InfoNCE"}
    lines: dict[str, list[Line]] = {method: [] for method in METHODS}
    for method, hyper in METHODS.items():
        for column in paper.table("t1").columns:
            own = sorted((getattr(c, hyper), c.value) for c in listed if c.method == method and c.column == column)
            lines[method].append(Line(column, {value: (found, math.nan) for value, found in own}, plain[column]))
    doubts = {
        (cell.method, cell.column, getattr(cell, METHODS[cell.method])): f"{cell.value}: a misprint?"
        for cell in listed
        if cell.doubt and cell.method in METHODS
    }
    return beta_and_k(lines, title="CIFAR-10, trained with labels, as the paper prints it", doubts=doubts)


def _sweep(axes: Axes, method: str, hyper: str, lines: Sequence[Line], networks: Sequence[str]) -> None:
    """One panel: the runs without the hyper-parameter (plain InfoNCE) at the left, then its values in order."""
    places = _places(lines)
    for line in lines:
        number = networks.index(line.label)
        look: dict[str, Any] = {"color": COLOURS[number % 6], "marker": _MARKERS[number % 6], "markersize": 6}
        if line.plain is not None:
            axes.plot([0], [line.plain], linestyle="none", fillstyle="none", **look)
        at, values = [places[value] for value in line.points], [found for found, _ in line.points.values()]
        axes.plot(at, values, STYLES[number % 4], linewidth=1.8, label=_plain(line.label), **look)
        spread = [0.0 if math.isnan(deviation) else deviation for _, deviation in line.points.values()]
        if any(spread):
            axes.errorbar(at, values, spread, fmt="none", ecolor=COLOURS[number % 6], capsize=3, linewidth=1)
    share = " (below 1: a share of all)" if any(value < 1 for value in places) else ""
    count = {
        "beta": "β of latent mixup, Beta(β, β)",
        "k": f"k, nearest {'classes' if 'Class' in method else 'images'}{share}",
    }
    axes.set_xticks(range(len(places) + 1), ["InfoNCE\n(uniform)", *(_value(value) for value in places)])
    axes.axvline(0.5, color="0.7", linewidth=0.8)
    axes.set_xlim(-0.5, len(places) + 0.5)
    axes.set_xlabel(count[hyper])
    axes.set_title(method, fontsize=11)
    axes.grid(axis="y", alpha=0.3)
    if not lines:
        axes.set_xticks([])
        axes.text(0.5, 0.5, "no runs with two values", transform=axes.transAxes, ha="center", color="0.4")


def _places(lines: Sequence[Line]) -> dict[float, int]:
    """Where each value of the hyper-parameter stands: shares first, then numbers, each in order, from 1."""
    values = {value for line in lines for value in line.points}
    return {value: place for place, value in enumerate(sorted(values, key=lambda k: (k >= 1, k)), 1)}


def _value(value: float) -> str:
    """A number as it is written below an axis."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _accuracy(lines: Sequence[Line], network: str, value: float) -> float:
    return next(line.points[value][0] for line in lines if line.label == network)


def convergence_curves(curves: Mapping[str, Sequence[float]], *, title: str = "") -> Figure:
    """Test accuracy against epoch, a line per label; the epoch of convergence is marked, all three rules are listed."""
    if not curves:
        raise InputError("There are no curves to draw; give at least one list of test accuracies.")
    longest = max(len(label) for label in curves)
    figure = new_figure(9.4 + 0.085 * longest, max(4.8, 0.23 * len(curves) + 1.2))  # inches, so that the legend fits
    axes = figure.add_subplot()
    for number, (label, accuracies) in enumerate(curves.items()):
        found = {within: epochs_to_converge(accuracies, within) for within in WITHIN}
        epochs, colour = np.arange(1, len(accuracies) + 1), COLOURS[number % 6]
        listed = " / ".join(str(epoch) for epoch in found.values())
        axes.plot(
            epochs, accuracies, STYLES[number % 4], color=colour, linewidth=1.8, label=_plain(f"{label}: {listed}")
        )
        axes.axvline(found[MARKED], color=colour, linestyle=STYLES[number % 4], linewidth=0.9, alpha=0.7)
        axes.plot(
            found[MARKED], accuracies[found[MARKED] - 1], _MARKERS[number % 6], color=colour, markersize=9, mec="black"
        )
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    axes.set_ylabel("test accuracy (%)")
    axes.grid(alpha=0.25)
    rules = " / ".join(str(within) for within in WITHIN)
    heading = f"epochs until within {rules} points\nof the best {WINDOW}-epoch mean (marked: {MARKED})"
    figure.legend(title=heading, loc="outside right upper", frameon=False)
    axes.set_title(_plain(title), fontsize=11)
    return figure


def convergence_bars() -> Figure:
    """The three epochs-to-converge that the paper prints; its curves are not among its numbers."""
    printed = paper.epochs_to_converge()
    figure = new_figure(6.4, 2.8)
    axes = figure.add_subplot()
    bars = axes.barh(list(printed), list(printed.values()), color=COLOURS[: len(printed)], height=0.62)
    axes.bar_label(bars, padding=4)
    axes.invert_yaxis()
    axes.set_xlim(0, 200)  # the length of the runs
    axes.set_xlabel("epochs to converge, of 200, as the paper prints them")
    axes.set_title("CIFAR-100, resnet32 taught by wrn-16-1, InfoNCE", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def box_plots(
    accuracies: Mapping[str, Sequence[float]], groups: Mapping[str, str] | None = None, *, title: str = ""
) -> Figure:
    """A box per method over its pairs (quartiles, median, whiskers to the extremes) and each pair as a dot.

    `groups` names the group of a method: methods of one group have one colour.
    """
    if not accuracies or not all(len(values) for values in accuracies.values()):
        raise InputError("A box-plot needs at least one method, and at least one accuracy for each.")
    figure = new_figure(0.58 * len(accuracies) + 2.2, 5.6)
    axes = figure.add_subplot()
    median = {"color": "black", "linewidth": 2}
    values_of = [list(values) for values in accuracies.values()]
    drawn = axes.boxplot(values_of, whis=(0, 100), widths=0.62, patch_artist=True, medianprops=median)
    named: dict[str, str] = {}
    for place, (method, box) in enumerate(zip(accuracies, drawn["boxes"], strict=True), 1):
        group = (groups or {}).get(method, "")
        colour = named.setdefault(group, _GROUPS.get(group, COLOURS[len(named) % 6]))
        box.set(facecolor=colour, alpha=0.75)
        values = np.sort(accuracies[method])
        aside = 0.16 * (np.arange(len(values)) % 3 - 1)  # near dots beside each other, not on top
        axes.plot(place + aside, values, "o", color="0.15", markersize=3, alpha=0.8)
    names = [_plain(method) for method in accuracies]
    axes.set_xticks(range(1, len(accuracies) + 1), names, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_ylabel("test accuracy (%)")
    axes.grid(axis="y", alpha=0.3)
    axes.set_title(_wrapped(title, figure), fontsize=11)
    if any(named):
        handles = [Patch(facecolor=colour, alpha=0.75, edgecolor="black") for colour in named.values()]
        labels = [_GROUP_NAMES.get(group, group) for group in named]
        beside = int(figure.get_figwidth() / (0.6 + max(map(len, labels)) / 12))  # inches: a patch, 12 letters each
        columns = min(len(labels), max(1, beside))
        figure.legend(handles, labels, loc="outside upper right", ncols=columns, frameon=False)
    return figure


def paper_box_plots() -> Figure:
    """The box-plots of t2: each method over the 10 pairs on Tiny-ImageNet-200."""
    _, rows, columns, values = paper.table("t2")
    groups = {cell.row: cell.section for cell in paper.cells("t2")}
    title = f"Tiny-ImageNet-200, {len(columns)} pairs of teacher and student, as the paper prints them"
    return box_plots(dict(zip(rows, values.tolist(), strict=True)), groups, title=title)


def _wrapped(title: str, figure: Figure) -> str:
    """A title in lines that are no wider than the axes: at 11 points an inch holds 11 letters, and labels take 2.4."""
    return _plain(textwrap.fill(title, max(30, int(11 * (figure.get_figwidth() - 2.4)))))


def _plain(name: str) -> str:
    """A name as matplotlib shows it unchanged: "$" would begin a formula, a leading "_" hides it from the legend."""
    escaped = plain(name)
    return f" {escaped}" if escaped.startswith("_") else escaped

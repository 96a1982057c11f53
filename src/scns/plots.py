"""Figures: drawn without a display, saved as .png, .pdf or .svg."""

import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter
from numpy.typing import ArrayLike

from scns import fonts
from scns.errors import InputError
from scns.files import atomic

ENDINGS = ("png", "pdf", "svg")
# Okabe and Ito's colours, told apart by colour-blind readers; the line styles repeat the difference for print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
STYLES = ("-", "--", "-.", ":")
_CELL = 0.27  # inches a class takes in a heat-map: a 9-point label fits
_LETTER, _USUAL, _LONGEST = 0.075, 14, 40  # inches of a label's letter, letters there is always room for, letters shown


def coverage_curves(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]], *, top: int, marks: Mapping[str, float] | None = None
) -> Figure:
    """Expected share of an anchor's nearest negatives seen against draws: `curves` maps a label to (draws, shares).

    `marks` draws a thin vertical line at a number of draws and writes its label above it.
    """
    figure = new_figure(7.2, 5.0)
    axes = figure.add_subplot()
    for i, (label, (draws, shares)) in enumerate(curves.items()):
        axes.plot(draws, shares, STYLES[i % 4], color=COLOURS[i % 6], linewidth=2.2, label=label)
    for label, draws_then in (marks or {}).items():
        axes.axvline(draws_then, color="0.55", linewidth=0.8, zorder=0)
        above = axes.get_xaxis_transform()  # draws across, share of the height up
        axes.annotate(label, (draws_then, 1), (0, 3), above, "offset points", color="0.35", fontsize=8, ha="center")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("negatives drawn for an anchor")
    axes.set_ylabel(f"expected share seen of its {top:,} nearest")
    axes.grid(alpha=0.25)
    figure.legend(loc="outside upper left", frameon=False)  # beside the curves, which reach every corner for some pool
    return figure


def class_heatmap(
    names: Sequence[str], cosine: np.ndarray, probability: np.ndarray, *, title: str, drawn_title: str
) -> Figure:
    """Two panels over the same classes: cosine of the label vectors, and the probability to draw a column for a row."""
    shown = [name.replace("_", " ") for name in names]
    shown = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in shown]
    side, room = _CELL * len(names), _LETTER * max(0, max(map(len, shown)) - _USUAL)
    figure = new_figure(2 * (side + room) + 5.2, side + room + 2.6)
    left, right = figure.subplots(1, 2)
    drawn = np.where(np.eye(len(names), dtype=bool), np.nan, probability)
    panels = ((left, cosine, title, min(0.0, float(cosine.min())), 1.0), (right, drawn, drawn_title, 0.0, None))
    for axes, values, heading, lowest, highest in panels:
        image = axes.imshow(values, cmap="viridis", vmin=lowest, vmax=highest)
        axes.set_facecolor("0.85")  # the own class is never drawn
        axes.set_xticks(range(len(names)), map(plain, shown), rotation=90, fontsize=9)
        axes.set_yticks(range(len(names)), map(plain, shown), fontsize=9)
        axes.tick_params(length=0)
        # Half of the figure is a panel's, less what long labels take, and an inch holds 11 letters of 11 points.
        axes.set_title(plain(textwrap.fill(heading, int(11 * (side + 2.3)))), fontsize=11)
        figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02)
    right.set_xlabel("class drawn as a negative")
    right.set_ylabel("class of the anchor")
    return figure


def plain(name: str) -> str:
    """A name as matplotlib shows it unchanged: "$" would begin a formula."""
    return name.replace("$", r"\$")


def check_ending(path: str | Path) -> str:
    """The format that a figure's file name asks for."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in ENDINGS:
        raise InputError(f"A figure cannot be written to '{path}'; its name must end in .{', .'.join(ENDINGS)}.")
    return ending


def save(figure: Figure, path: str | Path) -> str:
    """Write a figure to `path`, whole or not at all; a sentence where no font has some of its characters."""
    ending = check_ending(path)
    told = fonts.complete(figure)
    with atomic(path) as part, warnings.catch_warnings(), rc_context({"pdf.fonttype": 42}):  # 3 mixes up emoji
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(part, format=ending, dpi=150)
    return told


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure

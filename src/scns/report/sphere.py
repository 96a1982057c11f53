"""Negatives on the unit sphere: which are near an anchor, and where their alignment-weighted centroids lie."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from scns import draws
from scns.errors import InputError
from scns.plots import new_figure

_NEAR, _EASY = "#009E73", "#56B4E9"  # Okabe and Ito's green and sky blue; the markers differ too
_VIEW = 18.0, 20.0  # elevation and azimuth in degrees


class Scene(NamedTuple):
    """Unit vectors around an anchor."""

    anchor: np.ndarray  # [3]
    near: np.ndarray  # [top, 3], nearest first
    easy: np.ndarray  # [others, 3]


def scene(negatives: int = 260, top: int = 24, seed: int = 0) -> Scene:
    """An anchor and negatives spread evenly over the sphere, split into its nearest `top` and the rest."""
    if not 1 <= top < negatives:
        raise InputError(f"The nearest {top} of {negatives} negatives are asked for; give 1 to {negatives - 1}.")
    row = torch.arange(negatives)
    height, turn = (draws.uniform(seed, draws.NEGATIVES, row, axis, dtype=torch.float64) for axis in (0, 1))
    height, turn = 2 * height - 1, 2 * math.pi * turn  # equal areas at equal heights (Archimedes)
    radius = (1 - height**2).sqrt()
    points = torch.stack([radius * turn.cos(), radius * turn.sin(), height], dim=1).numpy()  # [negatives, 3]
    elevation, azimuth = math.radians(_VIEW[0] + 12), math.radians(_VIEW[1] + 44)  # seen from the side
    level = math.cos(elevation)
    anchor = np.array([level * math.cos(azimuth), level * math.sin(azimuth), math.sin(elevation)])
    order = np.argsort(-(points @ anchor), kind="stable")
    return Scene(anchor, points[order[:top]], points[order[top:]])


def weighted_centroid(anchor: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """c = sum_i a_i z_i / sum_i a_i with the alignment a_i = (1 + <anchor, z_i>) / 2, [3]; the paper's centroids."""
    alignment = (1 + vectors @ anchor) / 2  # [count]
    return alignment @ vectors / alignment.sum()


def sphere(shown: Scene | None = None) -> Figure:
    """The anchor, its nearest negatives, the easy ones, and the two alignment-weighted centroids, in 3-D."""
    anchor, near, easy = shown or scene()
    figure = new_figure(7.6, 7.0)
    axes = figure.add_subplot(projection="3d", computed_zorder=False)
    _globe(axes)
    view = np.radians(_VIEW)
    eye = np.array([math.cos(view[0]) * math.cos(view[1]), math.cos(view[0]) * math.sin(view[1]), math.sin(view[0])])
    hidden = easy @ eye < 0
    for points, colour, marker, size, alpha, label in (
        (easy[hidden], _EASY, "o", 14, 0.3, "_behind the sphere"),  # a leading "_" keeps it out of the legend
        (easy[~hidden], _EASY, "o", 24, 1.0, f"{len(easy)} easy negatives" if len(easy) else "_none"),
        (near, _NEAR, "^", 46, 1.0, f"{len(near)} nearest negatives (top k)"),
        (anchor[None], _NEAR, "*", 330, 1.0, "anchor"),
    ):
        edge = "black" if marker != "o" else "none"
        look = {"c": colour, "marker": marker, "s": size, "alpha": alpha, "edgecolors": edge, "linewidths": 0.7}
        axes.scatter(*points.T, label=label, depthshade=False, zorder=3, **look)
    for points, marker, label in ((near, "D", "centroid of the nearest"), (easy, "s", "centroid of the easy ones")):
        if not len(points):
            continue
        centre = weighted_centroid(anchor, points)
        axes.plot(*zip(np.zeros(3), centre, strict=True), color="black", linewidth=1.6, zorder=4)
        axes.scatter(
            *centre,
            c="black",
            marker=marker,
            s=64,
            zorder=5,
            depthshade=False,
            label=f"{label}, length {np.linalg.norm(centre):.2f}",
        )
    figure.suptitle(
        "Negatives of an anchor on the unit sphere; centroids weighted by alignment, (1 + cos) / 2", fontsize=11
    )
    figure.legend(loc="outside lower center", ncols=2, frameon=False, markerscale=0.8)
    return figure


def _globe(axes: Any) -> None:
    turn, rise = np.meshgrid(np.linspace(0, 2 * np.pi, 37), np.linspace(0, np.pi, 19))
    surface = np.sin(rise) * np.cos(turn), np.sin(rise) * np.sin(turn), np.cos(rise)
    axes.plot_wireframe(*surface, color="0.82", linewidth=0.5, rstride=3, cstride=3, zorder=1)
    axes.set_box_aspect((1, 1, 1), zoom=1.65)
    axes.view_init(*_VIEW)
    axes.set_axis_off()

"""The paper's seven figures out of run folders: what can be drawn, and a sentence for what cannot."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from scns import draws, figure_data, plots, tables, views, words
from scns.errors import InputError
from scns.phrases import count
from scns.report import figures, sphere
from scns.results import Results
from scns.views import View

_TOGETHER = 12  # curves in one figure: colours (6) and line styles (4) repeat after as many
_TOLD = 3  # runs without a curve that are named: there may be hundreds
_SHOWN = 26  # classes in a figure that stays readable
_NEAREST, _NEGATIVES = 24, 260  # on the sphere: those marked, and all; as in the figure of the paper's text

Draw = Callable[[], Figure]
Progress = Callable[[int, int], None] | None


class Drawn(NamedTuple):
    """Figures by file name, and what is to be said: of figures without something, and of figures that cannot be."""

    figures: dict[str, Draw]
    remarks: list[str]
    missing: list[str]


@dataclass(frozen=True)
class Source:
    """The runs of a folder; images are embedded once, when a figure first needs them."""

    results: Results
    folder: Path
    progress: Progress = None

    @cached_property
    def views(self) -> dict[str, View]:
        return views.views(self.results, self.progress)


def drawn(results: Results, folder: Path, wanted: Sequence[str], progress: Progress = None) -> Drawn:
    """The figures among `wanted` that the runs of a folder have the numbers for."""
    made, source = Drawn({}, [], []), Source(results, folder, progress)
    makers: dict[str, Callable[[Drawn, Source], None]] = {
        "classes": _classes,
        "cifar100": partial(_maps, name="cifar100", table="t3"),
        "tiny-imagenet": partial(_maps, name="tiny-imagenet", table="t2"),
        "beta-k": _beta_and_k,
        "convergence": _convergence,
        "boxes": _boxes,
        "sphere": _sphere,
    }
    for name in wanted:
        try:
            makers[name](made, source)
        except InputError as error:
            made.missing.append(f"{name}: {error}")
    return made


def _file(name: str, part: str, several: bool) -> str:
    plain = re.sub(r"[^\w.+-]+", "-", part.replace("→", "to")).strip("-")
    return f"{name}-runs-{plain}" if several else f"{name}-runs"


def _maps(made: Drawn, source: Source, *, name: str, table: str) -> None:
    found = figure_data.grid(source.results, table)
    _remark(made, name, found.left_out)
    for normalised, ending in ((False, ""), (True, "-normalised")):
        kind = "colour: each row from its worst to its best method" if normalised else "colour: accuracy"
        made.figures[f"accuracy-{name}{ending}-runs"] = partial(
            figures.accuracy_heatmap,
            [pair.replace("-resnet", " → resnet") for pair in found.pairs],
            found.methods,
            found.values,
            normalised=normalised,
            title=f"Test accuracy (%), {found.title}; {kind}",
        )


def _boxes(made: Drawn, source: Source) -> None:
    results = source.results
    there = {entry.cell.table for entry in results.entries if entry.cell}
    whys = []
    for table in tables.TABLES:
        try:
            found = figure_data.grid(results, table, pairs=2)
        except InputError as error:
            whys += [error] if table in there or not there else []
            continue
        _remark(made, f"boxes of {table}", found.left_out)
        accuracies = dict(zip(found.methods, found.values.T.tolist(), strict=True))
        title = f"{found.title}; {len(found.pairs)} columns"
        made.figures[f"boxes-runs-{table}"] = partial(figures.box_plots, accuracies, found.groups, title=title)
    if not any(name.startswith("boxes") for name in made.figures):
        raise whys[-1]


def _beta_and_k(made: Drawn, source: Source) -> None:
    found = figure_data.sweeps(source.results)
    for data, each in found.items():
        _remark(made, f"beta-k of {data}", each.left_out)
        draw = partial(figures.beta_and_k, each.lines, title=each.title)
        made.figures[_file("beta-k", data, several=len(found) > 1)] = draw


def _convergence(made: Drawn, source: Source) -> None:
    """Curves of one student and teacher together, a dozen in a figure."""
    found, left_out = figure_data.curves_by_pair(source.results, source.folder)
    made.remarks.extend(f"convergence: {sentence}" for sentence in left_out[:_TOLD])
    if more := left_out[_TOLD:]:
        made.remarks.append(f"convergence: {count(len(more), 'more run')} cannot be drawn either.")
    for pair, lines in found.items():
        labels = list(lines)
        for start in range(0, len(labels), _TOGETHER):
            shown = {label: lines[label] for label in labels[start : start + _TOGETHER]}
            part = pair or "unfinished"
            part = f"{part}-{start // _TOGETHER + 1}" if len(labels) > _TOGETHER else part
            draw = partial(
                figures.convergence_curves, shown, title=f"{pair or 'Runs'}, in {source.folder.resolve().name}"
            )
            made.figures[_file("convergence", part, several=len(found) > 1 or len(labels) > _TOGETHER)] = draw


def _remark(made: Drawn, name: str, sentence: str) -> None:
    made.remarks.extend([f"{name}: {sentence}"] if sentence else [])


def _classes(made: Drawn, source: Source) -> None:
    """By the networks of the runs; where none kept its student, by the words of the labels."""
    shown: dict[str, tuple[Sequence[str], Tensor, str]] = {}
    try:
        for data, view in source.views.items():
            centroids = words.class_embeddings(view.embedding, view.images.labels, view.images.classes)
            shown[data] = view.images.names, centroids, f"cosine of the mean embeddings by the run {view.run}"
    except InputError:
        for entry in source.results.entries:
            known = views.label_names(entry.recipe.data)
            if known and entry.recipe.data not in shown:
                by_words = words.label_vectors(known, entry.recipe.words or "glove")
                shown[entry.recipe.data] = known, by_words, "cosine of the label vectors (no run kept its student)"
        if not shown:
            raise
    for data, (names, vectors, title) in shown.items():
        file = _file("classes", data, several=len(shown) > 1)
        cosine = words.class_cosines(vectors)
        if len(names) <= _SHOWN:
            made.figures[file] = partial(figures.class_heatmap, names, vectors, title, list(range(len(names))))
            continue
        for number, rows in enumerate([words.alike(cosine)[:_SHOWN], *words.blocks(cosine)]):
            made.figures[f"{file}-block-{number}" if number else file] = partial(
                figures.class_heatmap, names, vectors, title, rows
            )


def _sphere(made: Drawn, source: Source) -> None:
    for data, view in source.views.items():
        made.figures[_file("sphere", data, several=len(source.views) > 1)] = partial(_globe, view)


def _globe(view: View) -> Figure:
    """An image and its negatives where a run's student puts them."""
    order = draws.permutation(len(view.images), 0, draws.SPLIT)
    labelled = order[view.images.labels[order] >= 0]  # a class is what its negatives are not of
    if not len(labelled):
        raise InputError(f"None of the images of the run {view.run} has a label, so nothing is a negative of them.")
    anchor = int(labelled[0])
    figure = sphere.sphere(scene(view, anchor))
    name = plots.plain(view.images.names[int(view.images.labels[anchor])])
    figure.suptitle(
        f"Negatives of a training image ({name}) by the run {plots.plain(view.run)}: angles to the anchor are exact,\n"
        "the turn around it is along the two main directions of the rest",
        fontsize=11,
    )
    return figure


def scene(view: View, anchor: int) -> sphere.Scene:
    """The nearest negatives of an image and others, as points of a sphere whose cosines to the anchor are exact.

    z = c a + rest, c = <a, z>: a point keeps c, and the angle of its rest on the two main axes of all rests.
    """
    labels = view.images.labels
    unit = F.normalize(view.embedding.double(), dim=1)
    own, others = unit[anchor], unit[labels != labels[anchor]]
    cosine = others @ own  # [negatives]
    order = cosine.argsort(descending=True, stable=True)
    spread = order[_NEAREST:]
    easy = spread[torch.linspace(0, len(spread) - 1, min(len(spread), _NEGATIVES - _NEAREST)).long()]
    rest = others - cosine[:, None] * own
    axes = torch.linalg.svd(rest - rest.mean(0), full_matrices=False)[2][:2]  # [2, width]
    turned = (rest - rest.mean(0)) @ axes.T  # [negatives, 2]
    direction = F.normalize(turned, dim=1)
    placed = sphere.scene().anchor  # where the anchor is seen from the side
    basis = _basis(placed)
    height = cosine.clamp(-1, 1).numpy()
    ring = np.sqrt(1 - height**2)[:, None] * (direction.numpy() @ basis)  # [negatives, 3]
    points = height[:, None] * placed + ring
    return sphere.Scene(placed, points[order[:_NEAREST].numpy()], points[easy.numpy()])


def _basis(axis: np.ndarray) -> np.ndarray:
    """Two unit vectors [2, 3] across an axis and across each other."""
    side = np.cross(axis, [0.0, 0.0, 1.0])
    side /= math.sqrt(side @ side)
    return np.stack([side, np.cross(axis, side)])

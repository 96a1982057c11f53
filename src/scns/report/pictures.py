"""Anchors beside the negatives that each sampler picks, for data sets that come with scns."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from scns import datasets, draws, runs, words
from scns.data import Images
from scns.errors import InputError
from scns.gallery import Drawn, data_uri, from_table
from scns.neighbors import NeighborTable
from scns.sampling import ClassNegatives, InstanceNegatives, UniformNegatives
from scns.soft import SoftNegatives
from scns.tableinfo import MEANING

BUNDLED = ("cifar10-mini",)
_ANCHORS, _PICKS = 6, 8
_CLASSES, _NEAREST = 2, 100  # as in the bundled recipes mini-class and mini-instance
_SCALE = 5.0  # the paper's "tau = 5" of the sampling distribution
_SOFT_SCALE = 10.0  # 1 / temperature, the default of InfoNCE

Progress = Callable[[int, int], None] | None


@dataclass(frozen=True)
class Source:
    """The embedding of the training images by some network: who is near whom."""

    name: str  # in a sentence: "the student of runs/first"
    embedding: Tensor  # float32 [n, width]


def section(
    data: str, folders: Sequence[tuple[str, Path]], source: Source | None = None, progress: Progress = None
) -> str:
    """The pictures of a bundled data set; near is what `source` says, or the first run that kept its student."""
    images = datasets.load(data)
    if source is not None and len(source.embedding) == len(images):
        return gallery(images, source)
    for name, path in folders:
        try:
            student = runs.load_student(path)
        except InputError:
            continue
        if student.size == images.size:
            return gallery(images, Source(f"the student of {name}", runs.embed(student, images, progress=progress)))
    return gallery(images)


def gallery(images: Images, source: Source | None = None) -> str:
    """Anchors with uniform, class-level and, given an embedding, instance-level and soft negatives, and the tables."""
    anchors = _anchors(images)
    drawn = [Drawn("Uniform", "any image of another class", UniformNegatives(images.labels).sample(anchors, _PICKS))]
    told: list[tuple[str, NeighborTable]] = []
    heat = ""
    try:
        vectors = words.label_vectors(list(images.names))
    except InputError:  # names without a known word: there is no class-level table
        pass
    else:
        classes = NeighborTable.build(vectors, k=min(_CLASSES, images.classes - 1))
        picked = ClassNegatives(classes, images.labels, scale=_SCALE).sample(anchors, _PICKS)
        drawn.append(Drawn("Class-level", f"of the {classes.info.k} classes whose names are most alike", picked))
        told.append(("classes, by the words of their names", classes))
        heat = _heat(images.names, words.class_probabilities(vectors, _SCALE))
    if source is not None:
        table = NeighborTable.build(source.embedding, images.labels, k=min(_NEAREST, len(images) // 5))
        drawn += [_instance(table, anchors), _soft(source.embedding, images.labels, table, anchors)]
        told.append((f"images, by {source.name}", table))
    articles = "".join(_article(images, int(anchor), place, drawn) for place, anchor in enumerate(anchors))
    return (
        f"<h3>Whom each sampler picks as negatives</h3><p>{_about(drawn, source)}</p>"
        f'<div class="anchors">{articles}</div>{heat}{_statistics(told)}'
    )


def _anchors(images: Images) -> Tensor:
    """Random images, of as many classes as there are: the first of each class, in the order of a shuffle."""
    order = draws.permutation(len(images), 0, draws.SPLIT)
    labels = images.labels[order]
    first = torch.stack([(labels == label).float().argmax() for label in labels.unique()]).sort().values
    others = torch.ones(len(order), dtype=torch.bool)
    others[first] = False
    return torch.cat([order[first], order[others]])[:_ANCHORS]


def _about(drawn: Sequence[Drawn], source: Source | None) -> str:
    parts = [f"<b>{each.name}</b>: {html.escape(each.about)}." for each in drawn]
    if source is None:
        parts.append(
            "Instance-level and soft negatives need a run that kept its student (model.safetensors); here is none."
        )
    else:
        parts.append(
            f"Near is what {html.escape(source.name)} calls near; numbers are cosines to the anchor. "
            "A dashed frame and “?” mark a suspected false negative: nearer than any image of the anchor's own class."
        )
    return " ".join(parts)


def _instance(table: NeighborTable, anchors: Tensor) -> Drawn:
    picked = InstanceNegatives(table, scale=_SCALE).sample(anchors, _PICKS)
    about = f"of the {table.info.k} most similar images of other classes"
    return from_table("Instance-level", about, table, anchors, picked)


def _soft(embedding: Tensor, labels: Tensor, table: NeighborTable, anchors: Tensor) -> Drawn:
    picked = SoftNegatives(embedding, labels, scale=_SOFT_SCALE).sample(anchors, _PICKS)
    unit = F.normalize(embedding, dim=1)
    about = "any image of another class, the likelier the more alike: the default of InfoNCE"
    return from_table("Soft", about, table, anchors, picked, (unit[anchors, None] * unit[picked]).sum(2))


def _article(images: Images, anchor: int, place: int, drawn: Sequence[Drawn]) -> str:
    name = html.escape(images.names[int(images.labels[anchor])])
    rows = [f'<h4>{name} <span class="soft">image {anchor}</span></h4>', _pick(images, anchor, "anchor", "", "anchor")]
    for each in drawn:
        picks = []
        for column, sample in enumerate(each.indices[place].tolist()):
            score = "" if each.scores is None else f"{float(each.scores[place, column]):.2f}"
            suspect = each.suspect is not None and bool(each.suspect[place, column])
            note, kind = (f"<b>{score} ?</b>", "suspect") if suspect else (score, "")
            picks.append(_pick(images, sample, kind, note, "suspected false negative" if suspect else "negative"))
        rows.append(f'<h5>{each.name}</h5><div class="picks">{"".join(picks)}</div>')
    return f"<article>{''.join(rows)}</article>"


def _pick(images: Images, sample: int, kind: str, note: str, role: str) -> str:
    name = html.escape(images.names[int(images.labels[sample])])
    picture = f'<img src="{data_uri(images.pixels[sample])}" alt="{role}: {name}, image {sample}">'
    return f'<figure class="pick {kind}">{picture}<figcaption>{name}<br>{note}</figcaption></figure>'


def _heat(names: Sequence[str], probabilities: Tensor) -> str:
    """How often a class draws another, as a table whose colour repeats the numbers."""
    heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    largest = float(probabilities.max())
    rows = []
    for name, row in zip(names, probabilities.tolist(), strict=True):
        # at most 45 % of the colour, so that the text keeps its contrast on it
        cells = "".join(
            f'<td style="background:color-mix(in srgb,var(--c0) {45 * value / largest:.0f}%,transparent)">'
            f"{100 * value:.0f}</td>" if value else "<td>–</td>"
            for value in row
        )  # fmt: skip
        rows.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    return (
        "<h3>Which classes are alike</h3><p>How often, in %, the class of a row would draw that of a column, were all "
        f"allowed: softmax({_SCALE:g} cosine) of the words in their names.</p>"
        '<div class="wide" tabindex="0" role="region" aria-label="Class probabilities, in %"><table class="heat">'
        f'<thead><tr><th scope="col">anchor</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _statistics(told: Sequence[tuple[str, NeighborTable]]) -> str:
    """What `scns neighbors info` says of the tables behind the pictures."""
    if not told:
        return ""
    described = [table.describe(_SCALE) for _, table in told]
    keys = list(dict.fromkeys(key for each in described for key in each))
    heads = "".join(f'<th scope="col">{html.escape(name)}</th>' for name, _ in told)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(key)}{_meaning(key)}</th>'
        + "".join(f"<td>{html.escape(_value(each.get(key)))}</td>" for each in described)
        + "</tr>"
        for key in keys
    )
    return (
        '<h3>The tables behind them</h3><div class="wide" tabindex="0" role="region" aria-label="Table statistics">'
        f'<table><thead><tr><th scope="col">nearest</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _meaning(key: str) -> str:
    return f'<br><small class="soft">{html.escape(MEANING[key])}</small>' if key in MEANING else ""


def _value(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

"""The demo: on bundled images, from a first network to neighbours, negatives and students trained with them."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from scns import draws, plots, words
from scns.data import Images
from scns.gallery import Drawn, from_table, write_gallery
from scns.neighbors import NeighborTable
from scns.recipes import named
from scns.report.page import write_report
from scns.results import read
from scns.run import Run
from scns.sampling import ClassNegatives, InstanceNegatives, UniformNegatives
from scns.teacher import Teacher
from scns.train import Watch, fit

_ANCHORS = 12
_SHOWN = 8
_EVERY = 5  # epochs between looks at the test images, which cost a fifth of an epoch


def run(
    out: Path, *, epochs: int = 20, subset: int = 0, say: Callable[[str], None] = print, watch: Watch | None = None
) -> list[list[str]]:
    """Run the demo in the folder `out`; returns the rows of its table: (student, accuracy, retrieval, seconds)."""
    say(f"1/4  A first network: resnet8, {epochs} epochs of cross-entropy on {subset or 2500:,} bundled images.")
    first = fit(
        replace(named("mini-ce"), epochs=epochs, subset=subset, evaluate_every=_EVERY), out / "first", watch=watch
    )
    images = first.data.train

    say("2/4  Who is similar? Class level from word vectors, instance level from the network's embeddings.")
    classes = NeighborTable.build(words.label_vectors(list(images.names)), k=2)
    embeddings = Teacher(first.student).embed(images)[1]
    table = NeighborTable.build(embeddings, images.labels, k=100, source="resnet8 of this demo, pooled embedding")
    table.save(out / "neighbors.safetensors")
    _say_classes(images, classes, say)

    say("3/4  The same network again, trained with different negatives (InfoNCE, 64 of them).")
    arguments = {"negatives": 64}
    students = {"cross-entropy alone": first}
    for name, recipe in {
        "uniform negatives": "mini-uniform",
        "class-level": "mini-class",
        "instance-level": "mini-instance",
    }.items():
        chosen = named(recipe)
        chosen = replace(
            chosen, epochs=epochs, subset=subset, evaluate_every=_EVERY, arguments={**chosen.arguments, **arguments}
        )
        if recipe == "mini-instance":
            chosen = replace(chosen, teacher=str(out / "first"), distil=False)
        students[name] = fit(chosen, out / recipe, watch=watch)

    say("4/4  The pages.")
    _write_pages(out, images, classes, table)
    write_report(read(out), out, out / "report.html", gallery=False)
    return [_row(name, student) for name, student in students.items()]


def _say_classes(images: Images, classes: NeighborTable, say: Callable[[str], None]) -> None:
    for label in range(0, images.classes, 3):
        near = ", ".join(
            f"{images.names[int(c)]} {float(s):.2f}"
            for c, s in zip(classes.indices[label], classes.scores[label], strict=True)
        )
        say(f"     {images.names[label]}: {near}")


def _write_pages(out: Path, images: Images, classes: NeighborTable, table: NeighborTable) -> None:
    anchors = draws.permutation(len(images), 0, draws.SPLIT)[:_ANCHORS]
    drawn = InstanceNegatives(table).sample(anchors, _SHOWN)
    shown = [
        Drawn("Uniform", "any image of another class.", UniformNegatives(images.labels).sample(anchors, _SHOWN)),
        Drawn(
            "Class-SCNS",
            "an image of one of the 2 classes whose names are most alike.",
            ClassNegatives(classes, images.labels).sample(anchors, _SHOWN),
        ),
        from_table("Instance-SCNS", "one of the 100 most similar images of other classes.", table, anchors, drawn),
    ]
    write_gallery(
        out / "negatives.html",
        "Whom each sampler picks",
        images.take(slice(None)),
        images.labels,
        images.names,
        anchors,
        shown,
    )
    vectors = words.label_vectors(list(images.names))
    figure = plots.class_heatmap(
        images.names,
        words.class_cosines(vectors).numpy(),
        words.class_probabilities(vectors).numpy(),
        title="Cosine of the label words",
        drawn_title="Probability to be drawn, softmax(5 cosine)",
    )
    plots.save(figure, out / "classes.png")


def _row(name: str, student: Run) -> list[str]:
    accuracy, count = student.result["test"], len(student.data.test)
    return [
        name,
        f"{accuracy:.1f} ± {interval(accuracy, count):.1f}",
        f"{100 * retrieval(student):.1f}",
        f"{student.result['seconds']:.0f}",
    ]


def interval(accuracy: float, count: int) -> float:
    """Half the 95 % interval of an accuracy in per cent, measured on `count` images."""
    share = accuracy / 100
    return 196 * math.sqrt(share * (1 - share) / count)


def retrieval(student: Run, nearest: int = 10) -> float:
    """The share of a test image's nearest training images, by embedding, that are of its class."""
    seen: list[Tensor] = [
        F.normalize(Teacher(student.student).embed(part)[1], dim=1) for part in (student.data.train, student.data.test)
    ]
    found = (seen[1] @ seen[0].T).topk(nearest, dim=1).indices
    labels = student.data.train.labels[found]
    return float((labels == student.data.test.labels[:, None]).float().mean())

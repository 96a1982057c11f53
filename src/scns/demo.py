"""The demo: a bundled teacher, bundled images, few labels; students distilled with different negatives, and a page."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from scns import datasets, models, scores, words
from scns.data import Images
from scns.neighbors import NeighborTable
from scns.recipe import Recipe
from scns.recipes import named
from scns.report.opening import Opening
from scns.report.page import write_report
from scns.report.pictures import Source
from scns.results import read
from scns.sampling import ClassNegatives, InstanceNegatives, UniformNegatives
from scns.scores import Estimate
from scns.teacher import Teacher
from scns.train import Shelf, Watch, fit

STUDENTS = {  # name and what changed; the recipe is demo-NAME
    "labels": "25 labels a class",
    "answers": "+ the teacher's answers on all images",
    "uniform": "+ InfoNCE, uniform negatives",
    "class": "+ InfoNCE, class-level negatives",
    "instance": "+ InfoNCE, instance-level negatives",
}
COMPARED = (("answers", "labels"), ("uniform", "answers"), ("class", "uniform"), ("instance", "uniform"))
_DRAWN = 64  # negatives an anchor, for the numbers on whom each sampler picks
_SHOWN = ("cat", "truck")  # classes whose neighbours are printed: one animal, one machine

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scale:
    """How much of the demo is done."""

    epochs: int = 15  # of a distilled student
    labelled_epochs: int = 80  # on the labelled tenth of the images
    subset: int = 0  # training images; 0: all 2,500


QUICK = Scale(epochs=3, labelled_epochs=20)


@dataclass(frozen=True)
class Row:
    """A network at the end. Retrieval: every test image sorts the training images by the cosine of embeddings."""

    name: str
    changed: str
    right: Tensor  # float [test images], percent: 100 where the network names the class
    precision: Tensor  # float [test images], percent: average precision of retrieval
    seconds: float | None  # of training

    @property
    def accuracy(self) -> Estimate:
        return scores.estimate(self.right)

    @property
    def retrieval(self) -> Estimate:
        return scores.estimate(self.precision)


@dataclass(frozen=True)
class Outcome:
    """What the demo found."""

    rows: list[Row]  # the students, then the teacher
    findings: list[str]
    page: Path


def run(out: Path, *, scale: Scale | None = None, say: Say = print, watch: Watch | None = None) -> Outcome:
    """Run the demo in the folder `out`, or go on with it; finished students are only read."""
    scale, shelf = scale or Scale(), Shelf()
    images, test = datasets.load("cifar10-mini"), datasets.load("cifar10-mini", split="test")
    if scale.subset:
        images = images.split(scale.subset / len(images))[1]  # the same as the recipes': seed 0
    recipe = _recipe("answers", scale)
    teacher = shelf.teacher(recipe)
    assert teacher is not None
    about = _about(images, test, teacher)
    say(f"1/4  {about}")
    teacher.cache(shelf.data(recipe).train, ("logits",))
    assert teacher.logits is not None and teacher.embeddings is not None
    rows = [_row("teacher", "all 50,000 labels of CIFAR-10", teacher, images, teacher.embeddings, test, None)]
    say(f"     The teacher names {rows[0].accuracy} % of the test images rightly; it saw 50,000 labels.")

    say("2/4  Who is similar? Classes by the word vectors of their names, images by the teacher's embeddings.")
    classes = NeighborTable.build(words.label_vectors(list(images.names)), k=2)
    table = NeighborTable.build(teacher.embeddings, images.labels, k=100, source=recipe.teacher)
    table.save(out / "neighbors.safetensors")
    for line in (*_similar(images, classes), *_picked(images, teacher.embeddings, classes, table)):
        say(f"     {line}")

    say(f"3/4  Students: {recipe.student}, 25 labels a class; then with the teacher's help, and no label more.")
    for number, (name, changed) in enumerate(STUDENTS.items(), 1):
        student = fit(_recipe(name, scale), out / f"{number}-{name}", watch=watch, shelf=shelf)
        look = Teacher(student.student)
        seconds = student.result["seconds"]
        rows.insert(-1, _row(name, changed, look, images, look.embed(images)[1], test, seconds))
        say(f"     {name:9} {rows[-2].accuracy} % right, after {seconds:.0f} s")

    say("4/4  The page.")
    findings = [_finding(*(next(row for row in rows if row.name == name) for name in pair)) for pair in COMPARED]
    opening = Opening("Few labels, one teacher, chosen negatives", about, findings, [_told(row) for row in rows])
    source = Source("the teacher", teacher.embeddings)
    write_report(read(out), out, out / "report.html", source=source, opening=opening)
    return Outcome(rows, findings, out / "report.html")


def _recipe(name: str, scale: Scale) -> Recipe:
    recipe = named(f"demo-{name}")
    if name == "labels":
        return replace(recipe, epochs=scale.labelled_epochs)
    return replace(recipe, epochs=scale.epochs, subset=scale.subset)


def _about(images: Images, test: Images, teacher: Teacher) -> str:
    weights = models.parameters(teacher.network)
    return (
        f"{len(images):,} bundled images of CIFAR-10, {len(test):,} more to test on; the teacher is a bundled wrn-16-2 "
        f"with {weights:,} weights, the students are resnet8 with {models.parameters(models.build('resnet8', 10)):,}."
    )


def _similar(images: Images, classes: NeighborTable) -> Iterator[str]:
    """The nearest classes of some."""
    for name in _SHOWN:
        row = images.names.index(name)
        pairs = zip(classes.indices[row].tolist(), classes.scores[row].tolist(), strict=True)
        yield f"{name}: " + ", ".join(f"{images.names[other]} {score:.2f}" for other, score in pairs)


def _picked(images: Images, embeddings: Tensor, classes: NeighborTable, table: NeighborTable) -> Iterator[str]:
    """Whom each sampler picks, in numbers: how similar to its anchor, and how many dogs as negatives of a cat."""
    samplers = {
        "uniform": UniformNegatives(images.labels),
        "class-level": ClassNegatives(classes, images.labels),
        "instance-level": InstanceNegatives(table),
    }
    unit, anchors = F.normalize(embeddings, dim=1), torch.arange(len(images))
    cats = images.labels == images.names.index("cat")
    for name, sampler in samplers.items():
        drawn = sampler.sample(anchors, _DRAWN)  # [n, 64]
        cosine = torch.stack([(unit[row] * unit[column]).sum(1) for row, column in ((anchors, c) for c in drawn.T)])
        dogs = (images.labels[drawn[cats]] == images.names.index("dog")).float().mean()
        yield (
            f"{name + ' negatives:':25} cosine to their anchor {float(cosine.mean()):.2f} on average; "
            f"{100 * float(dogs):.0f} % of a cat's are dogs"
        )


def _row(
    name: str, changed: str, network: Teacher, images: Images, gallery: Tensor, test: Images, seconds: float | None
) -> Row:
    logits, queries = network.embed(test)
    precision = scores.average_precision(queries, test.labels, gallery, images.labels)
    return Row(name, changed, 100 * (logits.argmax(1) == test.labels).float(), 100 * precision, seconds)


def _finding(row: Row, base: Row) -> str:
    """What one change did, in a sentence; differences are taken image by image."""
    parts = []
    for what, one, other in (
        ("accuracy", row.right, base.right),
        ("retrieval", row.precision, base.precision),
    ):
        gain = scores.estimate(one - other)
        verdict = {1: "better", -1: "worse", 0: "no difference beyond chance"}[gain.sign]
        parts.append(f"{what} {gain.mean:+.1f} ± {gain.half:.1f} ({verdict})")
    return f"{row.name} against {base.name}: {', '.join(parts)}"


def _told(row: Row) -> tuple[str, str, Estimate, Estimate, float | None]:
    return row.name, row.changed, row.accuracy, row.retrieval, row.seconds

"""The demo: a bundled teacher, bundled images, few labels; students distilled with different negatives, and a page."""

import math
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
from scns.report.opening import Change, Network, Opening
from scns.report.page import write_report
from scns.report.pictures import Source
from scns.results import Results, read
from scns.sampling import ClassNegatives, InstanceNegatives, UniformNegatives
from scns.soft import SoftNegatives
from scns.teacher import Teacher
from scns.train import Shelf, Watch, fit

STUDENTS = {  # name -> what it is trained with; its recipe is demo-NAME
    "labels": "25 labels a class",
    "answers": "+ the teacher's answers",
    "uniform": "+ InfoNCE, uniform negatives",
    "class": "+ InfoNCE, class-level",
    "instance": "+ InfoNCE, instance-level",
    "own": "+ InfoNCE, soft (its default)",
}
_COMPARED = {
    "the teacher's answers, against labels alone": ("answers", "labels"),
    "InfoNCE with uniform negatives, against none": ("uniform", "answers"),
    "class-level negatives, against uniform ones": ("class", "uniform"),
    "instance-level negatives, against uniform ones": ("instance", "uniform"),
    "soft negatives, against uniform ones": ("own", "uniform"),
    "InfoNCE with instance-level negatives, against none": ("instance", "answers"),
}
FOLLOWING = """\
# your pictures in PICTURES/train/<class>/ and PICTURES/test/<class>/: a teacher, then a small network of it
scns train mini-ce --set data=folder --set root=PICTURES --set student=wrn-16-2 --out runs/teacher
scns train demo-own --set data=folder --set root=PICTURES --set labelled=0 --set teacher=runs/teacher --out runs/small
# embeddings and labels of any network: who would be drawn as negatives?
scns neighbors build --embeddings x.npy --labels y.npy -k 100 --out table.safetensors"""
_DRAWN = 64  # negatives an anchor, for the numbers on whom each sampler picks
_SHOWN = ("cat", "truck")  # classes whose neighbours are printed: one animal, one machine

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scale:
    """How much of the demo is done."""

    epochs: int = 12  # of a distilled student
    labelled_epochs: int = 60  # on the labelled tenth of the images
    subset: int = 0  # training images; 0: all 2,500
    test: int = 0  # test images that the networks are judged on at the end; 0: all 2,000
    looks: int = 4  # at the test images while training: a curve has as many points, each costs a fifth of an epoch
    # What another seed does to a student's accuracy and retrieval, in points: the standard deviation over seeds 0, 1
    # and 2, pooled over the students.
    spread: tuple[float, float] = (1.4, 0.8)
    quantile: float = 2.18  # Student's, 95 %, for the 12 degrees of freedom of that spread: 6 students x (3 - 1) seeds
    students: tuple[str, ...] = tuple(STUDENTS)
    command: str = "scns demo"

    @property
    def seeds(self) -> tuple[float, float]:
        """The spread as that of a normal distribution with the same 95 % interval."""
        return (self.spread[0] * self.quantile / 1.96, self.spread[1] * self.quantile / 1.96)

    @property
    def chance(self) -> str:
        """What ± covers."""
        return (
            "± is a 95 % interval: the choice of test images, and the seed, which moves a student's accuracy by "
            f"{self.spread[0]} and its retrieval by {self.spread[1]} points (standard deviation, 3 seeds)."
        )


QUICK = Scale(
    epochs=5,
    labelled_epochs=15,
    test=1000,
    looks=1,
    spread=(2.3, 0.7),
    quantile=2.45,  # 6 degrees of freedom
    students=("labels", "answers", "instance"),
    command="scns demo --quick",
)


@dataclass(frozen=True)
class Seen:
    """What a network does with each test image, in percent."""

    right: Tensor  # float [test images]: 100 where it names the class
    precision: Tensor  # float [test images]: average precision of retrieval


@dataclass(frozen=True)
class Outcome:
    """What the demo found."""

    networks: list[Network]  # the students, then the teacher
    changes: list[Change]
    chance: str  # what their intervals cover
    page: Path


def run(out: Path, *, scale: Scale | None = None, say: Say = print, watch: Watch | None = None) -> Outcome:
    """Run the demo in the folder `out`, or go on with it; finished students are only read."""
    scale, shelf = scale or Scale(), Shelf()
    out.mkdir(parents=True, exist_ok=True)  # where nothing can be written, that is said now
    images, test = datasets.load("cifar10-mini"), datasets.load("cifar10-mini", split="test")
    if scale.subset:
        images = images.split(scale.subset / len(images))[1]  # the same as the recipes': seed 0
    everything = len(test)
    if scale.test:
        test = test.split(scale.test / len(test))[1]
    recipe = _recipe("answers", scale)
    teacher = shelf.teacher(recipe)
    assert teacher is not None
    about = _about(images, test, everything, teacher)
    say(f"1/4  {about}")
    teacher.cache(shelf.data(recipe).train, ("logits",))
    assert teacher.logits is not None and teacher.embeddings is not None
    seen = {"teacher": _look(teacher, teacher.embeddings, images, test)}
    best = _network("teacher", "all 50,000 labels of CIFAR-10", seen["teacher"], None, (0.0, 0.0))
    say(f"     The teacher names {best.accuracy} % of the test images rightly.")

    say("2/4  Who is similar? Classes by the word vectors of their names, images by the teacher's embeddings.")
    classes = NeighborTable.build(words.label_vectors(list(images.names)), k=2)
    table = NeighborTable.build(teacher.embeddings, images.labels, k=100, source=recipe.teacher)
    table.save(out / "neighbors.safetensors")
    picked = list(_picked(images, teacher.embeddings, classes, table))
    for line in (*_similar(images, classes), *picked):
        say(f"     {line}")

    say(f"3/4  Students: {recipe.student}, 25 labels a class; then with the teacher's help, and no label more.")
    networks = []
    for number, name in enumerate(scale.students, 1):
        student = fit(_recipe(name, scale), out / f"{number}-{name}", watch=watch, shelf=shelf)
        eyes = Teacher(student.student)
        seen[name] = _look(eyes, eyes.embed(images)[1], images, test)
        networks.append(_network(name, STUDENTS[name], seen[name], student.result["seconds"], scale.seeds))
        say(f"     {name:9} {networks[-1].accuracy} % right, after {networks[-1].seconds:.0f} s")
    networks.append(best)
    changes = [
        _change(what, seen[one], seen[other], scale.seeds)
        for what, (one, other) in _COMPARED.items()
        if one in seen and other in seen
    ]

    say("4/4  The page.")
    opening = Opening(
        "Few labels, one teacher, chosen negatives",
        about,
        networks,
        changes,
        picked,
        scale.chance,
        FOLLOWING,
        scale.command,
    )
    source = Source("the teacher", teacher.embeddings)
    write_report(_own(read(out), out), out, out / "report.html", source=source, opening=opening)
    return Outcome(networks, changes, scale.chance, out / "report.html")


def _own(results: Results, out: Path) -> Results:
    """The runs of this demo: `scns demo --quick` has a folder of its own below, and a page of its own."""
    skipped = {path: why for path, why in results.skipped.items() if path.parent == out}
    entries, lost = ([each for each in some if each.path.parent == out] for some in (results.entries, results.diverged))
    return Results(entries, skipped, lost)


def _recipe(name: str, scale: Scale) -> Recipe:
    recipe = named(f"demo-{name}")
    if name == "labels":
        return replace(recipe, epochs=scale.labelled_epochs, evaluate_every=-(-scale.labelled_epochs // scale.looks))
    return replace(recipe, epochs=scale.epochs, subset=scale.subset, evaluate_every=-(-scale.epochs // scale.looks))


def _about(images: Images, test: Images, everything: int, teacher: Teacher) -> str:
    weights, small = models.parameters(teacher.network), models.parameters(models.build("resnet8", images.classes))
    some = "" if len(test) == everything else f" (of {everything:,}, which the log and the table of runs are about)"
    return (
        f"{len(images):,} bundled images of CIFAR-10, of which 250 keep their label, and {len(test):,} to test on"
        f"{some}; the teacher is a bundled wrn-16-2 with {weights:,} weights, the students are resnet8 with {small:,}."
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
        "soft": SoftNegatives(embeddings, images.labels, scale=10.0),  # as in demo-own at its beginning
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


def _look(network: Teacher, gallery: Tensor, images: Images, test: Images) -> Seen:
    logits, queries = network.embed(test)
    precision = scores.average_precision(queries, test.labels, gallery, images.labels)
    return Seen(100 * (logits.argmax(1) == test.labels).float(), 100 * precision)


def _network(name: str, had: str, seen: Seen, seconds: float | None, spread: tuple[float, float]) -> Network:
    accuracy, retrieval = scores.estimate(seen.right, spread[0]), scores.estimate(seen.precision, spread[1])
    return Network(name, had, accuracy, retrieval, seconds)


def _change(what: str, one: Seen, other: Seen, spread: tuple[float, float]) -> Change:
    right, precision = (math.sqrt(2) * each for each in spread)  # two students, each with its chance
    accuracy = scores.estimate(one.right - other.right, right)
    return Change(what, accuracy, scores.estimate(one.precision - other.precision, precision))

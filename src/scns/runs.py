"""Run folders after training: a table of them, and the students they hold."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from scns import augment, datasets, models
from scns.checkpoint import Folder, run_folders
from scns.data import Images
from scns.errors import InputError
from scns.recipe import Recipe
from scns.step import Evaluation, chunk_of

_AGAIN = "remove its result.json and give the run's command again, which writes both anew from the checkpoint"


@dataclass(frozen=True)
class Summary:
    """Where a run stands."""

    path: Path
    recipe: Recipe
    done: int  # epochs of the main stage
    test: float | None
    seconds: float
    state: str  # "finished", "unfinished" (it goes on from its checkpoint), "diverged" (it has no end), or "empty"
    why: str = ""  # it diverged, in a sentence


@dataclass(frozen=True)
class Student:
    """A trained network and what its user must know of the images it was trained on.

    `network(images)` gives logits [n, classes] for float images [n, 3, side, side] = (pixels / 255 - mean) / std.
    """

    network: models.Network
    name: str
    classes: tuple[str, ...]
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def side(self) -> int:
        """Pixels of the images that the network looks at: their own, or those it resizes them to."""
        return self.network.input_size or self.size


def find(folder: str | Path) -> tuple[list[Summary], list[str]]:
    """(the runs in a folder and its sub-folders, by path; a sentence for each run that cannot be read)."""
    paths, closed = run_folders(folder)
    found, lost = [], list(closed.values())
    for path in paths:
        try:
            found.append(summary(path))
        except InputError as error:
            lost.append(str(error))
        except OSError as error:
            lost.append(f"'{error.filename}' cannot be read ({error.strerror}); check its permissions.")
    return found, lost


def summary(path: str | Path) -> Summary:
    """Where the run in a folder stands."""
    folder = Folder(path)
    recipe = folder.recipe()
    if folder.finished:
        result = folder.result()
        return Summary(folder.path, recipe, int(result["epochs"]), result["test"], result["seconds"], "finished")
    progress, lost = folder.progress(), folder.diverged()
    if lost is not None:
        return Summary(folder.path, recipe, lost["done"], None, lost["seconds"], "diverged", lost["reason"])
    if progress is None:
        return Summary(folder.path, recipe, 0, None, 0.0, "empty")
    main = [line for line in progress["history"] if "stage" not in line]
    test = next((line["test"] for line in reversed(main) if "test" in line), None)
    return Summary(folder.path, recipe, len(main), test, float(progress["seconds"]), "unfinished")


def _again(folder: Folder) -> str:
    """How a finished run gets its student back."""
    if (folder.path / "last.safetensors").exists():
        return _AGAIN
    recipe = shlex.quote(str(folder.path / "recipe.json"))
    return f"it has no checkpoint either, so train it again: scns train {recipe} --out FOLDER"


def load_student(path: str | Path) -> Student:
    """The student of a finished run, in evaluation mode: `load_student("runs/first").network(images)` gives logits."""
    folder = Folder(path)
    recipe = folder.recipe()
    weights = folder.path / "model.safetensors"
    if not weights.exists() and folder.finished:
        raise InputError(f"The run '{folder.path}' did not keep its student (model.safetensors); {_again(folder)}.")
    if not weights.exists() and (lost := folder.diverged()):
        raise InputError(f"The run '{folder.path}' diverged, so it has no student. {lost['reason']}")
    if not weights.exists():
        raise InputError(f"The run '{folder.path}' is not finished, so it has no student yet; go on with scns train.")
    open(weights, "rb").close()  # safetensors would say of a file that may not be read that it is not there
    try:
        with safe_open(weights, framework="pt") as file:
            about = {key: json.loads(text) for key, text in file.metadata().items() if key != "student"}
        classes, mean, std = tuple(about["classes"]), tuple(about["mean"]), tuple(about["std"])
        size = int(about["size"])
    except (SafetensorError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"'{weights}' is cut short or of another kind ({error}); {_again(folder)}.") from None
    network = models.load_weights(models.build(recipe.student, len(classes)), weights).eval()
    network.input_size = recipe.input_size
    return Student(network.to(memory_format=torch.channels_last), recipe.student, classes, size, mean, std)  # type: ignore[call-overload]


def load_images(recipe: Recipe, data: str | None, root: str | None, split: str) -> Images:
    """A split of the run's own data set, or of another."""
    options = {"size": recipe.size} if recipe.size and "size" in datasets.options(data or recipe.data) else {}
    try:
        return datasets.load(data or recipe.data, root or recipe.root, split, **options)
    except InputError as error:
        if root is not None or recipe.root not in str(error) or Path(recipe.root).expanduser().exists():
            raise
        raise InputError(f"{error} The run's root is seen from this folder; --root says where the data lie.") from None


def evaluate(
    student: Student, images: Images, *, bf16: bool = False, progress: Callable[[int, int], None] | None = None
) -> float:
    """The share of correct answers, in percent. Student and images are on one device.

    Images are normalised as those that the student was trained on, whatever their own mean is.
    """
    _check_classes(student, images)
    images = images.known()
    if not len(images):
        raise InputError("None of the images has a label, so no accuracy can be told; add some.")
    images = replace(images, mean=student.mean, std=student.std)
    evaluation = Evaluation(student.network, images, chunk=chunk_of(student.network, images), bf16=bf16)
    done = 0
    evaluation.begin()
    for size in evaluation.sizes():
        evaluation.supply()
        evaluation(size)
        done += size
        if progress is not None:
            progress(done, len(images))
    return 100 * float(evaluation.right) / len(images)


def _check_classes(student: Student, images: Images) -> None:
    """Raise where the images have other classes, by their number or by a name: every answer would be about others."""
    if images.classes != len(student.classes):
        raise InputError(f"The student knows {len(student.classes)} classes, but the images have {images.classes}.")
    for label, (known, other) in enumerate(zip(student.classes, images.names, strict=True)):
        if known != other:
            raise InputError(
                f"Class {label} is '{known}' to the student, but '{other}' to the images; give images of the classes "
                "that it was trained on, in their order."
            )


@torch.no_grad()
def embed(
    student: Student,
    images: Images,
    *,
    rows: range | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The pooled embedding of every image (or of `rows`), float32 [n, width], without augmentation.

    Images go to the student's device a chunk at a time, so they may be more than it holds.
    """
    device = next(student.network.parameters()).device
    wanted = range(len(images)) if rows is None else rows
    parts = []
    chunk = chunk_of(student.network, images)
    for start in range(wanted.start, wanted.stop, chunk):
        stop = min(start + chunk, wanted.stop)
        pixels = augment.normalise(images.take(slice(start, stop)).to(device), student.mean, student.std)
        parts.append(student.network(pixels, features=True).embedding.cpu())
        if progress is not None:
            progress(stop - wanted.start, len(wanted))
    return torch.cat(parts)


def embedding_rows(student: Student, images: Images, part: int, parts: int) -> range:
    """The rows of part `part` (from 1): whole chunks, so that every image is seen in the same company as in one go."""
    count, chunk = len(images), chunk_of(student.network, images)
    chunks = -(-count // chunk)
    if parts > chunks:
        raise InputError(f"{count:,} images are {chunks} chunks of {chunk}, too few for {parts} shards; use fewer.")
    first, last = chunks * (part - 1) // parts, chunks * part // parts
    return range(first * chunk, min(last * chunk, count))

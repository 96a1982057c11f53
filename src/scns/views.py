"""Training images as the students of runs see them, for figures of who is near whom."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from scns import runs, words
from scns.data import Images
from scns.errors import InputError
from scns.results import Results

_MOST = 5_000  # images that are embedded: 25 of each of 200 classes, and a minute on a CPU


class View(NamedTuple):
    """Training images as a run's student sees them."""

    run: str
    images: Images
    embedding: Tensor  # float32 [n, width]


def views(results: Results, progress: Callable[[int, int], None] | None = None) -> dict[str, View]:
    """By data set, what a run's student sees: the best teacher of other runs, or else the best run, that kept it."""
    if not results.entries:
        raise InputError("No run is finished; train one: scns train mini-ce")
    found: dict[str, View] = {}
    why: dict[str, str] = {}
    taught = {Path(each.recipe.teacher).parts[-2:] for each in results.entries if each.recipe.teacher}
    for entry in sorted(results.entries, key=lambda each: (each.path.parts[-2:] in taught, each.test), reverse=True):
        data = entry.recipe.data
        if data in found:
            continue
        try:
            student = runs.load_student(entry.path)
            images = runs.load_images(entry.recipe, None, None, "train")
        except (InputError, OSError) as error:
            why.setdefault(data, str(error))
            continue
        if len(images) > _MOST:
            images = images.split(_MOST / len(images))[1]
        found[data] = View(entry.path.name, images, runs.embed(student, images, progress=progress))
    if not found:
        raise InputError(f"No run has both its student and its images: {next(iter(why.values()))}")
    return found


def label_names(data: str) -> tuple[str, ...]:
    """The names of a data set's classes where they are known without its images; else none."""
    try:
        return words.label_names(data.removesuffix("-mini"))
    except InputError:
        return ()

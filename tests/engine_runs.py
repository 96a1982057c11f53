"""Small runs that the tests of the engine share: 120 + 60 of the bundled images in a folder, four steps an epoch."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from scns import datasets
from scns.recipe import Recipe
from scns.run import Run
from scns.train import fit

COUNTS = {"train": 12, "test": 6}  # images a class
SIZE = 16  # pixels to which they are made smaller: a quarter of the work
EPOCHS, STEPS = 3, 4  # 120 images are three batches of 32 and one of 24


@cache
def place() -> Path:
    """A folder for this test process, removed at its end."""
    made = Path(tempfile.mkdtemp(prefix="scns-engine-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def root() -> Path:
    """A folder data set, cut from the bundled images."""
    for split, count in COUNTS.items():
        images = datasets.load("cifar10-mini", split=split)
        for label, name in enumerate(images.names):
            folder = place() / "data" / split / name
            folder.mkdir(parents=True)
            for number in (images.labels == label).nonzero()[:count, 0].tolist():
                Image.fromarray(images.pixels[number].permute(1, 2, 0).numpy()).save(folder / f"{number:04d}.png")
    return place() / "data"


def recipe(method: str = "ce", **changes: Any) -> Recipe:
    """Three epochs of a method, a checkpoint after each."""
    where = {"data": "folder", "root": str(root()), "size": SIZE}
    base = Recipe(**where, method=method, epochs=EPOCHS, batch=32, device="cpu")
    return replace(base, **{"evaluate_every": 100, "checkpoint_every": 1, **changes})


def small_words() -> tuple[str, ...]:
    """The same images, batch and device as words of a command."""
    settings = ("data=folder", f"root={root()}", f"size={SIZE}", "batch=32", "device=cpu")
    return tuple(word for each in settings for word in ("--set", each))


@cache
def teacher() -> Path:
    """The folder of a finished run, to teach and to look at."""
    path = place() / "teacher"
    single(recipe(), path)
    return path


@contextmanager
def one_thread() -> Iterator[None]:
    """On one thread every process adds in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def single(wanted: Recipe, out: Path, **options: Any) -> Run:
    """`fit` on one thread."""
    with one_thread():
        return fit(wanted, out, **options)


def weights(folder: Path) -> dict[str, Tensor]:
    """Everything in the last checkpoint: student, method, momentum, sums."""
    return load_file(folder / "last.safetensors")


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """The same names, and the same bits."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())

"""Tar shards of your own images, as webdataset writes them: train/*.tar and test/*.tar, or train-*.tar and test-*.tar.

A sample is NAME.jpg (.png, .webp) with NAME.cls or NAME.json; `scns data pack` writes such shards of any data set.
Classes are named by the lines of classes.txt beside the shards; without it they are "0", "1" and so on. The middle
square of every image is resized to `size`. Mean and standard deviation are those of the training images.
"""

from pathlib import Path

import torch

from scns.data import Images
from scns.datasets import _decode, _layout, _tar
from scns.datasets.folder import SMALLEST
from scns.errors import InputError

NAMES = {"shards": "your own images in tar shards (webdataset): train/*.tar and test/*.tar"}


def load(
    name: str,
    root: Path | None,
    split: str,
    *,
    size: int = 32,
    skip_bad: bool = False,
    progress: _decode.Progress | None = None,
) -> Images:
    """The images of a split; `skip_bad` leaves corrupt images out. Decoded once, then mapped from the cache."""
    if size < SMALLEST:
        raise InputError(f"The size is {size} pixels, but it must be at least {SMALLEST}.")
    if root is None or not root.is_dir():
        raise InputError(
            f"The folder of the shards, '{root}', does not exist; it must hold train/*.tar and test/*.tar."
        )
    try:
        items, labels = _tar.listed(_archives(root, split))
        images = _decode.decoded(f"{name}-{split}", root, items, size, skip_bad, progress)
        train, every = images, labels
        if split == "test":  # both splits are normalised by the training images, and have their classes
            items, every = _tar.listed(_archives(root, "train"))
            train = _decode.decoded(f"{name}-train", root, items, size, skip_bad, progress)
    except PermissionError as error:
        raise _layout.unreadable(name, error) from error
    found = Images(images.pixels, torch.tensor(labels), _class_names(root, max(every)), train.mean, train.std)
    return found if images.good.all() else found.subset(images.good.nonzero().flatten())


def _archives(root: Path, split: str) -> list[Path]:
    found = sorted((root / split).glob("*.tar")) or sorted(root.glob(f"{split}-*.tar"))
    if not found:
        raise InputError(f"There are no shards in '{root}': expected {split}/*.tar or {split}-*.tar, not compressed.")
    return found


def _class_names(root: Path, largest: int) -> tuple[str, ...]:
    path = root / "classes.txt"
    return tuple(_layout.lines(path)) if path.is_file() else tuple(str(label) for label in range(largest + 1))

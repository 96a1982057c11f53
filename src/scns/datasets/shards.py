"""Tar shards of your own images, as webdataset writes them: train/*.tar and test/*.tar, or train-*.tar and test-*.tar.

A sample is NAME.jpg (.png, .webp) with NAME.cls or NAME.json; `scns data pack` writes such shards of any data set.
Classes are named by the lines of classes.txt beside the shards; without it they are "0", "1" and so on. The middle
square of every image is resized to `size`. Mean and standard deviation are those of the training images.
"""

from pathlib import Path

from scns.data import Images
from scns.datasets import _decode, _layout, _own, _tar
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
    _own.check_size(size)
    if root is None or not root.is_dir():
        raise InputError(
            f"The folder of the shards, '{root}', does not exist; it must hold train/*.tar and test/*.tar."
        )
    place = root
    return _own.load(
        name,
        place,
        split,
        lambda each: _tar.listed(_archives(place, each)),
        lambda labels: _class_names(place, max(labels)),
        size,
        skip_bad,
        progress,
    )


def _archives(root: Path, split: str) -> list[Path]:
    found = sorted((root / split).glob("*.tar")) or sorted(root.glob(f"{split}-*.tar"))
    if not found:
        raise InputError(f"There are no shards in '{root}': expected {split}/*.tar or {split}-*.tar, not compressed.")
    return found


def _class_names(root: Path, largest: int) -> tuple[str, ...]:
    path = root / "classes.txt"
    return tuple(_layout.lines(path)) if path.is_file() else tuple(str(label) for label in range(largest + 1))

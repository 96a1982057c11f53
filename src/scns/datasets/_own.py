"""A person's own images, from a list of them to a split: what folders and tar shards share."""

from collections.abc import Callable
from pathlib import Path

import torch

from scns.data import Images
from scns.datasets import _decode, _layout
from scns.errors import InputError

SMALLEST = 8  # pixels: below, a crop's padding (an eighth of the size) would be less than one

Listed = Callable[[str], tuple[list, list[int]]]  # what can be decoded of a split, and its labels


def check_size(size: int) -> None:
    """Raise where images would be too small to crop; before anything is looked for."""
    if size < SMALLEST:
        raise InputError(f"The size is {size} pixels, but it must be at least {SMALLEST}.")


def load(
    name: str,
    root: Path,
    split: str,
    listed: Listed,
    names: Callable[[list[int]], tuple[str, ...]],  # of the classes, from the training labels
    size: int,
    skip_bad: bool,
    progress: _decode.Progress | None,
) -> Images:
    """The images of a split, decoded once and then mapped from the cache; normalised by the training images."""
    try:
        items, labels = listed(split)
        images = _decode.decoded(f"{name}-{split}", root, items, size, skip_bad, progress)
        train, known = images, labels
        if split == "test":  # it has the classes, mean and deviation of the training images, so it needs them too
            items, known = listed("train")
            train = _decode.decoded(f"{name}-train", root, items, size, skip_bad, progress)
    except PermissionError as error:
        raise _layout.unreadable(name, error) from error
    first, second, third = (deviation or 1.0 for deviation in train.std)  # a channel that does not vary is only shifted
    found = Images(images.pixels, torch.tensor(labels), names(known), train.mean, (first, second, third))
    return found if images.good.all() else found.subset(images.good.nonzero().flatten())

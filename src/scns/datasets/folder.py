"""Your own images: train/<class>/* and test/<class>/* (JPEG, PNG or WebP), at a size of your choice.

Classes are the sorted names of train's folders, and test must have the same. The middle square of every image is
resized to `size`. Mean and standard deviation are those of the training images.
"""

from pathlib import Path

import torch

from scns.data import Images
from scns.datasets import _decode, _layout
from scns.errors import InputError

NAMES = {"folder": "your own JPEG, PNG or WebP files in train/<class>/ and test/<class>/"}

SMALLEST = 8  # pixels: below, a crop's padding (an eighth of the size) would be less than one


def load(
    name: str,
    root: Path | None,
    split: str,
    *,
    size: int = 32,
    skip_bad: bool = False,
    progress: _decode.Progress | None = None,
) -> Images:
    """The images of a split; `skip_bad` leaves corrupt files out. Decoded once, then mapped from the cache."""
    if size < SMALLEST:
        raise InputError(f"The size is {size} pixels, but it must be at least {SMALLEST}.")
    remedy = "put your images in train/<class>/ and test/<class>/"
    root = _layout.find(name, root, {".": "train"}, remedy)
    try:
        names = _layout.folders(root / "train")
        if not names:
            raise InputError(f"'{root / 'train'}' has no class folders; {remedy}.")
        files, labels = _listed(root, split, names)
        images = _decode.decoded(f"{name}-{split}", root, files, size, skip_bad, progress)
        train = images
        if split == "test":  # both splits are normalised by the training images, so the test split needs them too
            files, _ = _listed(root, "train", names)
            train = _decode.decoded(f"{name}-train", root, files, size, skip_bad, progress)
    except PermissionError as error:
        raise _layout.unreadable(name, error) from error
    found = Images(images.pixels, torch.tensor(labels), tuple(names), train.mean, train.std)
    return found if images.good.all() else found.subset(images.good.nonzero().flatten())


def _listed(root: Path, split: str, names: list[str]) -> tuple[list[str], list[int]]:
    """Paths of the images of a split and their labels, class by class."""
    _layout.same_classes(root / split, names, "train")
    files: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(names):
        found = _layout.image_files(root / split / class_name)
        files += found
        labels += [label] * len(found)
    return files, labels

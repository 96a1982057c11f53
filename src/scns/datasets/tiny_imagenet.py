"""Tiny-ImageNet-200: 100,000 + 10,000 images of 64 px in 200 classes.

The test split is the published validation set: the published test images have no labels. Classes are in the order of
their sorted WordNet ids. A class is named by the first lemma of its id in words.txt; where classes have the same, their
ids are added: "crane (n02012849)".
"""

import os
from collections import Counter
from pathlib import Path

import torch

from scns.data import Images
from scns.datasets import _decode, _layout
from scns.errors import InputError

NAMES = {"tiny-imagenet-200": "100,000 + 10,000 images of 64 px, 200 classes"}

_SIZE = 64


def load(
    name: str, root: Path | None, split: str, *, skip_bad: bool = False, progress: _decode.Progress | None = None
) -> Images:
    """The images of a split; `skip_bad` leaves corrupt files out. Decoded once, then mapped from the cache."""
    folder = _layout.find(name, root, {"tiny-imagenet-200": "wnids.txt"})
    try:
        ids = sorted(_layout.lines(folder / "wnids.txt"))
        if split == "train":
            files, labels = _layout.by_class(folder / "train", ids, "wnids.txt", "images")
        else:
            files, labels = _validation(folder, ids)
        images = _decode.decoded(f"{name}-{split}", folder, files, _SIZE, skip_bad, progress)
    except PermissionError as error:
        raise _layout.unreadable(name, error) from error
    found = Images(
        images.pixels,
        torch.tensor(labels),
        _label_names(folder, ids),
        mean=(0.485, 0.456, 0.406),  # ImageNet's, the usual ones for this set and those of pretrained networks
        std=(0.229, 0.224, 0.225),
    )
    return found if images.good.all() else found.subset(images.good.nonzero().flatten())


def _validation(folder: Path, ids: list[str]) -> tuple[list[str], list[int]]:
    label_of = {class_id: label for label, class_id in enumerate(ids)}
    annotations = folder / "val" / "val_annotations.txt"
    present = set(_layout.image_files(folder / "val" / "images"))
    files, labels = [], []
    for number, line in enumerate(_layout.lines(annotations), 1):
        file, _, rest = line.partition("\t")
        class_id = rest.partition("\t")[0]
        path = os.path.join(folder, "val", "images", file)
        if class_id not in label_of:
            raise InputError(f"Line {number} of '{annotations}' names class '{class_id}', which is not in wnids.txt.")
        if path not in present:
            raise InputError(
                f"'{path}' is missing, but line {number} of '{annotations}' names it; fetch the set again."
            )
        files.append(path)
        labels.append(label_of[class_id])
    return files, labels


def _label_names(folder: Path, ids: list[str]) -> tuple[str, ...]:
    words = dict(line.split("\t", 1) for line in _layout.lines(folder / "words.txt") if "\t" in line)
    unnamed = [class_id for class_id in ids if class_id not in words]
    if unnamed:
        raise InputError(f"'{folder / 'words.txt'}' has no words for {unnamed[0]}; fetch the data set again.")
    lemmas = [words[class_id].split(",")[0].strip() for class_id in ids]
    count = Counter(lemmas)
    return tuple(
        lemma if count[lemma] == 1 else f"{lemma} ({class_id})" for lemma, class_id in zip(lemmas, ids, strict=True)
    )

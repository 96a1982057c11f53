"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 50,000 + 10,000 images of 32 px.

Read from the published binary layout or from the published python archives, whichever is found (binary first).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from scns.data import Images
from scns.datasets import _layout, _pickles
from scns.errors import InputError

NAMES = {
    "cifar10": "CIFAR-10: 50,000 + 10,000 images of 32 px, 10 classes",
    "cifar100": "CIFAR-100: 50,000 + 10,000 images of 32 px, 100 classes in 20 superclasses",
}

_PIXELS = 3 * 32 * 32  # bytes of an image: the red plane, the green, the blue


class _Set(NamedTuple):
    binary: str  # folder of the binary layout
    python: str  # folder of the python archive
    files: dict[str, list[str]]  # split -> its files, without ending
    labels: dict[str, int]  # label of a record -> its classes, in the order of the label bytes; the last is the target
    binary_names: list[str]  # text files with the label names, in the same order
    python_names: tuple[str, list[str]]  # the file with the label names, and its keys
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


_SETS = {
    "cifar10": _Set(
        binary="cifar-10-batches-bin",
        python="cifar-10-batches-py",
        files={"train": [f"data_batch_{part}" for part in range(1, 6)], "test": ["test_batch"]},
        labels={"labels": 10},
        binary_names=["batches.meta.txt"],
        python_names=("batches.meta", ["label_names"]),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),  # the usual constants: mean of the images' own deviations, not of all pixels
    ),
    "cifar100": _Set(
        binary="cifar-100-binary",
        python="cifar-100-python",
        files={"train": ["train"], "test": ["test"]},
        labels={"coarse_labels": 20, "fine_labels": 100},
        binary_names=["coarse_label_names.txt", "fine_label_names.txt"],
        python_names=("meta", ["coarse_label_names", "fine_label_names"]),
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
    ),
}


def load(name: str, root: Path | None, split: str) -> Images:
    """The images of a split; CIFAR-100 also has its 20 superclasses, as `coarse` and `coarse_names`."""
    this = _SETS[name]
    binary_marker, python_marker = this.binary_names[0], this.python_names[0]
    folder = _layout.find(name, root, {this.binary: binary_marker, this.python: python_marker})
    binary = (folder / binary_marker).exists()
    try:
        parts = list((_binary_parts if binary else _python_parts)(name, folder, split))
        names = (_binary_names if binary else _python_names)(this, folder)
    except PermissionError as error:
        raise _layout.unreadable(name, error) from error
    pixels = np.concatenate([part for part, _ in parts]).reshape(-1, 3, 32, 32)
    labels = torch.from_numpy(np.concatenate([part for _, part in parts]).astype(np.int64))  # [n, kinds of label]
    has_coarse = len(this.labels) > 1
    return Images(
        torch.from_numpy(pixels),
        labels[:, -1].contiguous(),
        tuple(names[-1]),
        this.mean,
        this.std,
        coarse=labels[:, 0].contiguous() if has_coarse else None,
        coarse_names=tuple(names[0]) if has_coarse else (),
    )


def _binary_parts(name: str, folder: Path, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(pixels [n, 3072], labels [n, kinds]) of each file; a record is its label bytes, then its pixels."""
    this = _SETS[name]
    record = len(this.labels) + _PIXELS
    for file in this.files[split]:
        path = _required(folder / f"{file}.bin", name)
        size = path.stat().st_size
        if size == 0 or size % record:
            raise InputError(
                f"'{path}' has {size:,} bytes, which is no whole number of {name}'s records of {record:,} bytes: "
                "it is cut short or belongs to another data set; fetch it again."
            )
        rows = np.memmap(path, np.uint8, mode="r").reshape(-1, record)
        labels = np.array(rows[:, : len(this.labels)])
        _check_labels(path, this, labels)
        yield rows[:, len(this.labels) :], labels


def _python_parts(name: str, folder: Path, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    this = _SETS[name]
    for file in this.files[split]:
        path = _required(folder / file, name)
        content = _pickles.read(path)
        missing = [key for key in ("data", *this.labels) if key not in content]
        if missing:
            raise InputError(f"'{path}' has no '{missing[0]}': it is no {name} file; fetch it again.")
        pixels = content["data"]
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
            found = f"{pixels.dtype} {list(pixels.shape)}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
            raise InputError(f"'data' of '{path}' is {found}, but it must be uint8 [n, {_PIXELS}]; fetch it again.")
        columns = [content[key] for key in this.labels]
        for key, column in zip(this.labels, columns, strict=True):
            if not isinstance(column, list) or [type(label) for label in column] != [int] * len(pixels):
                raise InputError(f"'{key}' of '{path}' must list {len(pixels)} whole numbers, one an image.")
        labels = np.array(columns).T  # [n, kinds]
        _check_labels(path, this, labels)
        yield pixels, labels


def _check_labels(path: Path, this: _Set, labels: np.ndarray) -> None:
    limits = np.array(list(this.labels.values()))
    outside = (labels < 0) | (labels >= limits)
    if outside.any():
        row, kind = np.argwhere(outside)[0]
        raise InputError(
            f"Image {row} of '{path}' has label {labels[row, kind]}, but labels run from 0 to {limits[kind] - 1}: "
            "the file is damaged or belongs to another data set; fetch it again."
        )


def _binary_names(this: _Set, folder: Path) -> list[list[str]]:
    counts = this.labels.values()
    return [_layout.lines(folder / file, count) for file, count in zip(this.binary_names, counts, strict=True)]


def _python_names(this: _Set, folder: Path) -> list[list[str]]:
    file, keys = this.python_names
    content = _pickles.read(folder / file)
    for key, count in zip(keys, this.labels.values(), strict=True):
        if len(content.get(key, ())) != count:
            raise InputError(f"'{folder / file}' must list {count} names as '{key}'; fetch the data set again.")
    return [[str(name) for name in content[key]] for key in keys]


def _required(path: Path, name: str) -> Path:
    if not path.is_file():
        raise InputError(f"'{path}' is missing: {name} is incomplete, fetch it again.")
    return path

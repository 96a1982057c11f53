"""What lies where in tar archives of samples: every image's place and label, read once and kept in the cache folder.

A sample is the files that share a name up to the first dot: 000017.jpg with 000017.cls (its label as a number) or
000017.json ({"label": 3} or {"cls": 3}). Nothing is unpacked.
"""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from scns.datasets._decode import Packed, cache_folder
from scns.datasets._layout import ENDINGS
from scns.errors import InputError
from scns.files import atomic

_VERSION = "1"
_BLOCK = 512  # bytes of a tar's header; one of zeros ends it


def listed(archives: list[Path]) -> tuple[list[Packed], list[int]]:
    """The images of all archives, in order, and their labels."""
    digest = hashlib.sha256(_VERSION.encode())
    for path in archives:
        status = os.stat(path)
        digest.update(f"\n{path.resolve()}\t{status.st_size}\t{status.st_mtime_ns}".encode(errors="surrogateescape"))
    cache = cache_folder() / f"tar-{digest.hexdigest()[:24]}.safetensors"
    found = _read(cache, archives)
    if found is None:
        found = [entry for path in archives for entry in _scan(path)]
        _write(cache, found, archives)
    return [image for image, _ in found], [label for _, label in found]


def _scan(path: Path) -> list[tuple[Packed, int]]:
    """The samples of one archive."""
    images: dict[str, Packed] = {}
    told: dict[str, dict[str, int | None]] = {}  # of a sample: the labels of its .cls and .json; None: that tells none
    further: dict[str, str] = {}  # images with more dots in their names: further views, or samples nobody would see
    with open(path, "rb") as file:
        for member in _members(path):
            folder, _, base = member.name.rpartition("/")
            key, _, ending = base.partition(".")
            kind = f".{ending.lower()}"
            if not key:  # hidden, such as what macOS adds
                continue
            key = f"{folder}/{key}" if folder else key
            if (kind in ENDINGS and key in images) or kind in told.get(key, {}):
                raise InputError(f"'{key}' comes twice in '{path}'; give every sample a name of its own.")
            if kind in ENDINGS:
                images[key] = Packed(str(path), member.offset_data, member.size, member.name)
            elif kind in (".cls", ".json"):
                file.seek(member.offset_data)
                told.setdefault(key, {})[kind] = _label(path, member.name, file.read(member.size))
            elif f".{kind.rpartition('.')[2]}" in ENDINGS:
                further[key] = member.name
    labels = {key: _one(path, key, each) for key, each in told.items()}
    if lost := [name for key, name in further.items() if key not in images]:
        raise InputError(
            f"'{lost[0]}' in '{path}' goes on after its first dot, where the name of a sample ends; rename it."
        )
    if not images:
        raise InputError(f"'{path}' holds no image; its samples must be NAME.jpg (.png, .webp) with NAME.cls.")
    for one, other, what in ((images, labels, "label: add {}.cls"), (labels, images, "image: add {}.jpg")):
        lonely = [key for key in one if key not in other]
        if lonely:
            raise InputError(f"'{lonely[0]}' in '{path}' has no {what.format(lonely[0])}, or leave the sample out.")
    return [(image, labels[key]) for key, image in images.items()]


def _members(path: Path) -> Iterator[tarfile.TarInfo]:
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isfile():
                    yield member
            end = archive.offset
        with open(path, "rb") as file:
            file.seek(end)
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise tarfile.ReadError("it has no end mark")
    except tarfile.TarError as error:
        raise InputError(f"'{path}' is cut short or no plain tar ({error}); fetch it again.") from None


def _one(path: Path, key: str, told: dict[str, int | None]) -> int:
    """The label of a sample; one that has both files tells it in either, or the same in both."""
    known = {label for label in told.values() if label is not None}
    if len(known) > 1:
        raise InputError(f"'{key}' in '{path}' has two labels, {told['.cls']} in .cls and {told['.json']} in .json.")
    if not known:
        raise _no_label(f"{key}.json", path)
    return known.pop()


def _label(path: Path, name: str, content: bytes) -> int | None:
    """The label in a file; None for a .json about other things."""
    try:
        if name.lower().endswith(".cls"):
            return int(content)
        told = json.loads(content)
        if not isinstance(told, dict) or not {"label", "cls"} & told.keys():
            return None
        label = told["label"] if "label" in told else told["cls"]
        label = int(label) if isinstance(label, str) else label
        if isinstance(label, bool) or label != int(label):
            raise ValueError("no whole number")
        return int(label)
    except (ValueError, TypeError, OverflowError):
        raise _no_label(name, path) from None


def _no_label(name: str, path: Path) -> InputError:
    return InputError(
        f"'{name}' in '{path}' holds no label, a whole number; write it in .cls, or {{\"label\": 3}} in .json."
    )


def _write(cache: Path, found: list[tuple[Packed, int]], archives: list[Path]) -> None:
    number = {str(path): row for row, path in enumerate(archives)}
    columns = [[number[image.archive], image.offset, image.size, label] for image, label in found]
    names = "\0".join(image.name for image, _ in found).encode(errors="surrogateescape")  # which no name has
    tensors = {"columns": torch.tensor(columns), "names": torch.from_numpy(np.frombuffer(names, np.uint8).copy())}
    with atomic(cache) as temporary:
        save_file(tensors, temporary)


def _read(cache: Path, archives: list[Path]) -> list[tuple[Packed, int]] | None:
    if not cache.is_file():
        return None
    try:
        with safe_open(cache, framework="pt") as file:
            columns, blob = file.get_tensor("columns"), file.get_tensor("names")
    except SafetensorError:  # damaged: look again
        return None
    names = blob.numpy().tobytes().decode(errors="surrogateescape").split("\0")
    if len(names) != len(columns):  # written by an earlier version
        return None
    rows = zip(columns.tolist(), names, strict=True)
    return [(Packed(str(archives[tar]), offset, size, name), label) for (tar, offset, size, label), name in rows]

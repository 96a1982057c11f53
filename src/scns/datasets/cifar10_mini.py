"""A cut of CIFAR-10 that comes with the package: 2,500 + 2,000 images of 32 px, no download.

250 training and 200 test images a class, kept as lossless mosaics; tools/make_cifar10_mini.py made them.
"""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from scns.data import Images

NAMES = {"cifar10-mini": "a cut of CIFAR-10: 2,500 + 2,000 images; comes with scns"}

_SIDE = 32  # pixels of an image; the mosaic is a grid of them, in reading order


def load(name: str, root: Path | None, split: str) -> Images:
    """The images of a split. They are part of the package: `root` is not used."""
    assets = files("scns") / "assets"
    about = json.loads((assets / f"{name}.json").read_text(encoding="utf-8"))
    with (assets / f"{name}-{split}.webp").open("rb") as file, Image.open(file) as picture:
        mosaic = np.asarray(picture.convert("RGB"))  # [rows * 32, columns * 32, 3]
    rows, columns = mosaic.shape[0] // _SIDE, mosaic.shape[1] // _SIDE
    tiles = mosaic.reshape(rows, _SIDE, columns, _SIDE, 3).transpose(0, 2, 4, 1, 3)  # [row, column, channel, y, x]
    return Images(
        torch.from_numpy(tiles.reshape(-1, 3, _SIDE, _SIDE)),
        torch.tensor(about[split]["labels"]),
        tuple(about["names"]),
        mean=(0.4914, 0.4822, 0.4465),  # CIFAR-10's, so that networks trained on either fit the other
        std=(0.2023, 0.1994, 0.2010),
    )

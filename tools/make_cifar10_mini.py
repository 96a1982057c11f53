"""Cuts cifar10-mini out of CIFAR-10: 250 training and 200 test images a class, as two lossless WebP mosaics.

    python tools/make_cifar10_mini.py ROOT        # ROOT holds cifar-10-batches-bin or cifar-10-batches-py

The choice is a function of the seed alone, so the same CIFAR-10 gives the same files (byte for byte with the same
libwebp, pixel for pixel with any). Takes about a minute: the slowest and smallest setting of the encoder.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from scns import datasets
from scns.data import split
from scns.files import atomic

FRACTIONS = {"train": 0.05, "test": 0.2}  # 250 of 5,000 and 200 of 1,000 a class
SEED = 2009  # not 0, so that the cut is no recipe's validation split; the year of CIFAR-10
COLUMNS = 50  # images in a row of the mosaic: 1,600 px wide, well below WebP's limit of 16,383
ASSETS = Path(__file__).parents[1] / "src" / "scns" / "assets"


def mosaic(pixels: np.ndarray) -> np.ndarray:
    """uint8 [n, 3, 32, 32] -> one picture [n / COLUMNS * 32, COLUMNS * 32, 3]."""
    rows = len(pixels) // COLUMNS
    tiles = pixels.reshape(rows, COLUMNS, 3, 32, 32).transpose(0, 3, 1, 4, 2)  # [row, y, column, x, channel]
    return np.ascontiguousarray(tiles.reshape(rows * 32, COLUMNS * 32, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="the folder that holds CIFAR-10's own folder")
    parser.add_argument("--out", type=Path, default=ASSETS, help="where the files go (default: the package's assets)")
    arguments = parser.parse_args()
    about: dict[str, object] = {}
    for part, fraction in FRACTIONS.items():
        images = datasets.load("cifar10", arguments.root, part)
        _, chosen = split(images.labels, fraction, SEED)
        cut = images.subset(chosen)
        with atomic(arguments.out / f"cifar10-mini-{part}.webp") as path:
            picture = Image.fromarray(mosaic(cut.pixels.numpy()))
            picture.save(path, "WEBP", lossless=True, method=6, quality=100)
        about["names"] = list(images.names)
        about[part] = {"labels": cut.labels.tolist(), "index": chosen.tolist()}
    with atomic(arguments.out / "cifar10-mini.json") as path:
        path.write_text(json.dumps(about, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

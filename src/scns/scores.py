"""How well answers and embeddings do on each image, and how sure the mean over the images is."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from scns.errors import InputError


class Estimate(NamedTuple):
    """A mean and half its 95 % interval."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.half:.1f}"

    @property
    def sign(self) -> int:
        """1 or -1 where the interval is on one side of 0, else 0."""
        return (self.mean > self.half) - (self.mean < -self.half)


def estimate(values: Tensor, spread: float = 0.0) -> Estimate:
    """The mean of one number an image; of differences between two students on the same images, the paired interval.

    `spread` is the standard deviation of what chance moves beside the choice of images: another seed, another student.
    """
    if len(values) < 2:
        raise InputError(f"An interval needs at least 2 images, but there are {len(values)}.")
    values = values.double()
    return Estimate(float(values.mean()), 1.96 * math.hypot(float(values.std()) / math.sqrt(len(values)), spread))


def average_precision(queries: Tensor, labels: Tensor, gallery: Tensor, gallery_labels: Tensor) -> Tensor:
    """float32 [n]: for each query, the mean precision at the places of its class, the gallery sorted by cosine.

    `queries` and `gallery` are embeddings [n, width] and [m, width]. A query whose class the gallery lacks has 0.
    """
    cosines = F.normalize(queries, dim=1) @ F.normalize(gallery, dim=1).T  # [n, m]
    order = cosines.argsort(dim=1, descending=True, stable=True)
    same = (gallery_labels[order] == labels[:, None]).float()
    places = torch.arange(1, len(gallery) + 1, device=same.device)
    return (same.cumsum(1) / places * same).sum(1) / same.sum(1).clamp(min=1)

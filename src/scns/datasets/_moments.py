"""The mean and standard deviation of a data set's pixels, exactly, in one pass."""

import numpy as np
from torch import Tensor

_CHUNK = 1024  # images at a time, so that the squares of a large set never lie in memory together


class Moments:
    """Whole-number sums of pixels and of their squares, a channel each, so that the order of adding cannot matter."""

    def __init__(self) -> None:
        self.count = 0  # pixels of a channel
        self.total = np.zeros(3, np.int64)
        self.squares = np.zeros(3, np.int64)

    def add(self, pixels: np.ndarray) -> None:
        """Take in uint8 [n, 3, height, width]."""
        values = np.arange(256)
        for channel in range(3):
            plane = np.ascontiguousarray(pixels[:, channel]).ravel()
            histogram = np.bincount(plane, minlength=256)
            self.total[channel] += histogram @ values
            self.squares[channel] += histogram @ values**2
        self.count += pixels[:, 0].size

    @property
    def mean(self) -> tuple[float, ...]:
        """In [0, 1] units, one a channel."""
        return tuple(float(total) / max(self.count, 1) / 255 for total in self.total)

    @property
    def std(self) -> tuple[float, ...]:
        """sqrt(E[x^2] - E[x]^2) over all pixels, in [0, 1] units."""
        pairs = zip(self.squares.tolist(), self.total.tolist(), strict=True)
        count = max(self.count, 1)
        return tuple((squares * count - total * total) ** 0.5 / count / 255 for squares, total in pairs)


def moments(pixels: Tensor) -> Moments:
    """The moments of uint8 [n, 3, height, width]."""
    found = Moments()
    for chunk in pixels.cpu().split(_CHUNK):
        found.add(chunk.numpy())
    return found

"""`Images`: a data set held as uint8 on a device; its splits; and the random order and views of an epoch."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from scns import draws
from scns.errors import InputError


class Mapped:
    """Pixels that stay on the host, such as a mapped file: some of its rows, in some order, gathered when asked for."""

    dtype, device = torch.uint8, torch.device("cpu")

    def __init__(self, whole: Tensor, rows: Tensor | None = None) -> None:
        self.whole = whole  # uint8 [n, 3, height, width]
        self.rows = torch.arange(len(whole)) if rows is None else rows
        self.shape = (len(self.rows), *whole.shape[1:])

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        return self.whole[self.rows[index.cpu() if isinstance(index, Tensor) else index]]

    def put(self, index: Tensor, into: Tensor) -> int:
        """The samples `index` in the first rows of a host buffer; how many there are."""
        torch.index_select(self.whole, 0, self.rows[index], out=into[: len(index)])
        return len(index)


@dataclass(frozen=True)
class Images:
    """Images and labels of one split. `mean` and `std` are the data set's published normalisation, in [0, 1] units.

    `pixels` are uint8 [n, 3, height, width], `labels` int64 [n] (-1: unlabelled) that count into `names`.
    """

    pixels: Tensor | Mapped  # uint8 [n, 3, height, width], with the labels or left on the host
    labels: Tensor  # int64 [n]; -1 = unlabelled
    names: tuple[str, ...]  # label names, in label order
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    coarse: Tensor | None = None  # int64 [n]: superclass labels, where the set has them
    coarse_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.pixels, Tensor | Mapped) or not isinstance(self.labels, Tensor):
            given = f"{type(self.pixels).__name__} and {type(self.labels).__name__}"
            raise InputError(
                f"Images take tensors of pixels and labels, not {given}; convert them with torch.as_tensor."
            )
        shape, count = tuple(self.pixels.shape), self.labels.numel()
        if self.pixels.dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3:
            raise InputError(f"Images are uint8 [n, 3, height, width], but these are {self.pixels.dtype} {shape}.")
        if self.labels.dtype != torch.int64 or tuple(self.labels.shape) != shape[:1]:
            raise InputError(
                f"{shape[0]} images need {shape[0]} int64 labels, but there are {count} {self.labels.dtype} "
                f"{tuple(self.labels.shape)}."
            )
        if len(self.mean) != 3 or len(self.std) != 3 or not min(self.std) > 0:
            raise InputError(
                f"mean and std are three numbers each, std above 0, but they are {self.mean} and {self.std}."
            )
        if count and not -1 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.names):
            low, high = int(self.labels.min()), int(self.labels.max())
            raise InputError(
                f"Labels run from {low} to {high}, but {len(self.names)} classes are named: 0 to {len(self.names) - 1}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        _, _, height, width = self.pixels.shape
        return f"Images({len(self)} of {height} x {width} pixels, {self.classes} classes, {self.labels.device})"

    @property
    def classes(self) -> int:
        """How many classes are named."""
        return len(self.names)

    @property
    def size(self) -> int:
        """Height in pixels."""
        return self.pixels.shape[2]

    def on_host(self) -> "Images":
        """The same with its pixels left on the host for good."""
        return self if isinstance(self.pixels, Mapped) else replace(self, pixels=Mapped(self.pixels))

    def take(self, index: Tensor | slice) -> Tensor:
        """The pixels of some samples, where the labels are."""
        return self.pixels[index].to(self.labels.device)

    def to(self, device: torch.device | str) -> "Images":
        """The same on a device; pixels that were left on the host stay there."""
        coarse = None if self.coarse is None else self.coarse.to(device)
        pixels = self.pixels if isinstance(self.pixels, Mapped) else self.pixels.to(device)
        return replace(self, pixels=pixels, labels=self.labels.to(device), coarse=coarse)

    def subset(self, index: Tensor) -> "Images":
        """The samples of `index`, in its order."""
        index = torch.as_tensor(index, device=self.labels.device)
        coarse = None if self.coarse is None else self.coarse[index]
        found = self.pixels
        pixels = Mapped(found.whole, found.rows[index.cpu()]) if isinstance(found, Mapped) else found[index]
        return replace(self, pixels=pixels, labels=self.labels[index], coarse=coarse)

    def known(self) -> "Images":
        """Those that have a label."""
        labelled = self.labels >= 0
        return self if bool(labelled.all()) else self.subset(labelled.nonzero()[:, 0])

    def split(self, fraction: float = 0.05, seed: int = 0) -> tuple["Images", "Images"]:
        """(the rest, a stratified `fraction`): the same for the same seed on every machine."""
        rest, held = split(self.labels, fraction, seed)
        return self.subset(rest), self.subset(held)


def split(labels: Tensor, fraction: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Indices of (the rest, a random `fraction` of every class), each ascending.

    Class counts are rounded so that the held-out part has round(fraction * n) samples in all.
    """
    if not 0 <= fraction < 1:
        raise InputError(f"The held-out fraction is {fraction}, but it must be at least 0 and below 1.")
    labels = labels.cpu() + 1  # unlabelled samples, -1, are a class of their own
    order, rank = _by_class(labels, seed)
    upto = torch.bincount(labels).cumsum(0)
    shares = torch.diff(torch.floor(upto.double() * fraction + 0.5), prepend=torch.zeros(1).double())
    held = rank < shares[labels[order]]
    return order[~held].sort().values, order[held].sort().values


def of_each(labels: Tensor, count: int, seed: int = 0) -> Tensor:
    """Indices of `count` random samples of every class, or of all that it has; ascending."""
    order, rank = _by_class(labels.cpu() + 1, seed)
    return order[(rank < count) & (labels.cpu()[order] >= 0)].sort().values


def _by_class(kinds: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """(samples by class, in random order within a class; the rank of each within its class)"""
    order = draws.permutation(len(kinds), seed, draws.SPLIT)
    order = order[torch.argsort(kinds[order], stable=True)]
    counts = torch.bincount(kinds)
    return order, torch.arange(len(kinds)) - (counts.cumsum(0) - counts)[kinds[order]]


class EpochTable(NamedTuple):
    """An epoch's order, and the view of the sample at each place of it."""

    order: Tensor  # int64 [n]: sample indices
    dy: Tensor  # int64 [n]: vertical crop offset, 0 .. 2 * pad
    dx: Tensor  # int64 [n]
    flip: Tensor  # bool [n]


def epoch_table(
    count: int, seed: int, epoch: int, *, pad: int = 4, device: torch.device | str | None = None
) -> EpochTable:
    """The order and views of an epoch, from (seed, epoch) alone. A sample's view does not depend on its place."""
    order = draws.permutation(count, seed, draws.ORDER, epoch, device=device)
    dy = draws.integers(2 * pad + 1, seed, draws.CROP_Y, epoch, order)
    dx = draws.integers(2 * pad + 1, seed, draws.CROP_X, epoch, order)
    flip = draws.integers(2, seed, draws.FLIP, epoch, order) == 1
    return EpochTable(order, dy, dx, flip)


def padding(size: int) -> int:
    """Pixels of black padding for a random crop: 4 at 32 px, 8 at 64 px."""
    return size // 8

"""Feature memories: a table with one row per sample or class, and a queue of the latest features.

Everything they remember is in `state_dict()`, so a reloaded memory gives the same loss to the last bit. Shapes are
static and nothing waits for the device, so both can live inside a captured step. Rows are unit vectors.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scns import draws, room
from scns.errors import InputError

_BLOCK = 1 << 22  # numbers drawn at a time: what surrounds them stays below 200 MB
_QUEUE = 65_536  # features: the size of published queues


class FeatureTable(nn.Module):
    """One unit vector a row, moved towards new features: v <- normalise(momentum * v + (1 - momentum) * z).

    Rows start as random directions and take the first feature whole. `rows` are samples (a memory bank) or classes
    (the prototypes of online instance matching).
    """

    features: Tensor
    filled: Tensor

    def __init__(self, rows: int, dim: int, *, momentum: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        if rows < 1 or dim < 1:
            raise InputError(f"A feature table needs at least 1 row and 1 dimension, not {rows} x {dim}.")
        if not 0 <= momentum <= 1:
            raise InputError(f"momentum={momentum} must be from 0 (replace) to 1 (never change).")
        needed, free = self.bytes(rows, dim), room.free("cpu")
        if needed > free:
            raise InputError(
                f"A feature table of {rows:,} x {dim:,} takes {room.shown(needed)}, but {room.shown(free)} are free; "
                f"{_what_fits(rows, dim, free)}."
            )
        self.momentum = momentum
        self.register_buffer("features", torch.empty(rows, dim))
        for some in torch.arange(rows).split(max(1, _BLOCK // dim)):
            start = 2 * draws.uniform(seed, draws.MEMORY, some[:, None], torch.arange(dim)) - 1
            self.features[some[0] : some[-1] + 1] = F.normalize(start, dim=1)
        self.register_buffer("filled", torch.zeros(rows, dtype=torch.bool))

    @staticmethod
    def bytes(rows: int, dim: int) -> int:
        """What a table takes: float32 features, and a byte for whether a row is filled."""
        return rows * (4 * dim + 1)

    @torch.no_grad()
    def update(self, rows: Tensor, z: Tensor, *, distinct: bool = False) -> None:
        """Move `rows` towards the unit features `z`, in batch order where a row comes several times.

        distinct=True promises that no row comes twice; one step then serves the whole batch.
        """
        if rows.shape != z.shape[:1] or z.shape[1:] != self.features.shape[1:]:
            raise InputError(
                f"{tuple(rows.shape)} rows of width {self.features.shape[1]} cannot take features {tuple(z.shape)}."
            )
        z = z.detach().to(self.features.dtype)
        parts = [(rows, z)] if distinct else zip(rows.split(1), z.split(1), strict=True)
        for row, new in parts:
            share = self.momentum * self.filled[row].to(new.dtype)[:, None]
            self.features.index_copy_(0, row, F.normalize(share * self.features[row] + (1 - share) * new, dim=1))
            self.filled.index_fill_(0, row, True)

    def logits(self, z: Tensor, rows: Tensor | None = None) -> Tensor:
        """Dot products of `z` [batch, dim] with all rows [batch, rows], or with `rows` [batch, m] of each anchor.

        Few rows are gathered; many are cheaper to pick out of the product with the whole table.
        """
        table = self.features.to(z.dtype)
        if rows is None:
            return z @ table.T
        if rows.numel() <= len(table):
            picked = F.embedding(rows, table)  # [batch, m, dim]: on a CPU 4 times as fast as table[rows]
            return torch.bmm(z[:, None], picked.transpose(1, 2))[:, 0]  # a row times a matrix: 8 times picked @ column
        return (z @ table.T).gather(1, rows)


def _what_fits(rows: int, dim: int, free: int) -> str:
    """The options that take at most half of `free` bytes."""
    narrow = (free // 2 // rows - 1) // 4
    size = min(_QUEUE, free // 2 // FeatureQueue.bytes(1, dim))
    fewer = f"dim={narrow:,} fits, or " if narrow >= 1 else ""
    return f"{fewer}a FeatureQueue of the last {size:,} takes {room.shown(FeatureQueue.bytes(size, dim))}"


def check_room(module: nn.Module, device: torch.device | str) -> None:
    """Raise where the memories of a module do not fit on the device that it is to be moved to, and name what does."""
    device, free = torch.device(device), room.free(device)
    if device.type == "cpu":
        return  # they are there already
    tables = [each for each in module.modules() if isinstance(each, FeatureTable)]
    needed = sum(FeatureTable.bytes(*each.features.shape) for each in tables)
    if needed > free:
        rows, dim = tables[0].features.shape
        raise InputError(
            f"Feature tables ({len(tables)} of {rows:,} x {dim:,}) take {room.shown(needed)}, but {device} has "
            f"{room.shown(free)} free; {_what_fits(len(tables) * rows, dim, free)}."
        )


class FeatureQueue(nn.Module):
    """The last `size` features with their sample numbers and labels, oldest overwritten first."""

    features: Tensor
    ids: Tensor
    labels: Tensor
    cursor: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1 or dim < 1:
            raise InputError(f"A queue needs at least 1 place and 1 dimension, not {size} x {dim}.")
        needed, free = self.bytes(size, dim), room.free("cpu")
        if needed > free:
            raise InputError(
                f"A queue of {size:,} x {dim:,} takes {room.shown(needed)}, but {room.shown(free)} are free; "
                f"size={free // 2 // self.bytes(1, dim):,} fits."
            )
        self.register_buffer("features", torch.zeros(size, dim))
        self.register_buffer("ids", torch.full((size,), -1))
        self.register_buffer("labels", torch.full((size,), -1))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64))

    @staticmethod
    def bytes(size: int, dim: int) -> int:
        """What a queue takes: float32 features with int64 ids and labels."""
        return size * (4 * dim + 16)

    @torch.no_grad()
    def push(self, z: Tensor, ids: Tensor, labels: Tensor) -> None:
        """Store a batch of unit features; the place after the last is the first."""
        size = len(self.ids)
        if len(z) > size:
            raise InputError(f"A batch of {len(z)} does not fit a queue of {size}; make the queue at least as large.")
        if not len(z) == len(ids) == len(labels) or z.shape[1:] != self.features.shape[1:]:
            raise InputError(
                f"{len(z)} features of width {tuple(z.shape[1:])}, {len(ids)} ids and {len(labels)} labels do not go "
                f"together in a queue of width {self.features.shape[1]}."
            )
        places = (self.cursor + torch.arange(len(z), device=z.device)) % size
        self.features.index_copy_(0, places, z.detach().to(self.features.dtype))
        self.ids.index_copy_(0, places, ids)
        self.labels.index_copy_(0, places, labels)
        self.cursor.add_(len(z)).remainder_(size)

    def logits(self, z: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        """Dot products [batch, size]; -inf for empty places, the anchor itself and samples of its class."""
        return torch.where(self.mask(ids, labels), z @ self.features.to(z.dtype).T, -torch.inf)

    def mask(self, ids: Tensor, labels: Tensor) -> Tensor:
        """bool [batch, size]: the places that hold a negative of each anchor (unlabelled, -1: any but itself)."""
        same = (labels[:, None] == self.labels) & (labels[:, None] >= 0)
        return (self.ids >= 0) & (ids[:, None] != self.ids) & ~same

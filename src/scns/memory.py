"""Feature memories: a table with one row per sample or class, and a queue of the latest features.

Everything they remember is in `state_dict()`, so a reloaded memory gives the same loss to the last bit. Shapes are
static and nothing waits for the device, so both can live inside a captured step. Rows are unit vectors. A table too
large for one process is divided by rows among those that train together (`Part`).
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scns import checks, draws, gathered, room
from scns.errors import InputError
from scns.functional.contrastive import info_nce_of
from scns.functional.inputs import check_positive
from scns.world import World

_ALONE = World()
_RATIO = 32  # products that a CPU does at least in the time of gathering one row


class Part:
    """The rows of a table that this process holds: all of them, or its rank's share of consecutive ones.

    A divided table is asked by all ranks at once, with the same rows and the same anchors; each answers for the rows it
    holds and the answers are added up. It has one row more than its share, to which go the updates of all other rows:
    so shapes are static.
    """

    def __init__(self, total: int, world: World = _ALONE) -> None:
        self.total, self.world = total, world
        self.start, self.stop = world.span(total)

    @property
    def divided(self) -> bool:
        return self.world.size > 1

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def stored(self) -> int:
        return self.count + self.divided

    def numbers(self) -> Tensor:
        """int64: the rows to store, by their number in the whole table."""
        return torch.arange(self.start, self.start + self.stored)

    def place(self, rows: Tensor) -> Tensor:
        """Where rows of the whole table are stored here; others' at the row too many."""
        if not self.divided:
            return rows
        return torch.where((rows >= self.start) & (rows < self.stop), rows - self.start, self.count)

    def take(self, table: Tensor, rows: Tensor) -> Tensor:
        """Rows of the whole table, [*rows.shape, dim], without gradient."""
        if not self.divided:
            return table[rows]
        place = self.place(rows)
        return self.world.total(torch.where((place < self.count)[..., None], table[place], 0))

    def dots(self, z: Tensor, table: Tensor, rows: Tensor | None) -> Tensor:
        """Dot products of `z` [batch, dim] with all rows [batch, rows], or with `rows` [batch, m] of each anchor.

        Few rows are gathered; many are cheaper to pick out of the product with the whole table.
        """
        if rows is None and self.divided:
            own = self.world.spread(z) @ table[: self.count].T
            return self.world.joined_columns(own, self.world.sizes(self.total))
        if rows is None:
            return z @ table.T
        few = not z.is_cuda and rows.shape[1] * max(_RATIO, z.shape[1]) < len(table)  # nor larger than the product
        if rows.numel() > len(table) and not few:
            return self.picked(z, table, rows)
        place = self.place(rows)
        found = F.embedding(place, table)  # [batch, m, dim]: on a CPU 4 times as fast as table[rows]
        # A row times a matrix: 8 times as fast as a matrix times a column.
        return self._added(torch.bmm(self.world.spread(z)[:, None], found.transpose(1, 2)).squeeze(1), place)

    def picked(self, z: Tensor, table: Tensor, rows: Tensor) -> Tensor:
        """The same for `rows`, out of the product with all rows."""
        place = self.place(rows)
        return self._added((self.world.spread(z) @ table.T).gather(1, place.long()), place)

    def _added(self, products: Tensor, place: Tensor) -> Tensor:
        return self.world.added(torch.where(place < self.count, products, 0)) if self.divided else products

    def collected(self, table: Tensor) -> Tensor:
        """The whole table on the host of rank 0; nothing on other ranks. For all ranks at once."""
        return self.world.collected(table[: self.count], self.world.sizes(self.total))

    def cut(self, whole: Tensor, table: Tensor) -> Tensor:
        """What a whole table leaves to be stored here instead of `table`."""
        return torch.cat([whole[self.start : self.stop], table[self.count :].to(whole.device)])


def divided(module: nn.Module) -> Iterator[tuple[str, Part]]:
    """The buffers of a module, by name, of which this process holds a part."""
    for name, each in module.named_modules():
        part = getattr(each, "part", None)
        if isinstance(part, Part) and part.divided:
            yield from ((f"{name}.{buffer}".lstrip("."), part) for buffer in each.by_row)


_BLOCK = 1 << 22  # numbers drawn at a time: what surrounds them stays below 200 MB
_NO_LABEL = -(1 << 63)
_QUEUE = 65_536  # features: the size of published queues


def unit_rows(rows: Tensor) -> Tensor:
    """Rows [n, dim] over their lengths, as F.normalize has them; a CUDA kernel each way and a scaling, not 3 and 14."""
    dim = rows.shape[1]
    return F.rms_norm(rows, (dim,), eps=1e-24 / dim) * dim**-0.5  # 1e-24: F.normalize's 1e-12, squared


def _turns(rows: Tensor) -> list[slice] | list[Tensor]:
    """Parts of a batch in which no row comes twice, in batch order; one sample each where rows cannot be read."""
    if not checks.readable(rows):
        return [slice(place, place + 1) for place in range(len(rows))]
    ordered, order = rows.sort(stable=True)
    nth = torch.empty_like(order)  # how often the row came before
    nth[order] = torch.arange(len(rows)) - torch.searchsorted(ordered, ordered)
    most = int(nth.max()) if len(rows) else 0
    return [(nth == turn).nonzero()[:, 0] for turn in range(most + 1)] if most else [slice(None)]


class FeatureTable(nn.Module):
    """One unit vector a row, moved towards new features: v <- normalise(momentum * v + (1 - momentum) * z).

        memory = scns.FeatureTable(len(labels), dim=32)   # memory.features is float32 [rows, 32]
        loss = memory.info_nce(z, rows, negatives)        # z [batch, 32], rows int64 [batch] and [batch, m]
        memory.update(rows, z, distinct=True)             # after the step: rows int64 [batch], each once

    Rows start as random directions and take the first feature whole: give each sample's before the first step, since
    anchors that learn from random rows can all become alike, and stay so. `rows` are samples (a memory bank) or classes
    (the prototypes of online instance matching). In a `world` of several processes each holds its share of the rows.
    Made on the `device` that it is for, a large table need not be drawn by the host.
    """

    by_row = ("features", "filled")
    features: Tensor
    filled: Tensor

    @torch.inference_mode(False)  # where it may be made, but others' features are taken later
    def __init__(
        self,
        rows: int,
        dim: int,
        *,
        momentum: float = 0.5,
        seed: int = 0,
        world: World = _ALONE,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if not checks.is_whole(rows) or not checks.is_whole(dim) or rows < 1 or dim < 1:
            given = f"{_shown(rows)} x {_shown(dim)}"
            raise InputError(f"A feature table needs at least 1 row and 1 dimension, not {given}.")
        rows, dim = int(rows), int(dim)  # numpy's numbers too, as of labels.max() + 1
        if not checks.is_number(momentum) or not 0 <= momentum <= 1:
            raise InputError(f"momentum={momentum!r} must be from 0 (replace) to 1 (never change).")
        checks.place(device)
        self.momentum, self.part = momentum, Part(rows, world)
        held = self.part.stored
        needed = self.bytes(held, dim)
        _check_room(f"A feature table of {held:,} x {dim:,}", needed, lambda free: _what_fits(held, dim, free), device)
        self.register_buffer("features", torch.empty(held, dim, device=device))
        done, columns = 0, torch.arange(dim, device=device)
        for some in self.part.numbers().to(device).split(max(1, _BLOCK // dim)):
            start = 2 * draws.uniform(seed, draws.MEMORY, some[:, None], columns) - 1
            self.features[done : done + len(some)] = F.normalize(start, dim=1)
            done += len(some)
        self.register_buffer("filled", torch.zeros(held, dtype=torch.bool, device=device))
        self.full = False
        self.register_load_state_dict_post_hook(_look_again)

    def extra_repr(self) -> str:
        return f"{self.part.total} x {self.features.shape[1]}, momentum={self.momentum}"

    @staticmethod
    def bytes(rows: int, dim: int) -> int:
        """What a table takes: float32 features, and a byte for whether a row is filled."""
        return rows * (4 * dim + 1)

    @torch.no_grad()
    def update(self, rows: Tensor, z: Tensor, *, distinct: bool = False) -> None:
        """Move `rows` towards the unit features `z`, in batch order where a row comes several times.

        distinct=True promises that no row comes twice; one step then serves the whole batch (a CPU sees it).
        Features that are not finite, as of a step that loss scaling skips, leave their rows as they were.
        """
        _check_tensors(rows=rows, z=z)
        if rows.shape != z.shape[:1] or z.shape[1:] != self.features.shape[1:]:
            raise InputError(
                f"{tuple(rows.shape)} rows of width {self.features.shape[1]} cannot take features {tuple(z.shape)}."
            )
        _check_floating(z)
        _check_rows("rows", rows, self.part.total)
        turns = [slice(None)] if distinct else _turns(rows)
        rows, z = self.part.place(rows.long()), z.detach().to(self.features.dtype)
        finite = torch.linalg.vector_norm(z, dim=1) < torch.inf  # isfinite of each row, in 2 kernels instead of 5
        for some in turns:
            row, new, usable = rows[some], z[some], finite[some]
            old = self.features[row]
            moved = torch.lerp(new, old, self.momentum)
            if not self.full:
                filled = self.filled[row]
                moved = torch.where(filled[:, None], moved, new)
                self.filled.index_copy_(0, row, filled | usable)
            self.features.index_copy_(0, row, torch.where(usable[:, None], unit_rows(moved), old))

    def look(self) -> None:
        """Note whether all rows are filled: then updates need not ask each. It waits for the device, until they are."""
        self.full = self.full or bool(self.filled.all())

    def logits(self, z: Tensor, rows: Tensor | None = None) -> Tensor:
        """Dot products of `z` [batch, dim] with all rows [batch, rows], or with `rows` [batch, m] of each anchor.

        In float32 also inside autocast: over a temperature of 0.07, half precision would be some hundredths off.
        """
        _check_tensors(z=z, **({} if rows is None else {"rows": rows}))
        _check_floating(z)
        if rows is not None:
            _check_rows("rows", rows, self.part.total)
        with torch.autocast(z.device.type, enabled=False):
            return self.products(_widened(z, self.features), rows)

    def products(self, z: Tensor, rows: Tensor | None) -> Tensor:
        """`logits` of rows that are known to be in the table: a step's own draws need no second look."""
        width = self.features.shape[1]
        if z.dim() != 2 or z.shape[1] != width or (rows is not None and (rows.dim() != 2 or len(rows) != len(z))):
            given = f"z {tuple(z.shape)}" + ("" if rows is None else f" and rows {tuple(rows.shape)}")
            raise InputError(f"logits takes z [batch, {width}] and rows [batch, m], but these are {given}.")
        return self.part.dots(z, self.features.to(z.dtype), rows)

    def info_nce(
        self,
        z: Tensor,
        positives: Tensor,
        negatives: Tensor,
        log_weights: Tensor | None = None,
        *,
        temperature: float | Tensor = 0.07,
    ) -> Tensor:
        """`functional.info_nce` of unit anchors `z` [batch, dim] with this table's rows [batch] and [batch, m].

        Several positives of each anchor are rows [batch, p], and its loss the mean over them. With one, on a GPU, a
        kernel reads each row once, for the loss and for its gradient: features [batch, m, dim] are not made.
        """
        check_positive("temperature", temperature)
        _check_tensors(z=z, positives=positives, negatives=negatives)
        if log_weights is not None:
            _check_tensors(log_weights=log_weights)
        _check_floating(z)
        if not len(z):
            raise InputError(
                f"z must be features of one anchor or more, but it is {list(z.shape)}; skip empty batches."
            )
        if positives.dim() not in (1, 2) or positives.shape[:1] != z.shape[:1] or not positives.numel():
            wanted = f"{list(z.shape[:1])} or [{len(z)}, p]"
            raise InputError(f"positives are rows {wanted}, but these are {list(positives.shape)}.")
        _check_rows("positives", positives, self.part.total)
        _check_rows("negatives", negatives, self.part.total)
        if negatives.dim() != 2 or len(negatives) != len(z):
            raise InputError(f"negatives are rows [{len(z)}, m], but these are {list(negatives.shape)}.")
        z = _widened(z, self.features)
        rows = torch.cat([positives.reshape(len(z), -1), negatives], dim=1)
        # What may be learnt is not for the kernel, which has a gradient for z alone.
        plain = log_weights is None or not log_weights.requires_grad
        here = not self.part.divided and positives.dim() == 1 and z.is_cuda
        if plain and here and not isinstance(temperature, Tensor):
            agree = log_weights is None or log_weights.shape == negatives.shape
            if agree and gathered.fits([(z, self.features)], rows):
                weights = None if log_weights is None else F.pad(log_weights, (1, 0))
                return gathered.info_nce([(z, self.features)], rows, weights, temperature).mean()
        with torch.autocast(z.device.type, enabled=False):  # which would round z and the rows again
            own, logits = self.products(z, rows).split([rows.shape[1] - negatives.shape[1], negatives.shape[1]], dim=1)
        own = own.squeeze(1) if positives.dim() == 1 else own
        return info_nce_of(own, logits, log_weights, temperature=temperature)

    def take(self, rows: Tensor) -> Tensor:
        """The features [*rows.shape, dim] of some rows."""
        _check_tensors(rows=rows)
        _check_rows("rows", rows, self.part.total)
        return self.part.take(self.features, rows)


def _check_tensors(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name} must be a tensor, but it is of type {type(value).__name__}; use torch.as_tensor.")


def _shown(value: object) -> str:
    """What was given as a count; of labels, say, their kind."""
    if isinstance(value, Tensor) and value.ndim:
        return f"a tensor {list(value.shape)}"
    return repr(value)


def _check_floating(z: Tensor) -> None:
    if not z.is_floating_point():
        raise InputError(f"z must be features of floating point, but it is {z.dtype}; convert it with .float().")


def _widened(z: Tensor, features: Tensor) -> Tensor:
    """z in the features' precision, or a higher one of its own: half precision would round the features too."""
    return z.to(torch.promote_types(z.dtype, features.dtype))


def _check_rows(name: str, rows: Tensor, count: int) -> None:
    """Raise for what are no rows of a table of `count`; on a GPU, values are not waited for."""
    if rows.dtype not in (torch.int64, torch.int32):
        remedy = "of a mask, give mask.nonzero()[:, 0]" if rows.dtype == torch.bool else "convert them with .long()"
        raise InputError(f"{name} must be int64 row numbers, but they are {rows.dtype}; {remedy}.")
    if (wrong := checks.outside(rows, count)) is not None:
        raise InputError(f"{name} are rows 0 to {count - 1} of this table, but one is {wrong}.")


def _look_again(table: FeatureTable, _: object) -> None:
    table.full = False  # what was loaded may not be


def _what_fits(rows: int, dim: int, free: int) -> str:
    """The options that take at most half of `free` bytes."""
    narrow = (free // 2 // rows - 1) // 4
    size = min(_QUEUE, free // 2 // FeatureQueue.bytes(1, dim))
    fewer = f"dim={narrow:,} fits, or " if narrow >= 1 else ""
    return f"{fewer}a FeatureQueue of the last {size:,} takes {room.shown(FeatureQueue.bytes(size, dim))}"


def _check_room(what: str, needed: int, remedy: Callable[[int], str], device: torch.device | str = "cpu") -> None:
    """Raise where a device has no room for it; `remedy` says what fits in the bytes that are free."""
    free = room.free(device)
    if needed > free:
        has = f"{torch.device(device)} has {room.shown(free)} free"
        raise InputError(f"{what} takes {room.shown(needed)}, but {has}; {remedy(free)}.")


class FeatureQueue(nn.Module):
    """The last `size` features with their sample numbers and labels, oldest overwritten first.

    queue = scns.FeatureQueue(65536, dim=128)
    logits = queue.logits(z, rows, labels)   # z [batch, 128], rows and labels int64 [batch] -> [batch, 65536]
    queue.push(z, rows, labels)              # after the step
    """

    features: Tensor
    ids: Tensor
    labels: Tensor
    cursor: Tensor

    @torch.inference_mode(False)
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if not checks.is_whole(size) or not checks.is_whole(dim) or size < 1 or dim < 1:
            given = f"{_shown(size)} x {_shown(dim)}"
            raise InputError(f"A queue needs at least 1 place and 1 dimension, not {given}.")
        size, dim = int(size), int(dim)
        needed = self.bytes(size, dim)
        _check_room(
            f"A queue of {size:,} x {dim:,}", needed, lambda free: f"size={free // 2 // self.bytes(1, dim):,} fits"
        )
        self.register_buffer("features", torch.zeros(size, dim))
        self.register_buffer("ids", torch.full((size,), -1))
        self.register_buffer("labels", torch.full((size,), -1))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64))

    def extra_repr(self) -> str:
        return f"{len(self.ids)} x {self.features.shape[1]}"

    @staticmethod
    def bytes(size: int, dim: int) -> int:
        """What a queue takes: float32 features with int64 ids and labels."""
        return size * (4 * dim + 16)

    @torch.no_grad()
    def push(self, z: Tensor, ids: Tensor, labels: Tensor) -> None:
        """Store a batch of unit features; the place after the last is the first. What is not finite is left out."""
        size = len(self.ids)
        self._check(z, ids, labels)
        if len(z) > size:
            raise InputError(f"A batch of {len(z)} does not fit a queue of {size}; make the queue at least as large.")
        if (wrong := checks.outside(ids.long(), 1 << 63)) is not None:
            raise InputError(f"ids are the numbers of samples, from 0, but one is {wrong}; -1 marks an empty place.")
        places = (self.cursor + torch.arange(len(z), device=z.device)) % size
        self.features.index_copy_(0, places, z.detach().nan_to_num(0.0, 0.0, 0.0).to(self.features.dtype))
        self.ids.index_copy_(0, places, torch.where(z.isfinite().all(1), ids.long(), -1))
        self.labels.index_copy_(0, places, labels.long())
        self.cursor.add_(len(z)).remainder_(size)

    def logits(self, z: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        """Dot products [batch, size]; -inf for empty places, the anchor itself and samples of its class.

        In float32 also inside autocast.
        """
        self._check(z, ids, labels)
        z = _widened(z, self.features)
        with torch.autocast(z.device.type, enabled=False):
            return (z @ self.features.to(z.dtype).T).masked_fill_(~self.mask(ids, labels), -torch.inf)

    def mask(self, ids: Tensor, labels: Tensor) -> Tensor:
        """bool [batch, size]: the places that hold a negative of each anchor (unlabelled, -1: any but itself)."""
        known = torch.where(labels >= 0, labels.long(), _NO_LABEL)  # which no place has, so that all are others
        return (known[:, None] != self.labels).logical_and_(ids[:, None] != self.ids).logical_and_(self.ids >= 0)

    def _check(self, z: Tensor, ids: Tensor, labels: Tensor) -> None:
        _check_tensors(z=z, ids=ids, labels=labels)
        width, batch = self.features.shape[1], z.shape[:1]
        if z.dim() != 2 or z.shape[1] != width or ids.shape != batch or labels.shape != batch:
            shapes = f"{tuple(z.shape)}, {tuple(ids.shape)} and {tuple(labels.shape)}"
            raise InputError(
                f"A queue of width {width} takes z [batch, {width}], ids and labels [batch], not {shapes}."
            )
        _check_floating(z)
        if ids.is_floating_point() or labels.is_floating_point():
            raise InputError(
                f"ids and labels must be integers, but they are {ids.dtype} and {labels.dtype}; use .long()."
            )

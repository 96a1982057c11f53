"""Checked inputs: embeddings and labels of any kind become float32 and int64 tensors, or a sentence says why not."""

import hashlib
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scns.errors import InputError

Embeddings = Tensor | np.ndarray  # embeddings as a caller may hold them
Labels = Tensor | np.ndarray | Sequence[int]
Rows = Tensor | np.ndarray | Sequence[int]  # some of them, by their numbers (a range, say) or by a mask of all

_LARGEST = (1 << 31) - 1  # of int32
_BLOCK = 1 << 20  # floats read at a time: 4 MB
_SHORTEST = 1e-12  # F.normalize makes no unit vector of what is shorter
_FLOAT = ".float() of a tensor, .astype('float32') of an array"
INTEGER = ".long() of a tensor, .astype('int64') of an array"
_warned_float64 = False


def vectors(embeddings: Embeddings, device: torch.device | str | None, *, zero_rows: bool = False) -> Tensor:
    """Checked float32 [n, dim] on `device`."""
    global _warned_float64
    given = tensor(embeddings, "Embeddings")
    if given.dim() != 2 or 0 in given.shape:
        raise InputError(f"Embeddings must be [rows, dim], neither 0, but these are {tuple(given.shape)}.")
    if not given.is_floating_point():
        raise InputError(f"Embeddings must be floating point, but these are {given.dtype}; convert them: {_FLOAT}.")
    if given.dtype == torch.float64 and not _warned_float64:
        _warned_float64 = True
        warnings.warn("Embeddings are float64 and are cast to float32.", stacklevel=3)
    rows = given.detach().to(device=device or given.device, dtype=torch.float32)
    check_norms(torch.linalg.vector_norm(rows, dim=1), zero_rows)
    return rows


def tensor(values: Any, what: str) -> Tensor:
    """The numbers that a tensor, an array of any layout, a list or a column of a data frame holds, as a tensor."""
    if isinstance(values, range):  # which torch would read number by number
        return torch.arange(values.start, values.stop, values.step)
    sparse = values.layout != torch.strided if isinstance(values, Tensor) else hasattr(values, "toarray")
    if sparse:
        dense = ".to_dense()" if isinstance(values, Tensor) else ".toarray()"
        raise InputError(f"{what} must be dense, but these are sparse; convert them: {dense}.")
    if not isinstance(values, Tensor) and hasattr(values, "__array__"):  # torch would ask a column for its row named 0
        values = np.asarray(values)
    numbers = isinstance(values, np.ndarray) and values.dtype.kind in "fiu"
    if numbers and (min(values.strides, default=0) < 0 or not values.dtype.isnative):  # torch takes neither
        values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    try:
        if isinstance(values, np.ndarray) and not values.flags.writeable:  # a file mapped with mmap_mode="r", say
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor does scns write to it
                return torch.as_tensor(values)
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        listed = list(values) if isinstance(values, list | tuple) and len(values) else [values]
        odd = next((each for each in listed if not is_number(each)), values)  # the one that is no number
        given = odd.dtype if isinstance(odd, np.ndarray) else type(odd).__name__
        remedy = "; names become numbers by numpy.unique(names, return_inverse=True)[1]" if "abels" in what else ""
        if remedy and values is None:
            remedy = "; without labels, give -1 for every sample"
        raise InputError(f"{what} must be numbers of one shape, but these are {given}{remedy}.") from None


def is_number(value: object) -> bool:
    """Whether it can be compared with numbers: no word, nothing, no list."""
    if type(value) in (int, float):  # all that compiled steps ask of: a compiler does not follow abstract classes
        return True
    return isinstance(value, Real) or (isinstance(value, Tensor) and value.dim() == 0)


def is_whole(value: object) -> bool:
    """Whether it is a whole number, of whatever type."""
    return is_number(value) and bool(value % 1 == 0)  # type: ignore[operator]


def readable(values: Tensor) -> bool:
    """Whether values can be read without waiting for a device or breaking a compiled graph."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def outside(numbers: Tensor, count: int) -> int | None:
    """One of the numbers that is not from 0 to count - 1; None if there is none, or if that cannot be read."""
    if not numbers.numel() or not readable(numbers):
        return None
    lowest, highest = (int(end) for end in numbers.aminmax())
    return lowest if lowest < 0 else highest if highest >= count else None


def place(device: torch.device | str | None) -> torch.device | None:
    """The device of that name, which torch must have; None for None."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except RuntimeError:
        raise InputError(f"Unknown device '{device}'; use cpu or cuda.") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device={device} was asked for, but torch sees no CUDA device; use device=cpu.")
    return found


def pieces(embeddings: Embeddings | Sequence[Embeddings], *, zero_rows: bool = False) -> list[Tensor]:
    """Checked row shards [rows, dim] of any floating type, left where they are on the host; read block by block."""
    given = embeddings if isinstance(embeddings, Sequence) else [embeddings]
    found = [tensor(each, "Embeddings").detach().cpu() for each in given]
    if not found:
        raise InputError("Embeddings are a list of row shards, at least one, but the list is empty.")
    for each in found:
        if each.dim() != 2 or 0 in each.shape or each.shape[1] != found[0].shape[1]:
            shapes = ", ".join(str(tuple(part.shape)) for part in found[:5])
            more = ", ..." if len(found) > 5 else ""
            raise InputError(
                f"Embeddings must be [rows, dim], all of one dim, but these are {shapes}{more}; stack single vectors "
                "with torch.stack or numpy.stack."
            )
        if not each.is_floating_point():
            raise InputError(f"Embeddings must be floating point, but these are {each.dtype}; convert them first.")
    norms = torch.cat([torch.linalg.vector_norm(block.float(), dim=1).cpu() for block in _blocks(found)])
    check_norms(norms, zero_rows)
    return found


def _blocks(found: list[Tensor]) -> Iterator[Tensor]:
    """All rows, a few MB at a time."""
    for each in found:
        yield from each.split(max(1, _BLOCK // each.shape[1]))


def check_norms(norms: Tensor, zero_rows: bool) -> None:
    """Lengths of embeddings that give them a direction; those of zero only if `zero_rows`."""
    _name_rows(~norms.isfinite(), "NaN, infinite or too large")
    if not zero_rows:
        _name_rows(norms == 0, "all zero")
    _name_rows((norms > 0) & (norms < _SHORTEST), f"shorter than {_SHORTEST:g}")


def _name_rows(bad: Tensor, what: str) -> None:
    if bool(bad.any()):
        rows = bad.nonzero()[:, 0].tolist()
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise InputError(f"{len(rows)} embeddings are {what} (rows {shown}); leave them out or embed them again.")


def marks(values: Labels | None, count: int, what: str, device: torch.device) -> Tensor | None:
    """Checked int64 [count] on `device`."""
    if values is None:
        return None
    given = tensor(values, f"The {what}")
    if given.dim() != 1 or len(given) != count:
        remedy = one_each(given, what)
        raise InputError(f"{count} embeddings need {count} {what}, but their shape is {tuple(given.shape)}{remedy}.")
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise InputError(f"The {what} must be integers, but they are {given.dtype}; convert them: {INTEGER}.")
    check_unsigned(given, f"The {what}")
    given = given.to(device=device, dtype=torch.int64)
    if count and int(given.min()) < -1:
        raise InputError(f"The {what} must be -1 (none) or larger, but one is {int(given.min())}.")
    if count and int(given.max()) > _LARGEST:
        raise InputError(
            f"The {what} are kept as int32, but one is {int(given.max())}; number them from 0 by "
            f"numpy.unique({what}, return_inverse=True)[1]."
        )
    return given


def check_unsigned(given: Tensor, what: str) -> None:
    """Raise where int64 has no room for a number, which would become a negative one: -1 even, for none."""
    if given.dtype == torch.uint64 and given.numel() and (wrong := int(given.view(torch.int64).min())) < 0:
        raise InputError(
            f"{what} must be below 2^63, but one is {wrong % 2**64}; number them from 0 by numpy.unique(..., "
            "return_inverse=True)[1]."
        )


def one_each(given: Tensor, what: str) -> str:
    """What to do with marks [rows, m], where each row takes one."""
    if given.dim() != 2:
        return ""
    one = f"{what}[:, 0]" if given.shape[1] == 1 else f"{what}.argmax(1) if they are one-hot"
    return f"; a row takes one of them: {one}"


def scale(value: float) -> float:
    """The scale of P = softmax(scale * cosine), checked."""
    if not is_number(value) or not 0 <= value < math.inf:
        raise InputError(
            f"scale={value!r} must be at least 0 and finite: 0 draws uniformly from the neighbours, 5 is the paper's."
        )
    return float(value)


def fingerprint(values: Tensor) -> str:
    """SHA-256 of a tensor's shape and bytes."""
    return _digest(tuple(values.shape), [values.detach()])


def fingerprint_of_pieces(found: list[Tensor]) -> str:
    """The fingerprint that the rows of all pieces have together, as one float32 tensor."""
    return _digest((sum(map(len, found)), found[0].shape[1]), (block.float() for block in _blocks(found)))


def _digest(shape: tuple[int, ...], parts: Iterable[Tensor]) -> str:
    digest = hashlib.sha256(str(shape).encode())
    for part in parts:
        digest.update(part.cpu().contiguous().numpy().data.cast("B"))
    return digest.hexdigest()

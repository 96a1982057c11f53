"""Checked inputs: embeddings and labels of any kind become float32 and int64 tensors, or a sentence says why not."""

import hashlib
import warnings

import numpy as np
import torch
from torch import Tensor

from scns.errors import InputError

_warned_float64 = False


def vectors(embeddings: Tensor | np.ndarray, device: torch.device | str | None) -> Tensor:
    """Checked float32 [n, dim] on `device`."""
    global _warned_float64
    given = torch.as_tensor(embeddings)
    if given.dim() != 2 or 0 in given.shape:
        raise InputError(f"Embeddings must be [rows, dim], but these are {tuple(given.shape)}.")
    if not given.is_floating_point():
        raise InputError(f"Embeddings must be floating point, but these are {given.dtype}; convert them with .float().")
    if given.dtype == torch.float64 and not _warned_float64:
        _warned_float64 = True
        warnings.warn("Embeddings are float64 and are cast to float32.", stacklevel=3)
    rows = given.detach().to(device=device or given.device, dtype=torch.float32)
    norms = torch.linalg.vector_norm(rows, dim=1)
    _name_rows(~norms.isfinite(), "NaN or infinite")
    _name_rows(norms == 0, "all zero")
    return rows


def _name_rows(bad: Tensor, what: str) -> None:
    if bool(bad.any()):
        rows = bad.nonzero()[:, 0].tolist()
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise InputError(f"{len(rows)} embeddings are {what} (rows {shown}); leave them out or embed them again.")


def marks(values: Tensor | np.ndarray | None, count: int, what: str, device: torch.device) -> Tensor | None:
    """Checked int64 [count] on `device`."""
    if values is None:
        return None
    given = torch.as_tensor(values)
    if given.dim() != 1 or len(given) != count:
        raise InputError(f"{count} embeddings need {count} {what}, but there are {tuple(given.shape)}.")
    if given.is_floating_point() or given.dtype == torch.bool:
        raise InputError(f"The {what} must be integers, but they are {given.dtype}.")
    if count and int(given.min()) < -1:
        raise InputError(f"The {what} must be -1 (none) or larger, but one is {int(given.min())}.")
    return given.to(device=device, dtype=torch.int64)


def fingerprint(values: Tensor) -> str:
    """SHA-256 of a tensor's shape and bytes."""
    array = values.detach().cpu().contiguous().numpy()
    digest = hashlib.sha256(str(array.shape).encode())
    digest.update(array.data.cast("B"))
    return digest.hexdigest()

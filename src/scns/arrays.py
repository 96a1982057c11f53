"""Embeddings, labels and pictures from files: .npy, .npz and safetensors, memory-mapped where the format allows."""

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from scns.errors import InputError


def load_array(path: str | Path, key: str | None = None) -> Tensor:
    """The tensor in a file; `key` (or "file.npz:key") names one of several."""
    text = str(path)
    if key is None and ":" in text and not Path(text).exists():
        text, key = text.rsplit(":", 1)
    file = Path(text)
    if not file.exists():
        raise InputError(f"'{file}' does not exist; give a .npy, .npz or .safetensors file.")
    try:
        if file.suffix == ".npy":
            return _tensor(np.load(file, mmap_mode="c", allow_pickle=False))  # private pages: never written back
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return _tensor(arrays[_one_of(list(arrays), key, file)])
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as tensors:
                return tensors.get_tensor(_one_of(list(tensors.keys()), key, file))
    except (ValueError, EOFError, OSError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"'{file}' cannot be read ({error}): cut short or of another kind.") from None
    raise InputError(f"'{file}' has the ending '{file.suffix}'; give a .npy, .npz or .safetensors file.")


def _one_of(keys: list[str], key: str | None, file: Path) -> str:
    if key is None and len(keys) == 1:
        return keys[0]
    if key not in keys:
        raise InputError(f"'{file}' holds {', '.join(sorted(keys))}; name one as '{file}:{sorted(keys)[0]}'.")
    return key


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise InputError(f"An array of {array.dtype} is not numbers.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(array) if not array.flags["C_CONTIGUOUS"] else array)

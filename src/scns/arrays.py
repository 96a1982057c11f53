"""Embeddings, labels and pictures from files: .npy, .npz and safetensors, memory-mapped where the format allows."""

import json
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from scns.errors import InputError
from scns.files import atomic, save_tensors

EMBEDDINGS = "scns-embeddings"


def load_array(path: str | Path, key: str | None = None) -> Tensor:
    """The tensor in a file; `key` (or "file.npz:key") names one of several."""
    text = str(path)
    if key is None and ":" in text and not Path(text).exists():
        text, key = text.rsplit(":", 1)
    file = Path(text)
    if not file.exists():
        raise InputError(f"'{file}' does not exist; give a .npy, .npz or .safetensors file.")
    if file.is_dir():
        raise InputError(f"'{file}' is a folder; give a .npy, .npz or .safetensors file.")
    if file.name.endswith(".index.json"):
        return _joined(load_pieces(file), file)
    try:
        if file.suffix in (".npy", ".npz"):  # told apart by what they are
            with open(file, "rb") as opened:
                if opened.peek(2).startswith(b"PK"):
                    with np.load(opened, allow_pickle=False) as arrays:
                        return _tensor(arrays[_one_of(list(arrays), key, file)], file)
            return _tensor(np.load(file, mmap_mode="c", allow_pickle=False), file)  # private pages: never written back
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as tensors:
                return tensors.get_tensor(_one_of(list(tensors.keys()), key, file))
    except (ValueError, EOFError, OSError, SafetensorError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, InputError):
            raise
        if "Python objects" in str(error) or "Object arrays" in str(error):  # names, as data frames hold them
            raise _no_numbers(file, "Python objects") from None
        why = "no array of numbers" if "pickle" in str(error) else error  # numpy would advise to load it unsafely
        raise InputError(f"'{file}' cannot be read ({why}): cut short or of another kind.") from None
    raise InputError(
        f"'{file}' has the ending '{file.suffix}'; give a .npy, .npz or .safetensors file, numpy.save('x.npy', x) say."
    )


def load_pieces(path: str | Path) -> list[Tensor]:
    """The row shards that an index (*.index.json) of `scns embed` names, mapped; any other file as one piece."""
    if not str(path).endswith(".index.json"):
        return [load_array(path)]
    index = Path(path)
    try:
        content = json.loads(index.read_text())
        named = [(index.parent / entry["file"], int(entry["rows"])) for entry in content["shards"]]
        known = content["format"] == EMBEDDINGS and all(file.suffix == ".safetensors" for file, _ in named)
    except (ValueError, KeyError, TypeError, OSError):
        known, named = False, []
    if not known or not named:
        raise InputError(f"'{index}' is not an index of embeddings; write one with: torchrun -m scns embed.")
    pieces = []
    for file, rows in named:
        if not file.exists():
            raise InputError(f"'{index}' names the shard '{file.name}', which is missing; embed it again.")
        piece = load_array(file, "embeddings")
        if piece.dim() != 2 or len(piece) != rows:
            raise InputError(f"'{file}' has {len(piece)} rows, but '{index}' says {rows}; embed it again.")
        pieces.append(piece)
    return pieces


def _joined(pieces: list[Tensor], index: Path) -> Tensor:
    if len(widths := {piece.shape[1] for piece in pieces}) > 1:
        raise InputError(f"The shards of '{index}' have {sorted(widths)} columns; embed them again, all alike.")
    return torch.cat(pieces)


def save_array(path: Path, values: Tensor) -> None:
    """Write a tensor as .npy."""
    with atomic(path) as temporary, open(temporary, "wb") as file:
        np.save(file, values.cpu().numpy())


def save_shard(path: Path, rows: Tensor, about: dict[str, str]) -> None:
    """Write a shard of embeddings, with what it was made from."""
    with atomic(path) as temporary:
        save_tensors({"embeddings": rows.contiguous()}, temporary, {"format": EMBEDDINGS, **about})


def shard_is(path: Path, about: dict[str, str]) -> bool:
    """Whether a shard exists already and was made from the same; one made from something else is refused."""
    if not path.exists():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            found = file.metadata() or {}
    except SafetensorError:
        found = {}
    for key, value in {"format": EMBEDDINGS, **about}.items():
        if found.get(key) != value:
            raise InputError(
                f"'{path}' exists with {key} = {found.get(key)}, but it is to be {value}; remove it or choose another "
                "name."
            )
    return True


def index_shards(paths: list[Path], index: Path, about: dict[str, str]) -> bool:
    """Write the index of embedding shards once all are there and belong together; False while some are missing."""
    if not all(path.exists() for path in paths):
        return False
    listed = []
    for path in paths:
        shard_is(path, about)
        listed.append({"file": path.name, "rows": len(load_array(path, "embeddings"))})
    with atomic(index) as temporary:
        temporary.write_text(json.dumps({"format": EMBEDDINGS, **about, "shards": listed}, indent=1) + "\n")
    return True


def _one_of(keys: list[str], key: str | None, file: Path) -> str:
    if key is None and len(keys) == 1:
        return keys[0]
    if not keys:
        raise InputError(f"'{file}' holds no array; write it again.")
    if key not in keys:
        raise InputError(f"'{file}' holds {', '.join(sorted(keys))}; name one as '{file}:{sorted(keys)[0]}'.")
    return key


def _no_numbers(file: Path, held: object) -> InputError:
    return InputError(
        f"'{file}' holds {held}, not numbers; label names become numbers by "
        "numpy.unique(names, return_inverse=True)[1]."
    )


def _tensor(array: np.ndarray | bytes, file: Path) -> Tensor:
    if isinstance(array, bytes):  # a member of an archive that is no array
        raise _no_numbers(file, "a file")
    if array.dtype.kind not in "fiub":
        raise _no_numbers(file, array.dtype)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # numpy's long double
        array = array.astype(np.float64)
    if array.dtype.kind == "u" and array.dtype.itemsize in (2, 4):
        array = array.astype(np.int64)
    if not array.dtype.isnative:  # which torch does not take
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(np.ascontiguousarray(array) if not array.flags["C_CONTIGUOUS"] else array)

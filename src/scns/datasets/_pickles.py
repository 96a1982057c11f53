"""Reading the pickles of CIFAR's published python archives without running what a pickle may ask for."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scns.errors import InputError

_PLAIN_KINDS = "biufSU"  # numbers and strings: no object arrays, no records


def read(path: Path) -> dict[str, Any]:
    """The dictionary pickled in `path`, of numpy arrays, lists, dictionaries, strings, bytes and numbers only."""
    try:
        # The published files come from Python 2: its strings are bytes, and latin1 keeps every byte of an array.
        content = _PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except _Refused as error:
        raise InputError(f"'{path}' {error}; nothing of it was run: delete it and fetch the data set again.") from error
    except (OSError, MemoryError):
        raise
    except Exception as error:  # broken bytes make an unpickler raise nearly anything
        raise InputError(f"'{path}' is no complete pickle ({error}); fetch the data set again.") from error
    if not isinstance(content, dict):
        raise InputError(f"'{path}' holds a {type(content).__name__}, but a CIFAR file holds a dictionary.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


class _Refused(Exception):
    """A pickle asks for something that is not plain data."""


def _dtype(name: str, *_: object) -> np.dtype:
    # The two flags of the published files (align=0, copy=1) say nothing for a plain type, and numpy 2.4 warns of them.
    found: np.dtype = np.dtype(name)
    if found.kind not in _PLAIN_KINDS:
        raise _Refused(f"asks for an array of '{name}', but a CIFAR file holds plain numbers")
    return found


_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]  # numpy's own, whose module has moved between versions
_ADMITTED: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): str.encode,  # how Python 3 writes bytes in the old protocols; text codecs only
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _Refused(f"asks for '{module}.{name}', which a CIFAR file never does")
        return _ADMITTED[module, name]

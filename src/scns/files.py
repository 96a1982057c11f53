"""Writing files so that a reader sees the old content, the new content, or nothing, but never a part."""

import errno
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; renamed to `path` when the block ends, removed when it fails."""
    target = Path(path)
    temporary = _beside(target)
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except (OSError, SafetensorError) as error:
        raise _named(error, target) from None
    finally:
        temporary.unlink(missing_ok=True)


def save_tensors(tensors: dict[str, Tensor], path: Path, about: dict[str, str]) -> None:
    """Write a safetensors file that says what it is about: the same content is the same file, byte by byte.

    The library writes metadata in another order every time; here they are put in that of their names.
    """
    save_file(tensors, path, metadata=about)
    with open(path, "r+b") as file:
        room = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(room))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= room:  # it is: both write JSON without spaces, and spaces fill the room
            file.seek(8)
            file.write(text.ljust(room))


def check_writable(path: str | Path) -> None:
    """Raise OSError where `path` could not be written: before long work, not after it."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    _beside(target).unlink()


def _beside(target: Path) -> Path:
    """A new, empty file beside the target; an error names the target, which a person knows."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(target)) from None
    os.close(handle)
    return Path(name)


def _named(error: Exception, target: Path) -> Exception:
    """Where the system had no room for the file, or refused safetensors, an OSError that names it; else the error."""
    number = getattr(error, "errno", None)
    if isinstance(error, SafetensorError) and (told := re.search(r"os error (\d+)", str(error))):
        number = int(told[1])  # which it says in words alone
    elif number not in _NO_ROOM:
        return error
    return OSError(number, os.strerror(number), str(target))


def shard_path(path: str | Path, part: int, parts: int) -> Path:
    """The name of part `part` (from 1) of a file in `parts` shards: t.safetensors -> t-00003-of-00064.safetensors."""
    whole = Path(path)
    return whole.with_name(f"{whole.stem}-{part:05d}-of-{parts:05d}{whole.suffix}")


def index_path(path: str | Path) -> Path:
    """The name of the index of a file's shards: t.safetensors -> t.index.json."""
    whole = Path(path)
    return whole.with_name(f"{whole.stem}.index.json")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""One process a folder: a lock that ends with its process, however that ends."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scns.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NAME = ".lock"
_LONGEST = 300  # bytes of "process 1234 on host" that are read back; names of hosts have at most 255


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep an existing folder to this block; where another process has it, that is bad input.

    The lock is of a hidden file, which says whose it is and is removed at the end. One that a killed process left is
    nobody's. File systems without locks, and forks of this process, change nothing.
    """
    path, owner = folder / _NAME, os.getpid()
    lock = None if fcntl is None else _take(path)
    try:
        yield
    finally:
        if lock is not None:
            if os.getpid() == owner:  # in a fork it is still the other's
                with suppress(OSError):
                    if _is(path, lock):
                        path.unlink()
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def release(folder: Path) -> None:
    """Take a folder from the process that has it: that one keeps a lock of a file which is no longer there."""
    with suppress(OSError):
        (folder / _NAME).unlink()


def _take(path: Path) -> int | None:
    """An open file that is locked; None where the file system has no locks."""
    while True:
        lock = _open(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = os.pread(lock, _LONGEST, 0).decode(errors="replace")
            os.close(lock)
            raise _taken(path.parent, told) from None
        except OSError:
            os.close(lock)
            path.unlink(missing_ok=True)
            return None
        if _is(path, lock):
            break
        os.close(lock)  # who had it has removed the file since it was opened: another one counts now
    with suppress(OSError):  # a full disk: it is locked nevertheless
        os.ftruncate(lock, 0)
        os.pwrite(lock, _self().encode(), 0)
    return lock


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path.parent)) from None  # the folder is what a person knows


def _is(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(lock))
    except FileNotFoundError:
        return False


def _self() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _taken(folder: Path, told: str) -> InputError:
    if told == _self():
        return InputError(f"'{folder}' is asked for twice at the same time; give every run an --out of its own.")
    who = f"another process ({told})" if told else "another process"
    return InputError(
        f"{who[0].upper()}{who[1:]} trains in '{folder}'; let it finish, stop it, or choose another --out."
    )

"""The C library's heap: what the steps of a training on a CPU free they need again, so it is kept meanwhile."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # numbers of malloc.h
_KEPT = (1 << 31) - 1  # bytes at the heap's end that are not given back
_USUAL = ((_TRIM_THRESHOLD, 64 << 20), (_MMAP_THRESHOLD, 32 << 20), (_MMAP_MAX, 1 << 16))  # as glibc's own rules end up


@contextmanager
def kept() -> Iterator[None]:
    """Freed memory stays with the process, where the C library is glibc.

    By itself it gives large tensors back to the system, which clears every page before it hands it out again: two
    fifths of the processor's time, of a small network with a teacher on a virtual machine.
    """
    if sys.platform != "linux" or not hasattr(library := ctypes.CDLL(None), "mallopt"):
        yield
        return
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, _KEPT)
    try:
        yield
    finally:
        for number, value in _USUAL:
            library.mallopt(number, value)
        library.malloc_trim(0)

"""What is installed, of what scns does without where it is not."""

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path


def triton() -> bool:
    """Whether Triton's kernels can be launched: it comes with torch for CUDA, but builds a launcher in C at first use.

    That takes a compiler and Python's headers, which slim containers lack.
    """
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # Debian's own has no headers
    headers = Path(sysconfig.get_path("include", scheme), "Python.h")
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return importlib.util.find_spec("triton") is not None and compiler is not None and headers.exists()


TRITON = triton()

"""Shared by all tests: the command line and scripts as functions, a full disk, a look at a picture."""

import gc
import os
import resource
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from scns.cli import main

ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}  # for processes that are started beside each other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a GPU are skipped where there is none, also in a plain `pytest`."""
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    if not wanted:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def ran(act: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> Ran:
    """What `act` prints, and the exit code of a process that did the same."""
    capsys.readouterr()
    try:
        act()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    printed = capsys.readouterr()
    return Ran(code, printed.out, printed.err)


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Files cannot grow beyond `size` bytes: the system refuses the write, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def colours(path: Path) -> int:
    """How many colours the pixels of a picture have; of every third row and column, which is enough to see a blank."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.uint32)[::3, ::3]
    return len(np.unique(pixels @ np.array([1, 1 << 8, 1 << 16], dtype=np.uint32)))


@pytest.fixture
def scns(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`scns("data", "info", ...)` runs the command in this process and returns its exit code and what it printed."""

    return lambda *words: ran(lambda: main([str(word) for word in words]), capsys)


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """`script(path, "--help", ...)` runs a Python file as `python path --help ...` does, in this process."""

    def run(path: Path, *words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, words)])
        return ran(lambda: runpy.run_path(str(path), run_name="__main__"), capsys)

    return run


@pytest.fixture(autouse=True)
def _free_graphs(request: pytest.FixtureRequest) -> None:
    """CUDA graphs of earlier tests are freed now: freed during a capture, they would spoil it."""
    if request.node.get_closest_marker("gpu"):
        gc.collect()

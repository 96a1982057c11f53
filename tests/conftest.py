"""Shared by all tests: the command line as a function."""

import gc
from collections.abc import Callable
from typing import NamedTuple

import pytest

from scns.cli import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def scns(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`scns("data", "info", ...)` runs the command in this process and returns its exit code and what it printed."""

    def run(*words: object) -> Ran:
        capsys.readouterr()
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run


@pytest.fixture(autouse=True)
def _free_graphs(request: pytest.FixtureRequest) -> None:
    """CUDA graphs of earlier tests are freed now: freed during a capture, they would spoil it."""
    if request.node.get_closest_marker("gpu"):
        gc.collect()

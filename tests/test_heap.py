"""The C library's heap while a CPU trains: what a step frees, the next one takes, and the system sees no page of it."""

import resource
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runs import recipe, single
from scns import heap
from scns.train import Watch

BYTES = 64 << 20
PAGES = BYTES // resource.getpagesize()


def faults() -> int:
    """Pages that the system hands out for ten tensors, each freed before the next."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(BYTES // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.fixture
def counted() -> None:
    if sys.platform != "linux" or faults() < 9 * PAGES:
        pytest.skip("this system hands memory out in another way, or does not count")


def test_freed_memory_is_kept_and_given_back_in_the_end(counted: None) -> None:
    with heap.kept():
        faults()  # takes the pages
        assert faults() < 3 * PAGES
        full = resident()
    assert full - resident() > BYTES / 2


def test_it_is_so_while_a_run_trains(counted: None, tmp_path: Path) -> None:
    found = []

    class Counting(Watch):
        def step(self, run: Any, epoch: int, done: int, total: int) -> None:
            found.append(faults())

    single(recipe(epochs=1), tmp_path / "run", watch=Counting())
    assert min(found) < 3 * PAGES  # some steps leave the heap too little room, and it grows


def test_without_glibc_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: None) -> None:
        raise AssertionError("there is no C library to ask")

    monkeypatch.setattr("scns.heap.sys.platform", "darwin")
    monkeypatch.setattr("scns.heap.ctypes.CDLL", refused)
    with heap.kept():
        pass

"""The longer checks of training in several processes (make test-scale): four ranks, and torchrun as people use it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from conftest import ALONE
from engine_runs import equal, root, weights
from test_world import STEPS, Ranks, worst
from world_cases import CASES

pytestmark = pytest.mark.scale

EPOCHS = 8
PATIENCE = 200  # seconds; torchrun alone takes 10 to start on two busy cores


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    jobs = {name: {"kind": "case", "name": name, "steps": STEPS} for name in CASES}
    return Ranks(request.param, jobs, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CASES)
def test_any_number_of_ranks_trains_as_one(name: str, ranks: Ranks) -> None:
    assert not worst(name, ranks)


def words(out: Path, *more: str, restarts: int = 0) -> list[str]:
    """The command of a run with a checkpoint after each of its epochs."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run += [f"--max-restarts={restarts}", "-m", "scns", "train", "mini-ce", "--out", str(out), "--epochs", str(EPOCHS)]
    settings = {"data": "folder", "root": root(), "batch": 32, "evaluate_every": 100, "checkpoint_every": 1}
    return [*run, "--device", "cpu", *(f"--set={key}={value}" for key, value in settings.items()), *more]


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ALONE)


def wait_for_epoch(out: Path, epoch: int, running: subprocess.Popen[str]) -> None:
    state = out / "state.json"
    until = time.monotonic() + PATIENCE
    while not state.exists() or json.loads(state.read_text())["epoch"] < epoch:
        assert running.poll() is None and time.monotonic() < until, "it ended, or did not begin"
        time.sleep(0.02)


def workers(running: subprocess.Popen[str]) -> dict[int, int]:
    """The process of every rank that torchrun has started."""
    found = {}
    for child in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split():
        environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        ranks = [int(each[5:]) for each in environment if each.startswith(b"RANK=")]
        found.update({rank: int(child) for rank in ranks})
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """An undisturbed run of two ranks, and what it printed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    running = start(words(out))
    printed = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, printed[1][-3000:]
    return out, *printed


def test_torchrun_trains_one_run_and_one_rank_speaks(finished: tuple[Path, str, str]) -> None:
    out, said, told = finished
    result = json.loads((out / "result.json").read_text())
    assert result["ranks"] == 2 and result["epochs"] == EPOCHS
    assert said.count("test:") == 1 and told.count(f"epoch {EPOCHS}/{EPOCHS}") == 1
    assert len((out / "log.jsonl").read_text().splitlines()) == EPOCHS
    assert not list(out.glob(".*"))  # nothing half written, no marks of ranks


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_restarted_and_the_run_goes_on(
    rank: int, finished: tuple[Path, str, str], tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    running = start(words(out, restarts=1))
    wait_for_epoch(out, 2, running)
    os.kill(workers(running)[rank], signal.SIGKILL)
    told = running.communicate(timeout=PATIENCE)[1]
    assert running.returncode == 0, told[-3000:]
    assert "goes on after epoch" in told
    assert equal(weights(out), weights(finished[0]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_torchrun_leaves_a_checkpoint_and_the_same_command_goes_on(
    number: signal.Signals, finished: tuple[Path, str, str], tmp_path: Path
) -> None:
    out = tmp_path / "stopped"
    running = start(words(out))
    wait_for_epoch(out, 2, running)
    running.send_signal(number)
    told = running.communicate(timeout=PATIENCE)[1]
    assert running.returncode != 0 and told.count("Stopped; a checkpoint is in") == 1
    running = start(words(out))
    told = running.communicate(timeout=PATIENCE)[1]
    assert running.returncode == 0 and "goes on after epoch" in told, told[-3000:]
    got, want = weights(out), weights(finished[0])
    running_means = [name for name in got if "running" in name]  # averaged once more over ranks: equal but for rounding
    assert running_means and all(torch.allclose(got.pop(name), want.pop(name), rtol=1e-5) for name in running_means)
    assert equal(got, want)


def test_bad_input_is_said_once(tmp_path: Path) -> None:
    running = start(words(tmp_path / "few", "--set=batch=1"))
    told = running.communicate(timeout=PATIENCE)[1]
    assert running.returncode != 0
    assert told.count("scns: 2 processes cannot share a batch of 1; start at most 1, or raise batch") == 1

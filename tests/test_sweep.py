"""Sweeps: packed, resumable, and one bad run costs no other its result."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conftest import ALONE
from engine_runs import recipe, small_words
from scns import sweep as sweeping
from scns.errors import InputError
from scns.recipe import Recipe
from scns.report.page import page
from scns.results import Line, read
from scns.sweep import Job, read_jobs, run_everywhere, sweep, write_jobs
from scns.train import fit


def tiny(**changes: Any) -> Recipe:
    return recipe(epochs=1, **changes)


def jobs(folder: Path, count: int = 3) -> list[Job]:
    return [Job(tiny(seed=seed, data_seed=0), folder / f"run-{seed}") for seed in range(count)]


def test_packed_runs_equal_runs_alone_and_finished_ones_are_skipped(tmp_path: Path) -> None:
    listed = jobs(tmp_path)
    outcomes = sweep(listed, pack=2, say=lambda line: None)
    assert all(outcome.result for outcome in outcomes)
    alone = fit(listed[2].recipe, tmp_path / "alone")
    weights, packed = (
        load_file(tmp_path / "alone" / "model.safetensors"),
        load_file(tmp_path / "run-2" / "model.safetensors"),
    )
    assert all(torch.equal(weights[name], packed[name]) for name in weights)
    assert alone.result["test"] == outcomes[2].result["test"]  # type: ignore[index]
    before = [(job.out / "result.json").stat().st_mtime_ns for job in listed]
    again = sweep(listed, pack=2, say=lambda line: None)
    assert [outcome.result for outcome in again] == [outcome.result for outcome in outcomes]
    assert [(job.out / "result.json").stat().st_mtime_ns for job in listed] == before


def test_a_bad_run_is_tried_again_and_reported(tmp_path: Path) -> None:
    good, bad = jobs(tmp_path, 1)[0], Job(tiny(arguments={"nope": 1}, data_seed=0), tmp_path / "bad")
    waiting = Job(tiny(seed=7, method="kld", teacher=str(bad.out)), tmp_path / "student", after=(bad.out,))
    said: list[str] = []
    outcomes = sweep([bad, good, waiting], pack=3, say=said.append)
    assert outcomes[0].result is None and "argument" in outcomes[0].error
    assert outcomes[1].result is not None
    assert outcomes[2].result is None and "waits for has failed" in outcomes[2].error
    assert any("in halves" in line or "once more" in line for line in said)


def test_a_crash_leaves_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(pairs: list, watch: object = None) -> list:
        Path(pairs[0][1]).mkdir(exist_ok=True)
        raise RuntimeError("boom")

    monkeypatch.setattr(sweeping, "fit_packed", crash)
    (outcome,) = sweep(jobs(tmp_path, 1), say=lambda line: None)
    assert outcome.error == "boom" and "RuntimeError: boom" in (outcome.job.out / "error.txt").read_text()


def test_teachers_come_first(tmp_path: Path) -> None:
    teacher = Job(tiny(), tmp_path / "teacher")
    student = Job(tiny(method="kld", teacher=str(teacher.out)), tmp_path / "student", after=(teacher.out,))
    assert all(outcome.result for outcome in sweep([student, teacher], pack=4, say=lambda line: None))


def test_a_pack_that_does_not_fit_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    real = sweeping.fit_packed

    def small_memory(pairs: list, watch: object = None) -> list:
        sizes.append(len(pairs))
        if len(pairs) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(pairs)

    monkeypatch.setattr(sweeping, "fit_packed", small_memory)
    assert all(outcome.result for outcome in sweep(jobs(tmp_path), pack=3, say=lambda line: None))
    assert sizes == [3, 2, 1, 1, 1]


def test_several_devices_share_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes train; this one only reads what they left."""
    trained = []
    monkeypatch.setattr(sweeping, "fit_packed", lambda pairs, watch=None: trained.append(pairs))
    outcomes = run_everywhere(jobs(tmp_path, 2), pack=1, folder=tmp_path, say=lambda line: None, devices=2)
    assert all(outcome.result for outcome in outcomes) and not trained
    assert not list(tmp_path.glob(".jobs-*"))


def test_jobs_survive_a_file(tmp_path: Path) -> None:
    listed = [replace(job, after=(tmp_path / "x",)) for job in jobs(tmp_path)]
    write_jobs(listed, tmp_path / "jobs.json")
    assert read_jobs(tmp_path / "jobs.json") == listed


def test_command(scns: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("sweep", "mini-ce", "mini-uniform", "--epochs", 1, *small_words(), "--out", "runs")
    code, out, _ = scns(*words, "--dry-run")
    assert code == 0 and out.count("to do") == 2 and not Path("runs").exists()
    code, out, _ = scns(*words)
    assert code == 0
    assert json.loads(Path("runs/mini-ce-0/result.json").read_text())["epochs"] == 1
    code, _, err = scns(*words, "--pack", 0)
    assert code == 2 and "--pack 0" in err


def test_a_folder_that_cannot_be_is_said_once(scns: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    code, _, err = scns("sweep", "mini-ce", "mini-uniform", "--set", "device=cpu", "--out", tmp_path / "file")
    assert code == 2 and str(tmp_path / "file") in err.replace("\n", "") and "Traceback" not in err
    assert (tmp_path / "file").read_text() == "kept"


def test_pack_must_be_positive() -> None:
    with pytest.raises(InputError, match="--pack 0"):
        sweep([], pack=0)


# --- the paper's tables

SIX = (
    *("sweep", "t1", "--columns", "resnet20", "--epochs", 2, "--pack", 2, "--out", "runs"),
    *("--rows", "ce,infonce,infonce+lm-b0.5,class-scns-k2,instance-scns-k20,instance-scns-k100"),
    *("--set", "student=resnet8", "--set", "checkpoint_every=1"),
)


def six() -> tuple[object, ...]:
    """Six shrunken cells on some of the bundled images."""
    return (*SIX, *small_words())


def start(folder: Path) -> subprocess.Popen:
    words = [sys.executable, "-m", "scns", *map(str, six())]
    return subprocess.Popen(words, cwd=folder, env=ALONE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_at_random(folder: Path, most: int) -> int:
    """Kill the sweep a moment after so many of its runs are finished; how many were when it was dead."""
    wanted, moment = random.randint(0, most), random.uniform(0, 0.05)
    sweeping, deadline = start(folder), time.monotonic() + 200
    while len(list(folder.rglob("result.json"))) < wanted or not list(folder.rglob("recipe.json")):
        assert time.monotonic() < deadline and sweeping.poll() is None
        time.sleep(0.02)
    time.sleep(moment)
    sweeping.kill()
    assert sweeping.wait() == -signal.SIGKILL, f"over before {wanted} results and {moment:.3f} s"
    return len(list(folder.rglob("result.json")))


def report_of(folder: Path) -> tuple[list[Line], str]:
    """What `scns results` and `scns report` say of the runs, apart from the seconds they took."""
    for path in folder.rglob("result.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 0}))
    found = read(folder / "runs")
    return found.lines, page(found, folder / "runs", gallery=False)


def test_a_sweep_killed_twice_ends_with_the_same_report(
    scns: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir(), cut.mkdir()
    first = kill_at_random(cut, 1)
    second = kill_at_random(cut, 3)
    assert first <= second < 6
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the killed ones have
    try:
        monkeypatch.chdir(cut)
        code, out, _ = scns(*six())
        assert code == 0 and out.count("finished") == second
        monkeypatch.chdir(whole)
        assert scns(*six())[0] == 0
    finally:
        torch.set_num_threads(threads)
    (lines, told), (expected, expected_page) = report_of(cut), report_of(whole)
    assert len(lines) == 6 and all(line.shrunken and line.printed is None for line in lines)
    assert lines == expected and told == expected_page
    code, _, err = scns(*six(), "--set", "lr=0.5")
    assert code == 2 and "another recipe: lr" in err


def test_a_failing_cell_of_a_table_costs_no_other(scns: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    """A batch of 50 is too large for CKA, which wants it all of one class."""
    small = ("--epochs", 1, *small_words(), "--set", "student=resnet8", "--set", "batch=50")
    code, out, _ = scns(
        "sweep", "t3/contrastive-cka-linear/resnet110-resnet20", "t3/kld/resnet110-resnet20", *small, "--out", tmp_path
    )
    assert code == 1 and "too few for a batch of 50" in out
    assert sorted(path.parent.name for path in tmp_path.rglob("result.json")) == ["resnet110-0", "resnet110-resnet20-0"]
    assert (tmp_path / "t3" / "kld" / "resnet110-resnet20-0" / "result.json").exists()


def test_the_plan_of_a_table(scns: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    words = ("sweep", "t3", "--rows", "instance*,kld", "--columns", "resnet110-resnet20", "--out", tmp_path / "t3")
    code, out, _ = scns(*words, "--seeds", 3, "--pack", 8, "--dry-run", "--set", "device=cpu")
    assert code == 0 and out.count("to do") == 1 + 6 * 3 + 1  # the teacher, the students, the sum
    assert out.index("teacher/resnet110-0") < out.index("kld/resnet110-resnet20-0") and "t3/t3" not in out
    assert "19 runs, 19 to do; how long on this CPU is not known, about 2.0 hours on one H200" in out.replace("\n", " ")
    assert not (tmp_path / "t3").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("t4",), "Unknown table 't4'"),
        (("t33",), "did you mean t3"),
        (("minice",), "Unknown recipe or table 'minice'; did you mean mini-ce"),
        (("t3", "--rows", "instanse*"), "row of t3 'instanse*'; did you mean instance"),
        (("t3", "--columns", "resnet110-resnet21"), "did you mean resnet110-resnet20"),
        (("t3/kdl/resnet110-resnet20",), "row of t3 'kdl'; did you mean kld"),
        (("t3", "--pack", 0), "--pack 0"),
        (("t3", "--seeds", 0), "--seeds 0"),
        (("t3", "--epochs", 0), "--epochs 0"),
        (("mini-ce", "--rows", "kld"), "belong to a table"),
        (("t3", "--rows", "kld", "--weights", "nowhere"), "--weights nowhere is for the teachers of t2"),
        (("t2", "--rows", "kld", "--weights", "nowhere"), "--weights nowhere is no folder"),
        (("t3", "--set", "batches=3"), "recipe key 'batches'"),
        (("t3/kld/*", "--rows", "ce"), "'t3/kld/*' says which row and column"),
        (("t3", "--rows", "kld", "--set", "root=nowhere"), "There is no cifar100 in 'nowhere'"),
    ],
)
def test_bad_words_of_a_table(
    scns: Callable[..., tuple[int, str, str]], tmp_path: Path, words: tuple, message: str
) -> None:
    code, _, err = scns("sweep", *words, "--out", tmp_path / "runs")
    assert code == 2 and message in err and not (tmp_path / "runs").exists()

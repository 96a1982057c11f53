"""Sweeps: packed, resumable, and one bad run costs no other its result."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scns import sweep as sweeping
from scns.errors import InputError
from scns.recipe import Recipe
from scns.sweep import Job, read_jobs, sweep, write_jobs
from scns.train import fit

TINY = Recipe(student="resnet8", subset=100, batch=50, epochs=1, lr=0.02, device="cpu")


def jobs(folder: Path, count: int = 3) -> list[Job]:
    return [Job(replace(TINY, seed=seed, data_seed=0), folder / f"run-{seed}") for seed in range(count)]


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
    good, bad = jobs(tmp_path, 1)[0], Job(replace(TINY, arguments={"nope": 1}, data_seed=0), tmp_path / "bad")
    waiting = Job(replace(TINY, seed=7, method="kld", teacher=str(bad.out)), tmp_path / "student", after=(bad.out,))
    said: list[str] = []
    outcomes = sweep([bad, good, waiting], pack=3, say=said.append)
    assert outcomes[0].result is None and "argument" in outcomes[0].error
    assert outcomes[1].result is not None
    assert outcomes[2].result is None and "waits for has failed" in outcomes[2].error
    assert any("one by one" in line or "once more" in line for line in said)


def test_a_crash_leaves_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(pairs: list, watch: object = None) -> list:
        Path(pairs[0][1]).mkdir(exist_ok=True)
        raise RuntimeError("boom")

    monkeypatch.setattr(sweeping, "fit_packed", crash)
    (outcome,) = sweep(jobs(tmp_path, 1), say=lambda line: None)
    assert outcome.error == "boom" and "RuntimeError: boom" in (outcome.job.out / "error.txt").read_text()


def test_teachers_come_first(tmp_path: Path) -> None:
    teacher = Job(TINY, tmp_path / "teacher")
    student = Job(replace(TINY, method="kld", teacher=str(teacher.out)), tmp_path / "student", after=(teacher.out,))
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


def test_jobs_survive_a_file(tmp_path: Path) -> None:
    listed = [replace(job, after=(tmp_path / "x",)) for job in jobs(tmp_path)]
    write_jobs(listed, tmp_path / "jobs.json")
    assert read_jobs(tmp_path / "jobs.json") == listed


def test_command(scns: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("sweep", "mini-ce", "mini-uniform", "--epochs", 1, "--subset", 100, "--out", "runs", "--set", "device=cpu")
    code, out, _ = scns(*words, "--dry-run")
    assert code == 0 and out.count("to do") == 2 and not Path("runs").exists()
    code, out, _ = scns(*words)
    assert code == 0
    assert json.loads(Path("runs/mini-ce-0/result.json").read_text())["epochs"] == 1
    code, _, err = scns(*words, "--pack", 0)
    assert code == 2 and "--pack 0" in err


def test_pack_must_be_positive() -> None:
    with pytest.raises(InputError, match="--pack 0"):
        sweep([], pack=0)

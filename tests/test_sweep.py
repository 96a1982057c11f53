"""Sweeps: packed, resumable, and one bad run costs no other its result."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import scns.train as training
from conftest import ALONE
from engine_runs import recipe, small_words
from scns import models, workers
from scns import sweep as sweeping
from scns.admission import least
from scns.checkpoint import Folder
from scns.errors import InputError
from scns.lock import held
from scns.recipe import Recipe
from scns.report.page import page
from scns.results import Line, read
from scns.run import Run
from scns.sweep import Job, read_jobs, sweep, write_jobs
from scns.train import Watch, fit
from scns.workers import run_everywhere


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_asked_to_stop_while_a_run_ends_begins_no_other(tmp_path: Path, number: int) -> None:
    class Asking(Watch):
        def epoch(self, run: Run, line: dict[str, Any]) -> None:
            os.kill(os.getpid(), number)

    with pytest.raises(training.Stopped, match=r"finished: .*run-0\.") as stopped:
        sweep(jobs(tmp_path, 2), pack=1, watch=Asking())
    assert stopped.value.code == 128 + number
    assert (tmp_path / "run-0" / "result.json").exists() and not (tmp_path / "run-1").exists()
    assert all(outcome.result for outcome in sweep(jobs(tmp_path, 2), pack=1))


@pytest.mark.parametrize("pack", [1, 2])
def test_a_sweep_asked_to_stop_while_a_run_is_lost_stops_too_and_keeps_the_others(tmp_path: Path, pack: int) -> None:
    class Asking(Watch):
        def step(self, run: Run, epoch: int, done: int, total: int) -> None:
            if run.recipe.lr == 1e30 and done == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    listed = [Job(tiny(lr=1e30), tmp_path / "lost"), *jobs(tmp_path, 1)]
    with pytest.raises(training.Stopped, match=r"The weights .* became infinite or NaN") as stopped:
        sweep(listed, pack=pack, watch=Asking(), say=lambda line: None)
    assert stopped.value.code == 128 + signal.SIGTERM and not list(tmp_path.rglob("result.json"))
    if pack == 2:
        assert json.loads((tmp_path / "run-0" / "state.json").read_text())["place"] == 96


def test_seeds_and_names_of_a_sweep_are_what_a_person_says(scns: Callable[..., Any], tmp_path: Path) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine" / "mini-ce.toml"
    mine.parent.mkdir()
    mine.write_text('data = "cifar10-mini"\nstudent = "resnet8"\n')
    code, _, told = scns("sweep", "mini-ce", mine, "--dry-run", "--out", out)
    assert code == 2 and "mini-ce-0' is asked for twice" in told and not out.exists()
    code, _, told = scns("sweep", "mini-ce", "--set", "seed=7", "--dry-run", "--out", out)
    assert code == 2 and "--set seed=7 is for `scns train`" in told
    words = ("--seeds", 2, "--epochs", 1, "--set", "data_seed=5", *small_words(), "--out", out)
    assert scns("sweep", "mini-ce", *words)[0] == 0
    assert [Folder(out / f"mini-ce-{seed}").recipe().order_seed for seed in (0, 1)] == [5, 5]


def test_a_run_of_wrong_input_is_reported_at_once_and_costs_no_other(tmp_path: Path) -> None:
    good, bad = jobs(tmp_path, 1)[0], Job(tiny(arguments={"nope": 1}, data_seed=0), tmp_path / "bad")
    waiting = Job(tiny(seed=7, method="kld", teacher=str(bad.out)), tmp_path / "student", after=(bad.out,))
    said: list[str] = []
    outcomes = sweep([bad, good, waiting], pack=3, say=said.append)
    assert outcomes[0].result is None and "argument" in outcomes[0].error
    assert outcomes[1].result is not None
    assert outcomes[2].result is None and "waits for has failed" in outcomes[2].error
    assert any("in halves" in line for line in said) and not any("once more" in line for line in said)
    assert sum(line.startswith(f"{bad.out} failed (") for line in said) == 1


def test_a_run_that_another_process_finishes_meanwhile_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two sweeps are started at once: each trains what the other has not."""
    first, second = jobs(tmp_path, 2)
    own = sweeping.fit_packed

    def beside(pairs: list, watch: object = None) -> list:
        if pairs[0][1] == first.out:
            raise InputError("Another process trains in it.")
        own([(first.recipe, first.out)])  # the other one, in the meantime
        return own(pairs)

    monkeypatch.setattr(sweeping, "fit_packed", beside)
    outcomes = sweep([first, second], say=lambda line: None)
    assert [outcome.result is not None and not outcome.error for outcome in outcomes] == [True, True]


def test_a_run_that_crashed_once_is_finished_by_its_second_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = [RuntimeError("boom")]

    def crash_first(pairs: list, watch: Watch | None = None) -> list[Run]:
        if crashes:
            raise crashes.pop()
        return training.fit_packed(pairs, watch=watch)

    monkeypatch.setattr(sweeping, "fit_packed", crash_first)
    (outcome,) = sweep(jobs(tmp_path, 1), say=lambda line: None)
    assert outcome.result is not None and not (outcome.job.out / "error.txt").exists()


def test_a_crash_leaves_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []

    def crash(pairs: list, watch: object = None) -> list:
        attempts.append(pairs)
        Path(pairs[0][1]).mkdir(exist_ok=True)
        raise RuntimeError("boom")

    said: list[str] = []
    monkeypatch.setattr(sweeping, "fit_packed", crash)
    (outcome,) = sweep(jobs(tmp_path, 1), say=said.append)
    assert said == [f"{outcome.job.out} failed (boom); trying once more."] and len(attempts) == 2
    assert outcome.error == "boom" and "RuntimeError: boom" in (outcome.job.out / "error.txt").read_text()


def test_a_failure_that_cannot_be_written_down_costs_no_other(tmp_path: Path) -> None:
    """As on a full disk, which may be why the run failed."""

    class InTheWay(Watch):
        def start(self, run: Run) -> None:
            if run.recipe.lr == 1e30:
                (run.folder.path / "error.txt").mkdir()

    listed = [Job(tiny(lr=1e30), tmp_path / "lost"), *jobs(tmp_path, 1)]
    outcomes = sweep(listed, watch=InTheWay(), say=lambda line: None)
    assert "The loss 'ce' became nan" in outcomes[0].error and outcomes[1].result is not None


def test_teachers_come_first(tmp_path: Path) -> None:
    teacher = Job(tiny(), tmp_path / "teacher")
    student = Job(tiny(method="kld", teacher=str(teacher.out)), tmp_path / "student", after=(teacher.out,))
    assert all(outcome.result for outcome in sweep([student, teacher], pack=4, say=lambda line: None))


def room_for(most: int, monkeypatch: pytest.MonkeyPatch, captures: bool = False) -> list[int]:
    """The sizes of packs that are tried, of which those of more than `most` runs do not fit: in a capture, maybe."""
    sizes: list[int] = []
    real = sweeping.fit_packed

    def small_memory(pairs: list, watch: object = None) -> list:
        sizes.append(len(pairs))
        if len(pairs) > most:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory")
            finally:
                if captures:  # what a capture that is broken off ends with
                    raise RuntimeError("CUDA error: unjoined work")
        return real(pairs)

    monkeypatch.setattr(sweeping, "fit_packed", small_memory)
    return sizes


def test_a_pack_that_does_not_fit_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = room_for(1, monkeypatch)
    assert all(outcome.result for outcome in sweep(jobs(tmp_path), pack=3, say=lambda line: None))
    assert sizes == [3, 2, 1, 1, 1]


@pytest.mark.parametrize("captures", [False, True])
def test_later_packs_keep_to_what_did_fit(captures: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, said = room_for(2, monkeypatch, captures), []
    assert all(outcome.result for outcome in sweep(jobs(tmp_path, 7), pack=4, say=said.append))
    assert sizes == [4, 2, 2, 2, 1] and len(said) == 1


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("boom")])
def test_nothing_of_a_failed_pack_is_in_memory_when_its_halves_start(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[weakref.ref] = []
    alive: list[int] = []
    launch, prepare = training.Pack.launch, training.prepare

    def once(self: training.Pack, watch: Watch) -> Iterator[None]:
        if not failed:
            failed.extend(weakref.ref(each) for each in (self, self.step, *self.runs))
            raise type(error)(*error.args)  # which nobody keeps
        return launch(self, watch)

    def counted(*given: Any) -> list:
        alive.append(sum(each() is not None for each in failed))
        return prepare(*given)

    monkeypatch.setattr(training.Pack, "launch", once)
    monkeypatch.setattr(training, "prepare", counted)
    assert all(outcome.result for outcome in sweep(jobs(tmp_path, 2), pack=2, say=lambda line: None))
    assert len(failed) == 4 and alive == [0, 0, 0]


def test_no_more_runs_are_let_in_than_memory_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = least(tiny())
    kept: list[int] = []
    network = models.build("resnet8", 100)
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            module.register_forward_hook(lambda module, given, out: kept.append(out.numel()))
    network(torch.zeros(1, 3, tiny().size, tiny().size))
    assert each == 12 * models.parameters(network) + 4 * tiny().batch * sum(kept)
    assert least(tiny(precision="bf16")) < each and least(tiny(student="of-my-own")) == 0

    def particular(*_: object) -> int:
        raise AssertionError("Input image size must be 64")

    with monkeypatch.context() as patched:  # of a network that is asked at a size it does not take
        patched.setattr("scns.admission.models.outputs", particular)
        assert least(tiny(student="resnet14")) == 0

    sizes: list[int] = []
    real = sweeping.fit_packed
    monkeypatch.setattr(sweeping, "fit_packed", lambda pairs, watch=None: (sizes.append(len(pairs)), real(pairs))[1])
    monkeypatch.setattr("scns.admission.choose_device", lambda recipe: torch.device("cuda"))
    free = iter([2 * each, 2 * each + 1, 1])  # room for two, for two, and by the estimate for none
    monkeypatch.setattr("scns.admission.room.free", lambda device: next(free))
    said: list[str] = []
    assert all(outcome.result for outcome in sweep(jobs(tmp_path, 5), pack=8, say=said.append))
    assert sizes == [2, 2, 1] and said == ["5 runs at once do not fit the device's memory; trying 2."]


def test_a_run_that_failed_and_then_went_well_has_no_error_left(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, 1)
    job.out.mkdir()
    (job.out / "recipe.json").write_text(json.dumps(job.recipe.as_dict()))
    (job.out / "error.txt").write_text("boom")
    assert sweep([job], say=lambda line: None)[0].result and not (job.out / "error.txt").exists()


# --- several GPUs


def test_several_devices_share_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two processes train; this one only reads what they left, and believes them what has failed."""
    trained, codes = [], []
    wait = workers._wait
    monkeypatch.setattr(
        workers, "_wait", lambda all, stopping: (wait(all, stopping), codes.extend(w.poll() for w in all))[0]
    )
    monkeypatch.setattr(sweeping, "fit_packed", lambda pairs, watch=None: trained.append(pairs))
    bad = Job(tiny(batch=500), tmp_path / "bad")
    outcomes = run_everywhere([*jobs(tmp_path, 2), bad], pack=2, folder=tmp_path, say=lambda line: None, devices=2)
    assert [bool(outcome.result) for outcome in outcomes] == [True, True, False] and not trained
    assert "batch=500 is larger than the 120 training images" in outcomes[2].error
    assert codes == [0, 0] and "Fatal" not in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-0", "run-1"]
    if find_spec("tensorboard"):
        assert list((tmp_path / "run-0" / "tensorboard").iterdir())


def test_what_a_killed_worker_left_is_done_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_START", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    outcomes = run_everywhere(jobs(tmp_path, 2), pack=2, folder=tmp_path, say=lambda line: None, devices=2)
    assert all(outcome.result for outcome in outcomes)


def test_students_of_a_teacher_that_failed_are_given_to_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_spread", lambda *given: pytest.fail("started workers"))
    bad = Job(tiny(batch=500), tmp_path / "bad")
    student = Job(tiny(method="kld", teacher=str(bad.out)), tmp_path / "student", after=(bad.out,))
    said: list[str] = []
    outcomes = run_everywhere([bad, student], pack=1, folder=tmp_path, say=said.append, devices=2)
    assert "batch=500" in outcomes[0].error and "waits for has failed" in outcomes[1].error
    assert len(said) == 1 and "batch=500" in said[0]


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (None, ["0", "1"]),
        ("", ["0", "1"]),
        ("2,3", ["2", "3"]),
        ("5, 4 ,1", ["5", "4"]),
        ("GPU-8a,MIG-3/1/0", ["GPU-8a", "MIG-3/1/0"]),
    ],
)
def test_workers_see_the_devices_that_a_person_lets_them(
    mask: str | None, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []

    class Ended:
        def __init__(self, words: list[str], env: dict[str, str], stdin: int) -> None:
            shown.append(env["CUDA_VISIBLE_DEVICES"])

        def poll(self) -> int:
            return 0

        kill = communicate = lambda self: None

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    monkeypatch.setattr(workers.subprocess, "Popen", Ended)
    assert workers._spread(jobs(tmp_path, 3), 2, 1, tmp_path) == {} and shown == names


EVERYWHERE = """
import sys
from pathlib import Path
from scns.sweep import read_jobs
from scns.train import Stopped
from scns.workers import run_everywhere
try:
    run_everywhere(read_jobs(Path(sys.argv[1])), pack=1, folder=Path(sys.argv[2]), devices=2)
except Stopped as stopped:
    print(stopped, file=sys.stderr)
    sys.exit(stopped.code)
"""


@pytest.mark.parametrize(("number", "group"), [(signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGKILL, False)])
def test_workers_write_checkpoints_and_end_with_the_process_that_started_them(
    number: int, group: bool, tmp_path: Path
) -> None:
    """A signal to the one process, or to all of them as Ctrl-C in a terminal sends it."""
    long = [replace(job, recipe=replace(job.recipe, epochs=5000)) for job in jobs(tmp_path, 2)]
    write_jobs(long, tmp_path / "jobs.json")
    mark = f"TEST_MARK={tmp_path}"
    words = [sys.executable, "-c", EVERYWHERE, str(tmp_path / "jobs.json"), str(tmp_path)]
    environment = {**ALONE, "TEST_MARK": str(tmp_path), "TMPDIR": str(tmp_path)}
    swept = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 100
    try:
        while len(list(tmp_path.glob("run-*/state.json"))) < 2:
            assert time.monotonic() < deadline and swept.poll() is None
            time.sleep(0.02)
        (os.killpg if group else os.kill)(swept.pid, number)
        _, said = swept.communicate(timeout=60)
    except BaseException:  # a test that fails leaves no process either
        os.killpg(swept.pid, signal.SIGKILL)
        raise
    killed = number == signal.SIGKILL
    assert swept.returncode == (-number if killed else 128 + number) and "Traceback" not in said, said
    assert killed or (said.count("Stopped") == 1 and "The same command goes on" in said)
    while left := [path for path in Path("/proc").glob("[0-9]*/environ") if mark.encode() in shown(path)]:
        assert killed and time.monotonic() < deadline, left  # workers find out a little later
        time.sleep(0.02)
    for job in long:
        assert json.loads((job.out / "state.json").read_text())["seconds"] > 0 and not list(job.out.glob(".*"))
    assert killed or sorted(path.name for path in tmp_path.iterdir()) == ["jobs.json", "run-0", "run-1"]


def shown(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""


def test_jobs_survive_a_file(tmp_path: Path) -> None:
    listed = [replace(job, after=(tmp_path / "x",)) for job in jobs(tmp_path)]
    write_jobs(listed, tmp_path / "jobs.json")
    assert read_jobs(tmp_path / "jobs.json") == listed


def test_command(scns: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("sweep", "mini-ce", "mini-uniform", "--epochs", 1, *small_words(), "--out", "runs")
    code, out, _ = scns(*words, "--dry-run")
    assert code == 0 and out.count("to do") == 2 and not Path("runs").exists()
    code, out, told = scns(*words)
    assert code == 0
    assert json.loads(Path("runs/mini-ce-0/result.json").read_text())["epochs"] == 1
    assert re.search(r"^mini-ce-0  epoch 1/1  ce ", told, re.MULTILINE)
    assert re.search(r"^mini-uniform-0  epoch 1/1  ce ", told, re.MULTILINE)
    if find_spec("tensorboard"):
        assert all(list(Path("runs", name, "tensorboard").iterdir()) for name in ("mini-ce-0", "mini-uniform-0"))
    code, _, err = scns(*words, "--pack", 0)
    assert code == 2 and "--pack 0" in err


def test_a_folder_that_cannot_be_is_said_once(scns: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    code, _, err = scns("sweep", "mini-ce", "mini-uniform", "--set", "device=cpu", "--out", tmp_path / "file")
    assert code == 2 and str(tmp_path / "file") in err.replace("\n", "") and "Traceback" not in err
    assert (tmp_path / "file").read_text() == "kept"
    (tmp_path / "locked").symlink_to("/proc")  # a folder that is there, in which not even root makes a file
    code, _, err = scns("sweep", "mini-ce", "mini-uniform", "--set", "device=cpu", "--out", tmp_path / "locked")
    assert code == 2 and err.count("locked") == 1 and "trying once more" not in err


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


def test_a_folder_in_which_nothing_was_trained_is_taken(
    scns: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "mini-ce-0").mkdir()
    (tmp_path / "mini-ce-0" / "recipe.json").write_text(json.dumps(tiny(lr=0.7).as_dict()))
    code, _, err = scns("sweep", "mini-ce", "--epochs", 1, *small_words(), "--out", tmp_path)
    assert code == 0 and (tmp_path / "mini-ce-0" / "result.json").exists(), err
    code, _, err = scns("sweep", "mini-ce", "--epochs", 1, *small_words(), "--set", "lr=0.6", "--out", tmp_path)
    assert code == 2 and "another recipe: lr" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for what this machine lacks")
@pytest.mark.parametrize(
    ("setting", "sentence"), [("device=cuda", "torch sees no CUDA device"), ("precision=bf16", "is for CUDA devices")]
)
def test_a_device_that_is_not_there_is_said_once(
    scns: Callable[..., tuple[int, str, str]], tmp_path: Path, setting: str, sentence: str
) -> None:
    code, _, err = scns("sweep", "mini-ce", "--seeds", 2, "--set", setting, "--out", tmp_path / "runs")
    assert code == 2 and err.count(sentence) == 1 and not (tmp_path / "runs").exists()


def test_a_sweep_in_folders_of_another_is_refused_at_once(
    scns: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "mini-ce-1").mkdir()
    with held(tmp_path / "mini-ce-1"):
        code, _, err = scns("sweep", "mini-ce", "--seeds", 2, *small_words(), "--out", tmp_path)
    assert code == 2 and str(tmp_path / "mini-ce-1") in err.replace("\n", "") and not (tmp_path / "mini-ce-0").exists()


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


def test_a_damaged_result_is_told_and_costs_no_other(tmp_path: Path) -> None:
    wanted = recipe("ce", epochs=1)
    jobs = [Job(replace(wanted, seed=seed), tmp_path / str(seed)) for seed in (0, 1)]
    sweep(jobs[:1], say=lambda _: None)
    (jobs[0].out / "result.json").write_text('{"test": 5}')
    told, whole = sweep(jobs, pack=2, say=lambda _: None)
    assert told.result is None and "result.json' lacks seconds" in told.error and whole.result is not None

"""`fit`: runs that survive what happens to them, end where an undisturbed run ends, and say what is wrong."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ALONE
from engine_runs import EPOCHS, STEPS, equal, one_thread, place, recipe, single, small_words, teacher, weights
from scns import datasets
from scns.checkpoint import Folder
from scns.errors import InputError
from scns.models import fused
from scns.models._fuse import Fused
from scns.recipe import Recipe
from scns.run import Run
from scns.train import Pack, Stopped, Watch, fit, fit_packed, polite_stop, prepare

INFONCE = {"sampler": "uniform", "negatives": 16, "lm_weight": 0.1}
# A bank, a queue, stages with modules of their own, a constant of the first batch, companions, and an own order.
METHODS: dict[str, dict[str, Any]] = {
    "ce": {},
    "infonce": {"arguments": INFONCE},
    "infonce, its defaults": {},
    "infonce, refreshed": {"arguments": {**INFONCE, "sampler": "instance", "refresh": 2}, "distils": True},
    "oim": {"arguments": {"queue": 64}},
    "ft": {"arguments": {"stage_epochs": 1}, "distils": True},
    "crd": {"arguments": {"negatives": 16}, "distils": True},
    "ce-lm": {},
    "cka": {"batch": 10, "distils": True},
}


def recipe_of(method: str) -> Recipe:
    """The method on two epochs; with a teacher where it distils."""
    chosen = dict(METHODS[method])
    taught = {"teacher": str(teacher())} if chosen.pop("distils", False) else {}
    return recipe(method.split(",")[0], epochs=2, **chosen, **taught)


@cache
def undisturbed(wanted: str) -> Path:
    """A run of the recipe (as JSON) that nothing happens to."""
    out = place() / f"undisturbed-{abs(hash(wanted))}"
    single(Recipe(**json.loads(wanted)), out)
    return out


def reference(wanted: Recipe) -> Path:
    return undisturbed(json.dumps(wanted.as_dict()))


# What happens to a run, and the exit code it leaves.
ENDS: dict[str, tuple[dict[str, Any], int]] = {
    "killed at its first step": ({"how": "kill", "steps": 1}, -9),
    "killed in an epoch": ({"how": "kill", "steps": 6}, -9),
    "killed right after a checkpoint": ({"how": "kill", "steps": STEPS + 1}, -9),
    "killed while a checkpoint is written": ({"how": "writing", "file": "last.safetensors", "count": 3}, -9),
    "killed between log and checkpoint": ({"how": "writing", "file": "last.safetensors", "count": 2}, -9),
    "killed between checkpoint and state": ({"how": "writing", "file": "state.json", "count": 2}, -9),
    "killed before its result": ({"how": "writing", "file": "result.json", "count": 1}, -9),
    "interrupted in an epoch": ({"how": "int", "steps": 2}, 130),
    "interrupted at the last step of an epoch": ({"how": "int", "steps": STEPS}, 130),
    "terminated in an epoch": ({"how": "term", "steps": 7}, 143),
    "stopped by a full disk": ({"how": "full", "steps": STEPS + 1}, 2),
}


def ends_of(method: str) -> dict[str, tuple[dict[str, Any], int]]:
    """Every end for cross-entropy; for the others a kill, and an interruption that leaves half an epoch."""
    chosen = ENDS if method == "ce" else ["killed in an epoch", "interrupted in an epoch"]
    return {name: ENDS[name] for name in chosen}


CASES = [(method, end) for method in METHODS for end in ends_of(method)]


@pytest.fixture(scope="module")
def ended() -> dict[tuple[str, str], tuple[Path, int]]:
    """The folder and the exit code of every run that ended badly."""
    jobs, folders = [], []
    for number, (method, end) in enumerate(CASES):
        folders.append(place() / f"ended-{number}")
        jobs.append({"recipe": recipe_of(method).as_dict(), "out": str(folders[-1]), **ENDS[end][0]})
    told = place() / "jobs.json"
    told.write_text(json.dumps(jobs))
    helper = Path(__file__).with_name("kill_helper.py")
    ran = subprocess.run([sys.executable, helper, told], env=ALONE, capture_output=True, text=True, check=True)
    return {case: (folder, code) for case, folder, code in zip(CASES, folders, json.loads(ran.stdout), strict=True)}


@pytest.mark.parametrize(("method", "end"), CASES)
def test_the_same_command_goes_on_and_ends_with_the_same_bits(method: str, end: str, ended: dict) -> None:
    folder, code = ended[method, end]
    assert code == ENDS[end][1]
    assert not (folder / "result.json").exists()
    run = single(recipe_of(method), folder)
    whole = reference(recipe_of(method))
    assert equal(weights(folder), weights(whole))
    assert equal_logs(folder, whole)
    assert run.result["test"] == json.loads((whole / "result.json").read_text())["test"]
    assert not list(folder.glob(".*.part"))


def equal_logs(one: Path, other: Path) -> bool:
    """The same epochs with the same numbers; only times differ."""
    logs = [[json.loads(line) for line in (each / "log.jsonl").read_text().splitlines()] for each in (one, other)]
    for log in logs:
        for line in log:
            line.pop("seconds")
    return logs[0] == logs[1] and len(logs[0]) > 0


def test_the_log_can_be_watched_between_checkpoints(tmp_path: Path) -> None:
    seen = []

    class Reading(Watch):
        def epoch(self, run: Run, line: dict[str, Any]) -> None:
            seen.append(len((run.folder.path / "log.jsonl").read_text().splitlines()))

    out = tmp_path / "run"
    out.mkdir()
    (out / "recipe.json").write_text(json.dumps(recipe("ce", epochs=3, checkpoint_every=3).as_dict()))
    (out / "log.jsonl").write_text('{"epoch": 1}\n')  # of a run that was begun anew, its checkpoint removed
    fit(recipe("ce", epochs=3, checkpoint_every=3), out, watch=Reading())
    assert seen == [1, 2, 3]


def test_a_full_disk_is_told_and_leaves_the_last_checkpoint(ended: dict) -> None:
    folder, _ = ended["ce", "stopped by a full disk"]
    said = (folder / "said.txt").read_text()
    assert "A checkpoint cannot be written" in said and "the last checkpoint is intact" in said and str(folder) in said


def test_a_stopped_run_keeps_its_place_in_the_epoch(tmp_path: Path) -> None:
    out, before = tmp_path / "stopped", signal.getsignal(signal.SIGINT)

    class Interrupt(Watch):
        def step(self, run: Any, epoch: int, done: int, total: int) -> None:
            if done == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped, match=r"checkpoint is in .*stopped. The same command goes on") as stopped:
        single(recipe(), out, watch=Interrupt())
    assert stopped.value.code == 130
    state = json.loads((out / "state.json").read_text())
    assert (state["epoch"], state["place"], state["names"]) == (0, 64, ["ce"])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_is_not_kept_waiting_by_images_that_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs of a pack keep the place after the last step, so that they still share steps when they go on."""
    wanted = [(recipe(epochs=2, evaluate_every=1, seed=seed, data_seed=0), tmp_path / str(seed)) for seed in range(2)]
    monkeypatch.setattr("scns.run.chunk_of", lambda student, images: 25)
    seen: list[str] = []

    class Interrupt(Watch):
        def look(self, of: str, done: int, total: int, run: Any = None) -> None:
            seen.append(f"{run.folder.path.name}: {of} {done}/{total}")
            if len(seen) == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    with one_thread(), pytest.raises(Stopped, match=r"checkpoint is in .*0, .*1\. The same command goes on") as stopped:
        fit_packed(wanted, watch=Interrupt())
    places = [f"{seed}: test images {done}/60" for seed in range(2) for done in (25, 50, 60)]
    assert stopped.value.code == 143 and seen == places[:5]
    for _, out in wanted:
        state = json.loads((out / "state.json").read_text())
        assert (state["epoch"], state["place"], state["history"]) == (0, 120, [])
        assert (out / "log.jsonl").read_text() == ""
    made: list[int] = []
    build = Pack.build
    monkeypatch.setattr(Pack, "build", lambda pack: (made.append(len(pack.runs)), build(pack))[1])
    with one_thread():
        fit_packed(wanted)
    assert made == [2]
    for given, out in wanted:
        assert equal(weights(out), weights(reference(given))) and equal_logs(out, reference(given))


def test_a_real_process_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = ("evaluate_every=100", "checkpoint_every=1", "schedule=steps")
    options = [*small_words(), *(word for each in settings for word in ("--set", each)), "--no-tensorboard"]
    command = [sys.executable, "-m", "scns", "train", "mini-ce", "--epochs", "12", *options, "--out", str(out)]
    done = []
    chosen = random.SystemRandom().getrandbits(32)  # other moments every time; pytest shows it where the test fails
    print(f"killed at the moments of random.Random({chosen})")
    moments = random.Random(chosen)
    for _ in range(2):
        wait = moments.uniform(0, 0.12)  # seconds after the first sign of progress: about two epochs of twelve
        process = subprocess.Popen(command, env=ALONE, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        seen = stamp(out)
        while stamp(out) == seen and process.poll() is None:
            time.sleep(0.005)
        time.sleep(wait)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        done.append(json.loads((out / "state.json").read_text())["epoch"])
    assert done == sorted(done) and not (out / "result.json").exists()
    wanted = Folder(out).recipe()
    single(wanted, out)
    whole = reference(wanted)
    assert equal(weights(out), weights(whole)) and equal_logs(out, whole)


def stamp(folder: Path) -> int:
    """Changes with every checkpoint."""
    try:
        return (folder / "state.json").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def test_a_run_without_a_folder_gets_that_of_its_method_student_data_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(epochs=1, seed=3)
    monkeypatch.chdir(tmp_path)
    run = fit(wanted)
    assert (tmp_path / "runs" / f"ce-{wanted.student}-folder-3" / "result.json").exists() and run.result["seed"] == 3


def test_a_finished_run_is_not_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in teacher().iterdir()}
    monkeypatch.setattr("scns.train._train_epoch", lambda *_: pytest.fail("trained again"))
    run = single(recipe(), teacher())
    assert run.result == json.loads((teacher() / "result.json").read_text())
    assert {path.name: path.stat().st_mtime_ns for path in teacher().iterdir()} == before
    assert len(run.history) == EPOCHS


def test_a_changed_recipe_is_refused_with_the_keys_that_differ() -> None:
    with pytest.raises(InputError, match=r"lr \(0.05 there, 0.1 asked\), seed \(0 there, 7 asked\); choose another"):
        single(recipe(lr=0.1, seed=7), teacher())
    single(recipe(evaluate_every=1, checkpoint_every=2), teacher())  # not what a run is: only what it writes


# --- the same draws


def test_the_same_seed_gives_the_same_curve_and_another_seed_another(tmp_path: Path) -> None:
    again = single(recipe(), tmp_path / "again")
    other = single(recipe(seed=1), tmp_path / "other")
    assert equal(weights(tmp_path / "again"), weights(teacher())) and equal_logs(tmp_path / "again", teacher())
    assert [line["ce"] for line in again.history] != [line["ce"] for line in other.history]


def test_methods_of_one_seed_start_alike_and_see_the_same_order_and_crops(tmp_path: Path) -> None:
    jobs = [(recipe_of(method), tmp_path / method) for method in ("ce", "infonce", "oim", "ft")]
    seen: dict[str, list[torch.Tensor]] = {}
    runs = prepare(jobs)  # type: ignore[arg-type]
    for run in runs:
        assert equal(dict(run.student.state_dict()), dict(runs[0].student.state_dict()))
        step = Pack([run]).step
        step.begin(1)
        seen[run.recipe.method] = [step.order, step.dy, step.dx, step.flip]
    for tables in seen.values():
        assert all(torch.equal(a, b) for a, b in zip(tables, seen["ce"], strict=True))


def test_order_and_weights_have_seeds_of_their_own(tmp_path: Path) -> None:
    base = recipe("infonce", arguments=INFONCE, data_seed=5)
    one, other = prepare([(replace(base, seed=seed), tmp_path / str(seed)) for seed in (0, 1)])
    negatives = [run.method.sampler.sample(torch.arange(8), 4, epoch=1) for run in (one, other)]  # type: ignore[union-attr]
    assert torch.equal(*negatives)
    assert not torch.equal(next(one.student.parameters()), next(other.student.parameters()))
    assert one.data is other.data and one.recipe.order_seed == other.recipe.order_seed == 5


# --- packed


def test_packed_runs_end_as_they_do_alone(tmp_path: Path) -> None:
    taught = {"teacher": str(teacher())}
    recipes = [
        recipe("kld", epochs=2, **taught),
        recipe("infonce", epochs=2, arguments=INFONCE, **taught),
        recipe("sp", epochs=2, student="resnet14", seed=3, data_seed=0, lr=0.02, **taught),
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    runs = fit_packed([(each, tmp_path / f"packed-{number}") for number, each in enumerate(recipes)])
    torch.set_num_threads(before)
    assert runs[0].teacher is runs[1].teacher is runs[2].teacher
    for number, each in enumerate(recipes):
        alone = tmp_path / f"alone-{number}"
        single(each, alone)
        assert equal(weights(tmp_path / f"packed-{number}"), weights(alone))
        assert equal_logs(tmp_path / f"packed-{number}", alone)


def test_packed_runs_of_different_length_each_train_their_epochs(tmp_path: Path) -> None:
    runs = fit_packed([(recipe(epochs=epochs), tmp_path / str(epochs)) for epochs in (1, 2)])
    assert [run.result["epochs"] for run in runs] == [1, 2] and [len(run.history) for run in runs] == [1, 2]


# --- what goes wrong


@pytest.mark.parametrize(("together", "written"), [(1, [0, 1, 2, 3]), (2, [0, 2, 3]), (3, [0, 3])])
def test_checkpoints_take_their_share_of_the_time_however_many_train(
    together: int, written: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of 1 s and checkpoints of 15 ms: two of those are more than 2 % of an epoch."""
    end_epoch, save, saved = Run.end_epoch, Run.save, []

    def slow(run: Run) -> None:
        save(run)
        run.save_took = 0.015
        saved.append((run.folder.path.name, run.epoch))

    monkeypatch.setattr(Run, "end_epoch", lambda run, line, seconds: end_epoch(run, line, 1.0))
    monkeypatch.setattr(Run, "save", slow)
    wanted = [recipe(epochs=3, seed=seed, checkpoint_every=0) for seed in range(together)]
    fit_packed([(each, tmp_path / str(each.seed)) for each in wanted])
    assert sorted(saved) == [(str(seed), epoch) for seed in range(together) for epoch in written]


def test_runs_of_a_pack_are_written_at_the_same_epochs_so_that_they_share_steps_when_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_epoch, save, saved = Run.end_epoch, Run.save, []

    def slow(run: Run) -> None:
        save(run)
        run.save_took = 0.001 if run.recipe.seed else 0.039  # a method without a table, and one with; 2 % are 0.02 s
        saved.append((run.recipe.seed, run.epoch))

    monkeypatch.setattr(Run, "end_epoch", lambda run, line, seconds: end_epoch(run, line, 1.0))
    monkeypatch.setattr(Run, "save", slow)
    wanted = [recipe(epochs=5, seed=seed, data_seed=0, checkpoint_every=0) for seed in range(2)]
    fit_packed([(each, tmp_path / str(each.seed)) for each in wanted])
    assert sorted(saved) == [(seed, epoch) for seed in range(2) for epoch in (0, 2, 4, 5)]


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    told = r"The loss 'ce' became nan in epoch 1, after \d+ of 120 samples; lower lr .* in another --out\. .*in '.*nan'"
    with pytest.raises(InputError, match=told):
        single(recipe(lr=1e30), tmp_path / "nan")
    kept = weights(tmp_path / "nan")
    assert kept and all(bool(torch.isfinite(value).all()) for value in kept.values())
    assert json.loads((tmp_path / "nan" / "state.json").read_text())["epoch"] == 0
    assert (tmp_path / "nan" / "log.jsonl").read_text() == ""


def test_the_first_bad_term_is_named_though_all_are_bad_in_the_end(tmp_path: Path) -> None:
    (run,) = prepare([(recipe(), tmp_path / "run")])
    run.member.names, run.place = ["ce", "infonce", "lm"], 120
    run.member.totals[:8] = torch.tensor([math.nan, math.nan, math.nan, 3, 120, 96, 64, 96])
    with pytest.raises(InputError, match="The loss 'infonce' became nan in epoch 1, after 64 of 120 samples"):
        run.line()


def test_lost_weights_never_replace_a_good_checkpoint(tmp_path: Path) -> None:
    (run,) = prepare([(recipe(), tmp_path / "run")])
    run.save()
    good = weights(tmp_path / "run")
    with torch.no_grad():
        next(run.student.parameters())[0, 0, 0, 0] = float("inf")
    run.place = 32
    with pytest.raises(
        InputError, match=r"The weights 'conv1.weight' became infinite or NaN in epoch 1; lower lr, in another --out"
    ):
        run.save()
    assert equal(weights(tmp_path / "run"), good)


def test_an_interruption_of_a_lost_run_does_not_keep_it(tmp_path: Path) -> None:
    class Interrupt(Watch):
        def step(self, run: Any, epoch: int, done: int, total: int) -> None:
            if done == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match=r"Stopped; The weights .* became infinite or NaN in epoch 1") as stopped:
        single(recipe(lr=1e30), tmp_path / "run", watch=Interrupt())
    assert stopped.value.code == 128 + signal.SIGTERM
    assert json.loads((tmp_path / "run" / "state.json").read_text())["place"] == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"device": "cuda"}, "device=cuda was asked for, but torch sees no CUDA device; use device=cpu"),
        ({"precision": "bf16"}, "precision=bf16 is for CUDA devices"),
        ({"subset": 121}, "subset=121 is more than the 120 training images; leave it out for all"),
        (
            {"subset": 91, "validation": 0.25},
            "subset=91 is more than the 90 training images that validation=0.25 leaves",
        ),
        ({"batch": 121}, "batch=121 is larger than the 120 training images"),
        ({"data": "cifar10", "root": "nowhere", "size": 0}, "There is no cifar10 in 'nowhere'.*scns data get cifar10"),
        ({"data": "folder", "root": "nowhere"}, "nowhere"),
        ({"student": "resnet9"}, "Unknown network 'resnet9'; did you mean resnet8"),
        ({"method": "infonse"}, "Unknown method 'infonse'; did you mean infonce"),
        ({"data": "cifar1000"}, "Unknown data set 'cifar1000'; did you mean cifar100"),
        ({"method": "kld"}, "The method 'kld' needs a teacher; train one first .scns train mini-ce --out runs/mini-ce"),
    ],
)
def test_what_cannot_be_trained_is_told_in_a_sentence(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(InputError, match=sentence):
        single(recipe(**changes), tmp_path / "run")
    single(recipe(epochs=1, subset=40), tmp_path / "run")  # a folder in which nothing was trained is free


@pytest.mark.parametrize(
    ("method", "arguments", "batch", "other"),
    [
        ("rkd", {}, 7, 6),
        ("cc", {}, 1, 2),
        ("crd-lm", {}, 17, 16),
        ("scns", {"distance": "cka"}, 59, 58),
    ],
)
def test_a_last_batch_too_small_for_the_method_is_told_before_an_epoch(
    method: str, arguments: dict[str, Any], batch: int, other: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(method, batch=batch, epochs=1, teacher=str(teacher()), arguments=arguments)
    rest = 120 % batch or 1
    sentence = rf"batch={batch} leaves {rest} of the 120 training images for the last step; use batch={other}\."
    with monkeypatch.context() as patch, pytest.raises(InputError, match=sentence):
        patch.setattr("scns.train._train_epoch", lambda *_: pytest.fail("trained"))
        single(wanted, tmp_path / "run")
    single(replace(wanted, batch=other), tmp_path / "run")


def test_names_are_checked_before_data_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load", lambda *_, **__: pytest.fail("data was loaded"))
    for changes in (
        {"arguments": {"kk": 3}},
        {"preset": "none"},
        {"student": "x"},
        {"teacher_network": "y", "teacher": "z"},
    ):
        with pytest.raises(InputError, match="Unknown"):
            single(recipe("infonce", **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_validation_split_is_held_out_and_judged(tmp_path: Path) -> None:
    run = single(recipe(validation=0.25, evaluate_every=1, epochs=2), tmp_path / "run")
    assert len(run.data.train) == 90 and run.data.validation is not None and len(run.data.validation) == 30
    best = max(run.history, key=lambda line: line["validation"])
    assert run.result["best_validation"] == best["validation"] and run.result["best_test"] == best["test"]
    assert run.result["test"] == run.history[-1]["test"]


@pytest.mark.parametrize("arguments", [INFONCE, {}], ids=["uniform", "its defaults"])
def test_unlabelled_images_count_for_nothing_but_the_features(arguments: dict[str, Any], tmp_path: Path) -> None:
    run = single(recipe("infonce", labelled=3, epochs=1, arguments=arguments), tmp_path / "run")
    assert int((run.data.train.labels >= 0).sum()) == 30
    assert int(run.member.totals[len(run.member.names) + 1]) == 30  # answers that could be right


def test_a_fused_student_has_the_run_s_weights_stages_and_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the stages, after a stop within an epoch, and where it is judged, which is not by the fused network."""
    wanted = replace(recipe_of("ft"), lr=1e-5)  # so that what another machine rounds in another way stays small
    whole = single(wanted, tmp_path / "plain")
    monkeypatch.setattr(Run, "_trained", lambda run: fused(run.student, torch.zeros(1, 3, 16, 16), torch.float32))
    ours = single(wanted, tmp_path / "ours")
    steps = []

    class Interrupt(Watch):
        def step(self, run: Any, epoch: int, done: int, total: int) -> None:
            steps.append(done)
            if len(steps) == STEPS + 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        single(wanted, tmp_path / "stopped", watch=Interrupt())
    single(wanted, tmp_path / "stopped")
    assert isinstance(ours.member.student, Fused)
    assert equal(weights(tmp_path / "ours"), weights(tmp_path / "stopped"))
    plain, found = weights(tmp_path / "plain"), weights(tmp_path / "ours")
    assert plain.keys() == found.keys() and abs(whole.result["test"] - ours.result["test"]) < 4
    for name in plain:
        if "running" in name:
            torch.testing.assert_close(found[name], plain[name], rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("method", ["ce", "infonce", "crd"])
def test_a_compiled_step_is_whole_graphs_and_the_same_step(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in network, views, losses and tables makes the compiler give up; the tail batch is not compiled for."""
    made = []

    def whole(part: Any, compiled: bool) -> Any:
        if not compiled:
            return part
        made.append(part)
        return torch.compile(part, fullgraph=True, backend="eager", dynamic=False)

    torch.compiler.reset()
    wanted = replace(recipe_of(method), teacher_mode="cached" if method == "crd" else "live", epochs=1)
    plain = single(wanted, tmp_path / "plain")
    monkeypatch.setattr("scns.step.quicker", whole)
    compiled = single(replace(wanted, compile="all"), tmp_path / "compiled")
    assert len(made) == 5  # network, losses, tables, sums, views
    assert equal(weights(tmp_path / "plain"), weights(tmp_path / "compiled"))
    assert plain.history[0]["loss"] == compiled.history[0]["loss"]


def test_a_signal_that_comes_twice_is_one_wish_and_a_later_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """`timeout` sends its signal to a process and to its group; a person who presses again means it."""
    with polite_stop() as stopping:
        assert stopping() == 0
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert stopping() == signal.SIGTERM
        monkeypatch.setattr("scns.train._SAME_WISH", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stopping() == signal.SIGTERM


def test_the_name_of_a_recipe_is_told_how_to_become_one() -> None:
    with pytest.raises(InputError, match=r"not 'mini-ce'; make it by scns.load_recipe"):
        fit("mini-ce")  # type: ignore[arg-type]


@pytest.mark.parametrize("jobs", [[], [Recipe()]])
def test_a_pack_of_none_and_of_recipes_without_folders_is_told(jobs: Any) -> None:
    with pytest.raises(InputError, match=r"fit_packed takes a list of \(recipe, folder\)"):
        fit_packed(jobs)

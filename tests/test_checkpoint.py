"""Run folders: whole or not at all, and refused with a sentence when they are something else."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from conftest import disk_of
from engine_runs import SIZE, equal, recipe, root, single, small_words, teacher, weights
from scns import checkpoint, files
from scns.checkpoint import Folder
from scns.errors import InputError
from scns.lock import held, release
from scns.recipe import Recipe
from scns.recipes import load_recipe
from scns.run import Run
from scns.runs import load_student, summary
from scns.train import Watch, fit_packed, prepare

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="asks for what this machine lacks")


def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "run")
    assert made.open(Recipe()) is False
    return made


def test_a_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    made = folder(tmp_path)
    assert made.load() is None
    tensors = {"a": torch.randn(3, 4).t(), "b": torch.tensor([True, False]), "c": torch.tensor(7)}
    told = {"stage": 0, "epoch": 3, "place": 0, "seconds": 1.5, "names": ["ce"], "history": [{"ce": 0.1}]}
    made.save(tensors, told)
    found, progress = made.load()  # type: ignore[misc]
    assert all(torch.equal(found[name], value) for name, value in tensors.items()) and found.keys() == tensors.keys()
    assert progress == told == json.loads((made.path / "state.json").read_text())


def test_a_line_that_the_disk_has_no_room_for_is_told(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.note({"epoch": 1})
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((made.path / "log.jsonl").stat().st_size + 5, most))  # 5 more bytes
        with pytest.raises(InputError, match=r"The log cannot be written to '.*run' .*No space left"):
            made.note({"epoch": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
        signal.signal(signal.SIGXFSZ, ignored)
    made.log([{"epoch": 1}])  # what going on from the checkpoint does
    made.note({"epoch": 2})
    assert (made.path / "log.jsonl").read_text() == '{"epoch": 1}\n{"epoch": 2}\n'


def test_the_folder_has_the_files_that_are_promised() -> None:
    names = {"recipe.json", "log.jsonl", "last.safetensors", "state.json", "model.safetensors", "result.json"}
    assert {path.name for path in teacher().iterdir()} == names
    assert Folder(teacher()).recipe() == recipe()
    result = json.loads((teacher() / "result.json").read_text())
    assert {"test", "seconds", "epochs", "seed", "scns", "torch", "python", "hardware"} <= result.keys()
    with safe_open(teacher() / "model.safetensors", framework="pt") as file:
        about = file.metadata()
    assert (
        about["student"] == "resnet8" and json.loads(about["size"]) == SIZE and len(json.loads(about["classes"])) == 10
    )


@pytest.mark.parametrize("size", [0, 4, 100, 5000])
def test_a_checkpoint_cut_short_is_told(size: int, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(teacher(), cut)
    (cut / "result.json").unlink()
    (cut / "last.safetensors").write_bytes((teacher() / "last.safetensors").read_bytes()[:size])
    with pytest.raises(
        InputError, match=r"last.safetensors' is cut short or of another kind .*; remove it to start over"
    ):
        single(recipe(), cut)
    (cut / "model.safetensors").write_bytes((teacher() / "model.safetensors").read_bytes()[:size])
    with pytest.raises(InputError, match=r"model.safetensors' is cut short or of another kind"):
        load_student(cut)


PLACE = {"stage": 0, "epoch": 1, "place": 0, "seconds": 1.0, "names": ["ce"], "history": []}


@pytest.mark.parametrize(
    "progress",
    [
        '{"epoch": 3}',
        "[]",
        "3",
        *[json.dumps({**PLACE, key: None}) for key in PLACE],
        json.dumps({**PLACE, "names": 3}),
        json.dumps({**PLACE, "epoch": "2"}),
    ],
)
def test_a_checkpoint_that_does_not_say_how_far_it_is_is_told(progress: str, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(teacher(), odd)
    (odd / "result.json").unlink()
    save_file(load_file(odd / "last.safetensors"), odd / "last.safetensors", metadata={"progress": progress})
    for touch in (lambda: single(recipe(), odd), lambda: summary(odd)):
        with pytest.raises(InputError, match=r"of another kind \(it does not say how far it is\); remove it to start"):
            touch()


@pytest.mark.parametrize("missing", ["momentum.0", "totals", "stage"])
def test_a_checkpoint_that_lacks_something_is_told(missing: str, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(teacher(), odd)
    (odd / "result.json").unlink()
    tensors = load_file(odd / "last.safetensors")
    tensors.pop(missing, None)
    progress = {**PLACE, "stage": 9} if missing == "stage" else PLACE
    save_file(tensors, odd / "last.safetensors", metadata={"progress": json.dumps(progress)})
    with pytest.raises(InputError, match=r"odd' does not fit its recipe: .*; remove it to start over"):
        single(recipe(), odd)


@pytest.mark.parametrize("resolved", [None, "abc", 3, []])
def test_arguments_noted_in_a_recipe_that_somebody_changed_are_told(resolved: object, tmp_path: Path) -> None:
    made = folder(tmp_path)
    kept = made.path / "recipe.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "resolved": resolved}))
    for touch in (made.recipe, lambda: made.open(Recipe()), lambda: summary(made.path)):
        with pytest.raises(InputError, match=r"recipe.json' must hold keys and values in 'resolved', or leave it out"):
            touch()


@pytest.mark.parametrize("number", [2, "2.0"])
def test_a_run_of_a_newer_scns_is_told(number: object, tmp_path: Path) -> None:
    made = folder(tmp_path)
    kept = made.path / "recipe.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "version": "9.1", "format": number, "new": 1}))
    for touch in (made.recipe, lambda: made.open(Recipe()), lambda: single(Recipe(), made.path)):
        with pytest.raises(InputError, match=r"was made by scns 9.1, which is newer than this one .*; update scns"):
            touch()


def test_a_run_that_could_not_do_its_first_step_does_not_keep_its_folder_from_a_better_recipe(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(InputError, match="Nothing can be learned"):
        single(recipe(epochs=1, arguments={"ce": 0.0}), out)
    assert single(recipe(epochs=1), out).result
    whole = single(recipe(epochs=1), tmp_path / "whole")
    assert equal(weights(out), weights(whole.folder.path))


@pytest.mark.parametrize("change", [{"seed": 1}, {"student": "resnet14"}, {"subset": 60}, {"arguments": {"dim": 64}}])
def test_a_checkpoint_of_the_very_beginning_is_not_begun_from_by_another_recipe(
    change: dict[str, Any], tmp_path: Path
) -> None:
    """Killed before its first step; the corrected line would train on from the weights and tables of the first."""
    wanted = recipe("infonce", epochs=1, arguments={"negatives": 8})

    class Killed(Exception):
        pass

    class Early(Watch):
        def step(self, run: Any, epoch: int, done: int, total: int) -> None:
            raise Killed

    with pytest.raises(Killed):
        single(wanted, tmp_path / "run", watch=Early())
    assert (tmp_path / "run" / "last.safetensors").exists()
    other = replace(wanted, **change)
    single(other, tmp_path / "run")
    single(other, tmp_path / "fresh")
    assert equal(weights(tmp_path / "run"), weights(tmp_path / "fresh"))


def test_a_folder_that_another_process_took_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a look at the folder and its lock; the other's weights would go on under this one's recipe."""
    out, looks = tmp_path / "run", []
    single(recipe(epochs=2), out)
    (out / "result.json").unlink()
    check = Folder.check

    def late(folder: Folder, wanted: Recipe, *but: Any) -> None:
        looks.append(wanted)
        if len(looks) > 1:  # at the first look the other had not begun
            check(folder, wanted, *but)

    monkeypatch.setattr(Folder, "check", late)
    before = (out / "recipe.json").read_text()
    with pytest.raises(InputError, match=r"holds a run with another recipe: seed \(0 there, 1 asked\)"):
        Folder(out).open(recipe(epochs=2, seed=1))
    assert (out / "recipe.json").read_text() == before and (out / "last.safetensors").exists()


def test_another_recipe_is_refused_where_something_was_trained(tmp_path: Path) -> None:
    made = folder(tmp_path)
    assert made.open(Recipe(epochs=5)) is False and made.recipe().epochs == 5  # nothing is lost
    made.save({"a": torch.zeros(1)}, {})
    with pytest.raises(InputError, match=r"another recipe: epochs \(5 there, 6 asked\); choose another --out"):
        made.open(Recipe(epochs=6))
    assert made.open(Recipe(epochs=5, root="elsewhere")) is False and made.recipe().root == "elsewhere"


def test_a_finished_run_is_not_that_of_own_images_in_another_folder(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.finish({})
    assert made.open(Recipe(root="elsewhere")) is True  # of a published data set
    own = Folder(tmp_path / "own")
    own.open(Recipe(data="folder", root="cats"))
    own.save({"a": torch.zeros(1)}, {})
    assert own.open(Recipe(data="folder", root="moved")) is False and own.recipe().root == "moved"
    own.finish({})
    assert own.open(Recipe(data="folder", root="moved/")) is True
    with pytest.raises(InputError, match=r"another recipe: root \('moved' there, 'dogs' asked\); choose another --out"):
        own.open(Recipe(data="folder", root="dogs"))


def test_arguments_of_another_recipe_are_told_one_by_one(tmp_path: Path) -> None:
    made = Folder(tmp_path / "run")
    made.open(Recipe(method="infonce", arguments={"sampler": "class", "k": 2, "tau": 0.2}))
    made.save({"a": torch.zeros(1)}, {})
    told = r"recipe: lr \(0.05 there, 0.1 asked\), method.k \(2 there, 5 asked\), method.tau \(0.2 there, 0.1 asked\);"
    with pytest.raises(InputError, match=told):
        made.open(Recipe(method="infonce", lr=0.1, arguments={"sampler": "class", "k": 5}))
    spelt = {"sampler": "class", "k": 2, "tau": 0.2, "scale": 5.0, "refresh": None}  # defaults, written out
    assert made.open(Recipe(method="infonce", arguments=spelt)) is False and made.recipe().arguments == spelt


def test_places_that_are_no_run_folder_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file' is a file, not a run folder; choose another --out"):
        Folder(tmp_path / "file").open(Recipe())
    with pytest.raises(InputError, match="is not empty and no run folder"):
        Folder(tmp_path).open(Recipe())
    with pytest.raises(NotADirectoryError):
        Folder(tmp_path / "file" / "run").open(Recipe())
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputError, match=r"is no run folder: it has no recipe.json"):
            Folder(path).recipe()
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(InputError, match=r"recipe.json' cannot be read"):
        Folder(tmp_path).recipe()


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in (".recipe.json.abc.part", ".tmpe544Oh", ".tmp"):  # ours, safetensors' own, a person's
        (tmp_path / "run" / name).write_text("half")
    folder(tmp_path)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"recipe.json", ".new", ".tmp"}


def test_what_a_killed_process_wrote_of_a_checkpoint_is_known(tmp_path: Path) -> None:
    """safetensors gives a file its name when it is whole: until then it has one that is cleared away."""
    kept, seen, whole = folder(tmp_path), set[str](), threading.Event()

    def look() -> None:
        while not whole.is_set():
            seen.update(path.name for path in kept.path.iterdir())

    looking = threading.Thread(target=look)
    looking.start()
    kept.save({"x": torch.zeros(10_000_000)}, {})
    whole.set()
    looking.join()
    parts = seen - {path.name for path in kept.path.iterdir()}
    assert parts and all(any(fnmatch(name, part) for part in checkpoint._PARTS) for name in parts)


def test_a_recipe_that_another_process_writes_while_the_folder_is_looked_at_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    look = Path.iterdir

    def slowly(path: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", look)
        folder(tmp_path)  # the other one, in the meantime
        return look(path)

    monkeypatch.setattr(Path, "iterdir", slowly)
    folder(tmp_path)


class Usage(NamedTuple):
    free: int


def test_too_little_space_is_told_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: Usage(1_000_000))
    monkeypatch.setattr("scns.train._train_epoch", lambda *_: pytest.fail("trained"))
    with pytest.raises(InputError, match=r"run' has 1 MB of free space, but the run needs 2; free some"):
        single(recipe(), tmp_path / "run")
    assert not (tmp_path / "run" / "last.safetensors").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error: no space")])
def test_a_failed_write_leaves_the_checkpoint_before(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folder(tmp_path)
    made.save({"a": torch.ones(2)}, {"epoch": 1})

    def fail(tensors: dict, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr("scns.files.save_file", fail)
    with pytest.raises(
        InputError, match=r"cannot be written to '.*run' \(.*[Nn]o space.*the last checkpoint is intact"
    ):
        made.save({"a": torch.zeros(2)}, {"epoch": 2})
    assert torch.equal(weights(made.path)["a"], torch.ones(2)) and not list(made.path.glob(".*.part"))


def test_a_student_that_the_disk_has_no_room_for_is_told(tmp_path: Path) -> None:
    (run,) = prepare([(recipe(), tmp_path / "run")])
    with disk_of(50_000), pytest.raises(InputError, match=r"The student cannot be written to '.*run' \(.*too large"):
        run.folder.save_model(run.student, run.data.train)
    assert not (tmp_path / "run" / "model.safetensors").exists() and not list((tmp_path / "run").glob(".*.part"))


def test_a_student_that_is_not_there_yet_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not finished, so it has no student yet; go on with scns train"):
        load_student(folder(tmp_path).path)


def test_files_are_complete_before_they_have_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder(tmp_path)
    sizes = []
    rename = files.os.replace
    monkeypatch.setattr(files.os, "replace", lambda a, b: (sizes.append(Path(a).stat().st_size), rename(a, b)))
    made.save({"a": torch.zeros(1000)}, {})
    assert sizes[0] == (made.path / "last.safetensors").stat().st_size > 4000


def test_recipes_in_a_folder_are_resolved(tmp_path: Path) -> None:
    made = Folder(tmp_path / "run")
    wanted = replace(Recipe(), arguments={"k": None, "tau": 0.1}, milestones=(3, 9))
    made.open(wanted)
    assert made.recipe() == wanted and set(json.loads((made.path / "recipe.json").read_text())) > set(wanted.as_dict())


def test_a_run_does_not_go_on_with_other_defaults(tmp_path: Path) -> None:
    """The arguments of the method stand in the folder as they were, so that a new default is seen."""
    wanted = Recipe(method="infonce", preset="t1-instance", teacher="t", arguments={"negatives": 8})
    made = Folder(tmp_path / "run")
    made.open(wanted)
    noted = made.resolved()
    assert (noted["negatives"], noted["k"], noted["tau"], noted["clusters"]) == (8, 0.01, 0.07, None)
    assert made.recipe() == wanted == load_recipe(str(made.path / "recipe.json"))
    made.save({"a": torch.zeros(1)}, {})
    assert made.open(wanted) is False
    kept = made.path / "recipe.json"
    kept.write_text(kept.read_text().replace('"tau": 0.07', '"tau": 0.2'))
    with pytest.raises(InputError, match=r"another recipe: method\.tau \(0\.2 there, 0\.07 asked\)"):
        made.open(wanted)
    with pytest.raises(InputError, match=r"method\.tau"):  # nor where its teacher has moved
        made.check(replace(wanted, teacher="elsewhere"), but=("teacher",))
    then = replace(wanted, arguments={"negatives": 8, "tau": 0.2})
    assert made.recipe() == then == load_recipe(str(kept))  # read back, it is what was trained
    assert load_recipe(str(kept), ["method.tau=0.3"]).arguments == {"negatives": 8, "tau": 0.3}
    assert load_recipe(str(kept), ["preset=t1-class"]).arguments == {"negatives": 8}  # of another preset: as given
    assert made.open(then) is False


def test_a_preset_is_what_it_means(tmp_path: Path) -> None:
    made = Folder(tmp_path / "run")
    spelt = {"sampler": "uniform", "weight": 1.0, "tau": 0.07, "positive": "class", "negatives": 64}
    made.open(Recipe(method="infonce", arguments=spelt))
    made.save({"a": torch.zeros(1)}, {})
    assert made.open(Recipe(method="infonce", preset="t1-infonce", arguments={"negatives": 64})) is False
    told = r"recipe: method\.sampler \('uniform' there, 'class' asked\), method\.k \(None there, 2 asked\); choose"
    with pytest.raises(InputError, match=told):
        made.open(Recipe(method="infonce", preset="t1-class", arguments={"negatives": 64}))


def test_what_a_default_means_may_not_change_with_where_tables_lie(tmp_path: Path) -> None:
    """Soft negatives go by the table itself, or by the teacher where no process holds it whole."""
    made, whole = Folder(tmp_path / "run"), Recipe(method="infonce", teacher="t")
    made.open(whole)
    made.save({"a": torch.zeros(1)}, {})
    with pytest.raises(InputError, match=r"another recipe: method\.refresh \(1 there, 0 asked\)"):
        made.open(replace(whole, tables="sharded"))
    assert made.open(replace(whole, tables="sharded", arguments={"refresh": 1})) is False


# --- one process a folder

HOLDING = """
import sys, time
from pathlib import Path
from scns.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen]:
    """One that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_a_folder_in_which_another_process_trains_is_refused(scns: Callable, tmp_path: Path) -> None:
    made = folder(tmp_path)
    writing = made.path / ".log.jsonl.abc.part"
    writing.touch()
    before = (made.path / "recipe.json").read_bytes()
    with another_process(made.path) as other:
        sentence = (
            rf"Another process \(process {other.pid} on .*\) trains in '.*run'; let it finish, stop it, or choose"
        )
        for act in (lambda: made.open(Recipe(epochs=7)), lambda: single(recipe(), made.path)):
            with pytest.raises(InputError, match=sentence):
                act()
        ran = scns("train", "mini-ce", *small_words(), "--out", made.path)
        assert ran.code == 2 and f"process {other.pid}" in ran.err and ran.out == "" and "Traceback" not in ran.err
        assert writing.exists() and (made.path / "recipe.json").read_bytes() == before, "nothing of the other's is lost"
        other.kill()
        other.wait()
        assert (made.path / ".lock").exists()
        single(recipe(epochs=1), made.path)  # what a killed one left is in nobody's way
    assert not list(made.path.glob(".*"))


def test_a_finished_run_is_read_whoever_has_its_folder(tmp_path: Path) -> None:
    shutil.copytree(teacher(), tmp_path / "run")
    with another_process(tmp_path / "run"):
        assert single(recipe(), tmp_path / "run").result


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12 warns of forks of threads
def test_folders_are_kept_while_runs_train_and_free_afterwards(tmp_path: Path) -> None:
    """Also from a fork, which shares the open file, and with several runs in one process."""

    class Look(Watch):
        refused = 0

        def epoch(self, run: Run, line: dict[str, Any]) -> None:
            with pytest.raises(InputError, match="is asked for twice at the same time"), held(run.folder.path):
                pass
            Look.refused += 1

    paths = [tmp_path / "a", tmp_path / "b"]
    fit_packed([(recipe(epochs=1, seed=seed), path) for seed, path in enumerate(paths)], watch=Look())
    assert Look.refused == 2 and not [each for path in paths for each in path.glob(".*")]
    with held(paths[0]):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(InputError, match="twice"), held(paths[0]):
            pass
        reading, writing = os.pipe()
        late = os.fork()  # goes on after this process has let go
        if late == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        os.close(reading)
    with held(paths[0]):
        os.close(writing)
        os.waitpid(late, 0)


def test_a_lock_that_was_removed_meanwhile_counts_for_nobody(tmp_path: Path) -> None:
    """A folder taken from a process that was cut off: that one does not let go of the other's lock."""
    with held(tmp_path):
        release(tmp_path)
        with held(tmp_path):
            pass
        assert not (tmp_path / ".lock").exists()
        later = held(tmp_path)
        later.__enter__()
    assert (tmp_path / ".lock").exists()
    later.__exit__(None, None, None)
    assert not (tmp_path / ".lock").exists()


def test_a_file_system_without_locks_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("scns.lock.fcntl.flock", unknown)
    assert single(recipe(epochs=1), tmp_path / "run").result and not list((tmp_path / "run").glob(".*"))


# --- folders of runs that never began


@pytest.mark.parametrize(
    "changes",
    [
        {"root": "nowhere"},
        {"batch": 500},
        {"method": "kld", "teacher": "nowhere"},
        pytest.param({"precision": "bf16"}, marks=NO_CUDA),
        pytest.param({"device": "cuda"}, marks=NO_CUDA),
    ],
)
def test_bad_input_leaves_no_folder(changes: dict[str, Any], scns: Callable, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        single(recipe(**changes), tmp_path / "fitted")
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    assert scns("train", "mini-ce", *small_words(), *settings, "--out", tmp_path / "trained").code == 2
    assert not list(tmp_path.iterdir())


def test_bad_input_leaves_what_was_trained_or_is_a_persons_own(tmp_path: Path) -> None:
    shutil.copytree(teacher(), tmp_path / "trained")
    (tmp_path / "trained" / "result.json").unlink()
    (tmp_path / "noted").mkdir()
    (tmp_path / "noted" / "recipe.json").write_text(json.dumps(recipe().as_dict()))
    (tmp_path / "noted" / "notes.txt").write_text("mine")
    for name in ("described", "empty"):
        (tmp_path / name).mkdir()
    shutil.copy(tmp_path / "noted" / "recipe.json", tmp_path / "described")
    before = {path: path.read_bytes() for path in (tmp_path / "trained").iterdir() if path.name != "recipe.json"}
    for name in ("trained", "noted", "described", "empty"):
        with pytest.raises(InputError, match="nowhere"):
            single(recipe(root="nowhere"), tmp_path / name)
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(path.name for path in (tmp_path / "noted").iterdir()) == ["notes.txt", "recipe.json"]
    assert [path.name for path in (tmp_path / "described").iterdir()] == ["recipe.json"]
    assert not list((tmp_path / "empty").iterdir())


def test_a_recipe_that_another_process_wrote_meanwhile_does_not_stay(tmp_path: Path) -> None:
    made = folder(tmp_path)
    assert Folder(made.path).open(Recipe(epochs=7)) is False  # nothing is trained yet
    with made.kept(Recipe()):
        assert made.recipe() == Recipe()
        made.log([])
    assert {path.name for path in made.path.iterdir()} == {"recipe.json", "log.jsonl"}


def test_a_folder_that_vanishes_leaves_the_first_error(tmp_path: Path) -> None:
    made = folder(tmp_path)
    with pytest.raises(InputError, match="the first"), made.kept(Recipe()):
        shutil.rmtree(made.path)
        raise InputError("the first")


def test_other_data_than_the_checkpoint_s_are_told(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    class Late(Watch):
        def epoch(self, run: Run, line: dict[str, Any]) -> None:
            if line["epoch"] == 2:
                raise Killed

    data, out = tmp_path / "data", tmp_path / "run"
    shutil.copytree(root(), data)
    with pytest.raises(Killed):
        single(recipe(root=str(data)), out, watch=Late())
    first = sorted((data / "train").rglob("*.png"))[0]
    more = Path(shutil.copy(first, first.with_name("more.png")))
    with pytest.raises(InputError, match=r"run' is of 120 training images, but now there are 121; put the data back"):
        single(recipe(root=str(data)), out)
    other = next(path for path in sorted((data / "train").iterdir()) if path != first.parent)
    first.unlink()
    moved = more.rename(other / "moved.png")  # as many images, but another class
    with pytest.raises(InputError, match="with other labels, or in another order; put the data back"):
        single(recipe(root=str(data)), out)
    moved.rename(first)
    assert single(recipe(root=str(data)), out).result["epochs"] == 3


def test_a_checkpoint_of_other_shapes_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not fit its recipe: weight; remove it"):
        checkpoint.put(
            torch.nn.Linear(2, 3).state_dict(), {"weight": torch.ones(4, 2), "bias": torch.ones(3)}, tmp_path
        )


@pytest.mark.parametrize("size", [0, 1000, None])
def test_a_finished_run_whose_student_is_lost_tells_the_way_to_have_it_again(size: int | None, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(teacher(), out)
    student = out / "model.safetensors"
    whole = student.read_bytes()
    student.unlink()
    if size is not None:
        student.write_bytes(whole[:size])
    with pytest.raises(InputError, match=r"remove its result.json and give the run's command again"):
        load_student(out)
    (out / "result.json").unlink()
    single(recipe(), out)
    assert student.read_bytes() == whole

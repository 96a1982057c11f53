"""Run folders: whole or not at all, and refused with a sentence when they are something else."""

import json
import resource
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import SafetensorError, safe_open

from conftest import disk_of
from engine_runs import SIZE, recipe, single, teacher, weights
from scns import checkpoint, files
from scns.checkpoint import Folder
from scns.errors import InputError
from scns.recipe import Recipe
from scns.recipes import load_recipe
from scns.runs import load_student
from scns.train import prepare


def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "run")
    assert made.open(Recipe()) is False
    return made


def test_a_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    made = folder(tmp_path)
    assert made.load() is None
    tensors = {"a": torch.randn(3, 4).t(), "b": torch.tensor([True, False]), "c": torch.tensor(7)}
    made.save(tensors, {"epoch": 3, "history": [{"ce": 0.1}]})
    found, progress = made.load()  # type: ignore[misc]
    assert all(torch.equal(found[name], value) for name, value in tensors.items()) and found.keys() == tensors.keys()
    assert progress == {"epoch": 3, "history": [{"ce": 0.1}]} == json.loads((made.path / "state.json").read_text())


def test_a_line_that_the_disk_has_no_room_for_is_told(tmp_path: Path) -> None:
    made = folder(tmp_path)
    made.note({"epoch": 1})
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((made.path / "log.jsonl").stat().st_size + 5, most))  # 5 more bytes
        with pytest.raises(InputError, match=r"The log in '.*run' cannot be written .*No space left"):
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


def test_a_run_of_a_newer_scns_is_told(tmp_path: Path) -> None:
    made = folder(tmp_path)
    kept = made.path / "recipe.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "version": "9.1", "format": 2, "new": 1}))
    for touch in (made.recipe, lambda: made.open(Recipe()), lambda: single(Recipe(), made.path)):
        with pytest.raises(InputError, match=r"was made by scns 9.1, which is newer than this one .*; update scns"):
            touch()


def test_another_recipe_is_refused_where_something_was_trained(tmp_path: Path) -> None:
    made = folder(tmp_path)
    assert made.open(Recipe(epochs=5)) is False and made.recipe().epochs == 5  # nothing is lost
    made.save({"a": torch.zeros(1)}, {})
    with pytest.raises(InputError, match=r"another recipe: epochs \(5 there, 6 asked\); choose another --out"):
        made.open(Recipe(epochs=6))
    assert made.open(Recipe(epochs=5, root="elsewhere")) is False and made.recipe().root == "elsewhere"


def test_arguments_of_another_recipe_are_told_one_by_one(tmp_path: Path) -> None:
    made = Folder(tmp_path / "run")
    made.open(Recipe(method="infonce", arguments={"sampler": "class", "k": 2, "tau": 0.1}))
    made.save({"a": torch.zeros(1)}, {})
    told = r"recipe: lr \(0.05 there, 0.1 asked\), method.k \(2 there, 5 asked\), method.tau \(0.1 there, 0.07 asked\);"
    with pytest.raises(InputError, match=told):
        made.open(Recipe(method="infonce", lr=0.1, arguments={"sampler": "class", "k": 5}))
    spelt = {"sampler": "class", "k": 2, "tau": 0.1, "scale": 5.0}  # a default, written out
    assert made.open(Recipe(method="infonce", arguments=spelt)) is False and made.recipe().arguments == spelt


def test_places_that_are_no_run_folder_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file' is a file, not a run folder; choose another --out"):
        Folder(tmp_path / "file").open(Recipe())
    with pytest.raises(InputError, match="is not empty and no run folder"):
        Folder(tmp_path).open(Recipe())
    with pytest.raises(NotADirectoryError):
        Folder(tmp_path / "file" / "run").open(Recipe())
    with pytest.raises(InputError, match=r"is no run folder: it has no recipe.json"):
        Folder(tmp_path).recipe()
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(InputError, match=r"recipe.json' cannot be read"):
        Folder(tmp_path).recipe()


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".recipe.json.abc.part").write_text("half")
    folder(tmp_path)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["recipe.json"]


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

    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(InputError, match=r"cannot be written to '.*run' \(.*[Nn]o space.*the one before is intact"):
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

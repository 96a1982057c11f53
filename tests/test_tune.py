"""The grid search: chosen by validation, retrained on everything, resumable."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_runs import recipe, small_words
from scns import tune as tuning
from scns.errors import InputError
from scns.tune import points, tune

Run = Callable[..., tuple[int, str, str]]
GRID = ["lr=0.00001,0.03"]


def test_points_are_all_combinations() -> None:
    assert points(["lr=0.1,0.2", "method.k=3"]) == [("lr=0.1", "method.k=3"), ("lr=0.2", "method.k=3")]
    assert points(["lr=0.1, 0.2,0.1"]) == [("lr=0.1",), ("lr=0.2",)]
    with pytest.raises(InputError, match=r"lr twice; .* --grid lr=0\.1,0\.2$"):
        points(["lr=0.1", "lr=0.2"])
    for wrong in ([], ["lr"], ["lr="], ["=3"], ["validation=0,0.1"]):
        with pytest.raises(InputError, match="--grid"):
            points(wrong)


def test_the_best_on_validation_is_trained_on_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tune(recipe(epochs=1), GRID, tmp_path, say=lambda line: None)
    assert found.best.validation == max(trial.validation for trial in found.trials)  # type: ignore[type-var]
    for trial in found.trials:
        kept = json.loads((trial.outcome.job.out / "recipe.json").read_text())
        assert kept["validation"] == 0.05 and f"lr={kept['lr']:g}" in trial.settings[0].replace("0.00001", "1e-05")
    final = json.loads((tmp_path / "best" / "recipe.json").read_text())
    assert final["validation"] == 0 and f"lr={final['lr']}" == found.best.settings[0].replace("0.00001", "1e-05")
    monkeypatch.setattr("scns.sweep.fit_packed", None)  # nothing is trained a second time
    assert tune(recipe(epochs=1), GRID, tmp_path, say=lambda line: None).final.result == found.final.result


def test_runs_of_another_search_are_not_taken_for_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(recipe(epochs=1), ["lr=0.00001"], tmp_path, say=lambda line: None)
    for other in (recipe(epochs=2), recipe("infonce", epochs=1)):
        with pytest.raises(InputError, match=r"lr=0.00001' holds a run with another recipe: .*; choose another --out"):
            tune(other, ["lr=0.00001,0.03"], tmp_path, say=lambda line: None)
    monkeypatch.setattr(tuning, "_validation", lambda outcome: 90.0 if "0.03" in outcome.job.out.name else 10.0)
    again = (
        r"The winner is lr=0.03, but '.*best' holds a run with another recipe: lr \(1e-05 there, .*: the grid is kept"
    )
    with pytest.raises(InputError, match=again):
        tune(recipe(epochs=1), GRID, tmp_path, say=lambda line: None)
    (tmp_path / "best").rename(tmp_path / "before")
    assert tune(recipe(epochs=1), GRID, tmp_path, say=lambda line: None).final.job.recipe.lr == 0.03


def test_the_test_accuracy_plays_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial with the higher validation accuracy wins although the other is better on test."""
    validation = iter([30.0, 20.0])
    monkeypatch.setattr(tuning, "_validation", lambda outcome: next(validation))
    found = tune(recipe(epochs=1), GRID, tmp_path, say=lambda line: None)
    assert found.best is found.trials[0]


def test_command(scns: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("tune", "mini-uniform", "--epochs", 1, *small_words(), "--out", "t")
    code, out, _ = scns(*words, "--grid", "method.negatives=4,16")
    assert code == 0 and out.count("method.negatives=") == 3 and "best" in out and "on all images: " in out
    _, out, _ = scns(*words[:-1], "fewer", "--subset", 60, "--grid", "method.negatives=4")
    assert "method.negatives=4, on 60 images: " in out
    for grid, message in (("method.negativez=4", "did you mean negatives"), ("lr", "must be key=value")):
        code, _, err = scns(*words, "--grid", grid)
        assert code == 2 and re.search(message, err)
    code, _, err = scns(*words)
    assert code == 2 and "nothing to tune" in err
    (tmp_path / "file").write_text("")
    code, out, err = scns(*words[:-1], "file/t", "--grid", "method.negatives=4")
    assert code == 2 and err.startswith("scns: Not a directory 'file") and "failed" not in out  # once, not once a point
    code, out, err = scns(
        "tune", "mini-ce", "--set", "data=folder", "--set", "root=no", "--grid", "lr=1,2", "--out", "u"
    )
    assert code == 2 and err.count("'no") == 1 and "failed" not in out

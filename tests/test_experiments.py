"""The experiments' grids: what they would run, and what they make of finished runs."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "experiments" / "few_negatives.py"


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, words)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_the_grid_of_few_negatives_goes_seed_by_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--dry-run", "--out", "few", "--kinds", "uniform*,ce", "--numbers", "1,16", "--seeds", "0,3")
    kinds = ["uniform-1", "uniform-corrected-1", "uniform-16", "uniform-corrected-16", "ce"]
    assert capsys.readouterr().out.split() == [f"few/{kind}-{seed}" for seed in (0, 3) for kind in kinds]


def test_finished_points_are_told_with_their_interval_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, test in {"own-200-16-0": 67.0, "own-200-16-1": 69.0, "uniform-16-0": 66.0, "all-0": 68.0}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"test": test}))
    run(monkeypatch, "--out", tmp_path, "--draw", tmp_path / "few.png")
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["own-200", "16", "68.00", "+-", "12.71", "n=2"] in told  # t = 12.71 times 1.414 / sqrt(2)
    assert ["all", "68.00", "+-", "nan", "n=1"] in told and len(told) == 3
    assert (tmp_path / "few.png").stat().st_size > 5000


def test_every_kind_of_the_grid_is_a_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = runpy.run_path(str(SCRIPT))
    given = parts["argparse"].Namespace(
        teacher="t", data="cifar100", root="data", subset=0, device="cpu", epochs=45, precision="bf16",
        compile="network", evaluate_every=1, student="resnet20",
    )  # fmt: skip
    recipes = {kind: parts["recipe"](given, kind, 16, 0) for kind in (*parts["KINDS"], *parts["FIXED"])}
    assert len({json.dumps(recipe.as_dict()) for recipe in recipes.values()}) == len(recipes) == 12
    assert recipes["own"].arguments["refresh"] and recipes["ce"].teacher == ""

"""Cells of the paper's tables by name: `scns train`, `scns tune` and `scns recipes` as a person uses them."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Ran
from engine_runs import small_words
from scns.checkpoint import Folder
from scns.recipes import load_recipe
from scns.results import read

Scns = Callable[..., Ran]
CELL = "t1/instance-scns-k20/resnet20"


def small() -> list[str]:
    return [*small_words(), "--set", "student=resnet8", "--set", "evaluate_every=9"]


def test_a_cell_trains_with_the_teacher_that_was_left_for_it(
    scns: Scns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("train", CELL, *small(), "--set", "method.negatives=8", "--epochs", 1, "--no-tensorboard")
    refused = scns(*words)
    assert refused.code == 2 and not Path("runs").exists()
    line = re.search(r"train it with: scns (train .*) -- or give", refused.err.replace("\n", " "))
    assert line is not None and "negatives" not in line[1]
    assert scns(*shlex.split(line[1]), "--no-tensorboard").code == 0  # the very line that was printed
    done = scns(*words)
    assert done.code == 0 and "runs/t1/instance-scns-k20/resnet20-0" in done.out
    kept = Folder("runs/t1/instance-scns-k20/resnet20-0").recipe()
    assert kept.teacher == "runs/t1/ce/resnet20-0" and kept.milestones == (1,) and not kept.distil
    assert {line.name for line in read("runs").lines} == {CELL, "t1/ce/resnet20"}
    # A sweep finds both finished, and nothing else to do.
    swept = scns("sweep", CELL, *small(), "--set", "method.negatives=8", "--epochs", 1, "--dry-run")
    assert swept.code == 0 and swept.out.count("finished") == 2 and "to do" not in swept.out.replace("0 to do", "")
    assert "[1] neighbours by the same network after cross-entropy" in swept.out


def test_a_cell_is_tuned(scns: Scns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = scns("tune", "t1/class-scns-k2/resnet20", *small(), "--epochs", 1, "--grid", "method.k=1,2", "--out", "o")
    assert done.code == 0 and done.out.count("method.k=") == 3
    assert Folder("o/best").recipe().preset == "t1-class"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "t3"), "'t3' is a table: scns sweep t3"),
        (("train", "t3/kld/resnet110-resnet21"), "did you mean t3/kld/resnet110-resnet20"),
        (("train", "t4/kld/resnet110-resnet20"), "Unknown table 't4'"),
        (("train", "t3/kld/resnet110-resnet20", "--set", "teacher=nowhere"), "no cifar100"),
        (("train", "t3/kld/resnet110-resnet20", "--set", "epoch=3"), "recipe key 'epoch'"),
        (("train", "t3/ce/resnet20.toml"), "does not exist"),
        (("tune", "t3/kld/resnet110-resnet20", "--grid", "lr=0.1"), "scns train t3/teacher/resnet110"),
        (("recipes", "t3/kdl/resnet110-resnet20"), "did you mean t3/kld/resnet110-resnet20"),
        (("recipes", "t9"), "Unknown recipe or table 't9'"),
    ],
)
def test_bad_names(
    scns: Scns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = scns(*words)
    assert done.code == 2 and message in done.err and "Traceback" not in done.err


def test_recipes_lists_tables_and_cells(scns: Scns, tmp_path: Path) -> None:
    every = scns("recipes").out
    assert "mini-ce" in every and re.search(r"t3\s+CIFAR-100, distillation\s+138\s+t3/", every)
    listed = scns("recipes", "t3").out
    assert "instance-scns-k50" in listed and "wrn-16-2-resnet14" in listed and "39 rows" in listed
    assert re.search(
        r"resnet34-stem3-resnet14 +ResNet34 teaches resnet14 \(not in this table: 64 px\)", scns("recipes", "t2").out
    )
    printed = scns("recipes", "t3/kld/resnet110-resnet20").out
    assert "# Teacher: scns train t3/teacher/resnet110" in printed
    (tmp_path / "cell.toml").write_text(printed)
    assert load_recipe(str(tmp_path / "cell.toml")).teacher == "runs/t3/teacher/resnet110-0"
    assert "# Note: teacher: from scratch at 256 px" in scns("recipes", "t2/kld/resnet50-resnet8").out

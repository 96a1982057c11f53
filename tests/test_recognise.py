"""A run is a cell of the tables by its place or by its recipe; and what is said of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from report_runs import put, put_cell
from scns import recognise, results, tables
from scns.recipe import Recipe

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def names(path: Path, recipe: Recipe) -> list[str]:
    return [cell.name for cell in recognise.cells_of(path, recipe)]


def test_the_runs_in_the_documents_stand_beside_the_paper() -> None:
    found = [line for line in results.read(RESULTS).lines if line.name == "t3/ce/resnet110-resnet20"]
    assert [line.remark for line in found] == ["precision=tf32, compile=no", "precision=bf16, compile=network"]
    for line in found:  # by its recipe, and by its place
        assert (line.printed, line.changed) == (66.26, ())
        assert line.difference == pytest.approx(line.mean - 66.26)


def test_every_cell_is_known_by_its_recipe(tmp_path: Path) -> None:
    """Anywhere, with its teacher beside it: as the cells that share its run, and no others."""
    for cell in (tables.cell(name) for table in tables.TABLES for name in tables.names(table, everything=True)):
        recipe = replace(cell.recipe, seed=4, data_seed=0, precision="bf16")
        assert names(tmp_path / "anywhere", recipe) == [each.name for each in tables.of_run(cell.run)]


def test_words_for_the_same_arguments_are_the_same_recipe(tmp_path: Path) -> None:
    recipe = tables.cell("t3/class-scns-k20/resnet110-resnet20").recipe
    implied = replace(recipe, arguments={})  # k = 1/20 is the preset's
    written_out = recognise.effective(recipe)
    assert written_out.preset == "" and written_out.arguments["weight"] == 0.65
    for other in (implied, written_out):
        assert names(tmp_path, other) == ["t3/class-scns-k20/resnet110-resnet20"]
        assert recognise.changes(tmp_path, other, tables.cell("t3/class-scns-k20/resnet110-resnet20")) == ()


@pytest.mark.parametrize(
    "changes",
    [{"lr": 0.1}, {"weights": "w.pth"}, {"epochs": 240}, {"subset": 100}, {"data": "cifar10"}, {"labelled": 5}],
)
def test_a_changed_run_elsewhere_is_no_cell(tmp_path: Path, changes: dict) -> None:
    recipe = replace(tables.cell("t3/ce/resnet110-resnet20").recipe, **changes)
    assert names(tmp_path / "mine-0", recipe) == []
    placed = tables.folder("t3/ce/resnet20", 0, tmp_path)  # in a sweep's folder it is a cell that was changed
    assert "t3/ce/resnet110-resnet20" in names(placed, recipe)
    assert set(recognise.changes(placed, recipe, tables.cell("t3/ce/resnet110-resnet20"))) == set(changes)


def test_the_teacher_decides_the_column(tmp_path: Path) -> None:
    kld = replace(tables.cell("t3/kld/resnet110-resnet20").recipe, teacher="gone/wide")
    assert names(tmp_path / "student-0", kld) == []  # nobody knows who taught it
    put(tmp_path / "wide", tables.find("t3/teacher/wrn-40-1").recipe, 70)
    assert names(tmp_path / "student-0", kld) == ["t3/kld/wrn-40-1-resnet20"]
    by_file = replace(kld, teacher="w.pth", teacher_network="resnet110")
    assert names(tmp_path / "student-0", by_file) == ["t3/kld/resnet110-resnet20"]


def test_runs_without_weights_in_folders_of_any_name(tmp_path: Path) -> None:
    """As they are brought from another machine: recipe, log and result."""
    teacher = tables.find("t3/teacher/resnet110").recipe
    put(tmp_path / "cifar100-resnet110", teacher, 74)
    student = replace(tables.cell("t3/kld/resnet110-resnet20").recipe, teacher="/there/runs/cifar100-resnet110")
    put(tmp_path / "cifar100-kld", student, 70)
    put(tmp_path / "short", replace(student, epochs=20, seed=1), 60)
    lines = {line.name: line for line in results.read(tmp_path).lines}
    assert lines["t3/kld/resnet110-resnet20"].printed == 69.78 and "short" in lines


def test_a_method_of_another_version_is_read(tmp_path: Path) -> None:
    put(tmp_path / "odd-0", Recipe(method="nonesuch", preset="x"), 50)
    put(tmp_path / "older-0", Recipe(method="infonce", preset="gone"), 50)
    assert [line.name for line in results.read(tmp_path).lines] == ["odd", "older"]


def test_notes_say_how_the_teacher_began(tmp_path: Path) -> None:
    name = "t2/kld/resnet50-resnet8"
    put_cell(tmp_path / "a", name, [40.0], teacher=str(tmp_path / "a/t2/teacher/resnet50-imagenet-0"))
    (line,) = results.read(tmp_path / "a").lines
    assert line.notes.startswith("teacher: from scratch at 256 px") and line.printed == 42.05
    teacher = tables.find("t2/teacher/resnet50-imagenet").recipe
    place = tables.folder("t2/teacher/resnet50-imagenet", 0, tmp_path / "a")
    put(place, tables.started(teacher, "w/resnet50-0676ba61.pth"), 60)
    lines = {line.name: line for line in results.read(tmp_path / "a").lines}
    assert lines[name].notes == "teacher: started from resnet50-0676ba61.pth, at 256 px"
    assert lines[name].changed == () and lines[name].printed == 42.05
    own = lines["t2/teacher/resnet50-resnet8"]
    assert own.notes == lines[name].notes and own.changed == ()
    begun = tables.started(teacher, "elsewhere/w.pth")
    assert "t2/teacher/resnet50-resnet8" in names(tmp_path / "anywhere", begun)
    assert names(tmp_path / "anywhere", replace(begun, weights="")) == []  # from scratch, it has crops and flips
    kept = results.as_dict(results.read(tmp_path / "a"))["lines"]
    assert {each["notes"] for each in kept} == {lines[name].notes}


def test_a_column_beyond_the_printed_ones_is_not_compared_with_the_paper(tmp_path: Path) -> None:
    put_cell(tmp_path, "t2/kld/resnet34-stem3-resnet14", [50.0])
    (line,) = results.read(tmp_path).lines
    assert (line.name, line.printed, line.changed) == ("t2/kld/resnet34-stem3-resnet14", None, ())


def test_notes_stand_below_the_table(scns, tmp_path: Path) -> None:
    put_cell(tmp_path, "t2/kld/resnet50-resnet8", [40.0])
    put_cell(tmp_path, "t2/at/resnet50-resnet8", [41.0])
    put_cell(tmp_path, "t3/kld/wrn-16-2-resnet14", [66.0])
    out = scns("results", tmp_path).out
    assert out.count("[1]") == 3 and out.count("[2]") == 2
    assert "[1] teacher: from scratch at 256 px; the paper's started from ImageNet's weights" in out
    assert "[2] wrn-16-2 instead of wrn-16-1, as the paper probably had" in out


def test_the_teacher_beside_a_run_comes_before_one_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from a folder that has a sweep of its own, a run keeps the teacher it had."""
    name = "t3/kld/resnet110-resnet20"
    put_cell(tmp_path / "full" / "runs", name, [70.0])
    put_cell(tmp_path / "full" / "runs", "t3/teacher/resnet110-resnet20", [74.0])
    put_cell(tmp_path / "small" / "runs", "t3/teacher/resnet110-resnet20", [30.0], epochs=5)
    monkeypatch.chdir(tmp_path / "small")
    line = next(line for line in results.read(tmp_path / "full" / "runs").lines if line.name == name)
    assert line.changed == () and line.printed == 69.78


def test_a_run_is_known_by_what_its_arguments_were_when_it_began(tmp_path: Path) -> None:
    """Defaults and presets may change from one version to the next."""
    name = "t3/class-scns-k20/resnet110-resnet20"
    put_cell(tmp_path, name, [71.0])
    kept = tables.folder(name, 0, tmp_path) / "recipe.json"
    noted = json.loads(kept.read_text())
    assert noted["resolved"] == recognise.effective(tables.cell(name).recipe).arguments
    assert (noted["resolved"]["weight"], noted["resolved"]["tau"], noted["arguments"]) == (0.65, 0.07, {"k": 0.05})
    noted["resolved"]["tau"] = 0.2
    kept.write_text(json.dumps(noted))
    (line,) = results.read(tmp_path).lines
    assert line.changed == ("arguments",) and line.printed is None


def test_an_argument_that_a_run_is_older_than_has_its_default(tmp_path: Path) -> None:
    name = "t3/class-scns-k20/resnet110-resnet20"
    put_cell(tmp_path, name, [71.0, 72.0])
    kept = tables.folder(name, 0, tmp_path) / "recipe.json"
    noted = json.loads(kept.read_text())
    del noted["resolved"]["positives"]
    kept.write_text(json.dumps(noted))
    (line,) = results.read(tmp_path).lines
    assert (line.changed, line.n) == ((), 2) and line.printed is not None


@pytest.mark.parametrize("taught", [{}, {"epochs": 9}, None])
def test_a_teacher_of_the_students_own_name_is_not_taken_for_it(tmp_path: Path, taught: dict | None) -> None:
    """In t1 a network is taught by itself after cross-entropy: both runs end in resnet20-0."""
    name = "t1/instance-scns-k100/resnet20"
    put_cell(tmp_path, name, [92.0, 92.2])
    if taught is not None:
        put_cell(tmp_path, "t1/ce/resnet20", [91.0], **taught)
    line = next(line for line in results.read(tmp_path).lines if line.name == name)
    wanted = (("teacher.epochs",), None) if taught else ((), 92.42)
    assert (line.changed, line.printed, line.n) == (*wanted, 2)

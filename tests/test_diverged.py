"""Runs whose loss or weights are no numbers any more: told with the epoch, the value and the remedy, and counted."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runs import recipe, single, small_words
from report_runs import put, put_cell
from scns import results, runs, tables
from scns.checkpoint import Folder
from scns.errors import Diverged, InputError
from scns.recipe import Recipe
from scns.report.page import page
from scns.sweep import Job, sweep
from scns.train import prepare

TINY = Recipe(student="resnet8", epochs=3)
SAID = "The loss 'ce' became nan in epoch 2, after 64 of 120 samples; lower lr or the weight of 'ce', in another --out."


def lose(path: Path, lost: Recipe) -> Path:
    """A run that diverged and was never trained."""
    folder = Folder(path)
    folder.open(lost)
    folder.log([{"epoch": 1, "test": 10.0}])
    folder.diverge(1, 30.0, SAID)
    return path


def test_the_folder_keeps_that_a_run_diverged_until_it_is_tried_again(tmp_path: Path) -> None:
    out = tmp_path / "lost"
    with pytest.raises(Diverged, match="The loss 'ce' became nan in epoch 1"):
        single(recipe(lr=1e30), out)
    known = Folder(out).diverged()
    assert known is not None and known["done"] == 0 and known["reason"].endswith("in another --out.")
    assert "The loss 'ce' became nan in epoch 1, after" in known["reason"] and str(tmp_path) not in known["reason"]
    assert not list(out.glob(".*")) and not (out / "result.json").exists()  # no lock, nothing half-written
    with pytest.raises(InputError, match=r"lost' diverged, so it has no student\. The loss 'ce' became nan"):
        runs.load_student(out)
    (run,) = prepare([(recipe(lr=1e30), out)])
    run.folder.log(run.history)
    assert Folder(out).diverged() is None and runs.summary(out).state == "unfinished"


def test_lost_weights_are_told_like_a_lost_loss(tmp_path: Path) -> None:
    (run,) = prepare([(recipe(), tmp_path / "run")])
    run.save()
    with torch.no_grad():
        next(run.student.parameters())[0, 0, 0, 0] = float("inf")
    with pytest.raises(Diverged):
        run.save()
    assert "The weights 'conv1.weight' became infinite" in runs.summary(tmp_path / "run").why


def test_a_note_that_is_cut_short_or_cannot_be_written_changes_nothing_else(tmp_path: Path) -> None:
    path = lose(tmp_path / "lost", TINY)
    (path / "diverged.json").write_text('{"done": 1')
    assert Folder(path).diverged() is None and runs.summary(path).state == "empty"
    (path / "diverged.json").unlink()
    (path / "diverged.json").mkdir()
    Folder(path).diverge(1, 30.0, SAID)
    assert not list(path.glob(".*.part"))


def test_a_sweep_goes_on_and_says_which_runs_diverged(scns: Callable[..., Any], tmp_path: Path) -> None:
    words = ("--epochs", 1, *small_words())
    good, lost = tmp_path / "good.toml", tmp_path / "lost.toml"
    good.write_text('data = "cifar10-mini"\nstudent = "resnet8"\n')
    lost.write_text('data = "cifar10-mini"\nstudent = "resnet8"\nlr = 1e30\n')
    code, out, _ = scns("sweep", lost, good, *words, "--out", tmp_path / "runs")
    rows = [line.split() for line in out.splitlines()]
    assert code == 1 and f"{tmp_path}/runs/lost-0 diverged: The loss 'ce' became nan in epoch 1" in out
    assert (tmp_path / "runs" / "good-0" / "result.json").exists() and [f"{tmp_path}/runs/lost-0", "diverged"] in rows
    grid = ("--grid", "lr=0.01,1e30", "--set", "validation=0.25")
    _, out, _ = scns("tune", good, *grid, *words, "--out", tmp_path / "tune")
    assert [line.split()[:2] for line in out.splitlines()[1:3]][1] == ["lr=1e30", "diverged"]
    code, _, told = scns("train", lost, *words, "--out", tmp_path / "one")
    assert code == 2 and told.splitlines()[-1].startswith("scns: The loss 'ce' became nan in epoch 1")


def test_diverged_runs_of_a_pack_are_the_only_ones_marked(tmp_path: Path) -> None:
    jobs = [Job(recipe(seed=0), tmp_path / "good"), Job(recipe(lr=1e30, data_seed=0), tmp_path / "lost")]
    outcomes = sweep(jobs, pack=2, say=lambda line: None)
    assert outcomes[0].result is not None and outcomes[1].result is None
    assert [Folder(job.out).diverged() is None for job in jobs] == [True, False]


def test_runs_that_diverged_are_counted_beside_those_that_did_not(scns: Callable[..., Any], tmp_path: Path) -> None:
    for seed in range(2):
        put(tmp_path / f"some-{seed}", replace(TINY, seed=seed), 50.0 + seed)
        lose(tmp_path / f"none-{seed}", replace(TINY, seed=seed, lr=9.0))
    lose(tmp_path / "some-2", replace(TINY, seed=2))
    found = results.read(tmp_path)
    lines = {line.name: line for line in found.lines}
    assert (lines["some"].n, lines["some"].mean, lines["some"].diverged) == (2, 50.5, (2,))
    assert lines["some"].lost == "1 of 3 diverged"
    assert (lines["none"].n, lines["none"].mean, lines["none"].diverged) == (0, None, (0, 1))
    assert lines["none"].lost == "2 of 2 diverged" and not found.skipped
    assert [line.name for line, _ in found.groups] == ["some"]

    ran = scns("results", tmp_path, "--csv", tmp_path / "r.csv", "--json", tmp_path / "r.json")
    rows = [line for line in ran.out.splitlines() if "diverged" in line]
    assert ran.code == 0 and "2 of 2 diverged" in rows[0] and "1 of 3 diverged" in rows[1] and "nan" not in ran.out
    assert f"Diverged {tmp_path}/some-2: {SAID}" in ran.err and "not finished" not in ran.err
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["lines"][0]["mean"] is None and told["diverged"][str(tmp_path / "some-2")] == SAID
    with open(tmp_path / "r.csv", newline="") as file:
        assert [(row["n"], row["mean"], row["diverged"]) for row in csv.DictReader(file)] == [
            ("0", "", "0 1"),
            ("2", "50.5", "2"),
        ]


def test_the_page_says_which_runs_diverged(tmp_path: Path) -> None:
    put(tmp_path / "some-0", TINY, 50.0)
    lose(tmp_path / "some-1", replace(TINY, seed=1))
    lose(tmp_path / "none-0", replace(TINY, lr=9.0))
    lose(tmp_path / "other-0", replace(TINY, data="cifar10"))
    made = page(results.read(tmp_path), tmp_path, gallery=False)
    assert "<b>3 of 4 runs diverged</b>" in made and "<li><b>some-1</b>: The loss &#x27;ce&#x27; became nan" in made
    assert "50.00<small>1 of 2 diverged</small>" in made and "><small>1 of 1 diverged</small>" in made
    assert "Skipped" not in made
    assert (
        "Results on cifar10<" in made and made.count("<small>1 of 1 diverged</small>") == 2
    )  # of a set of lost runs too


def test_a_recipe_that_also_finished_is_not_counted_as_diverged(tmp_path: Path) -> None:
    lose(tmp_path / "first-0", TINY)
    put(tmp_path / "then-0", TINY, 50.0)
    found = results.read(tmp_path)
    assert [line.name for line in found.lines] == ["then"] and not found.diverged and not found.lines[0].diverged
    assert found.skipped == {
        tmp_path / "first-0": f"repeats '{tmp_path}/then-0': the same recipe and seed; this one diverged: {SAID}"
    }


def test_cells_of_the_tables_count_too(tmp_path: Path) -> None:
    name = "t1/ce/resnet20"
    put_cell(tmp_path, name, [90.0, 91.0])
    cell = tables.cell(name)
    lose(tables.folder(cell.run, 2, tmp_path), replace(cell.recipe, seed=2, data_seed=0))
    (line,) = results.read(tmp_path).lines
    assert (line.name, line.n, line.diverged) == (name, 2, (2,)) and line.lost == "1 of 3 diverged"


def test_where_all_diverged_the_sentence_says_so(scns: Callable[..., Any], tmp_path: Path) -> None:
    lose(tmp_path / "none-0", TINY)
    for command in ("results", "report"):
        ran = scns(command, tmp_path)
        assert ran.code == 2 and f"no finished run in '{tmp_path}' (none-0: The loss 'ce' became nan" in ran.err
    ran = scns("runs", tmp_path)
    assert ran.code == 0 and ran.out.splitlines()[1].split()[-3:] == ["1/3", "30", "diverged"]
    assert f"{tmp_path}/none-0: {SAID}" in ran.out and "goes on with" not in ran.out

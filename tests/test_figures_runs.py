"""The paper's figures out of run folders: the numbers they show, what is left out, and what to run instead."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Ran, colours
from engine_runs import place, recipe, single
from report_runs import put, put_cell
from scns import figure_data, plots, tables, views
from scns.data import Images
from scns.errors import InputError
from scns.recipe import Recipe
from scns.report import from_runs
from scns.results import read
from scns.views import View

PAIRS = ("resnet110-resnet20", "resnet110-resnet8", "wrn-16-1-resnet14")
INFONCE = Recipe(data="cifar10", student="resnet20", method="infonce", epochs=6)


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """Three methods on three pairs of t3, two seeds each; one cell is missing, a shrunken one is there."""
    for at, pair in enumerate(PAIRS):
        put_cell(tmp_path, f"t3/ce/{pair}", [60.0 + at, 61.0 + at])
        put_cell(tmp_path, f"t3/class-scns-k20/{pair}", [64.0 + at, 65.0 + at])
        if pair != "wrn-16-1-resnet14":
            put_cell(tmp_path, f"t3/kld/{pair}", [63.0 + at, 63.0 + at])
    put_cell(tmp_path, "t3/teacher/resnet110-resnet20", [74.0])
    put_cell(tmp_path / "small", "t3/kld/wrn-16-1-resnet14", [10.0], epochs=6, subset=100)
    return tmp_path


def test_the_grid_has_means_and_is_complete(cells: Path) -> None:
    found = figure_data.grid(read(cells), "t3")
    assert found.pairs == ["resnet110-resnet20", "resnet110-resnet8"]  # the third lacks kld
    assert found.methods == [
        "Student (Cross-Entropy)",
        "Student (Cross-Entropy + KLD)",
        "InfoNCE + Class-SCNS, k=1/20",
    ]
    assert found.values.tolist() == [[60.5, 63, 64.5], [61.5, 64, 65.5]]
    assert found.title == "t3 by runs on cifar100" and "wrn-16-1-resnet14" in found.left_out
    assert "1 run of another schedule or size is not" in found.left_out  # the shrunken one
    for draw in from_runs.drawn(read(cells), cells, ["cifar100"]).figures.values():
        assert draw().axes[0].get_title().startswith("Test accuracy (%), t3 by runs")
    assert list(found.groups.values()) == ["cross-entropy alone", "KLD", "Ours"]


def test_what_is_not_the_papers_own_is_not_called_so(tmp_path: Path) -> None:
    for row in ("ce", "ce-lm-b0.5", "infonce", "class-scns-k2", "own"):
        put_cell(tmp_path, f"t1/{row}/resnet20", [90.0])
    groups = figure_data.grid(read(tmp_path), "t1").groups
    assert list(groups.values()) == ["cross-entropy alone", "Ours", "SoTA Baselines", "Ours", "scns's defaults"]


def test_a_cell_of_the_grid_is_one_line_of_the_results(tmp_path: Path) -> None:
    """By one kind of teacher, and with the arguments as printed where some are."""
    pair = "resnet110-resnet20"
    put_cell(tmp_path, f"t3/ce/{pair}", [60.0, 61.0])
    shorter = {"epochs": 20, "milestones": ()}
    for out, epochs, kld, at in (("a", {}, 70.0, 69.0), ("b", shorter, 60.0, 65.0)):
        put_cell(tmp_path / out, f"t3/teacher/{pair}", [74.0], **epochs)
        put_cell(tmp_path / out, f"t3/kld/{pair}", [kld, kld + 0.5, kld + 0.2][: 3 if epochs else 2])
        put_cell(tmp_path / out, f"t3/at/{pair}", [at])
    fewer = {**tables.cell(f"t3/infonce+lm-b0.5/{pair}").recipe.arguments, "negatives": 64}
    put_cell(tmp_path / "a", f"t3/infonce+lm-b0.5/{pair}", [71.0])
    put_cell(tmp_path / "c", f"t3/infonce+lm-b0.5/{pair}", [41.0, 42.0, 43.0], arguments=fewer)
    found = figure_data.grid(read(tmp_path), "t3")
    assert dict(zip(found.methods, found.values[0].tolist(), strict=True)) == {
        "Student (Cross-Entropy)": 60.5, "Student (Cross-Entropy + KLD)": 70.25, "AT": 69.0, "InfoNCE + LM, β=0.5": 71.0
    }  # fmt: skip
    assert "7 runs of another teacher or other arguments are not in it." in found.left_out


def test_shrunken_runs_are_drawn_where_there_are_no_full_ones(tmp_path: Path) -> None:
    for row, test in (("kld", 20.0), ("infonce", 30.0)):
        put_cell(tmp_path, f"t3/{row}/resnet110-resnet20", [test], data="cifar10-mini", epochs=6)
    found = figure_data.grid(read(tmp_path), "t3")
    assert found.title == "t3 by runs on cifar10-mini (shrunken: data, epochs)"
    assert found.values.tolist() == [[20, 30]] and not found.left_out


def test_too_few_runs_say_what_to_train(cells: Path, tmp_path: Path) -> None:
    results = read(cells)
    with pytest.raises(InputError, match=r"No run is of table t2 .* scns sweep t2 --rows"):
        figure_data.grid(results, "t2")
    with pytest.raises(InputError, match=r"share 3 methods on 2 columns, but the figure needs 2 methods on 4"):
        figure_data.grid(results, "t3", pairs=4)
    with pytest.raises(InputError, match=r"two values of beta or of k; train some: scns tune"):
        figure_data.sweeps(results)


def infonce(folder: Path, seed: int = 0, student: str = "resnet20", **arguments: object) -> None:
    name = "_".join(f"{key}={value}" for key, value in arguments.items()) + f"-{student}-{seed}"
    put(folder / name, replace(INFONCE, arguments=arguments, student=student, seed=seed), 50.0 + len(name) + seed)


def test_beta_and_k_of_any_runs(tmp_path: Path) -> None:
    """Of a grid search as of a table: by what the method was given, not by the folder's name."""
    for k in (1, 2, 5):
        for seed in (0, 1):
            infonce(tmp_path, seed, sampler="class", k=k)
    for share in (0.01, 0.1):
        infonce(tmp_path, sampler="instance", k=share)
    infonce(tmp_path, sampler="uniform")
    infonce(tmp_path, sampler="uniform", lm_weight=0.1, beta=0.5)
    infonce(tmp_path, sampler="class", k=2, student="resnet8")  # one value: no line
    put(tmp_path / "other", replace(INFONCE, arguments={"sampler": "class", "k": 9}, epochs=7), 99)
    (found,) = figure_data.sweeps(read(tmp_path)).values()
    (by_class,), (by_instance,) = found.lines["InfoNCE + Class-SCNS"], found.lines["InfoNCE + Instance-SCNS"]
    base = 50.0 + len("sampler=class_k=1-resnet20-0")
    assert by_class.label == "resnet20" and list(by_class.points) == [1, 2, 5]
    assert by_class.points[1] == (base + 0.5, pytest.approx(np.std([0, 1], ddof=1)))
    assert list(by_instance.points) == [0.01, 0.1] and by_instance.plain is not None
    assert not found.lines["InfoNCE + LM"] and "1 run of another schedule" in found.left_out
    uniform = 50.0 + len("sampler=uniform-resnet20-0")
    assert by_instance.plain[0] == uniform and np.isnan(by_instance.plain[1])
    infonce(tmp_path, 1, sampler="uniform")
    figure = from_runs.drawn(read(tmp_path), tmp_path, ["beta-k"]).figures["beta-k-runs"]()
    axes = {each.get_title(): each for each in figure.axes}
    assert figure.get_suptitle().endswith("; bars are standard deviations over seeds")
    bars = [each.get_segments()[0] for each in axes["InfoNCE + Instance-SCNS"].collections]
    deviation = np.std([0, 1], ddof=1)  # of the runs with uniform negatives, too; the others are of one seed
    assert len(bars) == 1 and bars[0].tolist() == [[0, uniform + 0.5 - deviation], [0, uniform + 0.5 + deviation]]
    ticks = [label.get_text() for label in axes["InfoNCE + Class-SCNS"].get_xticklabels()]
    assert ticks[1:] == ["1", "2", "5"]
    assert axes["InfoNCE-LM"].texts[0].get_text() == "no runs with two values"


def test_a_line_of_the_beta_and_k_figure_shares_all_arguments_but_beta_or_k(tmp_path: Path) -> None:
    for k in (1, 2, 5):
        infonce(tmp_path, sampler="class", k=k, weight=0.5)
    for k in (1, 2):
        infonce(tmp_path, sampler="class", k=k, weight=4.0)
    for weight in (0.5, 4.0):
        infonce(tmp_path, sampler="uniform", weight=weight)
    infonce(tmp_path, sampler="uniform", weight=0.0, lm_weight=1.0, beta=0.5)
    infonce(tmp_path, sampler="uniform", weight=0.0, lm_weight=1.0, beta=0.0)
    (found,) = figure_data.sweeps(read(tmp_path)).values()
    (line,), (by_beta,) = found.lines["InfoNCE + Class-SCNS"], found.lines["InfoNCE-LM"]
    base = 50.0 + len("sampler=class_k=1_weight=0.5-resnet20-0")
    assert list(line.points) == [1, 2, 5] and all(mean == base for mean, _ in line.points.values())
    assert all(np.isnan(deviation) for _, deviation in line.points.values())  # one seed has none
    assert line.plain is None and list(by_beta.points) == [0.0, 0.5]  # two weights: which is the baseline?
    assert found.left_out == "2 runs of another teacher or other arguments are not in it."


def test_the_uniform_point_of_a_line_has_the_line_s_teacher(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        put(tmp_path / name, Recipe(data="cifar10", student="resnet20", epochs=3 + len(name)), 90.0)
    for k in (2, 5):
        taught = replace(INFONCE, arguments={"sampler": "class", "k": k}, teacher=str(tmp_path / "good"))
        put(tmp_path / f"k{k}", taught, 70.0 + k)
    plain = replace(INFONCE, arguments={"sampler": "uniform"})
    put(tmp_path / "plain-bad", replace(plain, teacher=str(tmp_path / "bad")), 40.0)
    (line,) = figure_data.sweeps(read(tmp_path))["cifar10"].lines["InfoNCE + Class-SCNS"]
    assert list(line.points) == [2, 5] and line.plain is None
    put(tmp_path / "plain-good", replace(plain, teacher=str(tmp_path / "good")), 60.0)
    (line,) = figure_data.sweeps(read(tmp_path))["cifar10"].lines["InfoNCE + Class-SCNS"]
    assert line.plain is not None and line.plain[0] == 60


def test_copies_of_finished_runs_are_not_drawn_as_unfinished(tmp_path: Path) -> None:
    put(tmp_path / "a-0", INFONCE, 50.0)
    put(tmp_path / "copy" / "a-0", INFONCE, 50.0)
    (tmp_path / "begun-0").mkdir()
    found, _ = figure_data.curves_by_pair(read(tmp_path), tmp_path)
    assert "" not in found


def test_curves_are_means_over_seeds_by_pair(cells: Path) -> None:
    found, left_out = figure_data.curves_by_pair(read(cells), cells)
    assert "cifar100, resnet110 → resnet20" in found and "cifar100, resnet20" in found and not left_out
    kld = found["cifar100, resnet110 → resnet20"]["Student (Cross-Entropy + KLD) (mean of 2)"]
    assert kld == pytest.approx([63 * (i + 1) / 6 for i in range(6)], abs=0.01)
    assert len(found["cifar100, resnet20"]) == 1  # once, although three columns have it
    twenty = {f"run{i}-0": [float(i)] * 6 for i in range(20)}
    for name, accuracies in twenty.items():
        put(cells / "many" / name, Recipe(data="cifar10", lr=0.01 * (1 + accuracies[0]), epochs=6), accuracies[0])
    drawn = from_runs.drawn(read(cells / "many"), cells / "many", ["convergence"]).figures
    assert list(drawn) == [f"convergence-runs-cifar10-resnet8-{part}" for part in (1, 2)]


def test_runs_without_a_curve_are_counted_where_they_are_many(tmp_path: Path) -> None:
    put(tmp_path / "whole-0", INFONCE, 50.0)
    for seed in range(9):
        put(tmp_path / f"short-{seed}", replace(INFONCE, lr=0.2, seed=seed), 40.0, epochs=4)
    remarks = from_runs.drawn(read(tmp_path), tmp_path, ["convergence"]).remarks
    assert len(remarks) == 4 and "short-2/log.jsonl' has 4 epochs" in remarks[2]
    assert remarks[3] == "convergence: 6 more runs cannot be drawn either."


def test_runs_that_are_not_finished_have_a_figure_with_a_name(tmp_path: Path) -> None:
    put(tmp_path / "done-0", INFONCE, 50.0)
    (put(tmp_path / "half-0", replace(INFONCE, lr=0.2), 40.0) / "result.json").unlink()
    drawn = from_runs.drawn(read(tmp_path), tmp_path, ["convergence"]).figures
    assert len(drawn) == 2 and "convergence-runs-unfinished" in drawn


def test_boxes_of_every_table_with_two_columns(cells: Path) -> None:
    put_cell(cells, "t1/ce/resnet20", [90.0])
    put_cell(cells, "t1/infonce/resnet20", [91.0])
    made = from_runs.drawn(read(cells), cells, ["boxes"])
    assert list(made.figures) == ["boxes-runs-t3"] and not made.missing
    axes = made.figures["boxes-runs-t3"]().axes[0]
    medians = [line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 2 and line.get_color() == "black"]
    assert medians == [61, 63.5, 65]
    alone = from_runs.drawn(read(cells / "t1"), cells / "t1", ["boxes"])
    assert not alone.figures and "needs 2 methods on 2" in alone.missing[0]


# --- what a student sees


def view(width: int = 8) -> View:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    pixels = torch.zeros(300, 3, 2, 2, dtype=torch.uint8)
    images = Images(pixels, labels, ("a", "b", "c"), mean=(0.5,) * 3, std=(0.5,) * 3)
    return View("run", images, torch.randn(300, width, generator=generator))


def test_the_sphere_keeps_every_angle_to_the_anchor() -> None:
    shown = view()
    anchor, near, easy = from_runs.scene(shown, 7)
    assert np.linalg.norm(np.vstack([near, easy]), axis=1) == pytest.approx(1) and near.shape == (24, 3)
    unit = torch.nn.functional.normalize(shown.embedding.double(), dim=1)
    cosines = (unit[shown.images.labels != 1] @ unit[7]).sort(descending=True).values  # 7 is of class 1
    assert near @ anchor == pytest.approx(cosines[:24].numpy())
    assert len(easy) == 176 and (easy @ anchor).max() <= (near @ anchor).min() + 1e-12
    assert easy @ anchor == pytest.approx(cosines[24:].numpy())


def test_the_sphere_of_a_run_with_an_odd_name(tmp_path: Path) -> None:
    odd = view()._replace(run="lr=$\\oops$")
    figure = from_runs._globe(odd)
    plots.save(figure, tmp_path / "sphere.png")
    assert r"the run lr=\$\oops\$:" in figure.get_suptitle()


def test_what_a_run_sees_and_what_words_say(tmp_path: Path) -> None:
    student = single(recipe(), place() / "seen").folder.path
    found = views.views(read(student))
    assert found["folder"].embedding.shape == (120, 64) and found["folder"].run == "seen"
    made = from_runs.drawn(read(student), student, ["classes", "sphere"])
    assert sorted(made.figures) == ["classes-runs", "sphere-runs"] and not made.missing
    labels = [label.get_text() for label in made.figures["classes-runs"]().axes[0].get_yticklabels()]
    assert labels == list(found["folder"].images.names)
    put(tmp_path / "no-weights", replace(tables.cell("t3/ce/resnet110-resnet20").recipe), 68)
    made = from_runs.drawn(read(tmp_path), tmp_path, ["classes", "sphere"])
    assert list(made.figures) == ["classes-runs", *(f"classes-runs-block-{n}" for n in range(1, 6))]
    assert "did not keep its student" in made.missing[0]
    assert "no-weights/recipe.json --out FOLDER" in made.missing[0]  # and no checkpoint to write it from
    left, right, *_ = made.figures["classes-runs"]().axes
    assert "no run kept its student" in left.get_title() and "softmax(5\u00a0cosine)" in right.get_title()


def test_the_command(scns: Callable[..., Ran], cells: Path) -> None:
    wanted = ("--only", "cifar100,tiny-imagenet,beta-k,boxes,sphere", "--format", "png")
    done = scns("figures", "--source", "runs", "--runs", cells, "--out", cells / "f", *wanted)
    assert done.code == 0
    names = {path.stem for path in (cells / "f").iterdir()}
    assert names == {"accuracy-cifar100-runs", "accuracy-cifar100-normalised-runs", "boxes-runs-t3"}
    missing = re.findall(r"Not drawn, ([\w-]+): ", done.err)
    assert missing == ["tiny-imagenet", "beta-k", "sphere"]
    with Image.open(cells / "f" / "boxes-runs-t3.png") as image:
        assert min(image.size) > 300
    assert colours(cells / "f" / "boxes-runs-t3.png") > 50
    done = scns("figures", "--source", "runs", "--runs", cells, "--out", cells / "g", "--only", "tiny-imagenet")
    assert done.code == 2 and "scns sweep t2 --rows" in done.err and not (cells / "g").exists()

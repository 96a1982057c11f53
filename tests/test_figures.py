"""The paper's figures: what is drawn, and `scns figures` as a person uses it."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import typer
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image

from conftest import colours
from scns import curves, paper
from scns.cli import figures as command
from scns.errors import InputError
from scns.plots import save
from scns.report import figures, sphere


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


# Heat-maps


def test_normalised_heatmap_shows_the_recomputed_averages() -> None:
    figure = figures.paper_heatmap("t2", normalised=True)
    axes = figure.axes[0]
    methods = [label.get_text() for label in axes.get_xticklabels()]
    colours = np.asarray(axes.images[0].get_array())
    assert colours.shape == (11, 17) and colours[:-1].min() == 0 and colours[:-1].max() == 1
    average = dict(zip(methods, colours[-1], strict=True))
    assert average["KLD"] == pytest.approx(0.8189, abs=5e-5)
    assert average["InfoNCE-LM + Instance-SCNS"] == pytest.approx(0.9751, abs=5e-5)
    assert average["FT"] == pytest.approx(0.2047, abs=5e-5)
    written = np.reshape(texts(figure), (11, 17))
    assert written[0, 0] == "52.22" and written[-1, 0] == "0.82" and written[-1, -1] == "0.98"
    pairs = [label.get_text() for label in axes.get_yticklabels()]
    assert pairs[0] == "resnet152 → resnet56" and pairs[-1] == "Average Score"


def test_raw_heatmap_colours_are_the_accuracies() -> None:
    figure = figures.paper_heatmap("t3", normalised=False)
    colours = np.asarray(figure.axes[0].images[0].get_array())
    expected = paper.table("t3").values[1:].T  # the first row is the teachers'
    assert np.array_equal(colours[:-1], expected)
    assert colours[-1] == pytest.approx(expected.mean(axis=0))
    assert texts(figure)[-1] == f"{expected[:, -1].mean():.2f}"


def test_a_constant_row_is_in_the_middle() -> None:
    figure = figures.accuracy_heatmap(["a", "b"], ["x", "y"], [[5, 5], [1, 2]], normalised=True)
    colours = np.asarray(figure.axes[0].images[0].get_array())
    assert colours.tolist() == [[0.5, 0.5], [0, 1], [0.25, 0.75]]


def test_text_in_a_heatmap_is_readable() -> None:
    """Each text has a contrast of at least 3 to 1 (WCAG's bound for graphics) with the colour it is written on."""
    for normalised in (False, True):
        axes = figures.paper_heatmap("t2", normalised=normalised).axes[0]
        image = axes.images[0]
        for text in axes.texts:
            column, row = (round(place) for place in text.get_position())
            behind = image.cmap(image.norm(image.get_array()[row, column]))
            pair = sorted((luminance(behind), luminance(to_rgba(text.get_color()))))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 3


def luminance(colour: tuple) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_bad_heatmaps() -> None:
    with pytest.raises(InputError, match=r"1 pairs and 2 methods do not fit accuracies of \(2, 2\)"):
        figures.accuracy_heatmap(["a"], ["x", "y"], [[1, 2], [3, 4]], normalised=False)
    with pytest.raises(InputError, match="not finite"):
        figures.accuracy_heatmap(["a"], ["x", "y"], [[1, math.nan]], normalised=False)


# beta and k, boxes


def test_beta_and_k_lines_hold_the_table() -> None:
    panels = {axes.get_title(): axes for axes in figures.paper_beta_and_k().axes}
    assert list(panels) == ["InfoNCE-LM", "InfoNCE + LM", "InfoNCE + Class-SCNS", "InfoNCE + Instance-SCNS"]
    lines = {line.get_label(): list(line.get_ydata()) for line in panels["InfoNCE + Instance-SCNS"].lines}
    assert lines["resnet32"] == [93.57, 94.39, 93.25, 93.29, 93.27]  # k = 100, 500, 2,500, 5,000, 10,000
    ticks = [label.get_text() for label in panels["InfoNCE + LM"].get_xticklabels()]
    assert ticks[1:] == ["0.01", "0.05", "0.1", "0.2", "0.5"]
    assert [text.get_text() for text in panels["InfoNCE + LM"].texts] == ["96.94: a misprint?"]


def test_box_plots_have_the_quartiles_of_the_table() -> None:
    axes = figures.paper_box_plots().axes[0]
    table = paper.table("t2")
    assert [label.get_text() for label in axes.get_xticklabels()] == list(table.rows)
    medians = [line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 2 and line.get_color() == "black"]
    assert medians == pytest.approx(np.median(table.values, axis=1))
    boxes = [patch.get_path().vertices[:, 1] for patch in axes.patches]
    assert [box.min() for box in boxes] == pytest.approx(np.quantile(table.values, 0.25, axis=1))
    assert [box.max() for box in boxes] == pytest.approx(np.quantile(table.values, 0.75, axis=1))


@pytest.mark.parametrize("methods", [2, 5, 12])
def test_the_legend_of_few_boxes_is_whole(methods: int) -> None:
    groups = ("cross-entropy alone", "Ours", "SoTA Baselines", "scns's defaults", "KLD")
    named = {f"m{i}": groups[i % 5] for i in range(methods)}
    figure = figures.box_plots({name: [1.0, 2.0] for name in named}, named)
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0 and legend.x1 <= figure.bbox.x1 and legend.y0 >= figure.axes[0].bbox.y1


def test_bad_box_plots() -> None:
    for given in ({}, {"x": []}):
        with pytest.raises(InputError, match="at least one"):
            figures.box_plots(given)


# Convergence


def by_loops(accuracies: list[float], within: float) -> int:
    means = {e: sum(accuracies[e - 5 : e]) / 5 for e in range(5, len(accuracies) + 1)}
    return min(e for e, mean in means.items() if mean >= max(means.values()) - within - 1e-9)


def test_epochs_to_converge_by_hand() -> None:
    stairs = [10.0] * 10 + [70.0] * 90  # the window is full of 70 at epoch 15
    assert curves.epochs_to_converge(stairs) == 15
    slope = [float(epoch) for epoch in range(1, 101)]  # a mean lags by 2, the best is 98
    assert [curves.epochs_to_converge(slope, within) for within in (0.5, 1.0, 10.0)] == [100, 99, 90]
    assert curves.epochs_to_converge([50.0] * 5) == 5
    assert curves.epochs_to_converge([70.0] * 5 + [69.8] * 5, 0.0) == 5  # the best may come before the last


def test_epochs_to_converge_against_loops() -> None:
    for number in range(20):
        run = [70 - 50 * math.exp(-e / (5 + number)) + 0.6 * math.sin(e * (1.3 + number)) for e in range(1, 121)]
        found = [curves.epochs_to_converge(run, within) for within in curves.WITHIN]
        assert found == [by_loops(run, within) for within in curves.WITHIN]
        assert found == sorted(found, reverse=True)


def test_bad_curves() -> None:
    with pytest.raises(InputError, match="4 epochs are too few"):
        curves.epochs_to_converge([1.0] * 4)
    with pytest.raises(InputError, match="not finite"):
        curves.epochs_to_converge([1.0] * 5 + [math.nan])
    with pytest.raises(InputError, match="no curves"):
        figures.convergence_curves({})


def test_curves_mark_the_epoch() -> None:
    figure = figures.convergence_curves({"stairs": [10.0] * 10 + [70.0] * 30, "flat": [20.0] * 40})
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["stairs: 15 / 15 / 15", "flat: 5 / 5 / 5"]
    marks = [line.get_xdata()[0] for line in figure.axes[0].lines if len(line.get_xdata()) == 1]
    assert marks == [15, 5]
    assert all(tick == round(tick) for tick in figures.convergence_curves({"few": [1.0] * 20}).axes[0].get_xticks())


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    figure = figures.convergence_curves({"_hidden": [1.0] * 6, "a$\\oops$b": [2.0] * 6}, title="$\\oops$")
    save(figure, tmp_path / "curves.svg")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        " _hidden: 5 / 5 / 5",
        r"a\$\oops\$b: 5 / 5 / 5",
    ]


def test_bars_show_the_printed_epochs() -> None:
    axes = figures.convergence_bars().axes[0]
    assert [bar.get_width() for bar in axes.patches] == [181, 124, 106]


def write_log(folder: Path, lines: list[dict]) -> None:
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two whole runs, and three that cannot be drawn."""
    epochs = [{"epoch": epoch, "test": 50.0 + min(epoch, 10)} for epoch in range(1, 21)]
    write_log(tmp_path / "runs" / "plain", epochs)
    write_log(tmp_path / "runs" / "staged" / "seed-1", [{"epoch": 1, "stage": "first"}, *epochs])
    write_log(tmp_path / "runs" / "short", epochs[:3])
    write_log(tmp_path / "runs" / "sparse", [*epochs, {"epoch": 21}])
    write_log(tmp_path / "runs" / "broken", [])
    (tmp_path / "runs" / "broken" / "log.jsonl").write_text("{")
    return tmp_path / "runs"


def test_curves_of_run_folders(runs: Path) -> None:
    found, left_out = curves.read_curves(runs)
    assert list(found) == ["plain", "staged/seed-1"] and found["plain"] == found["staged/seed-1"]
    assert len(found["plain"]) == 20 and found["plain"][0] == 51.0
    assert [said.split("'")[1].split("/")[-2] for said in left_out] == ["broken", "short", "sparse"]
    assert "20 of 21 epochs" in left_out[2] and "3 epochs" in left_out[1] and "cannot be read" in left_out[0]
    alone, _ = curves.read_curves(runs / "plain")
    assert list(alone) == ["plain"]


# The sphere


def test_the_sphere_splits_off_the_nearest() -> None:
    anchor, near, easy = sphere.scene(200, 20, seed=3)
    assert near.shape == (20, 3) and easy.shape == (180, 3)
    assert np.linalg.norm(np.vstack([anchor[None], near, easy]), axis=1) == pytest.approx(1)
    assert (near @ anchor).min() >= (easy @ anchor).max()
    assert abs(np.vstack([near, easy]).mean(axis=0)).max() < 0.15  # evenly spread: 3.7 deviations of 1/sqrt(600)


def test_centroids_are_weighted_by_alignment() -> None:
    anchor, near, _ = sphere.scene(100, 10)
    weights = [(1 + sum(a * z for a, z in zip(anchor, vector, strict=True))) / 2 for vector in near]
    expected = [sum(w * vector[i] for w, vector in zip(weights, near, strict=True)) / sum(weights) for i in range(3)]
    assert sphere.weighted_centroid(anchor, near) == pytest.approx(expected)
    opposite = np.array([[1.0, 0, 0], [-1.0, 0, 0]])  # the one behind weighs nothing
    assert sphere.weighted_centroid(np.array([1.0, 0, 0]), opposite) == pytest.approx([1, 0, 0])


@pytest.mark.parametrize("top", [0, 50])
def test_bad_scenes(top: int) -> None:
    with pytest.raises(InputError, match=f"nearest {top} of 50"):
        sphere.scene(50, top)


# The command


@pytest.fixture
def draw(capsys: pytest.CaptureFixture[str]):
    """`draw("--out", ...)` runs the command and returns what it printed."""
    app = typer.Typer()
    app.command()(command.figures)

    def run(*words: object) -> str:
        app(args=[str(word) for word in words], standalone_mode=False)
        printed = capsys.readouterr()
        return printed.out + printed.err

    return run


def test_every_figure_is_written(draw, tmp_path: Path) -> None:
    said = draw("--out", tmp_path / "new" / "f", "--format", "png")
    blocks = [f"classes-block-{number}" for number in range(1, 6)]
    maps = [f"accuracy-{data}{kind}" for data in ("cifar100", "tiny-imagenet") for kind in ("", "-normalised")]
    expected = {"classes", *blocks, *maps, "beta-k", "convergence", "boxes", "sphere"}
    assert {path.name for path in (tmp_path / "new" / "f").iterdir()} == {f"{name}.png" for name in expected}
    assert all(str(tmp_path / "new" / "f" / f"{name}.png") in said for name in expected)
    for path in (tmp_path / "new" / "f").iterdir():
        with Image.open(path) as image:
            assert min(image.size) > 300
        assert colours(path) > 50


def test_svg_and_only(draw, tmp_path: Path) -> None:
    draw("--out", tmp_path, "--only", "convergence, sphere", "--format", "svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["convergence.svg", "sphere.svg"]
    assert ElementTree.parse(tmp_path / "sphere.svg").getroot().tag.endswith("svg")


def test_curves_of_runs(draw, runs: Path, tmp_path: Path) -> None:
    """None of them is finished, but curves they have."""
    said = draw("--out", tmp_path / "f", "--source", "runs", "--runs", runs, "--format", "png")
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["convergence-runs.png"]
    assert said.count("convergence: '") == 3 and said.count("Not drawn, ") == 6
    draw("--out", tmp_path / "g", "--source", "both", "--runs", runs, "--format", "png", "--only", "convergence")
    assert sorted(path.name for path in (tmp_path / "g").iterdir()) == ["convergence-runs.png", "convergence.png"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "boxs"], "Unknown figure 'boxs'; did you mean boxes"),
        (["--only", ","], "No figure is named; known: classes"),
        (["--format", "png,gif"], "Unknown format 'gif'"),
        (["--format", ""], "No format is named"),
        (["--source", "papers"], "Unknown source 'papers'; did you mean paper"),
        (["--source", "runs"], "--source runs needs --runs"),
        (["--runs", "."], "--source paper does not read --runs"),
        (["--source", "runs", "--runs", "nowhere"], "There is no folder 'nowhere'"),
    ],
)
def test_bad_words(draw, tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        draw("--out", tmp_path / "f", *words)
    assert said in str(error.value) and not (tmp_path / "f").exists()


def test_bad_folders(draw, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="which is a file; give a folder"):
        draw("--out", tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"There is no finished run in .*empty"):
        draw("--out", tmp_path / "f", "--source", "runs", "--runs", tmp_path / "empty")
    write_log(tmp_path / "short" / "a", [{"epoch": 1, "test": 1.0}])
    with pytest.raises(InputError, match=r"There is no finished run in .*short"):
        draw("--out", tmp_path / "f", "--source", "runs", "--runs", tmp_path / "short", "--only", "convergence")

"""`scns theory draws` as a person uses it."""

from pathlib import Path

import pytest
from PIL import Image

from conftest import colours


def test_draws_prints_uniform_against_conditioned(scns) -> None:
    ran = scns("theory", "draws", "--pool", 49500, "--top", 500, "--batch", 64)
    assert ran.code == 0 and ran.err == ""
    for number in ("336,244.8", "5,254.3", "328.4", "3,396.4", "99.0x", "98.4%"):
        assert number in ran.out


def test_draws_with_softmax_weights_and_a_plot(scns, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out.png"
    ran = scns("theory", "draws", "--pool", 1000, "--top", 20, "--scale", 5, "--negatives", 10, "--plot", path)
    assert ran.code == 0
    assert "135.1" in ran.out and "72.0" in ran.out and "3,597.7" in ran.out
    with Image.open(path) as image:
        assert image.width > 800
    assert colours(path) > 50


def test_a_plot_can_be_a_vector_graphic(scns, tmp_path: Path) -> None:
    assert scns("theory", "draws", "--pool", 50, "--top", 5, "--plot", tmp_path / "out.svg").code == 0
    assert "<svg" in (tmp_path / "out.svg").read_text()


def test_a_pool_too_large_for_a_list_of_its_chances(scns) -> None:
    ran = scns("theory", "draws", "--pool", 10**12, "--top", 10**12, "--negatives", 1)
    assert ran.code == 0 and "28,208,236,780,830" in ran.out  # M H_M
    assert "epochs of 1 draw " in ran.out


def test_neither_legend_nor_marks_lie_on_the_curves() -> None:
    from scns import plots

    figure = plots.coverage_curves({"uniform over all 100,000,000": ([1, 10], [0, 1])}, top=5, marks={"1 epoch": 3})
    figure.draw_without_rendering()
    axes = figure.axes[0].get_window_extent()
    for text in (figure.legends[0], *figure.axes[0].texts):
        assert text.get_window_extent().y0 >= axes.y1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pool", 10, "--top", 20), "--top is 20, but an anchor has --pool 10 negatives"),
        (("--top", 0), "--top is 0"),
        (("--batch", 0), "--batch is 0"),
        (("--negatives", 0), "--negatives is 0"),
        (("--scale", -1), "--scale is -1"),
        (("--scale", 1e6), "use a smaller one"),
        (("--plot", "out.jpeg"), "must end in .png, .pdf, .svg"),
    ],
)
def test_bad_input_is_one_sentence(scns, words: tuple, said: str) -> None:
    ran = scns("theory", "draws", *words)
    assert ran.code == 2 and said in ran.err and ran.out == ""
    assert len(ran.err.strip().splitlines()) == 1

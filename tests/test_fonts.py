"""Characters that matplotlib's own font lacks: written in a font of the system, or named in a sentence."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager

from scns import fonts, plots

NAMES = ("猫", "cat", "🧠")


def font(path: Path, characters: str, family: str) -> Path:
    """A font in which each of the characters is a square."""
    pen = TTGlyphPen(None)
    for move, place in (("moveTo", (0, 0)), ("lineTo", (0, 500)), ("lineTo", (500, 500)), ("lineTo", (500, 0))):
        getattr(pen, move)(place)
    pen.closePath()
    built = FontBuilder(1000)
    built.setupGlyphOrder([".notdef", "square"])
    built.setupCharacterMap({ord(each): "square" for each in characters})
    built.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "square": pen.glyph()})
    built.setupHorizontalMetrics({".notdef": (600, 0), "square": (600, 0)})
    built.setupHorizontalHeader(ascent=800, descent=-200)
    built.setupNameTable({"familyName": family, "styleName": "Regular"})
    built.setupOS2()
    built.setupPost()
    built.save(path)
    return path


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The fonts that are installed: none, until the test adds some."""
    installed: list[str] = []
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: installed)
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    looked = fonts._system
    looked.cache_clear()
    yield installed
    looked.cache_clear()


def drawn() -> Any:
    return plots.class_heatmap(NAMES, np.eye(3), np.eye(3), title="a", drawn_title="b")


def test_a_font_of_the_system_is_used_where_one_has_the_characters(system: list[str], tmp_path: Path) -> None:
    system += [str(font(tmp_path / "a.ttf", "猫犬", "Test Cats")), str(font(tmp_path / "b.ttf", "🧠", "Test Faces"))]
    figure = drawn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib's, of glyphs that are missing
        for ending in plots.ENDINGS:
            assert plots.save(figure, tmp_path / f"f.{ending}") == ""
    families = figure.axes[0].get_xticklabels()[0].get_fontfamily()
    assert families == ["DejaVu Sans", "Test Cats", "Test Faces"]


def test_what_no_font_has_is_said_in_one_line(system: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.ttf").write_text("no font")
    system += [str(tmp_path / "broken.ttf"), str(font(tmp_path / "LastResort.ttf", "猫🧠", "Last Resort"))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = plots.save(drawn(), tmp_path / "f.png")
    assert told.startswith("No font of this system has 猫 🧠, which are boxes in the figure; install one")
    assert (tmp_path / "f.png").exists()


def test_the_command_says_it_once(system: list[str], scns: Callable[..., Any], tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("cat\ndog\n猫\n", encoding="utf-8")
    ran = scns("words", "heatmap", labels, "--on-missing", "uniform", "--out", tmp_path / "f.png")
    assert ran.code == 0 and ran.err.count("No font of this system has 猫,") == 1 and "Glyph" not in ran.err


def test_names_that_matplotlib_can_write_look_for_no_font(system: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_system", lambda: pytest.fail("looked for fonts"))
    assert fonts.complete(plots.class_heatmap(["Größe", "кошка"], *2 * [np.eye(2)], title="a", drawn_title="b")) == ""

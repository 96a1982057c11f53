"""The demo, shrunken: it ends with its pages and true numbers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scns import demo
from scns.demo import interval


def test_demo_writes_its_pages_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = demo.run(tmp_path, epochs=1, subset=400)
    assert [row[0] for row in rows] == ["cross-entropy alone", "uniform negatives", "class-level", "instance-level"]
    assert (tmp_path / "classes.png").stat().st_size > 10_000
    page = (tmp_path / "negatives.html").read_text()
    assert page.count("<section>") == 12 and page.count("<img ") == 12 * (1 + 3 * 8)
    assert (tmp_path / "neighbors.safetensors").exists()
    report = (tmp_path / "report.html").read_text()
    assert all(name in report for name in ("first", "mini-uniform", "mini-class", "mini-instance"))
    assert "4/4" in capsys.readouterr().out
    again = demo.run(tmp_path, epochs=1, subset=400)  # finished runs are read, not trained again
    assert again == rows


def test_interval_of_an_accuracy() -> None:
    assert abs(interval(50.0, 10_000) - 0.98) < 1e-9


def test_demo_has_help(scns: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = scns("demo", "--help")
    assert code == 0 and "--quick" in out

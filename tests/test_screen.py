"""What the commands print: nothing is cut, whatever the width, and names are printed as they are."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.main import get_command

from scns.cli import app, screen
from scns.recipes import load_recipe

ROWS: list[list[object]] = [
    ["infonce", "a sentence of several words that has to wrap", "94.2 ± 1.0"],
    ["[old]/run", "short", "7"],
]
COLUMNS = {"name": "left", "what it is": "left", "test % on average": "right"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, file: io.StringIO, width: int) -> list[str]:
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setattr(screen, "out", Console(file=file, width=width, markup=False, force_terminal=False))
    screen.table("", COLUMNS, ROWS)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [10, 30, 45, 200])
def test_table_shows_every_word_at_every_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = printed(monkeypatch, Terminal(), width)
    text = " ".join(lines)
    assert "…" not in text
    for word in " ".join([*COLUMNS, *(str(cell) for row in ROWS for cell in row)]).split():
        assert word in text
    assert any("94.2 ± 1.0" in line for line in lines)  # numbers do not wrap
    if width >= 45:
        assert max(map(len, lines)) <= width


def test_table_in_a_pipe_is_one_line_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(printed(monkeypatch, io.StringIO(), 20)) == 1 + len(ROWS)  # and the headings


@pytest.mark.parametrize(("term", "expected"), [("dumb", False), ("xterm", True)])
def test_bars_are_for_terminals_that_can_draw_them(monkeypatch: pytest.MonkeyPatch, term: str, expected: bool) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(screen, "err", Console(file=sys.stderr, force_terminal=True))
    assert screen.redraws() is expected


def commands(group: typer.core.TyperGroup, name: str = "scns") -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def test_help_of_every_command_is_shown_whole() -> None:
    unescaped = re.compile(r"(?<!\\)\[\w")  # rich takes "[rows, dim]" for a style and leaves it out
    for name, command in commands(get_command(app)):
        for words in (command.help, *(getattr(option, "help", None) for option in command.params)):
            assert not unescaped.search(words or ""), f"{name}: {words}"


def test_help_of_every_command_with_arguments_has_a_line_to_copy() -> None:
    for name, command in commands(get_command(app)):
        if len(command.params) > 0:
            assert "scns " in command.help, name


def test_a_recipe_is_printed_with_the_meaning_of_its_keys_and_reads_back(scns: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(scns("recipes", "mini-class").out)
    text = (tmp_path / "mine.toml").read_text()
    assert re.search(r'^teacher_mode = "live" +# "cached": one forward a sample', text, re.MULTILINE)
    assert load_recipe(str(tmp_path / "mine.toml")) == load_recipe("mini-class")


def test_an_ascii_terminal_gets_question_marks_instead_of_a_traceback() -> None:
    words = [sys.executable, "-m", "scns", "recipes", "t3"]
    ran = subprocess.run(words, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert ran.returncode == 0 and b"InfoNCE-LM, ?=0.01" in ran.stdout and ran.stderr == b""


def test_a_table_shows_names_between_colons_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    screen.table("", {"run": "left"}, [["runs:cat:here"]])
    assert "runs:cat:here" in capsys.readouterr().out

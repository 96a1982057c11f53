"""What the pages show works: Python blocks run, `scns` lines parse, files that are named exist."""

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

from scns.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
TABLES = (ROOT / "docs" / "tables.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    return [text for kind, text in fenced if kind == language]


@pytest.mark.parametrize("code", blocks(README, "python"))
def test_python_of_the_readme_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_the_library_examples_have_the_promised_length() -> None:
    short, parts, _ = blocks(README, "python")
    assert "## The library in three lines" in README
    marked = [line.split("# ")[1][:2] for line in short.splitlines() if "contrast" in line]
    assert marked == ["1.", "2.", "3."] and short.count("scns.") == 1
    assert len([line for line in parts.splitlines() if line.strip() and not line.startswith("import")]) <= 12


@pytest.mark.parametrize("page", [README, TABLES], ids=["README", "tables"])
def test_commands_of_a_page_exist(scns: Callable[..., tuple[int, str, str]], page: str) -> None:
    lines = [line for block in blocks(page, "") for line in block.splitlines() if line.startswith("scns ")]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line.split("  #")[0])[1:]
        path = words[: 2 if words[0] in ("neighbors", "words", "theory", "data") else 1]
        code, out, _ = scns(*path, "--help")
        assert code == 0, line
        for option in (word for word in words if word.startswith("--")):
            assert option in out, line


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_linked_files_exist(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_linked_sections_exist(page: str) -> None:
    for name, section in re.findall(r"\]\(([a-z-]*\.md)?#([^)]+)\)", (ROOT / "docs" / page).read_text()):
        heads = re.findall(r"^#+ (.+)$", (ROOT / "docs" / (name or page)).read_text(), flags=re.MULTILINE)
        # As GitHub names them: lower case, no punctuation, hyphens for spaces.
        assert section in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads], section


def test_layout_names_files_that_exist() -> None:
    layout = next(block for block in blocks(README, "") if block.startswith("src/scns/"))
    for name in re.findall(r"\b([a-z]+\.py)\b", layout):
        assert (ROOT / "src" / "scns" / name).exists(), name


def test_a_new_data_set_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scns import datasets

    (code,) = [code for code in blocks(EXTENDING, "python") if "colours" in code]
    (tmp_path / "colours.py").write_text(code)
    monkeypatch.setattr(datasets, "__path__", [*datasets.__path__, str(tmp_path)])
    images = datasets.load("colours", split="test", count=30)
    assert len(images) == 30 and images.names == ("red", "blue")
    sys.modules.pop("scns.datasets.colours")


def test_a_new_method_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from scns import methods
    from scns.features import Batch, Features, Shapes

    (code,) = [code for code in blocks(EXTENDING, "python") if "Ba and Caruana" in code]
    (tmp_path / "logits.py").write_text(code)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    labels, shapes = torch.arange(6) % 3, Shapes(3, 4)
    method = methods.build("logits", methods.Setting(labels, shapes, shapes), weight=2.0)
    student, teacher = (Features(torch.full((6, 3), value), torch.zeros(6, 4)) for value in (1.0, 3.0))
    batch = Batch(torch.zeros(6, 3, 8, 8), labels, torch.arange(6), labels, torch.tensor(1), 6)
    losses = method(batch, student, teacher)
    assert float(losses["logits"]) == 8.0 and set(losses) == {"ce", "logits"}
    sys.modules.pop("scns.methods.logits")


def test_no_help_loses_what_stands_in_brackets() -> None:
    """Help is printed as markup, in which [rows, dim] is a style that nobody knows and is dropped."""

    def texts(command: Any) -> Iterator[str]:
        yield command.help or ""
        yield from (getattr(parameter, "help", None) or "" for parameter in command.params)
        for each in getattr(command, "commands", {}).values():
            yield from texts(each)

    found = list(texts(typer.main.get_command(app)))
    assert len(found) > 100
    assert [text for text in found if Text.from_markup(text).plain != text.replace("\\[", "[")] == []

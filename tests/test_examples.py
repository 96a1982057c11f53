"""The example scripts run as a person runs them, in an empty folder, and do what they say."""

import ast
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Ran

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_own_loop_learns(tmp_path: Path, script: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = script(EXAMPLES / "own_loop.py")
    assert done.code == 0 and done.err == ""
    losses = [float(value) for value in re.findall(r"^epoch \d+  loss (\S+)$", done.out, re.MULTILINE)]
    assert len(losses) == 6
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[1] / 3
    assert list(tmp_path.iterdir()) == []


def test_own_loop_is_short_and_needs_little() -> None:
    tree = ast.parse((EXAMPLES / "own_loop.py").read_text())
    docstring = tree.body[0]
    statements = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)} - {docstring.lineno}
    assert len(statements) <= 25
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "scns"
    }
    assert used == {"SoftNegatives", "Positives", "FeatureTable"}


def test_a_retriever_learns_from_negatives_among_passages(script: Callable[..., Ran]) -> None:
    done = script(EXAMPLES / "queries_passages.py")
    assert done.code == 0 and done.err == ""
    first = [float(value) for value in re.findall(r"own passage first (\S+) %$", done.out, re.MULTILINE)]
    assert len(first) == 6 and first == sorted(first) and first[-1] > 80


def test_own_images_distils_on_a_folder(
    tmp_path: Path, script: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two classes of pictures that differ in colour and noise: easily learnt."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 32), ("test", 16)):
        for name, colour in (("red", (180, 90, 90)), ("blue", (90, 90, 180))):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                noisy = generator.normal(colour, 40, (40, 48, 3)).clip(0, 255).astype("uint8")
                Image.fromarray(noisy).save(folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["own_images.py"])
    with pytest.raises(SystemExit, match=r"own_images\.py FOLDER"):
        runpy.run_path(str(EXAMPLES / "own_images.py"))
    done = script(EXAMPLES / "own_images.py", "pictures")
    assert done.code == 0 and done.err == "", done.err
    found = dict(re.findall(r"^(.+): (\S+) % on test$", done.out, re.MULTILINE))
    assert list(found) == ["teacher", "student alone", "student of the teacher"]
    assert float(found["teacher"]) > 90 and float(found["student of the teacher"]) > 90
    assert (tmp_path / "student.pth").exists()


def test_own_images_has_the_promised_length() -> None:
    text = (EXAMPLES / "own_images.py").read_text()
    code = text.split('"""', 2)[2].splitlines()
    assert len([line for line in code if line.strip()]) <= 40

"""The example scripts run as a person runs them, in an empty folder, and do what they say."""

import ast
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_own_loop_learns(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "own_loop.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    losses = [float(value) for value in re.findall(r"^epoch \d+  loss (\S+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 6
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[1] / 4
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
    assert used == {"NeighborTable", "InstanceNegatives", "FeatureTable", "functional"}

"""Imports point one way: from the command line and the trainer down to functions of tensors."""

import ast
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np

import scns

ROOT = Path(scns.__file__).parent

# A module imports from its own layer or from those above it in this list, never from below.
LAYERS = [
    {
        "errors",
        "files",
        "features",
        "draws",
        "sgd",
        "plugins",
        "room",
        "ranks",
        "ahead",
        "world",
        "has",
        "lock",
        "heap",
        "phrases",
        "fonts",
    },
    {
        "data",
        "augment",
        "feed",
        "chances",
        "checks",
        "arrays",
        "collector",
        "wordfiles",
        "plots",
        "join",
        "download",
        "paper",
    },
    {
        "ranking",
        "relatives",
        "search",
        "lists",
        "source",
        "stream",
        "budget",
        "tableinfo",
        "tableshards",
        "functional",
        "mixup",
        "theory",
        "words",
        "memory",
        "scores",
        "share",
        "syncnorm",
        "convnorm",
        "kernels",
        "projection",
        "gathered",
    },
    {"neighbors", "sampling", "soft", "contrast", "batches", "gallery"},
    {"datasets", "models", "methods"},
    {"recipe", "recipes", "rows", "preflight", "teacher", "capture", "checkpoint"},
    {"step"},
    {"sharedstep"},
    {"run"},
    {"agree"},
    {"train"},
    {"runs", "export", "watch", "admission"},
    {"sweep"},
    {"workers"},
    {"tables", "plan", "recognise", "curves", "results", "figure_data", "views"},
    {"claims", "tune", "report", "demo", "cluster"},
    {"cli"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def part(path: Path) -> str:
    """The module or subpackage of scns that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The parts of scns that a file imports, at the top or inside functions; not those for type checkers alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "scns":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("scns.")}
    return {name for name in found if not name.startswith("__")}


FILES = [path for path in ROOT.rglob("*.py") if path.name not in ("__init__.py", "__main__.py") or path.parent != ROOT]


def test_public_names_are_written_out() -> None:
    """Type checkers read the list as it stands, and take what is not in it for private."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (listed,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    typed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    homes = {name for names in scns._HOME.values() for name in names} | set(scns._MODULES)
    assert set(listed) == homes | {"__version__"} and homes <= typed


def test_labels_and_embeddings_may_be_arrays_to_a_type_checker() -> None:
    for call, names in {
        scns.UniformNegatives: ["labels"],
        scns.ClassNegatives: ["labels"],
        scns.AllNegatives: ["labels"],
        scns.Positives: ["labels"],
        scns.SoftNegatives: ["embeddings", "labels"],
        scns.NeighborBatchSampler: ["labels"],
        scns.NeighborTable.build: ["embeddings", "labels", "groups"],
        scns.NeighborTable.refreshed: ["embeddings"],
    }.items():
        hints = get_type_hints(call.__init__ if isinstance(call, type) else call)
        assert all(np.ndarray in get_args(hints[name]) for name in names), call


def test_every_part_has_its_layer() -> None:
    assert {part(path) for path in FILES} == set(RANK)


def test_imports_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES
        for name in imported(path)
        if RANK[name] > RANK[part(path)]
    ]
    assert not wrong


def test_there_are_no_circles() -> None:
    needs = {name: set() for name in RANK}
    for path in FILES:
        needs[part(path)] |= imported(path) - {part(path)}
    done: set[str] = set()
    while len(done) < len(needs):
        ready = {name for name, wanted in needs.items() if name not in done and wanted <= done}
        assert ready, f"imports go in a circle among {sorted(set(needs) - done)}"
        done |= ready


def test_the_library_needs_no_trainer() -> None:
    """Tables, samplers, memories and losses work in anybody's loop."""
    for path in FILES:
        if RANK[part(path)] <= RANK["batches"]:
            assert not imported(path) & {"methods", "models", "datasets", "step", "train", "cli"}, path

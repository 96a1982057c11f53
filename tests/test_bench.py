"""The benchmarks start, explain themselves and finish a tiny case; what they measure is in docs/speed.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parent.parent / "bench"


def bench(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCH / script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Arguments naming two related embeddings of 300 samples in 5 classes, and their labels."""
    folder = tmp_path_factory.mktemp("features")
    random = np.random.default_rng(0)
    labels = np.arange(300) % 5
    first = random.standard_normal((5, 16))[labels] + random.standard_normal((300, 16))
    second = first + 0.5 * random.standard_normal((300, 16))
    for name, array in {"a": first.astype("float32"), "b": second.astype("float32"), "y": labels}.items():
        np.save(folder / f"{name}.npy", array)
    return ["--proposal", folder / "a.npy", "--scores", folder / "b.npy", "--labels", folder / "y.npy"]


@pytest.mark.parametrize("script", sorted(path.name for path in BENCH.glob("[!_]*.py")))
def test_help_says_how_to_run_it(script: str) -> None:
    done = bench(script, "--help")
    assert done.returncode == 0, done.stderr
    assert f"python bench/{script}" in done.stdout


def test_estimators(features: list[object]) -> None:
    told = lines(bench("estimators.py", *features, "--anchors", 100, "--repeats", 64))
    by_name = {str(line["proposal"]): line for line in told}
    assert by_name["uniform"]["variance_ratio"] == 1.0
    for line in told:  # every proposal is unbiased: 100 anchors x 64 repeats of estimates with errors of about 0.3
        assert line["mean_ratio"] == pytest.approx(1, abs=0.05), line
    assert by_name["exact soft"]["rms"] < by_name["uniform"]["rms"]  # type: ignore[operator]
    assert by_name["exact soft, own features, stale 0.1"]["rms"] < by_name["exact soft"]["rms"]  # type: ignore[operator]


def test_estimators_refuses_files_that_do_not_fit(features: list[object], tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.zeros(7, dtype=np.int64))
    done = bench("estimators.py", *features[:5], tmp_path / "short.npy")
    assert done.returncode == 2
    assert "300 proposal rows, 300 score rows and 7 labels" in done.stderr
    done = bench("estimators.py", *features[:5], tmp_path / "none.npy")
    assert done.returncode == 2
    assert "does not exist" in done.stderr
    done = bench("estimators.py", *features[:5], features[1])
    assert done.returncode == 2
    assert "Labels must be integers" in done.stderr


def test_negatives_finds_a_table() -> None:
    (told,) = lines(bench("negatives.py", "one-table", "scns", 64, 100, "--queries", 100))
    assert told["cpu_s"] > 0  # type: ignore[operator]


def test_losses_compares_with_the_plain_formula() -> None:
    (told,) = lines(bench("losses.py", "info_nce", "--batch", 8, "--repeats", 1))
    assert float(str(told["difference"])) < 1e-5
    assert told["time_ratio"] > 0  # type: ignore[operator]


def test_large_tables_streamed_and_in_memory(tmp_path: Path) -> None:
    small = ("--rows", 64, "--dim", 16, "-k", 5, "--folder", tmp_path)
    (streamed,) = lines(bench("large.py", "stream", *small, "--memory", "10M"))
    (whole,) = lines(bench("large.py", "memory", *small))
    for told in (streamed, whole):
        assert told["seconds"] > 0 and 0 <= told["share"] < 1  # type: ignore[operator]
        assert told["worst_score_error"] < 5e-4 and told["table_bytes"] == 64 * 5 * 6  # type: ignore[operator]
    assert streamed["within_memory"] and streamed["embedding_bytes"] == 64 * 16 * 4
    assert (tmp_path / "scns-large-64x16.npy").stat().st_size == 128 + 64 * 16 * 4

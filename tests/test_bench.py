"""The benchmarks start, explain themselves and finish a tiny case; what they measure is in docs/speed.md."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import ALONE, Ran

BENCH = Path(__file__).parent.parent / "bench"
Script = Callable[..., Ran]


def process(name: str, *words: object) -> Ran:
    """A benchmark in a process of its own: those that measure the memory of their process."""
    command = [sys.executable, str(BENCH / name), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=ALONE)
    return Ran(done.returncode, done.stdout, done.stderr)


def lines(done: Ran) -> list[dict[str, object]]:
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


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


@pytest.mark.parametrize("name", sorted(path.name for path in BENCH.glob("*.py")))
def test_help_says_how_to_run_it(name: str, script: Script) -> None:
    done = script(BENCH / name, "--help")
    assert done.code == 0, done.err
    assert f"python bench/{name}" in done.out


def test_estimators(features: list[object], script: Script) -> None:
    told = lines(script(BENCH / "estimators.py", *features, "--anchors", 100, "--repeats", 64))
    by_name = {str(line["proposal"]): line for line in told}
    assert by_name["uniform"]["variance_ratio"] == 1.0
    for line in told:  # every proposal is unbiased: 100 anchors x 64 repeats of estimates with errors of about 0.3
        assert line["mean_ratio"] == pytest.approx(1, abs=0.05), line
    assert by_name["exact soft"]["rms"] < by_name["uniform"]["rms"]  # type: ignore[operator]
    assert by_name["exact soft, own features, stale 0.1"]["rms"] < by_name["exact soft"]["rms"]  # type: ignore[operator]


def test_estimators_refuses_files_that_do_not_fit(features: list[object], tmp_path: Path, script: Script) -> None:
    np.save(tmp_path / "short.npy", np.zeros(7, dtype=np.int64))
    for labels, message in (
        (tmp_path / "short.npy", "300 proposal rows, 300 score rows and 7 labels"),
        (tmp_path / "none.npy", "does not exist"),
        (features[1], "Labels must be integers"),
    ):
        done = script(BENCH / "estimators.py", *features[:5], labels)
        assert done.code == 2 and message in done.err


def test_negatives_finds_a_table() -> None:
    (told,) = lines(process("negatives.py", "one-table", "scns", 64, 100, "--queries", 100))
    assert told["cpu_s"] > 0  # type: ignore[operator]


def test_losses_compares_with_the_plain_formula(script: Script) -> None:
    (told,) = lines(
        script(BENCH / "losses.py", "info_nce", "--batch", 8, "--repeats", 1, "--threads", torch.get_num_threads())
    )
    assert float(str(told["difference"])) < 1e-5
    assert told["time_ratio"] > 0  # type: ignore[operator]


@pytest.mark.skipif(torch.cuda.is_available(), reason="without CUDA")
def test_large_says_that_there_is_no_gpu() -> None:
    done = process("large.py", "memory", "--device", "cuda")
    assert done.code == 2 and "torch sees no CUDA device" in done.err and "Traceback" not in done.err


def test_large_tables_streamed_and_in_memory(tmp_path: Path) -> None:
    small = ("--rows", 64, "--dim", 16, "-k", 5, "--folder", tmp_path)
    (streamed,) = lines(process("large.py", "stream", *small, "--memory", "10M"))
    (whole,) = lines(process("large.py", "memory", *small))
    for told in (streamed, whole):
        assert told["seconds"] > 0 and 0 <= told["share"] < 1  # type: ignore[operator]
        assert told["worst_score_error"] < 5e-4 and told["table_bytes"] == 64 * 5 * 6  # type: ignore[operator]
    assert streamed["within_memory"] and streamed["embedding_bytes"] == 64 * 16 * 4
    assert (tmp_path / "scns-large-64x16.npy").stat().st_size == 128 + 64 * 16 * 4


def test_mining() -> None:
    """The negatives are passages: 10 of each query, none of them its own."""
    told = lines(process("mining.py", "--queries", 64, "--passages", 500, "--cases", "scns", "--rounds", 1))
    assert told[0]["same"] == 64 and told[0]["passages"] == 500
    mining = runpy.run_path(str(BENCH / "mining.py"))
    asked, found, own = mining["texts"](64, 500, 384)
    negatives = mining["by_scns"](asked, found, own)
    scores = (asked @ found.T).scatter(1, own[:, None], -1.0)
    below = scores <= 0.95 * (asked * found[own]).sum(1, keepdim=True) + 1e-3
    wanted = scores.where(below, -1.0).topk(10)
    assert negatives.shape == (64, 10) and (negatives != own[:, None]).all() and (negatives >= 0).all()
    assert (scores.gather(1, negatives) - wanted.values).abs().max() < 1e-3

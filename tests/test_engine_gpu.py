"""The engine on CUDA: captured equals eager, nothing waits for the device, packed equals alone, resumed as whole."""

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import scns
from scns.capture import Replay
from scns.recipe import Recipe
from scns.run import Run
from scns.train import Pack, Stopped, Watch, fit, fit_packed, prepare

pytestmark = pytest.mark.gpu

BASE = Recipe(
    student="resnet8", subset=1000, batch=48, epochs=3, lr=0.02, device="cuda", deterministic=True, precision="fp32"
)
INFONCE: dict[str, Any] = {"method": "infonce", "arguments": {"sampler": "uniform", "negatives": 64}}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("teacher") / "run"
    fit(replace(BASE, epochs=2), folder)
    return str(folder)


def weights(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in (*run.student.parameters(), *run.method.parameters())])


CRD: dict[str, Any] = {"method": "crd", "arguments": {"negatives": 4000}}  # drawn with repetition


@pytest.mark.parametrize("changes", [{}, INFONCE, CRD, {"method": "rkd"}], ids=["ce", "infonce", "crd", "rkd"])
def test_captured_equals_eager_to_the_last_bit(tmp_path: Path, teacher: str, changes: dict[str, Any]) -> None:
    if changes.get("method") in ("crd", "rkd"):
        changes = {**changes, "teacher": teacher}
    graph = fit(replace(BASE, **changes), tmp_path / "graph")
    eager = fit(replace(BASE, **changes, graph=False), tmp_path / "eager")
    assert torch.equal(weights(graph), weights(eager))
    assert graph.result["test"] == eager.result["test"]
    for one, other in zip(graph.history, eager.history, strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in other.items() if k != "seconds"}


@pytest.mark.parametrize("method", ["kld", "infonce", "crd"])
def test_an_epoch_never_waits_for_the_device(tmp_path: Path, teacher: str, method: str) -> None:
    recipe = replace(BASE, method=method, teacher=teacher)
    pack = Pack(prepare([(recipe, tmp_path / "run")]))
    for _ in pack.launch(Watch()):
        pass
    pack.runs[0].epoch, pack.runs[0].place = 1, 0
    steps = pack.launch(Watch())
    next(steps)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in steps:
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("method", ["ce", "kld", "infonce"])
def test_packed_equals_alone(tmp_path: Path, teacher: str, method: str) -> None:
    source = teacher if method != "ce" else ""
    recipes = [replace(BASE, method=method, teacher=source, seed=seed, data_seed=0) for seed in range(3)]
    packed = fit_packed([(recipe, tmp_path / f"packed{i}") for i, recipe in enumerate(recipes)])
    for i, recipe in enumerate(recipes):
        alone = fit(recipe, tmp_path / f"alone{i}")
        assert torch.equal(weights(alone), weights(packed[i]))


def test_runs_with_other_orders_train_beside_each_other(tmp_path: Path) -> None:
    recipes = [replace(BASE, seed=seed) for seed in range(2)]
    packed = fit_packed([(recipe, tmp_path / f"packed{i}") for i, recipe in enumerate(recipes)])
    for i, recipe in enumerate(recipes):
        assert torch.equal(weights(fit(recipe, tmp_path / f"alone{i}")), weights(packed[i]))


def test_a_graph_has_a_workspace_of_its_own() -> None:
    """torch has 32 streams; the one after is the first again, and with its graph goes the workspace of that stream."""
    x, y = torch.randn(64, 50_000, device="cuda"), torch.randn(50_000, 128, device="cuda")  # summed in parts
    found, other = x.new_zeros(64, 128), x.new_zeros(64, 128)
    kept = Replay(lambda size: torch.mm(x, y, out=found), lambda: [], True)
    freed = Replay(lambda size: torch.mm(x, y, out=other), lambda: [], True)
    kept(1)
    wanted = found.clone()
    between = [torch.cuda.Stream() for _ in range(31)]
    freed(1)
    assert freed.streams == kept.streams and len(between) == 31
    del freed
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    taken = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(64)]  # what was given back
    kept(1)
    torch.cuda.synchronize()
    assert torch.equal(found, wanted) and all(bool((each == 7).all()) for each in taken)


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    class Interrupt(Watch):
        def step(self, run: Run, epoch: int, done: int, total: int) -> None:
            if epoch == 2 and done == 7:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGTERM)

    recipe = replace(BASE, **INFONCE, checkpoint_every=1)
    whole = fit(recipe, tmp_path / "whole")
    with pytest.raises(Stopped):
        fit(recipe, tmp_path / "cut", watch=Interrupt())
    resumed = fit(recipe, tmp_path / "cut")
    assert torch.equal(weights(whole), weights(resumed))


@pytest.mark.parametrize("command", [["train", "--out", "one"], ["sweep", "--seeds", "2", "--pack", "2"]], ids=str)
def test_a_process_killed_at_random_moments_ends_with_the_same_weights(tmp_path: Path, command: list[str]) -> None:
    """The command line of a person, who gives the same line again; negatives drawn by the run's own table."""
    recipe = replace(BASE, method="infonce", subset=0, epochs=60, evaluate_every=10, checkpoint_every=1)
    environment = {**os.environ, "PYTHONPATH": str(Path(scns.__file__).parents[1])}  # found from any folder

    def start(folder: Path) -> "subprocess.Popen[bytes]":
        folder.mkdir(exist_ok=True)
        (folder / "mine.json").write_text(json.dumps(recipe.as_dict()))
        words = [sys.executable, "-m", "scns", command[0], "mine.json", *command[1:]]
        return subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL)

    whole, cut, killed = tmp_path / "whole", tmp_path / "cut", 0
    assert start(whole).wait() == 0
    for seen in (1, 15):  # epochs in the log; the moment after that is random
        process = start(cut)
        while process.poll() is None and not any(
            len(log.read_bytes().splitlines()) >= seen for log in cut.rglob("log.jsonl")
        ):
            time.sleep(0.01)
        time.sleep(0.2 * random.random())
        process.kill()
        killed += process.wait() != 0
    assert killed == 2 and not list(cut.rglob("result.json"))
    assert start(cut).wait() == 0
    students = sorted(path.relative_to(whole) for path in whole.rglob("model.safetensors"))
    assert len(students) == len(list(cut.rglob("model.safetensors"))) == (2 if command[0] == "sweep" else 1)
    for student in students:
        assert (whole / student).read_bytes() == (cut / student).read_bytes()


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("kld", {"precision": "bf16"}),
        ("crd", {"compile": "network"}),
        ("infonce", {"precision": "bf16", "compile": "all"}),
    ],
    ids=["kld in bf16", "crd compiled", "infonce in bf16, all compiled"],
)
def test_bf16_and_compile_learn_alike(tmp_path: Path, teacher: str, method: str, changes: dict[str, Any]) -> None:
    base = replace(BASE, method=method, teacher=teacher, deterministic=False)
    plain = fit(base, tmp_path / "plain")
    fast = fit(replace(base, **changes), tmp_path / "fast")
    assert abs(plain.history[0]["ce"] - fast.history[0]["ce"]) < 0.05
    assert abs(plain.history[-1]["loss"] / fast.history[-1]["loss"] - 1) < 0.05


@pytest.mark.filterwarnings("ignore")
def test_compiled_students_of_a_pack_learn_as_alone(tmp_path: Path, teacher: str) -> None:
    recipes = [replace(BASE, method="crd", teacher=teacher, seed=s, data_seed=0, compile="all") for s in range(2)]
    packed = fit_packed([(recipe, tmp_path / f"packed{i}") for i, recipe in enumerate(recipes)])
    alone = fit(recipes[1], tmp_path / "alone")
    assert torch.allclose(weights(alone), weights(packed[1]), rtol=1e-3, atol=1e-4)

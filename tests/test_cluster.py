"""Sweeps on Ray: the results of the local engine, a node lost in the middle, and a Ray that is not there."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conftest import ALONE
from engine_runs import recipe
from scns.cluster import Claim, _enter, _marked, share, sweep_on_ray
from scns.errors import InputError
from scns.lock import held
from scns.results import Line, read
from scns.run import Run
from scns.sweep import Job, sweep
from scns.train import Stopped, fit

SMALL = ("--subset", 200, "--set", "data=cifar10-mini", "--set", "student=resnet8", "--set", "device=cpu")
EPOCHS = 4
FIVE = ("sweep", "t3", "--rows", "kld,at", "--columns", "resnet110-resnet20", "--seeds", 2, "--epochs", EPOCHS, *SMALL)
FIVE = (*FIVE, "--set", "batch=50", "--set", "checkpoint_every=1", "--pack", 8)

# Python imports this at its start on every node: it notes who writes checkpoints and results, and may refuse to write.
WITNESS = """
import errno, os, sys
written, refused = os.environ.get("TEST_WRITTEN", ""), os.environ.get("TEST_REFUSED", "")
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
def hook(event, given):
    if event == "os.rename" and str(given[1]).endswith(("/last.safetensors", "/result.json")):
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
        with open(written, "a") as file:
            file.write(f"{os.environ.get('TEST_NODE', 'head')} {gpus} {os.path.abspath(given[1])}\\n")
    if refused and event == "open" and str(given[0]).startswith(refused) and given[2] & writing:
        raise PermissionError(errno.EACCES, "Permission denied", given[0])
if written:
    sys.addaudithook(hook)
"""


class Nodes:
    """A Ray cluster on this machine whose nodes note what they write."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        (folder / "sitecustomize.py").write_text(WITNESS)
        self.written = folder / "written.txt"
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {"PYTHONPATH": path, "TEST_WRITTEN": str(self.written), "RAY_USAGE_STATS_ENABLED": "0"}
        quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "health_check_timeout_ms": 2000}
        head = {"num_cpus": 1, "env_vars": self.environment, "_system_config": quick, "object_store_memory": 10**8}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)

    @contextmanager
    def another(self, name: str, num_gpus: int = 0, **environment: str) -> Iterator[Any]:
        known = {**self.environment, "TEST_NODE": name, **environment}
        node = self.cluster.add_node(num_cpus=1, num_gpus=num_gpus, env_vars=known, object_store_memory=10**8)
        try:
            yield node
        finally:
            if node in self.cluster.worker_nodes:
                self.cluster.remove_node(node)

    def notes(self) -> list[tuple[str, str, Path]]:
        """Node, visible GPUs and file of every checkpoint and result, in order."""
        lines = self.written.read_text().splitlines() if self.written.exists() else []
        return [(node, gpus, Path(path)) for node, gpus, path in (line.split(" ", 2) for line in lines)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    made = Nodes(tmp_path_factory.mktemp("nodes"))
    yield made
    made.cluster.shutdown()


def start(*words: object, **environment: str) -> subprocess.Popen:
    """The command line as a process of its own session, as a terminal has it."""
    command = [sys.executable, "-m", "scns", *map(str, words)]
    surroundings = {**ALONE, **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=surroundings, start_new_session=True)


def until(true: Callable[[], object], process: subprocess.Popen, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.05)


def lines(folder: Path) -> list[Line]:
    return [replace(line, seconds=0) for line in read(folder).lines]


@pytest.mark.scale
def test_a_node_lost_in_the_middle_costs_no_run_and_repeats_none(
    nodes: Nodes, scns: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    out, alone = tmp_path / "ray", tmp_path / "local"

    def count(name: str, node: str) -> int:
        return sum(
            1 for who, _, path in nodes.notes() if who == node and path.name == name and "teacher" not in str(path)
        )

    with nodes.another("second") as second:
        swept = start(*FIVE, "--engine", "ray", "--address", nodes.cluster.address, "--out", out)
        until(lambda: count("last.safetensors", "second") >= 6, swept)  # two students, before and after epochs 1 and 2
        assert not count("result.json", "second")
        nodes.cluster.remove_node(second, allow_graceful=False)
        printed, said = swept.communicate(timeout=240)
    assert swept.returncode == 0, said
    assert "raylet" not in printed and "was lost, 1 left" in said and "5 of 5 finished" in said

    notes = [(who, path) for who, _, path in nodes.notes() if out in path.parents]
    results = [path.parent for _, path in notes if path.name == "result.json"]
    assert len(results) == len(set(results)) == 5, "every run ends, none twice"
    teacher = out / "t3" / "teacher" / "resnet110-0"
    assert results[0] == teacher and {path.parent for _, path in notes[: EPOCHS + 2]} == {teacher}
    for run in results[1:]:
        told = [json.loads(line)["epoch"] for line in (run / "log.jsonl").read_text().splitlines()]
        assert told == list(range(1, EPOCHS + 1))
        owners = [who for who, path in notes if path == run / "last.safetensors"]
        assert owners == sorted(owners, reverse=True), "what another node took over is not given back"
        moved = len(set(owners)) == 2
        assert len(owners) <= EPOCHS + 1 + moved, "no epoch before the last checkpoint is trained again"
    assert sum({who for who, path in notes if path.parent == run} == {"second", "head"} for run in results[1:]) == 2
    assert not [path for path in out.rglob(".*")]

    assert scns(*FIVE, "--out", alone)[0] == 0
    assert lines(out) == lines(alone)
    for run in results:
        ours, theirs = (load_file(each / "model.safetensors") for each in (run, alone / run.relative_to(out)))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    before = len(nodes.notes())
    code, printed, _ = scns(*FIVE, "--engine", "ray", "--address", "127.0.0.1:1", "--out", out)
    assert code == 0 and printed.count("finished") == 5 and len(nodes.notes()) == before  # Ray is not even asked


@pytest.mark.scale
def test_a_node_that_cannot_write_the_shared_folder_is_named(nodes: Nodes, tmp_path: Path) -> None:
    words = ("sweep", "mini-ce", "--epochs", 1, *SMALL, "--engine", "ray", "--address", nodes.cluster.address)
    with nodes.another("reader", TEST_REFUSED=str(tmp_path)):
        swept = start(*words, "--out", tmp_path / "runs")
        _, said = swept.communicate(timeout=240)
    assert swept.returncode == 2 and "Traceback" not in said
    assert f"cannot write '{tmp_path / 'runs'}' (Permission denied" in said and "every node shares" in said
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.scale
def test_packed_students_share_a_gpu(nodes: Nodes, tmp_path: Path) -> None:
    """The GPU exists for Ray alone: what is asked of it, and given, is real; torch trains on what it finds."""
    words = ("sweep", "mini-ce", "--seeds", 3, "--epochs", 1, "--subset", 100, "--engine", "ray", "--pack", 2)
    with nodes.another("gpu", num_gpus=1):
        swept = start(*words, "--address", nodes.cluster.address, "--out", tmp_path)
        _, said = swept.communicate(timeout=240)
    assert swept.returncode == 0, said
    results = [
        (who, gpus) for who, gpus, path in nodes.notes() if tmp_path in path.parents and path.name == "result.json"
    ]
    assert results == [("gpu", "0")] * 3


@pytest.mark.scale
def test_ctrl_c_leaves_checkpoints_and_no_process(tmp_path: Path) -> None:
    """With a Ray of its own, which reports to nobody and ends with the sweep."""
    mark = str(tmp_path / "mark")

    def processes() -> list[bytes]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                found.append(path.read_bytes())
            except OSError:
                continue
        return [each for each in found if f"TEST_MARK={mark}".encode() in each]

    out = tmp_path / "runs"
    words = ("sweep", "mini-ce", "--seeds", 2, "--epochs", 500, *SMALL, "--engine", "ray", "--out", out)
    swept = start(*words, TEST_MARK=mark, RAY_ADDRESS="", HOME=str(tmp_path))  # where Ray leaves a token
    until(lambda: len(list(out.glob("*/last.safetensors"))) == 2, swept)

    def all_but_ours_tell_nothing() -> bool:
        running = [each for each in processes() if not each.startswith(b"\0")]  # else Ray's title is written over it
        return len(running) > 3 and sum(b"RAY_USAGE_STATS_ENABLED=0" in each for each in running) == len(running) - 1

    until(all_but_ours_tell_nothing, swept)  # a process that starts just now may still look like the one it comes from
    os.killpg(swept.pid, signal.SIGINT)
    _, said = swept.communicate(timeout=60)
    assert swept.returncode == 130 and "The same command goes on" in said and "Traceback" not in said
    assert not processes()
    assert not [path for path in out.rglob(".*")]
    assert all(json.loads((out / f"mini-ce-{seed}" / "state.json").read_text())["seconds"] > 0 for seed in range(2))


@pytest.mark.scale
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "No Ray cluster answers at --address 127.0.0.1:1"),
        ("nowhere.invalid:6379", "No Ray cluster answers at --address nowhere.invalid:6379"),
        ("127.0.0.1", "--address 127.0.0.1 is not HOST:PORT"),
        ("127.0.0.1:ray", "is not HOST:PORT"),
        ("ray://127.0.0.1:10001", "is that of a Ray client"),
    ],
)
def test_an_address_without_ray(
    scns: Callable[..., tuple[int, str, str]], tmp_path: Path, address: str, message: str
) -> None:
    began = time.monotonic()
    words = ("sweep", "mini-ce", "--epochs", 1, *SMALL, "--engine", "ray", "--out", tmp_path / "runs")
    code, _, said = scns(*words, "--address", address)
    assert code == 2 and message in said and said.count("\n") == 1 and time.monotonic() - began < 10
    assert not (tmp_path / "runs").exists()


@pytest.mark.scale
def test_a_server_that_is_not_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr("scns.cluster._ANSWER", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(InputError, match="No Ray cluster answers"):
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        sweep_on_ray([Job(recipe(), tmp_path / "run")], pack=1, folder=tmp_path, address=address)


# --- without Ray


def test_without_ray_the_extra_is_named(
    scns: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, said = scns("sweep", "mini-ce", "--epochs", 1, *SMALL, "--engine", "ray", "--out", tmp_path / "runs")
    assert code == 2 and "pip install 'scns[cluster]'" in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_share_of_a_gpu() -> None:
    assert [share(runs, 8) for runs in (8, 4, 1)] == [1, 0.5, 0.125]
    for size in range(1, 50):
        assert 0 < size * share(1, size) <= 1, "as many runs as fill a GPU fit on it"
    assert share(8, 8, spread=True) == 1 and 2 * share(1, 8, spread=True) > 1, "no two on one GPU while others idle"


def test_a_run_belongs_to_the_process_that_claimed_it_last(tmp_path: Path) -> None:
    """A node that was cut off finds its run taken after an epoch, writes no more, and leaves the other's claim."""
    job = Job(recipe(), tmp_path / "run")  # three epochs, a checkpoint after each
    later: list[Claim] = []

    class Cut(Claim):
        def epoch(self, run: Run, line: dict[str, Any]) -> None:
            if line["epoch"] == 2:
                later.append(Claim([job.out]))
            super().epoch(run, line)

    first = Cut([job.out])
    with pytest.raises(Stopped, match="trained by another process now"):
        sweep([job], say=lambda line: None, watch=first)
    first.release()
    assert first.lost and json.loads((job.out / "state.json").read_text())["epoch"] == 1
    assert later[0].owns(job.out) and not (job.out / "error.txt").exists()
    (outcome,) = sweep([job], say=lambda line: None, watch=later[0])
    later[0].release()
    assert outcome.result and not list(job.out.glob(".*"))
    whole = fit(job.recipe, tmp_path / "whole")
    assert outcome.result["test"] == whole.result["test"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mark": "other"}, "is not the folder of this sweep; start the sweep in, and give --out, folders that every"),
        ({"folder": "gone"}, "'gone' on .* is not the folder of this sweep"),
        ({"working": "gone"}, r"cannot write 'runs' \(No such file or directory: 'gone'\)"),
        ({"version": "0.0"}, "the sweep 0.0; install one version everywhere"),
    ],
)
def test_a_node_that_cannot_take_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with _marked(Path("runs")) as place:
        _enter(place)
        with pytest.raises(InputError, match=message):
            _enter(replace(place, **changed))
    assert not list(Path("runs").iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "rya"), "Unknown engine 'rya'"),
        (("--address", "auto"), "--address auto belongs to --engine ray"),
    ],
)
def test_bad_words(scns: Callable[..., tuple[int, str, str]], tmp_path: Path, words: tuple, message: str) -> None:
    code, _, said = scns("sweep", "mini-ce", *words, "--out", tmp_path / "runs")
    assert code == 2 and message in said and not (tmp_path / "runs").exists()


def test_a_claim_takes_a_folder_from_another_claim_alone(tmp_path: Path) -> None:
    with held(tmp_path):
        Claim([tmp_path])
        assert (tmp_path / ".lock").exists()  # of `scns train`, which does not look at claims
        Claim([tmp_path])
        assert not (tmp_path / ".lock").exists()

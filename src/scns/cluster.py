"""Sweeps on a Ray cluster: a pack is a task, teachers come before students, and what a lost node trained goes on.

All nodes share the folder of the runs. A task is the local engine's `sweep` of one pack, so folders, results and
weights are those of a sweep on one machine.
"""

import logging
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from scns import __version__, lock
from scns.errors import InputError
from scns.files import atomic
from scns.phrases import count
from scns.run import Run
from scns.sweep import Job, Outcome, already, batches, finished, in_order, ready, sweep
from scns.train import Stopped, Watch, polite_stop
from scns.watch import Several, watching

_RETRIES = 3  # of a pack whose process or node was lost: Ray's own number; a pack lost 4 times is taken apart
_LOOK = 1.0  # seconds between looks at signals and nodes
_PATIENCE = 60.0  # seconds that runs have to write a checkpoint when they are asked to stop
_KNOCK = 5.0  # seconds for a port to answer
_ANSWER = 20.0  # seconds for Ray behind the port to answer: a process starts and imports Ray for it
_JOIN = 120.0  # seconds for a node to start a process and import torch from a shared disk
_STORE = 100_000_000  # bytes of Ray's object store: packs pass recipes and results, kilobytes


def sweep_on_ray(
    jobs: list[Job], *, pack: int, folder: Path, address: str = "", say: Callable[[str], None] = print
) -> list[Outcome]:
    """`sweep`, with packs as tasks of the Ray cluster at `address`, or of one on this machine that ends with the sweep.

    A full pack takes a GPU, a smaller one its part of it; where there are more GPUs than full packs, packs are made
    smaller to use them all. Without GPUs a pack takes a CPU core.
    """
    ended = already(jobs)
    if not ready(jobs, ended):
        return in_order(jobs, ended)
    with _connected(address) as ray, _marked(folder) as place, polite_stop() as stopping:
        tasks = _Tasks(ray, place, pack, say)
        tasks.check([job for job in jobs if job.out not in ended])
        say(f"{count(len(jobs) - len(ended), 'run')} on {count(len(tasks.alive), 'node')} of Ray.")
        say(f"How far they are: scns runs {folder}")
        while True:
            tasks.start(ready(jobs, ended))
            if not tasks.at_work:
                return in_order(jobs, ended)
            done = tasks.wait()
            if stopping():
                tasks.stop()
                where = f"Stopped; checkpoints are in the run folders of '{folder}'"
                raise Stopped(f"{where}. The same command goes on from there.", stopping())
            for outcome in tasks.outcomes(done):
                ended[outcome.job.out] = outcome
                if outcome.result is not None:
                    so_far = sum(each.result is not None for each in ended.values())
                    say(f"{outcome.job.out}: {outcome.result['test']:.2f} %  ({so_far} of {len(jobs)} finished)")


class _Tasks:
    """The packs at work on a cluster."""

    def __init__(self, ray: Any, place: "_Place", pack: int, say: Callable[[str], None]) -> None:
        self.ray, self.place, self.pack, self.say = ray, place, pack, say
        self.at_work: dict[Any, list[Job]] = {}  # by the task's reference
        self.alone: set[Path] = set()  # runs whose pack was lost too often
        self.alive = self._nodes()
        self.gpus = self.ray.cluster_resources().get("GPU", 0) > 0  # decided once: a run does not change its device

    def _nodes(self) -> dict[str, str]:
        """Addresses of the nodes that can run something, by id."""
        nodes = [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        return {node["NodeID"]: node["NodeManagerAddress"] for node in nodes}

    def check(self, jobs: list[Job]) -> None:
        """Raise where the cluster lacks what the jobs ask for, or a node cannot write to the shared folder."""
        if not self.alive:
            raise InputError("The Ray cluster has no node with a CPU core to run on; add one with: ray start")
        if not self.gpus and any(job.recipe.device == "cuda" for job in jobs):
            raise InputError("device=cuda was asked for, but no node of the Ray cluster has a GPU; use device=cpu.")
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        enter = self.ray.remote(_enter)
        asked = {}
        for node, address in self.alive.items():
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            asked[enter.options(num_cpus=0, scheduling_strategy=there).remote(self.place)] = address
        for answer, address in asked.items():
            try:
                self.ray.get(answer, timeout=_JOIN)
            except self.ray.exceptions.RayError as error:
                raise InputError(f"The Ray node {address} cannot take part: {_reason(error)}") from None

    def start(self, jobs: list[Job]) -> None:
        """Hand over the jobs that are not at work, in packs that keep every GPU (or core) busy."""
        busy = {job.out for batch in self.at_work.values() for job in batch}
        waiting = [job for job in jobs if job.out not in busy]
        for gpu in (True, False):
            group = [job for job in waiting if (self.gpus and job.recipe.device != "cpu") == gpu]
            places = max(1, int(self.ray.cluster_resources().get("GPU" if gpu else "CPU", 1)))
            size = max(1, min(self.pack, math.ceil(len(group) / places)))
            packs = batches([job for job in group if job.out not in self.alone], size)
            for batch in [*packs, *([job] for job in group if job.out in self.alone)]:
                part = share(len(batch), self.pack, spread=size < self.pack and places > 1) if gpu else 0
                task = self.ray.remote(_train).options(num_cpus=1, num_gpus=part, max_retries=_RETRIES)
                self.at_work[task.remote(batch, self.place)] = batch

    def wait(self) -> list[Any]:
        """The references of packs that ended within a moment; lost nodes are told of."""
        done, _ = self.ray.wait(list(self.at_work), timeout=_LOOK)
        alive = self._nodes()
        for node in self.alive.keys() - alive.keys():
            self.say(f"The Ray node {self.alive[node]} was lost, {len(alive)} left; its runs go on elsewhere.")
        self.alive = alive
        return done

    def outcomes(self, done: list[Any]) -> list[Outcome]:
        return [outcome for reference in done for outcome in self._told(reference, self.at_work.pop(reference))]

    def _told(self, reference: Any, batch: list[Job]) -> list[Outcome]:
        try:
            said, told = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:  # the node cannot take part, or another sweep trains these
            return [Outcome(job, None, _reason(error)) for job in batch]
        except self.ray.exceptions.RayError as error:
            if len(batch) == 1:
                return [Outcome(batch[0], None, f"its process was lost, {_RETRIES} retries included: {_reason(error)}")]
            self.say(f"A pack of {len(batch)} was lost, {_RETRIES} retries included; trying its runs one by one.")
            self.alone |= {job.out for job in batch}
            return []
        for line in said:
            self.say(line)
        return [Outcome(job, result, error) for job, (result, error) in zip(batch, told, strict=True)]

    def stop(self) -> None:
        """Ask all packs to stop, and give them time for their checkpoints."""
        for reference in self.at_work:
            self.ray.cancel(reference)
        self.ray.wait(list(self.at_work), num_returns=len(self.at_work), timeout=_PATIENCE)


def share(runs: int, pack: int, spread: bool = False) -> float:
    """The part of a GPU that `runs` take of which `pack` fill it, in Ray's steps of 1/10,000.

    Ray puts small parts on one GPU while others idle; to `spread` them, each takes more than half of one.
    """
    return max(math.floor(10_000 * runs / pack) / 10_000, 0.5001 if spread else 0.0)


# --- on a node


@dataclass(frozen=True)
class _Place:
    """Where a sweep was started, by the names that every node must know it by."""

    working: str
    folder: str
    mark: str  # a file in the folder that only this sweep has
    version: str = __version__


def _enter(place: _Place) -> None:
    """Go where the sweep was started; raise unless this node has the same scns and can write to the same folder."""
    here = socket.gethostname()
    if place.version != __version__:
        raise InputError(f"'{here}' has scns {__version__}, the sweep {place.version}; install one version everywhere.")
    remedy = "start the sweep in, and give --out, folders that every node shares and can write."
    try:
        os.chdir(place.working)
        if not (Path(place.folder) / place.mark).exists():
            raise InputError(f"'{place.folder}' on '{here}' is not the folder of this sweep; {remedy}")
        with tempfile.NamedTemporaryFile(dir=place.folder, prefix=place.mark):
            pass
    except OSError as error:
        raise InputError(
            f"'{here}' cannot write '{place.folder}' ({error.strerror}: '{error.filename}'); {remedy}"
        ) from None


def _train(jobs: list[Job], place: _Place) -> tuple[list[str], list[tuple[dict[str, Any] | None, str]]]:
    """What was said of a pack, and result or reason of each of its runs; those finished elsewhere are only read."""
    _enter(place)
    said: list[str] = []
    claim = Claim([job.out for job in jobs if finished(job.out) is None])
    try:
        with watching(Console(quiet=True), False, True, under=Path(place.folder)) as watch:
            outcomes = sweep(jobs, pack=len(jobs), say=said.append, watch=Several([claim, watch]))
    except Stopped as stopped:
        if claim.lost:
            raise InputError(str(stopped)) from None
        if stopped.code == 128 + signal.SIGINT:  # the sweep has cancelled this task
            raise KeyboardInterrupt from None
        claim.release()
        os._exit(stopped.code)  # the node goes down: a process that is gone makes Ray try again elsewhere
    finally:
        claim.release()
    return said, [(outcome.result, outcome.error) for outcome in outcomes]


class Claim(Watch):
    """Keeps each run to one process: the last that claimed it.

    A node that Ray has lost may still train, cut off from Ray but not from the folder. Its runs were given to another,
    and after its epoch it finds that they are no longer its own.
    """

    def __init__(self, folders: list[Path]) -> None:
        self.name, self.folders, self.lost = uuid.uuid4().hex, folders, False
        for folder in folders:
            if (folder / ".owner").exists():
                lock.release(folder)  # of a process that was cut off, and will find out; any other keeps its lock
            with atomic(folder / ".owner") as temporary:
                temporary.write_text(self.name)

    def owns(self, folder: Path) -> bool:
        try:
            return (folder / ".owner").read_text() == self.name
        except OSError:
            return False

    def start(self, run: Run) -> None:
        self._check(run)

    def epoch(self, run: Run, line: dict[str, Any]) -> None:
        self._check(run)

    def _check(self, run: Run) -> None:
        if not self.owns(run.folder.path):
            self.lost = True
            raise Stopped(
                f"'{run.folder.path}' is trained by another process now; let that one finish.", signal.SIGTERM
            )

    def release(self) -> None:
        for folder in self.folders:
            if self.owns(folder):
                (folder / ".owner").unlink(missing_ok=True)


# --- reaching Ray


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, connected; what was started here is shut down, a connection that existed before is used and left alone."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when Ray starts: it reports home otherwise
    try:
        import ray
    except ImportError:
        raise InputError(
            "--engine ray needs Ray, which is not installed; install it with: pip install 'scns[cluster]'"
        ) from None
    if ray.is_initialized():
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS", "")
    if address:
        _knock(address)
    settings: dict[str, Any] = {} if address else {"include_dashboard": False, "object_store_memory": _STORE}
    with redirect_stdout(sys.stderr):  # Ray prints there what it thinks of a lost node
        try:
            ray.init(address or "local", logging_level=logging.CRITICAL, log_to_driver=False, **settings)
            yield ray
        finally:
            ray.shutdown()


def _knock(address: str) -> None:
    """Raise unless a Ray cluster answers: `ray.init` itself would wait for minutes, and hang on what is not Ray."""
    remedy = (
        "on a node of a cluster (ray start) give auto or HOST:6379, with RAY_AUTH_MODE=token where it wants a token."
    )
    if address.startswith("ray://"):
        raise InputError(f"--address {address} is that of a Ray client; {remedy}")
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise InputError(f"--address {address} is not HOST:PORT; {remedy}")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"No Ray cluster answers at --address {address} ({error}); {remedy}") from None
    try:
        trial = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False)"
        done = subprocess.run([sys.executable, "-c", trial, address], capture_output=True, text=True, timeout=_ANSWER)
    except subprocess.TimeoutExpired:
        raise InputError(f"No Ray cluster answers at --address {address} (in {_ANSWER:.0f} s); {remedy}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1].split(". ")[0]
        raise InputError(f"Ray cannot be joined at --address {address} ({reason}); {remedy}")


@contextmanager
def _marked(folder: Path) -> Iterator[_Place]:
    """The folder with a mark in it by which nodes know that theirs is the same."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".sweep-") as mark:
        yield _Place(os.getcwd(), str(folder), Path(mark.name).name)


def _reason(error: Exception) -> str:
    """The sentence of what failed on a node, without Ray's own traceback around it."""
    inner = getattr(error, "cause", None) or error
    return str(inner).strip().split("\n")[0] or type(inner).__name__

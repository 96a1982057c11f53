"""Trains in several processes that share one process group: python world_helper.py RANKS JOB.json

All ranks are forks of this process, so that torch is imported once; each job is done by all of them, one after another.
What a rank has to say of each job stands in RANK.json and RANK.safetensors beside JOB.json.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which torch imports at the first shared step: here once, not in every rank
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from scns.errors import InputError
from scns.join import current
from scns.memory import FeatureTable, Part
from scns.recipe import from_dict
from scns.run import Run
from scns.train import Stopped, Watch, fit
from scns.world import World
from world_cases import CASES, doubled, trained

Said = dict[str, Any]
Kept = dict[str, Tensor]


def case(job: Said, world: World) -> tuple[Said, Kept]:
    """A small float64 training."""
    return {}, trained(CASES[job["name"]], world, job["steps"])


def passing(job: Said, world: World) -> tuple[Said, Kept]:
    """What passes between ranks, and its gradients, on numbers that a person can follow."""
    sizes = world.sizes(5)
    start, stop = world.span(5)
    rows = torch.arange(10.0).view(5, 2).double()[start:stop].requires_grad_()
    whole = world.whole(rows, sizes)
    (whole.square().sum() / 2).backward()  # its gradient is the rows themselves
    assert rows.grad is not None
    table = torch.arange(1.0, 22.0).view(7, 3).double()
    part, z = Part(7, world), torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]).double().requires_grad_()
    own, index = table[part.numbers().clamp(max=6)], torch.tensor([[0, 6, 3], [5, 1, 2]])
    kept = {"gathered": world.gather(rows.detach(), sizes), "whole": whole.detach(), "own": rows.grad}
    for name, asked in (("few", index[:, :1]), ("many", index.repeat(1, 4)), ("all", None)):
        products = part.dots(z, own, asked)
        (gradient,) = torch.autograd.grad(products.square().sum(), z)
        kept |= {f"{name} products": products.detach(), f"{name} gradient": gradient}
    kept |= {"taken": part.take(own, index), "collected": part.collected(own)}
    first = FeatureTable(7, 3, seed=4, world=world).features[: part.count]
    return {"any": world.any(world.rank * 3), "span": [start, stop]}, {**kept, "first rows": first}


class Signal(Watch):
    """Sends its own process a signal after so many steps; notes how far it has come."""

    def __init__(self, steps: int) -> None:
        self.left, self.run = steps, None

    def step(self, run: Run, epoch: int, done: int, total: int) -> None:
        self.left, self.run = self.left - 1, run
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def run(job: Said, world: World) -> tuple[Said, Kept]:
    """A run in a folder; `changes` and `there` are what single ranks see differently."""
    mine = {**job["recipe"], **job.get("changes", {}).get(str(world.rank), {})}
    watch = Signal(job["stop"][1] if job.get("stop", [-1])[0] == world.rank else -1)
    here = os.getcwd()
    os.chdir(job.get("there", {}).get(str(world.rank), here))
    try:
        with doubled():
            done = fit(from_dict(mine, "the job"), job["out"], watch=watch)
    except Stopped as stopped:
        assert watch.run is not None
        return {"code": stopped.code, "place": watch.run.place}, {}
    except InputError as error:
        return {"error": str(error)}, {}
    finally:
        os.chdir(here)
    state = {name: value.clone() for name, value in done.student.state_dict().items()}
    return {"result": done.result, "history": done.history}, state


KINDS: dict[str, Callable[[Said, World], tuple[Said, Kept]]] = {"case": case, "passing": passing, "run": run}


def rank_main(rank: int, size: int, jobs: list[Said], place: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(place / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    said, kept = [], {}
    for number, job in enumerate(jobs):
        words, tensors = KINDS[job["kind"]](job, current())
        said.append(words)
        kept |= {f"{number} {name}": value.contiguous() for name, value in tensors.items()}
    save_file(kept, place / f"{rank}.safetensors")
    (place / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


def main() -> None:
    size, path = int(sys.argv[1]), Path(sys.argv[2])
    jobs = json.loads(path.read_text())
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 70
            try:
                rank_main(rank, size, jobs, path.parent)
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()

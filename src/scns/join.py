"""How processes that torchrun started find each other, and notice that one is gone."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from scns import ranks
from scns.errors import InputError
from scns.world import World

_PATIENCE = 600  # seconds that rank 0 waits for the others; a busy cluster starts its processes minutes apart
_GONE = ("Connection closed by peer", "Connection reset", "Broken pipe", "gloo")  # in what gloo says of lost processes


def launched() -> bool:
    """Whether torchrun, or something like it, started this process as one of several."""
    return ranks.of_torchrun()[1] > 1 and "MASTER_ADDR" in os.environ


def elastic() -> bool:
    """Whether torchrun watches over this process: it passes signals on, and kills what does not end in time."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def current() -> World:
    """The world that this process has joined; alone where it has joined none."""
    if not (dist.is_available() and dist.is_initialized()):
        return World()
    return World(dist.get_rank(), dist.get_world_size(), "nccl" in str(dist.get_backend_config()))


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The world of the processes that torchrun started, for as long as the block lasts; alone without torchrun.

    CUDA tensors pass by NCCL where every rank has a GPU of its own, by gloo where ranks share one; others by gloo.
    """
    if dist.is_available() and dist.is_initialized() and "gloo" not in str(dist.get_backend_config()):
        raise InputError(
            "torch.distributed was initialised for GPUs alone, but messages pass between hosts too; use "
            "init_process_group('cpu:gloo,cuda:nccl'), or leave it to scns."
        )
    if not launched() or dist.is_initialized():
        yield current()
        return
    cuda = device != "cpu" and torch.cuda.is_available()
    shared = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()
    # A captured step holds NCCL's calls, which NCCL's own watch over errors must then leave alone. torchrun sees a rank
    # that died and ends the others, so nothing is lost.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    if cuda:
        torch.cuda.set_device(ranks.device("cuda"))  # what "cuda" means from now on
    store, rank, size = next(dist.rendezvous("env://"))
    backend = "cpu:gloo,cuda:nccl" if cuda and not shared else "gloo"
    dist.init_process_group(backend, store=_met(store, rank, size), rank=rank, world_size=size)
    try:
        yield current()
    finally:
        dist.destroy_process_group()


def lost(error: RuntimeError) -> bool:
    """Whether an error says that another process is gone."""
    return isinstance(error, dist.DistError) or any(words in str(error) for words in _GONE)


def _met(store: dist.Store, rank: int, size: int) -> dist.Store:
    """The part of torchrun's store for this start of the processes.

    After a restart the store still holds the addresses of processes that are gone, and nothing in the environment tells
    one start from the next on all machines. So rank 0 counts the starts and answers every process that says hello.
    """
    if rank > 0:
        token = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        store.set(f"scns/hello/{rank}", token)
        start = store.get(f"scns/welcome/{token}").decode()  # waits for it
        store.add(f"scns/{start}/met", 1)
        return dist.PrefixStore(f"scns/{start}", store)
    start, welcomed, until = str(store.add("scns/starts", 1)), set(), time.monotonic() + _PATIENCE
    while (met := store.add(f"scns/{start}/met", 0)) < size - 1:
        for other in range(1, size):
            if store.check([f"scns/hello/{other}"]):
                token = store.get(f"scns/hello/{other}").decode()
                if token not in welcomed:
                    welcomed.add(token)
                    store.set(f"scns/welcome/{token}", start)
        if time.monotonic() > until:
            raise InputError(f"Only {met + 1} of {size} processes came within {_PATIENCE} s; start all of them.")
        time.sleep(0.01)
    return dist.PrefixStore(f"scns/{start}", store)

"""Which of several processes this one is, as torchrun says it; files are enough to work together."""

import os

from scns.errors import InputError


def of_torchrun() -> tuple[int, int]:
    """(rank, world size) from torchrun's environment; (0, 1) for a process of its own."""
    try:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        rank, world = -1, 0
    if not 0 <= rank < world:
        told = f"RANK={os.environ.get('RANK')} and WORLD_SIZE={os.environ.get('WORLD_SIZE')}"
        raise InputError(f"{told} are no rank of a world; start with torchrun, or unset both.")
    return rank, world


def device(name: str) -> str:
    """The device of that name for this rank: "cuda" is the GPU with its local number, several ranks may share one."""
    import torch

    if name != "cuda" or "LOCAL_RANK" not in os.environ:
        return name
    return f"cuda:{int(os.environ['LOCAL_RANK']) % max(1, torch.cuda.device_count())}"


def shares(parts: int) -> list[int]:
    """The parts (from 1) of `parts` that are this rank's: every world-size-th."""
    rank, world = of_torchrun()
    return list(range(rank + 1, parts + 1, world))

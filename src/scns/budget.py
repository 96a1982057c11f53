"""What a neighbour table and its search take, before anything is allocated, and what to do where it does not fit."""

import torch

from scns import room, search, stream
from scns.errors import InputError

_SHARE = 0.8  # of the free memory that a search without a given `memory` takes: others live there too
_COPIES = {"cpu": 8, "cuda": 12}  # bytes a number while rows are sorted and scaled: sorted, unit; on a GPU as given too
_ROW = 72  # bytes a row on the host beside the table: its place, slice and labels (int64), and sorting them


def table_bytes(rows: int, k: int, *, positive: bool = True) -> int:
    """What a table takes, in memory and on disk: int32 and float16 for every neighbour, float16 for `positive`.

    Labels and groups, 4 bytes a row each, are not counted.
    """
    return rows * (k * 6 + 2 * positive)


def plan(
    count: int,
    dim: int,
    k: int,
    memory: int | str | None,
    device: torch.device | str,
    rows: int | None = None,
    groups: bool = False,
) -> stream.Plan:
    """How a search in blocks for `rows` of `count` rows is cut; on the CPU the table counts as well."""
    rows = count if rows is None else rows
    given = int(room.free(device) * _SHARE) if memory is None else room.parse(memory)
    if torch.device(device).type != "cpu":
        return stream.plan(count, dim, k, given, 8 * count, device, groups)  # 8: the caller's row of every place
    table, left = table_bytes(rows, k), given - _ROW * count
    if table >= left:
        shards = -(-2 * table // left) if left > 0 else rows + 1  # half for the table, half for the search
        remedy = f"give at least {room.shown(2 * table + _ROW * count)}"
        remedy += f", or build it in {shards} shards (--shards {shards})" if shards <= rows else ""
        raise InputError(
            f"memory={room.shown(given)} is too small for a table of {rows:,} x {k:,} neighbours, which takes "
            f"{room.shown(table + _ROW * count)} with its row numbers; {remedy}."
        )
    return stream.plan(count, dim, k, given, table + _ROW * count, device, groups)


def check_room(count: int, dim: int, k: int, rows: int, device: torch.device) -> str:
    """What a table and its search in memory take, in words; raises where they do not fit, and names what does."""
    table = table_bytes(rows, k)
    copies = _COPIES["cuda" if device.type == "cuda" else "cpu"]
    working = count * dim * copies + 4 * search.CPU_SCORES
    free = room.free(device)
    if table + working <= free:
        return f"{rows:,} x {k:,} neighbours: {room.shown(table)}, searched in memory ({room.shown(working)}, {device})"
    what = f"A table of {rows:,} x {k:,} neighbours takes {room.shown(table)} and its search {room.shown(working)}, "
    what += f"but {device} has {room.shown(free)} free; "
    host = room.free("cpu") if device.type == "cuda" else free
    if table <= host // 2:
        raise InputError(f"{what}memory='{room.brief(free // 2)}' (--memory) searches it in blocks that fit.")
    fits, shards = max(1, k * (host // 2) // table), -(-table // max(1, host // 4))
    raise InputError(f"{what}k={fits:,} fits, or {shards} shards with memory= (--shards {shards} --memory ...).")

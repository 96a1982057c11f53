"""Row shards of a neighbour table: which rows each has, whether they are one table, and the index that names them."""

import json
from pathlib import Path

from scns.errors import InputError
from scns.files import atomic
from scns.tableinfo import FORMAT, TableInfo

_SHARED = (
    "k", "corpus_rows", "exclude", "backend", "probe", "positive", "filters", "embeddings_sha256", "labels_sha256",
    "groups_sha256",
)  # fmt: skip


def in_order(tables: dict[str, TableInfo]) -> list[tuple[str, TableInfo]]:
    """The shards by their rows; raises where they are not exactly one table."""
    if not tables:
        raise InputError("There are no shards to merge.")
    ordered = sorted(tables.items(), key=lambda item: item[1].first_row)
    first, expected = ordered[0][1], 0
    for path, info in ordered:
        for name in _SHARED:
            if getattr(info, name) != getattr(first, name):
                raise InputError(
                    f"'{path}' has {name} = {getattr(info, name) or 'none'}, but '{ordered[0][0]}' has "
                    f"{getattr(first, name) or 'none'}: "
                    "they are shards of different tables; leave one out or build it again."
                )
        if info.first_row > expected:
            raise InputError(f"Rows {expected} to {info.first_row - 1} are in no shard; build the missing one.")
        if info.first_row < expected:
            raise InputError(f"'{path}' starts at row {info.first_row}, which another shard holds already.")
        expected += info.rows
    if expected != first.corpus_rows:
        raise InputError(f"Rows {expected} to {first.corpus_rows - 1} are in no shard; build the missing one.")
    return ordered


def shard_rows(count: int, shard: int, shards: int) -> range:
    """The rows of shard `shard` (from 1) of `shards`."""
    if not 1 <= shard <= shards:
        raise InputError(f"Shard {shard}/{shards} does not exist: shards count from 1 to {shards}.")
    return range(count * (shard - 1) // shards, count * shard // shards)


def write_index(path: str | Path, ordered: list[tuple[str, TableInfo]]) -> None:
    """Write the index (`*.index.json`) of shards that were seen to be one table."""
    folder = Path(path).resolve().parent
    listed = [
        {"file": _relative(Path(file), folder), "first_row": info.first_row, "rows": info.rows}
        for file, info in ordered
    ]
    content = {"format": FORMAT, "version": "1", "rows": ordered[0][1].corpus_rows, "shards": listed}
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def read_index(path: Path) -> list[Path]:
    """The shards that an index names, in order; all must be there."""
    try:
        content = json.loads(path.read_text())
        files = [path.parent / entry["file"] for entry in content["shards"]]
        known = content["format"] == FORMAT and path.resolve() not in [file.resolve() for file in files]
    except (ValueError, KeyError, TypeError):
        known, files = False, []
    if not known or not files:
        raise InputError(f"'{path}' is not a shard index; write one with: scns neighbors merge.")
    for file in files:
        if not file.exists():
            raise InputError(f"'{path}' names the shard '{file}', which is missing; build it again.")
    return files


def _relative(path: Path, folder: Path) -> str:
    path = path.resolve()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)

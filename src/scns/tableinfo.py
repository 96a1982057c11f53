"""`TableInfo`: where a neighbour table comes from, as its file tells it."""

from dataclasses import MISSING, dataclass, fields

import torch
from torch import Tensor

from scns import __version__

FORMAT = "scns-neighbor-table"
MEANING = {  # of the numbers of `NeighborTable.describe`
    "kept share": "of the rows x k places, those that hold a neighbour",
    "rows short of k": "rows with fewer than k neighbours",
    "empty rows": "rows without any",
    "score quantiles": "cosines of rows with their neighbours",
    "largest in-degree / mean": "in how many lists the most listed row is, over the average: far above 1 is a hub",
    "in-degree skewness": "0 where rows are listed about equally often; large where a few are in very many lists",
    "never a neighbour": "share of rows that are in no list",
    "best negative above own class": "share of rows with a neighbour nearer than their own class: a false negative?",
    "effective negatives": "a row's draws are as spread as if so many neighbours were equally likely: exp(entropy)",
}


@dataclass(frozen=True)
class TableInfo:
    """Where a table comes from."""

    rows: int
    k: int
    dim: int
    first_row: int = 0  # of a shard; the corpus has `corpus_rows`
    corpus_rows: int = 0
    exclude: str | None = "label"
    backend: str = "exact"
    probe: int = 0  # lists that an approximate backend was told to look at; 0: its own choice
    recall: float = 1.0  # against the exact table, on a sample of rows
    short_rows: int = 0  # rows with fewer than k neighbours
    positive: str = ""  # what `positive` holds: "max", "mean" or a quantile
    filters: str = ""
    generation: int = 0  # how often it was refreshed
    embeddings_sha256: str = ""
    labels_sha256: str = ""
    groups_sha256: str = ""
    source: str = ""  # free text: which network, which layer
    library: str = f"scns {__version__}"


def read_info(told: dict[str, str]) -> TableInfo:
    """The info in the metadata of a file; what an older one does not tell has its default. ValueError: it is none."""
    values: dict[str, object] = {}
    for field in fields(TableInfo):
        if field.name not in told:
            if field.default is MISSING:
                raise ValueError(f"it does not tell {field.name}")
            continue
        text = told[field.name]
        try:
            if field.type in (int, "int"):
                values[field.name] = int(text)
            elif field.type in (float, "float"):
                values[field.name] = float(text)
            else:
                values[field.name] = (text or None) if field.name == "exclude" else text
        except ValueError:
            raise ValueError(f"its {field.name} is '{text}', no number") from None
    return TableInfo(**values)  # type: ignore[arg-type]


def check_tensors(info: TableInfo, tensors: dict[str, Tensor]) -> None:
    """ValueError where the tensors of a file are not those that its info tells of; no value is looked at."""
    if info.rows < 1 or info.k < 1 or not 0 <= info.first_row <= info.corpus_rows - info.rows:
        raise ValueError(
            f"it tells of {info.rows} rows from row {info.first_row} on, of {info.corpus_rows}, and of k={info.k}"
        )
    lists, every = (info.rows, info.k), (info.corpus_rows,)
    wanted = {
        "indices": (torch.int32, lists),
        "scores": (torch.float16, lists),
        "positive": (torch.float16, (info.rows,)),
        "labels": (torch.int32, every),
        "groups": (torch.int32, every),
    }
    needed = {"indices", "scores", *(["labels"] if info.exclude == "label" else [])}
    for name, (kind, shape) in wanted.items():
        if name in tensors and (tensors[name].dtype, tuple(tensors[name].shape)) != (kind, shape):
            given = f"{tensors[name].dtype} {tuple(tensors[name].shape)}"
            raise ValueError(f"its {name} are {given} instead of {kind} {shape}")
        if name in needed and name not in tensors:
            raise ValueError(f"it has no {name}")
    if info.exclude not in ("label", "self", None):
        raise ValueError(f"its exclude is '{info.exclude}' instead of label, self or nothing")
    if info.positive not in ("", "max", "mean") and not _is_share(info.positive):
        raise ValueError(f"its positive is '{info.positive}' instead of max, mean or a quantile")


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False

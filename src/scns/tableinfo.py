"""`TableInfo`: where a neighbour table comes from, as its file tells it."""

import math
from dataclasses import dataclass, fields

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
    """The info in the metadata of a file."""
    values: dict[str, object] = {}
    for field in fields(TableInfo):
        text = told.get(field.name, "")
        if field.type in (int, "int"):
            values[field.name] = int(text or 0)
        elif field.type in (float, "float"):
            values[field.name] = float(text or math.nan)
        else:
            values[field.name] = (text or None) if field.name == "exclude" else text
    return TableInfo(**values)  # type: ignore[arg-type]

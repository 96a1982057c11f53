"""Times hard negatives of queries among passages: a filtered table against sentence-transformers' miner.

  python bench/mining.py                                    2,000 queries, 50,000 passages, dim 384, 10 negatives each
  python bench/mining.py --queries 10000 --passages 100000 --rounds 1
  python bench/mining.py --queries 64 --passages 500        a trial run

Needs `pip install sentence-transformers datasets` (and faiss-cpu for the case faiss). The peer gets the same
embeddings, from a model that looks them up, so that no text is encoded. Both keep the 100 nearest passages that are not
the query's own, and of those the 10 best below 95 % of the own one's similarity. One JSON line a case, each in a
process of its own, on one thread: CPU seconds, the memory that was added at the most, and in how many queries the
negatives are those of scns. Cases: scns; default; chunks (the peer with 1,024 queries at a time instead of 16,384);
faiss (the peer with IndexFlatIP).
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

CASES = ("scns", "default", "chunks", "faiss")
KEPT, NEAREST, MARGIN = 10, 100, 0.05


def texts(queries: int, passages: int, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(queries, passages, which passage answers each query): unit vectors around 200 topics."""
    generator = torch.Generator().manual_seed(0)
    topics = torch.randn(200, dim, generator=generator)
    found = topics[torch.randint(0, 200, (passages,), generator=generator)]
    found = found + torch.randn(passages, dim, generator=generator)
    own = torch.randperm(passages, generator=generator)[:queries]
    asked = found[own] + 0.8 * torch.randn(queries, dim, generator=generator)
    return F.normalize(asked, dim=1), F.normalize(found, dim=1), own


def by_scns(asked: torch.Tensor, found: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    from scns import NeighborTable

    count = len(asked)
    labels = torch.full((count + len(found),), -1)
    labels[:count] = labels[count + own] = torch.arange(count)
    groups = torch.cat([torch.zeros(count), -torch.ones(len(found))]).long()
    both = torch.cat([asked, found])
    table = NeighborTable.build(both, labels, k=NEAREST, groups=groups, rows=range(count))
    return table.filtered(relative_margin=MARGIN).indices[:, :KEPT].long() - count


def by_peer(asked: torch.Tensor, found: torch.Tensor, own: torch.Tensor, case: str) -> torch.Tensor:
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    class Looks:
        """What the miner asks of a model; a text is q or p and a number."""

        device = torch.device("cpu")

        def encode_query(self, asked_texts: list[str], **_: object):  # type: ignore[no-untyped-def]
            return asked[[int(text[1:]) for text in asked_texts]].numpy()

        def encode_document(self, found_texts: list[str], **_: object):  # type: ignore[no-untyped-def]
            return found[[int(text[1:]) for text in found_texts]].numpy()

        def similarity(self, one, other) -> torch.Tensor:  # type: ignore[no-untyped-def]
            return torch.as_tensor(one) @ torch.as_tensor(other).T

        def similarity_pairwise(self, one, other) -> torch.Tensor:  # type: ignore[no-untyped-def]
            return (torch.as_tensor(one) * torch.as_tensor(other)).sum(1)

        def get_embedding_dimension(self) -> int:
            return found.shape[1]

    pairs = {"query": [f"q{i}" for i in range(len(asked))], "passage": [f"p{i}" for i in own.tolist()]}
    options = {"default": {}, "chunks": {"faiss_batch_size": 1024}, "faiss": {"use_faiss": True}}[case]
    mined = mine_hard_negatives(
        Dataset.from_dict(pairs), Looks(), corpus=[f"p{i}" for i in range(len(found))], num_negatives=KEPT,
        range_max=NEAREST, relative_margin=MARGIN, output_format="n-tuple", verbose=False, **options,
    )  # fmt: skip
    result = torch.full((len(asked), KEPT), -1)  # a query with fewer negatives is left out
    for row in mined:
        result[int(row["query"][1:])] = torch.tensor([int(row[f"negative_{j + 1}"][1:]) for j in range(KEPT)])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--passages", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not set(given.cases.split(",")) <= {*CASES}:
        parser.error(f"--cases '{given.cases}' must be of {', '.join(CASES)}.")
    if given.worker:
        from large import host_peak  # type: ignore[import-not-found]

        torch.set_num_threads(1)
        data = texts(given.queries, given.passages, given.dim)
        small = texts(64, 500, 8)
        run = by_scns if given.cases == "scns" else lambda *data: by_peer(*data, given.cases)
        run(*small)  # loads libraries
        Path("/proc/self/clear_refs").write_text("5")  # forget the largest memory so far
        before, start = host_peak(), time.process_time()
        found = run(*data)
        torch.save((found, time.process_time() - start, (host_peak() - before) >> 20), given.worker)
        return
    results: dict[str, list[tuple[torch.Tensor, float, int]]] = {case: [] for case in given.cases.split(",")}
    sizes = [f"--{name}={getattr(given, name)}" for name in ("queries", "passages", "dim")]
    for _ in range(given.rounds):
        for case, each in results.items():
            with tempfile.TemporaryDirectory() as folder:
                into = Path(folder, "result")
                words = [sys.executable, __file__, "--cases", case, "--worker", str(into), *sizes]
                subprocess.run(words, check=True, capture_output=True)
                each.append(torch.load(into))
    ours = results["scns"][0][0] if "scns" in results else None
    for case, each in results.items():
        told = {"case": case, "queries": given.queries, "passages": given.passages, "dim": given.dim}
        told |= {"cpu_s": round(min(s for _, s, _ in each), 2), "added_mb": min(mb for _, _, mb in each)}
        if ours is not None:
            told["same"] = int((each[0][0] == ours).all(1).sum())
        print(json.dumps({**told, "hardware": platform.machine(), "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()

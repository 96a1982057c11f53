"""Which negatives for a retriever: heads on a frozen text encoder, queries and passages, every text encoded anew.

  python experiments/few_passages.py wordnet --out passages.jsonl                 embed_wordnet.py makes the folder
  python experiments/few_passages.py wordnet --out passages.jsonl --kinds in-batch,in-batch+own --numbers 1 --seeds 0
  python experiments/few_figure.py passages.jsonl --against in-batch

A query finds its passage among all of them. Two heads, which begin as the embeddings are, learn by InfoNCE; a step
encodes the passages of a batch, which are negatives of its other queries, and `number` more for each query, which serve
all queries of the batch too. So a step of any kind encodes as many texts; kinds differ in which, and in how they count:

  in-batch              none more (`number` 0)
  in-batch-weighed      none more, and those of the batch weighed as below
  in-batch+uniform      random ones
  in-batch+mined        the query's nearest by the given embeddings, found once, counted alike
  in-batch+mined-margin the same of those whose cosine is at least 5 % below that of the query's own
  in-batch+anew         as mined-margin, found again by the heads at the beginning of every epoch
  in-batch+soft         drawn by exp(cosine / temperature) of the given embeddings
  in-batch+own          drawn so by the heads' own, as they are at the beginning of every epoch
  in-batch+anew-weighed, in-batch+uniform-alike, in-batch+own-alike      the same ones, counted in the other way

uniform, soft and own are weighed by `Negatives.shared`, so that they estimate the sum over all passages, and so is what
is called weighed: each by one over how often a query is to expect it, its own nearest for sure. The others count alike,
as in MultipleNegativesRankingLoss of sentence-transformers, but a query's own passage is never its negative.
Told is the mean reciprocal rank (%) of --test queries that the heads have not seen, their passages among all,
and the share found first. A line a run; those that the file has are skipped. Heads of one seed begin alike and see the
same batches.
"""

import argparse
import fnmatch
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import scns
from scns.arrays import load_array
from scns.errors import InputError
from scns.files import check_writable

HIDDEN, MARGIN = 512, 0.05
KINDS = {  # which passages beside those of the batch, if any, and whether all are weighed
    "in-batch": ("uniform", False),
    "in-batch-weighed": ("uniform", True),
    "in-batch+mined": ("mined", False),
    "in-batch+mined-margin": ("mined-margin", False),
    "in-batch+anew": ("anew", False),
    "in-batch+anew-weighed": ("anew", True),
    "in-batch+uniform": ("uniform", True),
    "in-batch+uniform-alike": ("uniform", False),
    "in-batch+soft": ("soft", True),
    "in-batch+own": ("own", True),
    "in-batch+own-alike": ("own", False),
}


class Given(NamedTuple):
    """Unit embeddings; the passage of query i is passage i. Stacked, queries are rows 0 to n - 1, then the passages."""

    queries: Tensor  # that the heads learn from
    asked: Tensor  # that they are tested with: of the passages behind those of `queries`
    passages: Tensor
    labels: Tensor
    groups: Tensor  # 0: queries, which are no negatives of each other
    batch: int
    epochs: int
    temperature: float

    @property
    def among(self) -> range:
        return range(len(self.queries), len(self.labels))


class Head(nn.Module):
    """x + a network of one hidden layer, which is 0 at first."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        last = nn.Linear(HIDDEN, dim)
        nn.init.zeros_(last.weight), nn.init.zeros_(last.bias)
        self.change = nn.Sequential(nn.Dropout(0.1), nn.Linear(dim, HIDDEN), nn.ReLU(), last)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x + self.change(x), dim=1)


def outputs(head: nn.Module, x: Tensor) -> Tensor:
    head.eval()
    with torch.no_grad():
        found: Tensor = head(x)
    head.train()
    return found


def nearest(given: Given, queries: Tensor, passages: Tensor, number: int, margin: bool) -> Tensor:
    """int64 [queries, number]: each one's nearest passages but its own; with a margin, -1 where too few are left."""
    k = 4 * number + 50 if margin else number
    both = torch.cat([queries, passages])
    table = scns.NeighborTable.build(both, given.labels, k=k, groups=given.groups, rows=range(len(queries)))
    table = table.filtered(relative_margin=MARGIN) if margin else table
    return table.indices[:, :number].long()


class Negatives:
    """The columns of a batch and their log-weights for each of its queries."""

    def __init__(self, given: Given, kind: str, number: int, seed: int) -> None:
        self.name, self.weighed = KINDS[kind]
        self.given, self.number, self.seed = given, number, seed
        first = len(given.queries)
        # Of the queries, a batch; 3 % above the exact (batch - 1) / (queries - 1), and kept for the runs that are told.
        self.share = given.batch / first
        self.chance = torch.zeros(len(given.labels))
        self.chance[first : 2 * first] = self.share  # that a passage is of the batch anyway
        self.sampler: Any = None
        if self.name == "uniform":
            self.sampler = scns.UniformNegatives(given.labels, among=given.among, seed=seed)
        if self.name in ("mined", "mined-margin"):
            self.mine(nearest(given, given.queries, given.passages, number, self.name == "mined-margin"))

    def mine(self, near: Tensor) -> None:
        """These passages of each query, [queries, number], from now on."""
        self.near = near
        self.often = self.chance + self.share * near[near >= 0].bincount(minlength=len(self.chance))

    def refresh(self, queries: Tensor, passages: Tensor) -> None:
        """The heads' outputs at the beginning of an epoch; at the first one they are the given embeddings."""
        if self.name == "anew":
            self.mine(nearest(self.given, queries, passages, self.number, margin=True))
        if self.name in ("soft", "own"):
            both = torch.cat([queries, passages])
            if self.sampler is None:
                options: dict[str, Any] = {"among": self.given.among, "seed": self.seed}
                scale = 1 / self.given.temperature
                self.sampler = scns.SoftNegatives(both, self.given.labels, scale=scale, **options)
            elif self.name == "own":
                self.sampler.refresh_(both)

    def __call__(self, rows: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """(passages [m], log-weights [batch, m]); -inf for a query's own"""
        own = rows + len(self.given.queries)
        if self.sampler is not None:
            columns, log_weights = self.sampler.shared(rows, self.number, epoch=epoch, also=own, chance=self.chance)
        else:
            near = self.near[rows]
            columns = torch.cat([own, near.flatten()])
            columns = columns[columns >= 0]
            sure = (near[:, :, None] == columns).any(1)
            log_weights = -(self.often[columns] + (1 - self.share) * sure).log()
        columns = columns - len(self.given.queries)
        counted = log_weights if self.weighed else torch.zeros(())
        return columns, torch.where(columns == rows[:, None], -torch.inf, counted)


def train(words: argparse.Namespace, given: Given, kind: str, number: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    dim, count = given.queries.shape[1], len(given.queries)
    heads = nn.ModuleList([Head(dim), Head(dim)])  # of queries, of passages
    optimizer = torch.optim.AdamW(heads.parameters(), lr=1e-3, weight_decay=0.01)
    steps = count // given.batch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs * steps)
    order = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    negatives = Negatives(given, kind, number, seed)
    for epoch in range(1, given.epochs + 1):
        if negatives.name in ("anew", "own") or epoch == 1:
            negatives.refresh(outputs(heads[0], given.queries), outputs(heads[1], given.passages))
        for rows in torch.randperm(count, generator=order)[: steps * given.batch].split(given.batch):
            columns, log_weights = negatives(rows, epoch)
            asked, found = heads[0](given.queries[rows]), heads[1](given.passages[columns])
            own = found[: len(rows)]  # the first columns are the batch's own
            loss = scns.functional.info_nce(asked, own, found, log_weights=log_weights, temperature=given.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.perf_counter() - start
    found = told(outputs(heads[0], given.asked), outputs(heads[1], given.passages), len(given.queries))
    return found | {"seconds": round(seconds, 1)}


def told(asked: Tensor, passages: Tensor, first: int) -> dict[str, float]:
    """Mean reciprocal rank and share of first places, %; the passage of the first query asked is the `first`."""
    ranks = []
    for some, answer in zip(asked.split(500), torch.arange(first, first + len(asked)).split(500), strict=True):
        scores = some @ passages.T
        ranks.append(1 + (scores > scores.gather(1, answer[:, None])).sum(1))
    rank = torch.cat(ranks).double()
    return {
        "test": round(100 * float((1 / rank).mean()), 3),
        "first": round(100 * float((rank == 1).double().mean()), 3),
    }


def load(words: argparse.Namespace) -> Given:
    queries, passages = (
        F.normalize(load_array(words.folder / f"{name}.npy")[: words.passages].float(), dim=1)
        for name in ("queries", "passages")
    )
    if queries.shape != passages.shape or words.train + words.test > len(queries):
        raise InputError(
            f"queries.npy {list(queries.shape)} and passages.npy {list(passages.shape)} must be [n, width] both, with "
            f"--train {words.train} + --test {words.test} of n; lower these, or embed more."
        )
    if not words.batch <= words.train:
        raise InputError(f"--batch {words.batch} is more than --train {words.train}; lower it.")
    labels = torch.cat([torch.arange(words.train), torch.arange(len(passages))])
    groups = torch.cat([torch.zeros(words.train), -torch.ones(len(passages))]).long()
    asked = queries[words.train : words.train + words.test]
    return Given(queries[: words.train], asked, passages, labels, groups, words.batch, words.epochs, words.temperature)


def options(description: str | None, **defaults: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="queries.npy and passages.npy, float [n, width], row i a pair")
    parser.add_argument("--train", type=int, default=25_000, help="queries to learn from, the first ones")
    parser.add_argument("--test", type=int, default=4_000, help="queries to test with, the next ones")
    parser.add_argument("--passages", type=int, help="to find them among, the first ones; all by default")
    parser.add_argument("--batch", type=int, default=32, help="another than %(default)s is noted as KIND+batch-B")
    parser.add_argument("--epochs", type=int, default=2, help="another than %(default)s is noted as KIND+epochs-E")
    parser.add_argument("--temperature", type=float, default=0.05, help="another than %(default)s: KIND+tau-T")
    parser.add_argument("--kinds", default="*", help="patterns, separated by commas")
    parser.add_argument("--numbers", default="1,4", help="passages more a query")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file; runs that it has are skipped")
    parser.set_defaults(**defaults)
    return parser


def train_all(parser: argparse.ArgumentParser, learn: Callable[..., dict[str, Any]]) -> None:
    """`learn(words, given, kind, number, seed)` for whatever was asked for, with a line for each in --out."""
    words = parser.parse_args()
    chosen = [kind for kind in KINDS if any(fnmatch.fnmatch(kind, each) for each in words.kinds.split(","))]
    if not chosen:
        parser.error(f"--kinds '{words.kinds}' names none of {', '.join(KINDS)}.")
    check_writable(words.out)
    try:
        given = load(words)
    except InputError as error:
        parser.error(str(error))
    print(f"as they are: {told(given.asked, given.passages, len(given.queries))}", flush=True)
    kept = [json.loads(line) for line in words.out.read_text().splitlines()] if words.out.exists() else []
    done = {(line["kind"], line["number"], line["seed"]) for line in kept}
    noted = {"batch": words.batch, "epochs": words.epochs, "tau": words.temperature}
    usual = (parser.get_default(name) for name in ("batch", "epochs", "temperature"))
    changed = "".join(f"+{name}-{new:g}" for (name, new), old in zip(noted.items(), usual, strict=True) if new != old)
    for seed in map(int, words.seeds.split(",")):
        for kind in chosen:
            for number in map(int, words.numbers.split(",") if "+" in kind else "0"):
                if (kind + changed, number, seed) in done:
                    continue
                line = {"kind": kind + changed, "number": number, "seed": seed} | learn(
                    words, given, kind, number, seed
                )
                with open(words.out, "a") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)


if __name__ == "__main__":
    train_all(options(__doc__), train)

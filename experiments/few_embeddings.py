"""The law of few negatives for embeddings and labels: a head on a frozen network's embeddings, no teacher, no images.

  python experiments/few_embeddings.py --embeddings x.npy --labels y.npy --queries q.npy --query-labels l.npy \\
    --out heads.jsonl                                                     the whole grid; minutes to hours on a CPU
  python experiments/few_embeddings.py ... --kinds 'uniform*,own,mined' --numbers 16,64 --seeds 0,1,2   a part of it
  python experiments/few_figure.py heads.jsonl --picture heads.png        tables and figure

What an engineer has: embeddings of any network and labels. A head of two layers learns by InfoNCE against a memory of
its own outputs (examples/own_loop.py is the same loop), its positives other samples of the class. Told is retrieval of
the queries, which the head has not seen: mean average precision in %, the training samples sorted by cosine. A line a
run; those that the file has are skipped, so the same command goes on after a stop. Heads of one seed start with the
same weights and see the same batches, so differences are paired.
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
from scns.functional import info_nce
from scns.scores import average_precision

TEMPERATURE, WIDTH, HIDDEN, BATCH, EPOCHS = 0.1, 128, 512, 256, 20


class Given(NamedTuple):
    """Standardised embeddings [n, width] and labels of the training samples and of the queries; how to train."""

    inputs: Tensor
    labels: Tensor
    queries: Tensor
    query_labels: Tensor
    temperature: float
    positives: int  # of each anchor
    empty: bool  # the memory is random at first, instead of the head's first outputs


class Kind(NamedTuple):
    """How negatives are drawn: the sampler for (given, its memory, how many, seed), and how its draws count."""

    sampler: Callable[[Given, scns.FeatureTable, int, int], Any]
    correct: bool = False
    refresh: bool = False  # by the memory as it is at the beginning of every epoch
    shared: bool = False  # the draws of each anchor serve the whole batch
    peer: bool = False  # the sampler is another library's loss of (features, labels) instead, with a memory of its own


def nearest(given: Given, k: int, margin: float | None = None) -> scns.NeighborTable:
    """The k nearest of another class by the given embeddings; with a margin, what it leaves of the 4 k nearest."""
    others = len(given.labels) - int(given.labels.bincount().max())
    table = scns.NeighborTable.build(given.inputs, given.labels, k=min(others, k if margin is None else 4 * k))
    return table if margin is None else table.filtered(relative_margin=margin)


def centroids(given: Given, k: int) -> scns.NeighborTable:
    """The k nearest classes by the mean of their embeddings: word vectors would need names."""
    units = F.normalize(given.inputs, dim=1)
    means = torch.stack([units[given.labels == label].mean(0) for label in range(int(given.labels.max()) + 1)])
    return scns.NeighborTable.build(means, torch.arange(len(means)), k=min(k, len(means) - 1))


def uniform(given: Given, _: scns.FeatureTable, __: int, seed: int) -> Any:
    return scns.UniformNegatives(given.labels, seed=seed)


def mined(given: Given, _: scns.FeatureTable, number: int, seed: int) -> Any:
    """Hard negatives as miners give them: each sample's nearest, found once, each counted alike."""
    return scns.InstanceNegatives(nearest(given, number), scale=0.0, seed=seed)


def mined_margin(given: Given, memory: scns.FeatureTable, number: int, seed: int) -> Any:
    """Of the 4 M nearest those whose cosine is 5 % below that of the nearest of the own class: others may be of it."""
    table, spare = nearest(given, number, margin=0.05), uniform(given, memory, number, seed)
    return scns.InstanceNegatives(table, scale=0.0, seed=seed, fallback=spare)


def mined_uniform(given: Given, memory: scns.FeatureTable, number: int, seed: int) -> Any:
    """The usual advice: half mined, half at random (as the rest of a batch is)."""
    half = max(1, number // 2)
    return scns.MixedNegatives([(0.5, each(given, memory, half, seed)) for each in (mined, uniform)])


def classes(given: Given, _: scns.FeatureTable, __: int, seed: int) -> Any:
    return scns.ClassNegatives(centroids(given, 5), given.labels, seed=seed)


def instances(given: Given, _: scns.FeatureTable, __: int, seed: int) -> Any:
    return scns.InstanceNegatives(nearest(given, max(1, len(given.labels) // 50)), seed=seed)


def mixed(given: Given, memory: scns.FeatureTable, number: int, seed: int) -> Any:
    parts = [(0.5, each(given, memory, number, seed)) for each in (instances, uniform)]
    return scns.MixedNegatives(parts)


def soft_200(given: Given, _: scns.FeatureTable, __: int, seed: int) -> Any:
    return scns.SoftNegatives(given.inputs, given.labels, scale=7.5, clusters=200, seed=seed)


def own(given: Given, memory: scns.FeatureTable, __: int, seed: int) -> Any:
    return scns.SoftNegatives(memory.features, given.labels, scale=1 / given.temperature, seed=seed)


def own_200(given: Given, memory: scns.FeatureTable, __: int, seed: int) -> Any:
    return scns.SoftNegatives(memory.features, given.labels, scale=1 / given.temperature, clusters=200, seed=seed)


KINDS = {
    "uniform": Kind(uniform),
    "uniform-corrected": Kind(uniform, correct=True),
    "class": Kind(classes),
    "instance": Kind(instances),
    "mined": Kind(mined),
    "mined-margin": Kind(mined_margin),
    "mined-uniform": Kind(mined_uniform),
    "mixed-corrected": Kind(mixed, correct=True),
    "soft-200": Kind(soft_200, correct=True),
    "own-200": Kind(own_200, correct=True, refresh=True),
    "own": Kind(own, correct=True, refresh=True),
    "uniform-shared": Kind(uniform, correct=True, shared=True),
    "own-200-shared": Kind(own_200, correct=True, refresh=True, shared=True),
    "own-shared": Kind(own, correct=True, refresh=True, shared=True),
}


def pml(name: str, memory: int = 0) -> Kind:
    """A loss of pytorch-metric-learning, where that is installed: all pairs of a batch, or also with so many before."""

    def loss(given: Given, *_: Any) -> Any:
        from pytorch_metric_learning import losses  # type: ignore[import-not-found]

        found = getattr(losses, name)(**({"temperature": given.temperature} if name == "SupConLoss" else {}))
        return losses.CrossBatchMemory(found, WIDTH, memory_size=memory) if memory else found

    return Kind(loss, peer=True)


# kinds without a number
FIXED = {
    "all": Kind(lambda given, *_: scns.AllNegatives(given.labels)),
    "pml-supcon": pml("SupConLoss"),
    "pml-supcon-memory-4096": pml("SupConLoss", 4096),
    "pml-supcon-memory-8192": pml("SupConLoss", 8192),
    "pml-multi-similarity": pml("MultiSimilarityLoss"),
}


def train(given: Given, kind: Kind, number: int, seed: int) -> dict[str, Any]:
    """Retrieval of the queries after training, and how far the estimate of the sum over all negatives is off then."""
    torch.manual_seed(seed)
    head = nn.Sequential(nn.Dropout(0.2), nn.Linear(given.inputs.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.01)
    steps = len(given.labels) // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * steps)
    memory = scns.FeatureTable(len(given.labels), WIDTH, seed=seed)
    if not given.empty:
        memory.update(torch.arange(len(given.labels)), outputs(head, given.inputs), distinct=True)
    positives = scns.Positives(given.labels, seed=seed)
    order = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    sampler = kind.sampler(given, memory, number, seed)
    for epoch in range(1, EPOCHS + 1):
        if kind.refresh:
            sampler.refresh_(memory.features)
        for rows in torch.randperm(len(given.labels), generator=order)[: steps * BATCH].split(BATCH):
            z = F.normalize(head(given.inputs[rows]), dim=1)
            if kind.peer:
                loss = sampler(z, given.labels[rows])
            else:
                temperature, positive = given.temperature, positives.sample(rows, given.positives, epoch=epoch)
                if kind.shared:
                    drawn, log_weights = sampler.shared(rows, number, epoch=epoch)
                    own, others = memory.take(positive), memory.take(drawn)
                    loss = info_nce(z, own, others, log_weights=log_weights, temperature=temperature)
                else:
                    drawn, log_weights = sampler.weights(rows, number, epoch=epoch, correct=kind.correct)
                    loss = memory.info_nce(z, positive, drawn, log_weights, temperature=temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if not kind.peer:
                memory.update(rows, z.detach(), distinct=True)
    seconds = time.perf_counter() - start  # a miner's search counts
    told = {"test": round(retrieval(head, given), 3), "seconds": round(seconds, 1)}
    if kind.peer:
        return told
    error = estimate_error(memory.features, given, sampler, number, kind)
    return told | {"deviation": round(error.std().item(), 4), "offset": round(error.mean().item(), 4)}


@torch.no_grad()
def outputs(head: nn.Module, inputs: Tensor) -> Tensor:
    head.eval()
    found = F.normalize(head(inputs), dim=1)
    head.train()
    return found


def retrieval(head: nn.Module, given: Given) -> float:
    """Mean average precision, %, of the queries among the training samples."""
    gallery, queries = outputs(head, given.inputs), outputs(head, given.queries)
    parts = [
        average_precision(each, labels, gallery, given.labels)
        for each, labels in zip(queries.split(500), given.query_labels.split(500), strict=True)
    ]
    return 100 * torch.cat(parts).mean().item()


def estimate_error(features: Tensor, given: Given, sampler: Any, number: int, kind: Kind) -> Tensor:
    """log(estimated sum / whole sum over negatives) of 512 samples."""
    found, batches = [], 512 // BATCH
    for anchors in (torch.linspace(0, len(given.labels) - 1, 512).long()[first::batches] for first in range(batches)):
        similarity = features[anchors] @ features.T / given.temperature
        _, allowed = scns.AllNegatives(given.labels).weights(anchors, 1)
        if kind.shared:
            drawn, log_weights = sampler.shared(anchors, number, epoch=EPOCHS)
            drawn = drawn.expand(len(anchors), -1)
        else:
            drawn, log_weights = sampler.weights(anchors, number, epoch=EPOCHS, correct=kind.correct)
        whole = torch.logsumexp(similarity + allowed, 1)
        found.append(torch.logsumexp(similarity.gather(1, drawn) + log_weights, 1) - whole)
    return torch.cat(found)


def load(words: argparse.Namespace) -> Given:
    """The files' rows, `--each` of every class, standardised by the training samples' mean and deviation.

    With --raw only their length is changed, to that of standardised ones.
    """
    inputs, queries = (load_array(path).float() for path in (words.embeddings, words.queries))
    labels, query_labels = (load_array(path).long() for path in (words.labels, words.query_labels))
    for one, other in ((inputs, labels), (queries, query_labels)):
        if one.dim() != 2 or one.shape[1] != inputs.shape[1] or other.shape != one.shape[:1]:
            raise InputError(
                f"Embeddings {list(one.shape)} and labels {list(other.shape)} do not fit; they are [n, width] and [n]."
            )
        if not one.isfinite().all():
            raise InputError("Embeddings have NaN or infinite values; leave those rows out.")
    names, labels = labels.unique(return_inverse=True)  # labels may have gaps
    if len(strange := query_labels[~torch.isin(query_labels, names)]):
        raise InputError(f"A query has the label {strange[0]}, which no training sample has; leave those queries out.")
    query_labels = torch.searchsorted(names, query_labels)
    if words.each:
        order = labels.argsort(stable=True)
        place = torch.arange(len(labels)) - torch.searchsorted(labels[order], labels[order])
        kept = order[place < words.each]
        inputs, labels = inputs[kept], labels[kept]
    if len(labels) < BATCH:
        raise InputError(f"There are {len(labels)} training samples, fewer than a batch of {BATCH}; give more.")
    mean, deviation = inputs.mean(0), inputs.std(0).clamp(min=1e-6)
    inputs, queries = (
        F.normalize(each, dim=1) * each.shape[1] ** 0.5 if words.raw else (each - mean) / deviation
        for each in (inputs, queries)
    )
    return Given(inputs, labels, queries, query_labels, words.temperature, words.positives, words.empty)


def points(words: argparse.Namespace) -> list[tuple[str, int, int]]:
    """(kind, number, seed), seed by seed, so that a stop leaves whole comparisons behind."""
    chosen = [kind for kind in (*KINDS, *FIXED) if any(fnmatch.fnmatch(kind, each) for each in words.kinds.split(","))]
    numbers = [int(number) for number in words.numbers.split(",")]
    return [
        (kind, number, seed)
        for seed in map(int, words.seeds.split(","))
        for kind in chosen
        for number in (numbers if kind in KINDS else [0])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, about in (("embeddings", "[n, width] of the training samples"), ("queries", "those to test with")):
        parser.add_argument(f"--{name}", type=Path, required=True, help=f"float .npy {about}")
    for name in ("labels", "query-labels"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="integer .npy [n]")
    parser.add_argument("--each", type=int, default=0, help="training samples of every class; 0: all")
    parser.add_argument("--temperature", type=float, default=TEMPERATURE, help="another is noted as KIND+tau-VALUE")
    parser.add_argument("--positives", type=int, default=1, help="of each anchor; more are noted as KIND+positives-P")
    parser.add_argument("--empty", action="store_true", help="begin with a random memory; noted as KIND+empty")
    parser.add_argument("--raw", action="store_true", help="embeddings that are not standardised; noted as KIND+raw")
    first = ",".join(kind for kind, each in {**KINDS, **FIXED}.items() if not (each.shared or each.peer))
    parser.add_argument("--kinds", default=first, help="patterns, separated by commas; else all but *-shared and pml-*")
    parser.add_argument("--numbers", default="1,4,16,64,256")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file; runs that it has are skipped")
    words = parser.parse_args()
    check_writable(words.out)
    if not points(words):
        parser.error(f"--kinds '{words.kinds}' names none of {', '.join((*KINDS, *FIXED))}.")
    try:
        run(words)
    except (InputError, ImportError) as error:  # pml-* without its package
        parser.error(str(error))


def run(words: argparse.Namespace) -> None:
    """Train what the file does not have yet."""
    given = load(words)
    print(f"as they are: {retrieval(nn.Identity(), given):.2f}", flush=True)
    kept = [json.loads(line) for line in words.out.read_text().splitlines()] if words.out.exists() else []
    done = {(line["kind"], line["number"], line["seed"]) for line in kept}
    changed = "" if words.temperature == TEMPERATURE else f"+tau-{words.temperature:g}"
    changed += f"+positives-{words.positives}" * (words.positives > 1) + "+empty" * words.empty + "+raw" * words.raw
    for kind, number, seed in points(words):
        name = kind + changed
        if (name, number, seed) in done:
            continue
        told = train(given, {**KINDS, **FIXED}[kind], max(number, 1), seed)
        with open(words.out, "a") as file:
            file.write(json.dumps({"kind": name, "number": number, "seed": seed, **told}) + "\n")
        print(f"{name:18} {number:5} seed {seed}  {told['test']:.2f} %  {told['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()

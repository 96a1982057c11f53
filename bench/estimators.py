"""How well few draws estimate the sum over all negatives, on the features of two networks; one JSON line a proposal.

  python bench/estimators.py --proposal teacher.npy --scores student.npy --labels labels.npy

Negatives are drawn by what one network holds for similar (--proposal); the loss is another's (--scores), its cosines
over --temperature. Compared is log sum_j exp(score_j) over all samples j of other classes with its estimate from
--draws of them, all importance-corrected:
  rms               root-mean-square error, draws as `.weights(..., correct=True)` gives them (systematic)
  rms_independent   the same with independent draws, as `.sample` gives them
  variance_ratio    how many times smaller the squared error is than that of uniform draws
  mean_ratio        mean of estimated over true sum: 1 up to chance, whatever the proposal
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from scns.arrays import load_array
from scns.checks import vectors
from scns.errors import InputError
from scns.neighbors import NeighborTable
from scns.sampling import ClassNegatives, InstanceNegatives, MixedNegatives, Negatives, UniformNegatives
from scns.soft import SoftNegatives
from scns.words import class_embeddings

CHUNK = 200  # anchors at a time: 200 x 8,000 float64 scores are 13 MB
TOP = 500  # neighbours a row in the mixture of nearest and uniform
CLUSTERS = (50, 200, 800)
SWEEP = (0.0, 0.25, 0.5, 0.75, 1.5, 2.0)  # scales of the exact proposal, in units of 1 / temperature

Estimate = Callable[[Tensor, Tensor, bool], Tensor]  # anchors, scores [batch, N], systematic -> [batch, repeats]


def corrected(sampler: Negatives, num: int, repeats: int) -> Estimate:
    """Log sums from `num` draws of a sampler.

    All repeats of an anchor come from one call: of the evenly spaced positions (c + u) / (num * repeats), every
    repeats-th makes a systematic sample of its own, `num` draws from the offset (r + u) / repeats.
    """

    def estimate(anchors: Tensor, scores: Tensor, systematic: bool) -> Tensor:
        if systematic:
            indices, log_weights = sampler.weights(anchors, num * repeats, correct=True)
        else:
            indices = sampler.sample(anchors, num * repeats)
            log_weights = -math.log(num * repeats) - sampler.log_probability(anchors, indices)
        terms = scores.gather(1, indices) + log_weights + math.log(repeats)
        return terms.view(len(anchors), num, repeats).logsumexp(1)

    return estimate


def nearest_and_rest(near: Tensor, uniform: UniformNegatives, num: int, repeats: int) -> Estimate:
    """Log sums of the num / 2 nearest, taken exactly, and num / 2 uniform draws from all other negatives."""
    half = num // 2

    def estimate(anchors: Tensor, scores: Tensor, systematic: bool) -> Tensor:
        nearest = near[anchors, :half]
        rest = (uniform.probabilities(anchors) > 0).scatter(1, nearest, False)  # [batch, N]
        generator = torch.Generator().manual_seed(int(anchors[0]))
        indices = torch.multinomial(rest.float(), half * repeats, replacement=True, generator=generator)
        each = (rest.sum(1, keepdim=True) / half).log()
        sampled = (scores.gather(1, indices) + each).view(len(anchors), half, repeats)
        exact = scores.gather(1, nearest)[:, :, None].expand(-1, -1, repeats)
        return torch.cat([exact, sampled], 1).logsumexp(1)

    return estimate


def proposals(a: Tensor, b: Tensor, labels: Tensor, given: argparse.Namespace) -> Iterator[tuple[str, Estimate]]:
    """Every proposal by name; built one at a time, since a table or clusters take a moment."""
    sharp, num, repeats = 1 / given.temperature, given.draws, given.repeats
    uniform = UniformNegatives(labels)

    def soft(embeddings: Tensor, **options: float | int) -> Estimate:
        return corrected(SoftNegatives(embeddings, labels, **{"scale": sharp, **options}), num, repeats)  # type: ignore[arg-type]

    yield "uniform", corrected(uniform, num, repeats)
    classes = NeighborTable.build(class_embeddings(a, labels), k=int(labels.max()), exclude="self")
    yield "class level", corrected(ClassNegatives(classes, labels, scale=sharp), num, repeats)
    for clusters in (int(labels.max()) + 1, *CLUSTERS):
        if clusters <= len(labels):
            yield f"{clusters} clusters", soft(a, clusters=clusters)
    yield "exact soft", soft(a)
    yield "exact soft, no uniform part", soft(a, uniform=0.0)
    for amount in given.stale:
        yield f"exact soft, own features, stale {amount:g}", soft(stale(b, amount))
    fewest = len(labels) - int(torch.bincount(labels).max())
    table = NeighborTable.build(a, labels, k=min(TOP, fewest), positive=None)
    yield f"{num // 2} nearest + {num // 2} uniform", nearest_and_rest(table.indices.long(), uniform, num, repeats)
    for scale in (sharp, 0.0):
        half = MixedNegatives([(0.5, InstanceNegatives(table, scale=scale)), (0.5, uniform)])
        yield f"half top {table.info.k} (scale {scale:g}), half uniform", corrected(half, num, repeats)
    for part in SWEEP:
        yield f"exact soft, scale {part * sharp:g}", soft(a, scale=part * sharp)


def stale(features: Tensor, amount: float) -> Tensor:
    """Features as they were some steps ago: unit rows plus a random vector of length `amount`.

    Their cosine with today's is about 1 / sqrt(1 + amount^2): 0.995 for 0.1.
    """
    unit = F.normalize(features, dim=1)
    noise = torch.randn(unit.shape, generator=torch.Generator().manual_seed(0))
    return unit + amount * F.normalize(noise, dim=1)


def measured(estimate: Estimate, unit: Tensor, labels: Tensor, anchors: Tensor, temperature: float) -> dict[str, float]:
    """The errors of a proposal over all anchors and repeats."""
    squares = {True: 0.0, False: 0.0}
    ratio = count = 0.0
    for some in anchors.split(CHUNK):
        scores = (unit[some] @ unit.T).double() / temperature
        full = scores.masked_fill(labels[some, None] == labels, -torch.inf).logsumexp(1, keepdim=True)
        for systematic in squares:
            error = estimate(some, scores, systematic) - full  # [batch, repeats]
            squares[systematic] += float(error.square().sum())
        ratio += float(error.exp().sum())
        count += error.numel()
    return {
        "rms": math.sqrt(squares[True] / count),
        "rms_independent": math.sqrt(squares[False] / count),
        "mean_ratio": ratio / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proposal", required=True, help="embeddings [n, d] that decide what is drawn")
    parser.add_argument("--scores", required=True, help="embeddings [n, d] of the loss")
    parser.add_argument("--labels", required=True, help="integers [n]")
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--anchors", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=64)
    parser.add_argument(
        "--stale", type=float, nargs="*", default=[0.1, 0.2, 0.4], help="lengths of noise on the loss's features"
    )
    given = parser.parse_args()
    if min(given.draws, given.anchors + 1, given.repeats + 1) < 2 or not given.temperature > 0:
        parser.error("--draws must be at least 2, --anchors and --repeats at least 1, --temperature above 0.")
    try:
        compare(given)
    except InputError as error:
        parser.error(str(error))


def compare(given: argparse.Namespace) -> None:
    """Print one line a proposal."""
    a, b, labels = (load_array(path) for path in (given.proposal, given.scores, given.labels))
    if not len(a) == len(b) == len(labels):
        raise InputError(f"{len(a)} proposal rows, {len(b)} score rows and {len(labels)} labels must be as many.")
    a, b = vectors(a, None), vectors(b, None)
    unit = F.normalize(b, dim=1)
    anchors = torch.linspace(0, len(labels) - 1, min(given.anchors, len(labels))).long()
    baseline = math.nan
    for name, estimate in proposals(a, b, labels, given):
        start = time.perf_counter()
        told = measured(estimate, unit, labels, anchors, given.temperature)
        baseline = told["rms"] if name == "uniform" else baseline
        rounded = {key: round(value, 4) for key, value in told.items()}
        case = {"proposal": name, **rounded, "variance_ratio": round((baseline / told["rms"]) ** 2, 2)}
        print(json.dumps({**case, "seconds": round(time.perf_counter() - start, 1)}), flush=True)


if __name__ == "__main__":
    main()

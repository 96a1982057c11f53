"""Samplers: they draw what they say, never the own class, and the same for any batch, order, rank or resume."""

import json
import math
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scns import chances, sampling, soft
from scns.errors import InputError
from scns.memory import FeatureQueue, FeatureTable
from scns.neighbors import NeighborTable
from scns.sampling import (
    AllNegatives,
    ClassNegatives,
    InstanceNegatives,
    MixedNegatives,
    Negatives,
    Positives,
    UniformNegatives,
)
from scns.soft import SoftNegatives

GOLDEN = json.loads((Path(__file__).parent / "golden" / "paper.json").read_text())
COUNT = 240
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(COUNT, 6, generator=GENERATOR)
LABELS = torch.randint(0, 6, (COUNT,), generator=GENERATOR)
CLASS_VECTORS = torch.randn(6, 5, generator=GENERATOR)
SCORES = F.normalize(torch.randn(COUNT, 6, generator=GENERATOR), dim=1)
SCORES = SCORES @ SCORES.T / 0.3
AMONG = (torch.rand(COUNT, generator=GENERATOR) < 0.6) & (LABELS != 2)  # anchors of class 2 have no kin among them


def samplers(seed: int = 0) -> dict[str, Negatives]:
    uniform = UniformNegatives(LABELS, seed=seed)
    instance = InstanceNegatives(NeighborTable.build(X, LABELS, k=30), seed=seed)
    mixed = MixedNegatives([(0.3, instance), (0.7, uniform)], seed=seed)
    soft = SoftNegatives(X, LABELS, scale=5.0, seed=seed)
    return {
        "uniform": uniform,
        "class": ClassNegatives(NeighborTable.build(CLASS_VECTORS, k=3), LABELS, seed=seed),
        "instance": instance,
        "mixed": mixed,
        "nested": MixedNegatives([(0.5, mixed), (0.5, soft)], seed=seed),
        "soft": soft,
        "clusters": SoftNegatives(X, LABELS, scale=5.0, clusters=24, seed=seed),
        "uniform-among": UniformNegatives(LABELS, among=AMONG, seed=seed),
        "soft-among": SoftNegatives(X, LABELS, scale=5.0, among=AMONG, seed=seed),
        "clusters-among": SoftNegatives(X, LABELS, scale=5.0, clusters=24, among=AMONG.nonzero()[:, 0], seed=seed),
    }


SAMPLERS = samplers()
EVERY = torch.arange(COUNT)
each = pytest.mark.parametrize("name", list(SAMPLERS))


def q_of(sampler: Negatives, anchors: Tensor) -> Tensor:
    return sampler.log_probability(anchors, EVERY.expand(len(anchors), -1)).double().exp()


@each
def test_probabilities_are_those_of_draws(name: str) -> None:
    """Over all samples, or over the k nearest classes or samples."""
    sampler, anchors = SAMPLERS[name], torch.tensor([0, 17, 239])
    given, q = sampler.probabilities(anchors).double(), q_of(sampler, anchors)
    if isinstance(sampler, ClassNegatives):
        q = torch.stack([q[:, label == LABELS].sum(1) for label in range(6)], 1).gather(
            1, sampler.classes[LABELS[anchors]]
        )
    elif isinstance(sampler, InstanceNegatives):
        q = q.gather(1, sampler.indices[anchors].long())
    assert given.shape == q.shape and torch.allclose(given, q, atol=1e-6)


def test_a_class_that_lost_neighbours_draws_from_those_left() -> None:
    table = NeighborTable.build(CLASS_VECTORS, k=5)
    kept = table.filtered(max_score=float(table.scores[:, 1].float().max()))
    rows = (kept.indices[:, -1] < 0) & (kept.indices[:, 0] >= 0)
    assert rows.any()
    sampler = ClassNegatives(kept, LABELS)
    left = [set(row[row >= 0].tolist()) for row in kept.indices]
    drawn = LABELS[sampler.sample(EVERY, 50)]
    assert all(set(drawn[anchor].tolist()) <= left[LABELS[anchor]] for anchor in range(COUNT))
    fewest = min(sum(int((each == LABELS).sum()) for each in row) for row in left)
    with pytest.raises(InputError, match=f"there are {fewest};"):
        sampler.sample(EVERY, COUNT, distinct=True)


@each
def test_probabilities_sum_to_one_and_spare_the_own_class(name: str) -> None:
    q = q_of(SAMPLERS[name], EVERY)
    assert torch.allclose(q.sum(1), torch.ones(COUNT).double(), atol=1e-6)
    assert (q[LABELS[:, None] == LABELS] == 0).all()


@pytest.mark.parametrize("clusters", [None, 24])
def test_those_named_among_are_the_only_negatives(clusters: int | None) -> None:
    """Also of unlabelled anchors and classes that have none among them; a mask, numbers and a range are the same."""
    labels = torch.where(torch.rand(COUNT, generator=torch.Generator().manual_seed(1)) < 0.2, -1, LABELS)
    among = AMONG & (labels >= 0) if clusters else AMONG
    allowed = among & ((labels[:, None] != labels) | (labels[:, None] < 0)) & ~torch.eye(COUNT, dtype=torch.bool)
    chance = allowed.double() / allowed.sum(1, keepdim=True)
    assert torch.allclose(q_of(UniformNegatives(labels, among=among.numpy()), EVERY), chance)
    every, log_weights = AllNegatives(labels, among=among).weights(EVERY, 0)
    assert torch.equal(every[5], EVERY) and torch.equal(log_weights == 0, allowed)
    assert torch.equal(log_weights.isneginf(), ~allowed)
    soft = SoftNegatives(X, labels, scale=5.0, clusters=clusters, among=among.nonzero()[:, 0].tolist())
    q = q_of(soft, EVERY)
    assert torch.equal(q > 0, allowed) and torch.allclose(q.sum(1), torch.ones(COUNT).double(), atol=1e-6)
    if clusters is None:
        unit = F.normalize(X, dim=1).double()
        exact = torch.where(allowed, 5 * unit @ unit.T, -torch.inf).softmax(1)
        assert torch.allclose(q, 0.9 * exact + 0.1 * chance, atol=1e-6)
    ordered = torch.arange(100, COUNT)
    for named in (range(100, COUNT), ordered.numpy(), ordered.int(), EVERY >= 100):
        drawn = UniformNegatives(LABELS, among=named).sample(EVERY, 40)
        assert int(drawn.min()) >= 100 and torch.equal(drawn, UniformNegatives(LABELS, among=ordered).sample(EVERY, 40))
    assert torch.equal(UniformNegatives(LABELS, among=EVERY).sample(EVERY, 9), SAMPLERS["uniform"].sample(EVERY, 9))


@each
def test_draws_follow_the_probabilities(name: str) -> None:
    """Chi-square over 8 anchors x 20,000 draws, classes of probability pooled where few are expected."""
    anchors, num = torch.arange(8), 20_000
    q = q_of(SAMPLERS[name], anchors)
    drawn = SAMPLERS[name].sample(anchors, num)
    counts = torch.stack([torch.bincount(row, minlength=COUNT) for row in drawn]).double()
    assert (counts[q == 0] == 0).all()
    often = q * num >= 5
    chi = torch.where(often, (counts - q * num).square() / (q * num).clamp(min=1e-9), 0).sum()
    freedom = float(often.sum())
    assert abs(chi - freedom) < 4 * math.sqrt(2 * freedom)


@each
def test_weights_count_each_candidate_as_often_as_its_probability(name: str) -> None:
    anchors, epochs, num = torch.arange(32), 400, 16
    total = torch.zeros(32, COUNT).double()
    for epoch in range(epochs):
        indices, log_weights = SAMPLERS[name].weights(anchors, num, epoch=epoch)
        total.scatter_add_(1, indices, log_weights.double().exp())
    q = q_of(SAMPLERS[name], anchors)
    assert torch.allclose(total.sum(1), torch.full((32,), float(num * epochs)).double())
    error = (total / (num * epochs) - q) / (q / (num * epochs)).sqrt().clamp(min=1e-9)
    assert error[q > 0].abs().max() < 5


@each
def test_corrected_weights_are_unbiased(name: str) -> None:
    """The mean over many draws equals the full sum, over the sampler's support, to the standard error."""
    anchors, epochs = torch.arange(32), 400
    estimates = []
    for epoch in range(epochs):
        indices, log_weights = SAMPLERS[name].weights(anchors, 16, epoch=epoch, correct=True)
        estimates.append((SCORES[anchors].gather(1, indices) + log_weights).double().exp().sum(1))
    mean, error = torch.stack(estimates).mean(0), torch.stack(estimates).std(0) / math.sqrt(epochs)
    q = q_of(SAMPLERS[name], anchors)
    full = torch.where(q > 0, SCORES[anchors].double().exp(), 0).sum(1)
    assert ((mean - full).abs() / error < 4.5).all()
    assert float((mean / full - 1).mean().abs()) < 0.05
    if name in ("uniform", "mixed", "nested", "soft", "clusters"):  # full support: the sum over all negatives
        everything = torch.where(LABELS[anchors, None] != LABELS, SCORES[anchors].double().exp(), 0).sum(1)
        assert torch.allclose(full, everything)


@each
def test_shared_draws_count_one_over_how_often_they_are_expected(name: str) -> None:
    """Of every anchor, and of `also`; absent where they are no negatives of an anchor that the sampler can draw."""
    sampler, anchors = SAMPLERS[name], torch.tensor([3, 9, 17, 80, 239])
    q = q_of(sampler, anchors)
    columns, log_weights = sampler.shared(anchors, 6, epoch=2)
    own = sampler.sample(anchors, 6, epoch=2) if sampler.counted else sampler.weights(anchors, 6, epoch=2)[0]
    assert torch.equal(columns, own.flatten())
    often = 6 * q.sum(0)
    also, chance = torch.tensor([5, 100, 200]), torch.linspace(0, 0.5, COUNT)
    joined, weighed = sampler.shared(anchors, 6, epoch=2, also=also, chance=chance)
    alone, at_hand = sampler.shared(anchors, 0, epoch=2, also=also, chance=chance)
    assert torch.equal(joined, torch.cat([also, columns])) and torch.equal(alone, also)
    told = ((columns, log_weights, often), (joined, weighed, often + chance), (alone, at_hand, chance.double()))
    for found, given, expected in told:
        can = q[:, found] > 0
        wanted = torch.where(can, -expected[found].log(), -torch.inf)
        assert torch.equal(given.isneginf(), ~can) and torch.allclose(given[can].double(), wanted[can], atol=1e-5)


@pytest.mark.parametrize("num", [0, 1])
@pytest.mark.parametrize("kind", ["uniform", "soft"])
def test_passages_of_the_other_queries_of_a_batch_are_there_as_often_as_said(kind: str, num: int) -> None:
    """(batch - 1) / (queries - 1): a query is in its own batch. Batch / queries would be 0.78 of the sum, for num=0."""
    queries, batch, epochs = 40, 4, 6000
    generator = torch.Generator().manual_seed(3)
    features = F.normalize(torch.randn(2 * queries, 6, generator=generator), dim=1)
    labels = torch.arange(queries).repeat(2)
    where = {"labels": labels, "among": range(queries, 2 * queries)}
    sampler = UniformNegatives(**where) if kind == "uniform" else SoftNegatives(features, scale=2.0, **where)
    chance = torch.zeros(2 * queries)
    chance[queries:] = (batch - 1) / (queries - 1)
    sums = (2 * features @ features.T).exp()
    ratios = []
    for epoch in range(epochs):
        rows = torch.randperm(queries, generator=generator)[:batch]
        columns, log_weights = sampler.shared(rows, num, epoch=epoch, also=queries + rows, chance=chance)
        full = sums[rows, queries:].sum(1) - sums[rows, queries + rows]
        ratios.append((sums[rows][:, columns] * log_weights.exp()).sum(1) / full)
    found = torch.cat(ratios).double()
    error = 4 * float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) - 1 - num / (4 * batch)) < 0.01 * num + error


def test_which_of_those_at_hand_are_negatives_is_told_without_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, anchors, also = SAMPLERS["soft"], torch.tensor([3, 9, 17]), torch.arange(20)
    drawn = ~sampler.log_probability(anchors, also.expand(3, -1)).isneginf()
    monkeypatch.delattr(SoftNegatives, "_weighed")
    _, log_weights = sampler.shared(anchors, 0, also=also, chance=0.5)
    assert torch.equal(log_weights, torch.where(drawn, math.log(2), -torch.inf))


def test_the_positive_of_a_batch_of_one_is_at_hand_with_chance_0() -> None:
    """(batch - 1) / (queries - 1) at the tail of an epoch: it is no negative of the only query."""
    for num in (0, 2):
        columns, log_weights = SAMPLERS["soft"].shared(torch.tensor([3]), num, also=torch.tensor([3]), chance=0.0)
        assert len(columns) == 1 + num and log_weights[0, 0].isneginf() and log_weights[0, 1:].isfinite().all()


MADE = [
    lambda x: SoftNegatives(x, LABELS, scale=5.0),
    lambda x: FeatureTable(COUNT, 8),
    lambda x: FeatureQueue(COUNT, 8),
]


@pytest.mark.parametrize("make", MADE)
def test_what_is_made_where_nothing_is_trained_can_be_trained_with(make: Any) -> None:
    with torch.inference_mode():
        made = make(torch.randn(COUNT, X.shape[1]))
    if isinstance(made, FeatureTable):
        made.update(torch.arange(4), torch.randn(4, 8))
    elif isinstance(made, FeatureQueue):
        made.push(torch.randn(4, 8), torch.arange(4), torch.zeros(4).long())
    else:
        made.refresh_(X)


@pytest.mark.parametrize("name", ["uniform", "soft", "clusters", "mixed", "soft-among"])
def test_shared_draws_are_unbiased_and_better_than_own_ones(name: str) -> None:
    """Their mean is the full sum, to the standard error; so is that of draws beside others that are at hand."""
    sampler, anchors, epochs = SAMPLERS[name], torch.arange(32), 400
    estimates: dict[str, list[Tensor]] = {"own": [], "shared": [], "beside": [], "at hand": []}
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        indices, log_weights = sampler.weights(anchors, 2, epoch=epoch, correct=True)
        estimates["own"].append((SCORES[anchors].gather(1, indices) + log_weights).exp().sum(1))
        columns, log_weights = sampler.shared(anchors, 2, epoch=epoch)
        estimates["shared"].append((SCORES[anchors][:, columns] + log_weights).exp().sum(1))
        also = torch.randperm(COUNT, generator=generator)[:24]
        also = torch.cat([also, also[:12]])  # half of them twice, which count once
        columns, log_weights = sampler.shared(anchors, 2, epoch=epoch, also=also, chance=24 / COUNT)
        estimates["beside"].append((SCORES[anchors][:, columns] + log_weights).exp().sum(1))
        columns, log_weights = sampler.shared(anchors, 0, epoch=epoch, also=also, chance=24 / COUNT)
        estimates["at hand"].append((SCORES[anchors][:, columns] + log_weights).exp().sum(1))
    full = torch.where(q_of(sampler, anchors) > 0, SCORES[anchors].double().exp(), 0).sum(1)
    spread = {}
    for kind, found in estimates.items():
        values = torch.stack(found).double()
        spread[kind] = float((values.std(0) / full).mean())
        if kind != "own":  # two draws alone: its rare large values are no normal distribution yet
            assert ((values.mean(0) - full).abs() / (values.std(0) / math.sqrt(epochs)) < 5).all(), kind
    assert spread["beside"] < spread["shared"] < 0.7 * spread["own"] and spread["beside"] < spread["at hand"]


@each
def test_draws_depend_on_seed_epoch_anchor_and_draw_alone(name: str) -> None:
    sampler = SAMPLERS[name]
    whole = sampler.sample(EVERY, 12, epoch=3)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1))
    for size in (1, 7, 64):
        parts = torch.cat([sampler.sample(order[i : i + size], 12, epoch=3) for i in range(0, COUNT, size)])
        assert torch.equal(parts, whole[order])
    for rank in (0, 1):
        assert torch.equal(sampler.sample(EVERY[rank::2], 12, epoch=3), whole[rank::2])
    assert torch.equal(
        samplers()[name].sample(EVERY, 12, epoch=torch.tensor(3)), whole
    )  # a new process, after a resume
    assert torch.equal(sampler.sample(EVERY, 5, epoch=3), whole[:, :5])
    assert not torch.equal(sampler.sample(EVERY, 12, epoch=4), whole)
    assert not torch.equal(samplers(seed=1)[name].sample(EVERY, 12, epoch=3), whole)
    weights = sampler.weights(EVERY, 12, epoch=3, correct=True)
    halves = [sampler.weights(part, 12, epoch=3, correct=True) for part in EVERY.split(120)]
    assert torch.equal(weights[0], torch.cat([half[0] for half in halves]))
    assert torch.allclose(weights[1], torch.cat([half[1] for half in halves]), atol=1e-5)


def test_shares_of_a_mixture_may_be_any_numbers() -> None:
    parts = [InstanceNegatives(NeighborTable.build(X, LABELS, k=30)), UniformNegatives(LABELS)]
    plain = MixedNegatives([(0.25, parts[0]), (0.75, parts[1])])
    odd = MixedNegatives([(torch.tensor(1), parts[0]), (np.float32(3), parts[1])])  # type: ignore[list-item]
    assert torch.equal(plain.sample(EVERY, 5), odd.sample(EVERY, 5))


@pytest.mark.parametrize(("classes", "dim", "clusters"), [(20, 128, None), (20, 128, 100), (10, 30, 10)])
def test_soft_weights_are_the_same_to_the_last_bit_for_any_batch_size(
    classes: int, dim: int, clusters: int | None
) -> None:
    """Products of, or with, a few rows are rounded in another way than those of many: now and then a draw differed."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (1000,), generator=generator)
    sampler = SoftNegatives(torch.randn(1000, dim, generator=generator), labels, scale=10, clusters=clusters)
    anchors = torch.arange(60)
    indices, log_weights = sampler.weights(anchors, 64, correct=True)
    for size in (1, 2, 3, 7, 17, 59):
        parts = [sampler.weights(some, 64, correct=True) for some in anchors.split(size)]
        assert torch.equal(torch.cat([part[0] for part in parts]), indices)
        assert torch.equal(torch.cat([part[1] for part in parts]), log_weights)


@pytest.mark.parametrize("name", ["uniform", "class", "instance"])
def test_distinct_draws_do_not_repeat(name: str) -> None:
    drawn = SAMPLERS[name].sample(EVERY, 25, distinct=True)
    assert all(len(set(row)) == 25 for row in drawn.tolist())
    assert (q_of(SAMPLERS[name], EVERY).gather(1, drawn) > 0).all()


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_whole_number_may_be_a_float(name: str) -> None:
    sampler = SAMPLERS[name]
    assert all(map(torch.equal, sampler.weights(EVERY, 3.0), sampler.weights(EVERY, 3)))  # type: ignore[arg-type]
    if not sampler.everything:
        assert torch.equal(sampler.sample(EVERY, 3.0), sampler.sample(EVERY, 3))  # type: ignore[arg-type]


def test_the_first_distinct_draw_follows_the_probabilities() -> None:
    anchors = torch.arange(16)
    counts = torch.zeros(16, COUNT).double()
    for epoch in range(1000):
        first = SAMPLERS["instance"].sample(anchors, 2, epoch=epoch, distinct=True)[:, :1]
        counts.scatter_add_(1, first, torch.ones(16, 1).double())
    q = q_of(SAMPLERS["instance"], anchors)
    chi = ((counts - 1000 * q).square() / (1000 * q).clamp(min=1e-9))[q > 0].sum()
    freedom = float((q > 0).sum() - 16)
    assert abs(chi - freedom) < 4 * math.sqrt(2 * freedom)


def test_class_probabilities_of_the_paper() -> None:
    case = GOLDEN["class_scns"]
    table = NeighborTable.build(torch.tensor(case["inputs"]["embeddings"]), k=2)
    labels = torch.arange(5).repeat(3)
    anchors = torch.arange(5)
    for scale, expected in ((5.0, "P_topk_scale5"), (0.2, "P_topk_divide_by_5_literal")):
        shown = ClassNegatives(table, labels, scale=scale).probabilities(anchors)
        assert torch.allclose(shown, torch.tensor(case["expected"][expected]), atol=1e-3)  # float16 scores
    whole = NeighborTable.build(torch.tensor(case["inputs"]["embeddings"]), k=4)
    rows = torch.zeros(5, 5).scatter_(1, whole.indices.long(), ClassNegatives(whole, labels).probabilities(anchors))
    assert torch.allclose(rows, torch.tensor(case["expected"]["P_masked_scale5"]), atol=1e-3)


def test_instance_probabilities_are_a_softmax_of_scaled_cosines() -> None:
    table = NeighborTable.build(X, LABELS, k=30)
    for scale in (0.0, 5.0, 20.0):
        shown = InstanceNegatives(table, scale=scale).probabilities(EVERY)
        assert torch.allclose(shown, (scale * table.scores.float()).softmax(1), atol=1e-6)


def test_systematic_counts_stay_within_one_of_their_mean() -> None:
    _, log_weights = SAMPLERS["instance"].weights(EVERY, 1000)
    mean = 1000 * SAMPLERS["instance"].probabilities(EVERY)  # type: ignore[operator]
    assert ((log_weights.exp() - mean).abs() <= 1 + 1e-3).all()
    assert torch.equal(log_weights.exp().round().sum(1), torch.full((COUNT,), 1000.0))


@pytest.mark.parametrize(("k", "num"), [(20_000, 1 << 20), (600_000, 40_000), (7, 5000)])
def test_systematic_counts_are_exact_for_many_draws_of_many(k: int, num: int) -> None:
    """The products of draws and weights can need more than 64 bits."""
    weights = torch.randint(1, 3, (1, k), generator=torch.Generator().manual_seed(0)) * (chances.UNIT // 2)
    counts = chances.systematic_counts(weights, torch.tensor([[0.3]], dtype=torch.float64), num)
    total = int(weights.sum())
    ends = list(accumulate(weights[0].tolist()))
    upto = [(num * end + int(0.3 * total)) // total for end in ends]
    assert counts[0].tolist() == [upto[0], *(after - before for before, after in pairwise(upto))]


@pytest.mark.parametrize("num", [1, 16, 256, 4096])
def test_evenly_spaced_draws_stay_below_the_last_candidate(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One offset in 2^53 is so close to 1 that the last position would round to it."""
    last = torch.tensor([[1 - 2.0**-53]], dtype=torch.float64)
    monkeypatch.setattr(chances, "offset", lambda *keys: last)
    position = chances.even_positions(0, torch.tensor([0]), num, 0)
    assert int(chances.pick(torch.tensor([[3, 10]]), position).max()) == 1


def test_weights_give_the_loss_of_the_repeated_negatives() -> None:
    """sum over draws of exp(s) = sum over candidates of count * exp(s)."""
    anchors = torch.arange(16)
    indices, log_weights = SAMPLERS["instance"].weights(anchors, 500)
    counts = log_weights.exp().round().long()
    for row in range(16):
        repeated = torch.repeat_interleave(indices[row], counts[row])
        weighted = (SCORES[row, indices[row]] + log_weights[row]).double().logsumexp(0)
        assert abs(float(SCORES[row, repeated].double().logsumexp(0) - weighted)) < 1e-5


def test_all_negatives_are_everything_else() -> None:
    indices, log_weights = AllNegatives(LABELS).weights(torch.tensor([4, 9]))
    assert indices.shape == (2, COUNT) and AllNegatives.everything
    assert torch.equal(log_weights == 0, LABELS[torch.tensor([4, 9]), None] != LABELS)
    assert (log_weights[log_weights != 0] == -torch.inf).all()


def test_unlabelled_samples_exclude_only_themselves() -> None:
    labels = LABELS.clone()
    labels[:20] = -1
    sampler = UniformNegatives(labels)
    drawn = sampler.sample(torch.arange(20), 5000)
    for row in range(20):
        assert set(drawn[row].tolist()) == set(range(COUNT)) - {row}
    assert torch.isin(torch.arange(20), sampler.sample(torch.tensor([100]), 5000)).all()


def test_soft_probabilities_are_the_untruncated_softmax() -> None:
    anchors = torch.arange(10)
    unit = F.normalize(X, dim=1)
    for scale, uniform in ((5.0, 0.0), (10.0, 0.25)):
        cosine = torch.where(LABELS[anchors, None] == LABELS, -torch.inf, unit[anchors] @ unit.T)
        negatives = (LABELS[anchors, None] != LABELS).float()
        want = (1 - uniform) * (scale * cosine).softmax(1) + uniform * negatives / negatives.sum(1, keepdim=True)
        sampler = SoftNegatives(X, LABELS, scale=scale, uniform=uniform)
        assert torch.allclose(sampler.probabilities(anchors), want, atol=1e-6)


@pytest.mark.parametrize(("clusters", "most"), [(24, 2), (150, 1)])  # 25 similarities take more room than 6 numbers
def test_classes_of_one_size_are_clustered_at_once_where_there_is_room(
    clusters: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = torch.tensor([0] * 30 + [2] * 30 + [3] * 60 + [5] * 59 + [6])  # none of 1 and 4
    kmeans, classes = soft._kmeans, list[int]()

    def noted(unit: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
        classes.append(len(unit))
        return kmeans(unit, picked)

    monkeypatch.setattr(soft, "_kmeans", noted)
    monkeypatch.setattr(soft, "_AT_ONCE", 30 * 25)
    found = SoftNegatives(X[:180], labels, scale=5.0, clusters=clusters)
    assert max(classes) == most and sum(classes) == 5
    monkeypatch.setattr(soft, "_AT_ONCE", 1)
    alone = SoftNegatives(X[:180], labels, scale=5.0, clusters=clusters)
    assert torch.equal(found.cluster_of, alone.cluster_of) and torch.allclose(found.centroids, alone.centroids)
    assert torch.equal(found.cluster_class[found.cluster_of], labels)


def test_clusters_are_inside_classes_and_deterministic() -> None:
    first, second = (SoftNegatives(X, LABELS, scale=5.0, clusters=24) for _ in range(2))
    assert torch.equal(first.cluster_of, second.cluster_of) and torch.equal(first.centroids, second.centroids)
    assert torch.equal(first.cluster_class[first.cluster_of], LABELS)
    assert int(first.sizes.sum()) == COUNT and 22 <= len(first.sizes) <= 26
    one_each = SoftNegatives(X, LABELS, scale=5.0, clusters=COUNT, uniform=0.0)
    exact = SoftNegatives(X, LABELS, scale=5.0, uniform=0.0)
    assert torch.allclose(one_each.probabilities(EVERY), exact.probabilities(EVERY), atol=1e-5)


@pytest.mark.parametrize("name", ["uniform", "class"])
def test_distinct_draws_are_made_for_some_anchors_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pick, counted = chances.pick_distinct, []
    monkeypatch.setattr(
        chances, "pick_distinct", lambda log_p, *given: counted.append(len(log_p)) or pick(log_p, *given)
    )
    whole = SAMPLERS[name].sample(EVERY, 9, distinct=True)
    monkeypatch.setattr(sampling, "_CACHED", 7 * COUNT)
    assert torch.equal(SAMPLERS[name].sample(EVERY, 9, distinct=True), whole)
    assert counted[0] == COUNT == sum(counted[1:]) and max(counted[1:]) == 7
    assert SAMPLERS[name].sample(EVERY[:0], 9, distinct=True).shape == (0, 9)


@pytest.mark.parametrize("clusters", [None, 24])
def test_soft_weighs_some_anchors_at_a_time(clusters: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, counted, searched = SoftNegatives(X, LABELS, scale=5.0, clusters=clusters), [], []
    integers, find = sampler._integers, chances.find
    monkeypatch.setattr(chances, "find", lambda ends, at: searched.append(len(ends)) or find(ends, at))
    sampler._integers = lambda scores, anchors: counted.append(len(anchors)) or integers(scores, anchors)
    whole = sampler.weights(EVERY, 9, correct=True)
    monkeypatch.setattr(soft, "_CACHED", sampler.candidates)
    pieces = sampler.weights(EVERY, 9, correct=True)
    assert all(torch.equal(*each) for each in zip(whole, pieces, strict=True))
    assert counted[0] == COUNT == sum(counted[1:]) and len(counted) > 2
    assert searched == counted  # so that nothing [batch, N] is kept but the product


def test_soft_refreshed_follows_new_embeddings() -> None:
    moved = X.flip(0)
    for clusters in (None, 24):
        sampler = SoftNegatives(X, LABELS, scale=5.0, clusters=clusters)
        new, refreshed = SoftNegatives(moved, LABELS, scale=5.0, clusters=clusters), sampler.refreshed(moved)
        assert torch.equal(new.sample(EVERY, 9), refreshed.sample(EVERY, 9))
        assert torch.equal(
            sampler.sample(EVERY, 9), SoftNegatives(X, LABELS, scale=5.0, clusters=clusters).sample(EVERY, 9)
        )


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])  # the last has no length in float32
def test_soft_keeps_what_it_had_where_new_embeddings_have_no_direction(value: float) -> None:
    broken = X.index_fill(0, torch.tensor([3]), value)
    for clusters in (None, 24):
        sampler = SoftNegatives(X, LABELS, scale=5.0, clusters=clusters)
        before = sampler.sample(EVERY, 9)
        with pytest.raises(InputError, match=r"1 embeddings are NaN, infinite or too large \(rows 3\)"):
            sampler.refresh_(broken)
        assert torch.equal(sampler.sample(EVERY, 9), before)


def test_importance_sampling_needs_fewer_draws_than_uniform() -> None:
    """With the scale near 1 / temperature the corrected estimate of the log-sum has a smaller error."""
    unit = F.normalize(X, dim=1)
    logits = (unit @ unit.T) / 0.2
    truth = torch.where(LABELS[:, None] == LABELS, -torch.inf, logits).logsumexp(1)

    def error(sampler: Negatives) -> float:
        squares = []
        for epoch in range(20):
            indices, log_weights = sampler.weights(EVERY, 16, epoch=epoch, correct=True)
            squares.append(((logits.gather(1, indices) + log_weights).logsumexp(1) - truth).square().mean())
        return float(torch.stack(squares).mean().sqrt())

    exact, uniform = error(SoftNegatives(X, LABELS, scale=5.0)), error(UniformNegatives(LABELS))
    assert exact < 0.3 * uniform
    assert error(SoftNegatives(X, LABELS, scale=5.0, clusters=48)) < 0.8 * uniform


def test_fallback_serves_empty_rows() -> None:
    table = NeighborTable.build(X, LABELS, k=30)
    empty = table.filtered(max_score=float(table.scores[:, -1].float().median()))
    cut = table.filtered(max_score=0.0 if (table.scores[:, -1] > 0).any() else -1.0)
    lost = int((cut.indices[:, 0] < 0).sum())
    assert lost > 0 and empty.info.short_rows > 0
    with pytest.raises(InputError, match=f"{lost} rows have no neighbours left"):
        InstanceNegatives(cut)
    sampler = InstanceNegatives(cut, fallback=UniformNegatives(LABELS))
    assert sampler.fallen_back == lost
    drawn = sampler.sample(EVERY, 50)
    assert (drawn >= 0).all() and (LABELS[drawn] != LABELS[:, None]).all()
    whole = InstanceNegatives(table, fallback=UniformNegatives(LABELS))
    assert whole.fallen_back == 0 and whole.refresh_(cut).fallen_back == lost
    assert torch.equal(whole.sample(EVERY, 50), drawn)
    plain = InstanceNegatives(table)
    with pytest.raises(InputError, match=f"{lost} rows have no neighbours left.*make the sampler with fallback="):
        plain.refresh_(cut)
    assert torch.equal(plain.sample(EVERY, 5), InstanceNegatives(table).sample(EVERY, 5))  # as it was


def test_positives_are_other_samples_of_the_class() -> None:
    positives = Positives(LABELS).sample(EVERY, 400, epoch=1)
    assert (LABELS[positives] == LABELS[:, None]).all() and (positives != EVERY[:, None]).all()
    own = (LABELS[0] == LABELS).nonzero()[:, 0].tolist()
    assert set(positives[0].tolist()) == set(own) - {0}
    alone = Positives(torch.tensor([0, 0, 1])).sample(torch.tensor([2]), 3)
    assert alone.tolist() == [[2, 2, 2]]


def test_samplers_have_no_state_but_move_with_their_module() -> None:
    for sampler in SAMPLERS.values():
        assert not sampler.state_dict()
        assert len(list(sampler.buffers())) > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformNegatives(torch.zeros(5, dtype=torch.int64)), "one label"),
        (lambda: UniformNegatives(LABELS.float()), "must be integers"),
        (lambda: InstanceNegatives(NeighborTable.build(X, LABELS, k=3), scale=-1.0), "scale=-1.0"),
        (lambda: InstanceNegatives(NeighborTable.build(X, LABELS, k=3), scale=math.inf), "scale=inf"),
        (lambda: ClassNegatives(NeighborTable.build(CLASS_VECTORS, k=3), LABELS + 1), "classes 0 to 5"),
        (
            lambda: ClassNegatives(NeighborTable.build(CLASS_VECTORS, k=3), LABELS.clamp(max=4)),
            r"Classes \[5\] have no samples; .* or draw negatives uniformly",
        ),
        (
            lambda: ClassNegatives(NeighborTable.build(CLASS_VECTORS, k=3).filtered(max_score=-0.9), LABELS),
            r"Classes \[0, 1, 2, 3, 4\] have no neighbours left",
        ),
        (lambda: MixedNegatives([]), "above 0"),
        (lambda: MixedNegatives([(math.inf, UniformNegatives(LABELS))]), "finite"),
        (lambda: MixedNegatives([(0.5, UniformNegatives(y)) for y in (LABELS, LABELS[:9])]), r"of \[9, 240\] samples"),
        (lambda: MixedNegatives([(-1.0, UniformNegatives(LABELS))]), "above 0"),
        (lambda: MixedNegatives([(1.0, AllNegatives(LABELS))]), "AllNegatives does not"),
        (lambda: SoftNegatives(X, LABELS[:5], scale=5.0), "need 5 embeddings"),
        (lambda: SoftNegatives(X, LABELS, scale=5.0, clusters=2), "clusters=2 must be a whole number from 6"),
        (lambda: SoftNegatives(X, LABELS, scale=5.0, uniform=1.0), "uniform=1.0"),
        (lambda: SoftNegatives(X.index_fill(0, EVERY[[7, 3]], torch.nan), LABELS, scale=5.0), r"2 .*NaN.*rows 3, 7\)"),
        (lambda: SoftNegatives(X[:, 0], LABELS, scale=5.0), r"\[rows, dim\], but these are \(240,\)"),
        (lambda: SoftNegatives(X[:, :0], LABELS, scale=5.0), r"but these are \(240, 0\)"),
        (lambda: SoftNegatives(X, LABELS, scale=-1.0), "scale=-1.0"),
        (lambda: SAMPLERS["uniform"].sample(EVERY, 0), "at least 1"),
        (lambda: SAMPLERS["instance"].sample(EVERY, 31, distinct=True), "31 distinct draws.*there are 30"),
        (lambda: SAMPLERS["uniform"].sample(EVERY, COUNT - 1, distinct=True), "239 distinct draws.*lower num"),
        (lambda: SAMPLERS["class"].sample(EVERY, 200, distinct=True), "200 distinct draws.*lower num"),
        (lambda: SAMPLERS["mixed"].sample(EVERY, 3, distinct=True), "with repetition"),
        (lambda: AllNegatives(LABELS).sample(EVERY, 3), "does not draw"),
        (lambda: AllNegatives(LABELS).shared(EVERY, 3), "does not draw"),
        (lambda: SAMPLERS["soft"].shared(EVERY, 0), "at least 1"),
        (
            lambda: SAMPLERS["soft"].shared(EVERY, 0, also=EVERY, chance=X[:, 0].abs() > 9),
            "chance= .* but it is a tensor",
        ),
        (lambda: SAMPLERS["soft"].shared(EVERY, 0, also=EVERY, chance=(EVERY != 7) / 2), "also= has sample 7, whose"),
        (lambda: SAMPLERS["soft"].shared(EVERY, 1, also=EVERY), r"chance= .* but it is 0; give \(batch - 1\) /"),
        (lambda: SAMPLERS["soft"].shared(EVERY, 1, also=EVERY, chance=1.5), "chance= .* but it is 1.5"),
        (lambda: SAMPLERS["soft"].shared(EVERY, 1, also=EVERY, chance=None), "chance= must be numbers .* NoneType"),
        (lambda: SAMPLERS["soft"].shared(EVERY, 1, also=EVERY, chance="x"), "chance= must be numbers .* str"),
        (lambda: SoftNegatives(X + 1j, LABELS, scale=5.0), r"\[rows, dim\], but these are torch.complex64"),
        (lambda: MixedNegatives([(1e-12, SAMPLERS["uniform"]), (1.0, SAMPLERS["soft"])]), "below 9e-10 of all"),
        (
            lambda: ClassNegatives(NeighborTable.build(X[:20], k=5, rows=range(10)), EVERY % 10),
            "has 10 of 20 classes; build it of all",
        ),
        (lambda: SAMPLERS["soft"].shared(EVERY, 1, also=EVERY, chance=X[:, 0]), "chance= .* but it is a tensor"),
        (lambda: SAMPLERS["soft"].shared(EVERY, 1, also=[1], chance=0.1), r"also= .* but it is list"),
        (lambda: SAMPLERS["soft"].shared(EVERY, 1, also=EVERY + 1, chance=0.1), "0 to 239, but one is 240"),
        (lambda: UniformNegatives(LABELS, among=[3, COUNT]), "names samples, 0 to 239, but one is 240"),
        (lambda: UniformNegatives(LABELS, among=AMONG[1:]), r"a mask, bool \[240\], but it is torch.bool \(239,\)"),
        (lambda: AllNegatives(LABELS, among=X[:, 0]), r"int64 \[m\], .* but it is torch.float32"),
        (lambda: AllNegatives(LABELS, among=[]), "names no sample"),
        (lambda: AllNegatives(LABELS, among=LABELS > 9), "names no sample"),
        (lambda: UniformNegatives(LABELS, among=LABELS == 2), "candidates have one label"),
        (lambda: SAMPLERS["uniform-among"].sample(EVERY, 240, distinct=True), "240 distinct draws.*there are"),
    ],
)
def test_bad_input(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["uniform", "class", "instance", "mixed", "uniform-among"])
def test_draws_are_the_same_on_a_gpu(name: str) -> None:
    here, there = samplers()[name], samplers()[name].to("cuda")
    anchors = EVERY.to("cuda")
    assert torch.equal(there.sample(anchors, 200, epoch=3).cpu(), here.sample(EVERY, 200, epoch=3))
    for correct in (False, True):
        indices, log_weights = there.weights(anchors, 200, epoch=3, correct=correct)
        wanted = here.weights(EVERY, 200, epoch=3, correct=correct)
        assert torch.equal(indices.cpu(), wanted[0]) and torch.allclose(log_weights.cpu(), wanted[1], atol=1e-5)


@pytest.mark.gpu
def test_soft_negatives_are_where_the_embeddings_are() -> None:
    drawn = SoftNegatives(X.cuda(), LABELS, scale=5.0, clusters=24).sample(EVERY.cuda(), 9)
    assert drawn.is_cuda and bool((LABELS[drawn.cpu()] != LABELS[:, None]).all())


def test_anchors_on_another_device_are_told() -> None:
    anchors, sentence = EVERY.to("meta"), r"Anchors are on meta, but the sampler is on cpu; .*sampler.to\('meta'\)"
    for sampler in (*SAMPLERS.values(), Positives(LABELS)):
        with pytest.raises(InputError, match=sentence):
            sampler.sample(anchors, 3)


@pytest.mark.parametrize("anchors", [[0, 1], np.array([0, 1]), torch.tensor([[0, 1]]), torch.tensor([0.0, 1.0])])
def test_anchors_that_are_no_batch_of_numbers_are_told(anchors: object) -> None:
    labels = torch.arange(40) % 4
    embeddings = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    table = NeighborTable.build(embeddings, labels, k=5)
    classes = NeighborTable.build(embeddings[:4], k=2)
    for sampler in (
        UniformNegatives(labels),
        InstanceNegatives(table),
        ClassNegatives(classes, labels),
        SoftNegatives(embeddings.numpy(), labels.numpy(), scale=5),
    ):
        for draw in (sampler.sample, sampler.weights):
            with pytest.raises((InputError, IndexError), match=r"Anchors are sample numbers|used as indices"):
                draw(anchors, 3)
    assert repr(InstanceNegatives(table)) == "InstanceNegatives(40 samples, k=5, scale=5)"
    assert repr(table) == "NeighborTable(40 rows, k=5, exclude='label')"


@pytest.mark.parametrize("bad", [torch.tensor([0, COUNT]), torch.tensor([-1, 0]), LABELS > 2, LABELS.to(torch.uint8)])
def test_anchors_that_are_no_samples_are_told(bad: Tensor) -> None:
    for sampler in SAMPLERS.values():
        calls = [lambda s=sampler: s.log_probability(bad, bad[:, None].long()), lambda s=sampler: s.weights(bad, 3)]
        for call in calls if sampler.everything else [*calls, lambda s=sampler: s.sample(bad, 3)]:
            with pytest.raises(InputError, match=r"one is -1|one is 240|int64 tensor .*(bool|uint8)"):
                call()


class Column:
    """A column of a data frame whose rows were shuffled: an index goes by the rows' names, and none is 0."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> int:
        raise KeyError(row)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.values


REVERSED = LABELS.numpy()[::-1]


@pytest.mark.parametrize("labels", [REVERSED, REVERSED.astype(">i4"), LABELS.flip(0).tolist(), Column(REVERSED)])
def test_labels_and_embeddings_of_any_layout(labels: object) -> None:
    embeddings = X.numpy()[::-1].astype(">f8")
    given, wanted = SoftNegatives(embeddings, labels, scale=5), SoftNegatives(X.flip(0), LABELS.flip(0), scale=5)
    assert torch.equal(given.sample(EVERY, 9), wanted.sample(EVERY, 9))
    assert torch.equal(given.refresh_(-embeddings).sample(EVERY, 9), wanted.sample(EVERY, 9))


def test_numbers_of_numpy_are_seeds_and_epochs() -> None:
    plain, numpys = UniformNegatives(LABELS, seed=3), UniformNegatives(LABELS, seed=np.int64(3))
    assert torch.equal(plain.sample(EVERY, 5, epoch=7), numpys.sample(EVERY, 5, epoch=np.int32(7)))


@pytest.mark.parametrize("clusters", [None, 30])
def test_soft_draws_do_not_depend_on_autocast(clusters: int | None) -> None:
    plain = SoftNegatives(X, LABELS, scale=50, clusters=clusters)
    with torch.autocast("cpu", torch.float16):
        inside = SoftNegatives(X, LABELS, scale=50, clusters=clusters)
        drawn, log_weights = inside.weights(EVERY, 200, correct=True)
    assert torch.equal(drawn, plain.weights(EVERY, 200)[0]) and log_weights.dtype == torch.float32


def test_positives_need_no_negatives() -> None:
    assert Positives(torch.zeros(2, dtype=torch.int64)).sample(torch.arange(2)).tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformNegatives(["cat", "dog"]), r"Labels must be numbers.*str; names.*numpy.unique"),  # type: ignore[arg-type]
        (lambda: UniformNegatives(np.array(["cat", "dog"])), r"Labels must be numbers.*<U3; names"),  # type: ignore[arg-type]
        (lambda: UniformNegatives([1, None, 2]), "Labels must be numbers.*NoneType"),  # type: ignore[list-item]
        (lambda: UniformNegatives(None), "Labels must be numbers.*NoneType; without labels, give -1 for every"),  # type: ignore[arg-type]
        (lambda: UniformNegatives(LABELS - 7), "must be -1 .none. or larger, but one is -7"),
        (
            lambda: UniformNegatives(LABELS[:, None]),
            r"a number a sample, but their shape is \(240, 1\); .*labels\[:, 0\]",
        ),
        (lambda: UniformNegatives(LABELS, seed=1.5).sample(EVERY, 1), "whole numbers, but this is 1.5"),  # type: ignore[arg-type]
        (lambda: SAMPLERS["uniform"].sample(EVERY, 3, epoch=None), "whole numbers, but this is None"),  # type: ignore[arg-type]
        (lambda: SAMPLERS["soft"].weights(EVERY, 2.5), "2.5 draws"),  # type: ignore[arg-type]
        (lambda: SAMPLERS["instance"].weights(EVERY, "9"), "'9' draws"),  # type: ignore[arg-type]
        (lambda: SAMPLERS["uniform"].sample(EVERY, 2.5, distinct=True), "2.5 draws"),  # type: ignore[arg-type]
        (lambda: SAMPLERS["class"].sample(EVERY, None, distinct=True), "None draws"),  # type: ignore[arg-type]
        (lambda: SAMPLERS["instance"].sample(EVERY, 0, distinct=True), "0 draws"),
        (lambda: SoftNegatives(X, 240, scale=5), r"a number a sample, but their shape is \(\)"),  # type: ignore[arg-type]
        (lambda: SoftNegatives(X, None, scale=5), "Labels must be numbers.*NoneType"),  # type: ignore[arg-type]
        (lambda: SoftNegatives(X, LABELS, scale="5"), "scale='5'"),  # type: ignore[arg-type]
        (lambda: SoftNegatives(X, LABELS, scale=5, uniform=None), "uniform=None"),  # type: ignore[arg-type]
        (lambda: SoftNegatives(X, LABELS, scale=5, clusters=7.5), "clusters=7.5 must be a whole"),  # type: ignore[arg-type]
        (lambda: SoftNegatives(None, LABELS, scale=5), "Embeddings must be numbers"),  # type: ignore[arg-type]
        (lambda: InstanceNegatives(X), "NeighborTable, not Tensor; make it by scns.NeighborTable.build"),  # type: ignore[arg-type]
        (lambda: ClassNegatives(CLASS_VECTORS, LABELS), "NeighborTable, not Tensor"),  # type: ignore[arg-type]
        (lambda: InstanceNegatives(NeighborTable.build(X, LABELS, k=3, rows=range(20, 60))), "a shard, 40 of 240 rows"),
        (lambda: MixedNegatives([UniformNegatives(LABELS)]), r"pairs \(share, sampler\)"),  # type: ignore[list-item]
        (lambda: MixedNegatives([(UniformNegatives(LABELS), 0.5)]), r"pairs \(share, sampler\)"),  # type: ignore[list-item]
    ],
)
def test_what_a_newcomer_may_pass_is_told(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


def test_a_table_of_the_first_rows_has_them_as_anchors() -> None:
    """Queries before their passages: what they draw is what they draw from a table of all, at a share of its cost."""
    every = NeighborTable.build(X, LABELS, k=9)
    first = NeighborTable.build(X, LABELS, k=9, rows=range(50))
    sampler, whole = InstanceNegatives(first, seed=3), InstanceNegatives(every, seed=3)
    anchors = torch.tensor([49, 0, 7])
    assert (sampler.anchor_rows, sampler.samples, whole.anchor_rows) == (50, 240, 240)
    assert torch.equal(sampler.sample(anchors, 6, epoch=1), whole.sample(anchors, 6, epoch=1))
    for one, other in zip(sampler.weights(anchors, 40), whole.weights(anchors, 40), strict=True):
        assert torch.equal(one, other)
    mixed = MixedNegatives([(0.5, sampler), (0.5, UniformNegatives(LABELS))])
    assert mixed.anchor_rows == 50 and mixed.sample(anchors, 4).shape == (3, 4)
    for each in (sampler, mixed):
        with pytest.raises(InputError, match="the first 50 of 240 samples, but one anchor is 50"):
            each.sample(torch.tensor([3, 50]), 2)
    moved = torch.randn(240, X.shape[1], generator=torch.Generator().manual_seed(8))
    fresh = first.refreshed(moved)
    assert torch.equal(fresh.indices, NeighborTable.build(moved, LABELS, k=9).indices[:50])
    assert torch.equal(sampler.refresh_(fresh).indices, fresh.indices)
    with pytest.raises(InputError, match="a shard, 50 of 240 rows from row 5 on"):
        sampler.refresh_(NeighborTable.build(X, LABELS, k=9, rows=range(5, 55)))
    fallback = InstanceNegatives(first.filtered(max_score=-2), fallback=UniformNegatives(LABELS))
    assert fallback.fallen_back == 50 and (LABELS[fallback.sample(anchors, 5)] != LABELS[anchors, None]).all()


@pytest.mark.parametrize("name", [*SAMPLERS, "all"])
@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (torch.tensor([[-1], [2]]), "0 to 239, but one is -1"),
        (torch.tensor([[1], [COUNT]]), "but one is 240"),
        (torch.tensor([1, 2]), r"\[2, m\], but these are torch.int64 \(2,\)"),
        (torch.tensor([[1, 2]]), r"these are torch.int64 \(1, 2\)"),
        (torch.ones(2, 3), "these are torch.float32"),
        ([[1], [2]], "these are list"),
    ],
)
def test_indices_that_are_no_samples_of_the_anchors_are_told(name: str, indices: Tensor, message: str) -> None:
    sampler = AllNegatives(LABELS) if name == "all" else SAMPLERS[name]
    with pytest.raises(InputError, match=message):
        sampler.log_probability(torch.tensor([0, 1]), indices)


def test_a_fallback_pairs_no_rows_of_one_group() -> None:
    """Queries are no negatives of each other, whether passages are found or, for want of near ones, drawn."""
    groups = torch.where(torch.arange(COUNT) < 150, 0, -1)
    table = NeighborTable.build(X, LABELS, k=20, groups=groups, rows=range(150)).filtered(max_score=-2)
    sampler = InstanceNegatives(table, fallback=UniformNegatives(LABELS))
    anchors = torch.arange(150)
    drawn = sampler.sample(anchors, 50)
    assert sampler.fallen_back == 150 and (drawn >= 150).all() and (LABELS[drawn] != LABELS[:150, None]).all()
    negatives, log_weights = sampler.weights(anchors, 50)
    assert (negatives[log_weights > -torch.inf] >= 150).all()
    alone = torch.zeros(COUNT, dtype=torch.int64)
    alone[-1] = -1
    table = NeighborTable.build(X, k=1, groups=alone).filtered(max_score=-2)
    with pytest.raises(
        InputError, match="Row 0 has no neighbours left, and all 1 draws of the fallback are of its group"
    ):
        InstanceNegatives(table, fallback=UniformNegatives(torch.arange(COUNT)))


@pytest.mark.parametrize("fallback", [UniformNegatives(torch.arange(COUNT + 60) % 6), "uniform"])
def test_a_fallback_for_other_samples_is_told(fallback: Negatives) -> None:
    table = NeighborTable.build(X, LABELS, k=3).filtered(max_score=0.5)
    with pytest.raises(InputError, match=r"table of 240 samples is a sampler of as many.*UniformNegatives"):
        InstanceNegatives(table, fallback=fallback)


def test_labels_may_be_any_numbers() -> None:
    """Nothing is as long as the largest label: product numbers are labels too."""
    far = torch.arange(1, 7) * 10**15
    few, many = (SoftNegatives(X, labels, scale=5.0, clusters=24) for labels in (LABELS, far[LABELS]))
    assert len(few.sizes) == len(many.sizes) == 24
    assert bool((LABELS[many.sample(EVERY, 9)] != LABELS[:, None]).all())
    with pytest.raises(InputError, match="classes 0 to 5; number"):
        ClassNegatives(NeighborTable.build(CLASS_VECTORS, k=3), far[LABELS])


def test_a_refreshed_sampler_leaves_its_table_alone() -> None:
    table = NeighborTable.build(X, LABELS, k=9)
    first, second = InstanceNegatives(table), InstanceNegatives(table)
    indices, drawn = table.indices.clone(), second.sample(EVERY, 5)
    new = table.refreshed(X.flip(0))
    assert torch.equal(first.refresh_(new).sample(EVERY, 5), InstanceNegatives(new).sample(EVERY, 5))
    assert torch.equal(table.indices, indices)
    assert torch.equal(second.sample(EVERY, 5), drawn)
    place = first.indices.data_ptr()
    first.refresh_(table)
    assert first.indices.data_ptr() == place  # a step that was compiled for it goes on
    assert not torch.equal(new.indices, table.indices)
    assert not first.state_dict()


def test_labels_that_change_later_do_not_matter() -> None:
    labels = LABELS.clone()
    sampler = ClassNegatives(NeighborTable.build(CLASS_VECTORS, k=3), labels)
    drawn = sampler.sample(EVERY, 5)
    labels.zero_()
    assert torch.equal(sampler.sample(EVERY, 5), drawn)


def test_a_number_of_draws_is_the_same_whatever_its_type() -> None:
    """Products of a float with integer weights are rounded, which would be other draws."""
    sampler = InstanceNegatives(NeighborTable.build(X, LABELS, k=150))
    counts = sampler.weights(EVERY, 100_000)[1]
    for number in (100_000.0, np.float64(100_000), torch.tensor(100_000)):
        assert torch.equal(sampler.weights(EVERY, number)[1], counts)  # type: ignore[arg-type]

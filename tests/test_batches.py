"""Batches of anchors with their positives and negatives."""

import pytest
import torch

from scns.batches import NeighborBatchSampler
from scns.errors import InputError
from scns.neighbors import NeighborTable
from scns.sampling import InstanceNegatives, UniformNegatives

LABELS = torch.arange(60) % 4
X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
SAMPLER = InstanceNegatives(NeighborTable.build(X, LABELS, k=10))


def make(**arguments: object) -> NeighborBatchSampler:
    return NeighborBatchSampler(SAMPLER, LABELS, **{"batch_size": 16, "negatives": 2, **arguments})  # type: ignore[arg-type]


def test_every_anchor_comes_once_with_its_own_positives_and_negatives() -> None:
    anchors = []
    for batch in make():
        first, positives, negatives = batch[:4], batch[4:8], batch[8:]
        assert len(batch) == 16
        anchors += first
        for i, anchor in enumerate(first):
            assert LABELS[positives[i]] == LABELS[anchor] and positives[i] != anchor
            drawn = SAMPLER.sample(torch.tensor([anchor]), 2)[0].tolist()
            assert negatives[2 * i : 2 * i + 2] == drawn
    assert sorted(anchors) == list(range(60))


def test_rows_of_a_table_of_the_first_ones_are_the_anchors() -> None:
    sampler = InstanceNegatives(NeighborTable.build(X, LABELS, k=10, rows=range(20)))
    batches = NeighborBatchSampler(sampler, LABELS, batch_size=16, negatives=2)
    anchors = [anchor for batch in batches for anchor in batch[:4]]
    assert len(batches) == 5 and sorted(anchors) == list(range(20))


def test_epochs_differ_and_repeat() -> None:
    batches = make()
    first = list(batches)
    batches.set_epoch(1)
    assert list(batches) != first
    batches.set_epoch(0)
    assert list(batches) == first


def test_ranks_share_the_batches_of_one_process() -> None:
    whole = list(make())
    ranks = [list(make(num_replicas=2, rank=rank)) for rank in (0, 1)]
    assert len(ranks[0]) == len(ranks[1]) == 7
    assert [batch for pair in zip(*ranks, strict=True) for batch in pair] == whole[:14]


def test_the_last_batch_can_be_kept() -> None:
    assert [len(batch) for batch in make(batch_size=28, drop_last=False)] == [28] * 8 + [16]
    assert len(make(batch_size=28)) == 8


def test_works_in_a_data_loader() -> None:
    data = torch.utils.data.TensorDataset(X, LABELS)
    loader = torch.utils.data.DataLoader(data, batch_sampler=make())
    assert [x.shape[0] for x, _ in loader] == [16] * 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 3}, "3 rows cannot hold"),
        ({"negatives": 0}, "negatives=0 must be a whole number of at least 1"),
        ({"negatives": 1.5}, "negatives=1.5"),
        ({"batch_size": "16"}, "batch_size='16'"),
        ({"num_replicas": 0}, "num_replicas=0"),
        ({"rank": 2, "num_replicas": 2}, "rank=2"),
        ({"rank": "0"}, "rank='0' must be a whole number"),
        ({"rank": "first"}, "rank='first' must be a whole number"),
        ({"rank": 0.5, "num_replicas": 2}, "rank=0.5 must be a whole number"),
        ({"batch_size": 4000}, "do not fill one batch"),
    ],
)
def test_bad_input(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**arguments)


def test_uniform_works_too() -> None:
    assert len(list(NeighborBatchSampler(UniformNegatives(LABELS), LABELS, batch_size=6))) == 30


def test_a_sampler_of_the_same_samples_is_asked_for() -> None:
    for labels in (LABELS[:30], torch.cat([LABELS, LABELS])):
        with pytest.raises(InputError, match=f"of 60 samples, but there are {len(labels)} labels"):
            NeighborBatchSampler(UniformNegatives(LABELS), labels, batch_size=6)
    with pytest.raises(InputError, match="come from a sampler"):
        NeighborBatchSampler(LABELS, LABELS, batch_size=6)  # type: ignore[arg-type]


def test_numbers_of_any_type_and_labels_of_none() -> None:
    assert list(make(batch_size=16.0, num_replicas=1.0, rank=0.0)) == list(make())
    with pytest.raises(InputError, match="Labels must be numbers"):
        NeighborBatchSampler(SAMPLER, None, batch_size=16)  # type: ignore[arg-type]

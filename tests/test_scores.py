"""Scores of single images, against loops in double precision, and the interval of their mean."""

import math

import pytest
import torch

from scns.errors import InputError
from scns.scores import Estimate, average_precision, estimate


def oracle(query: torch.Tensor, label: int, gallery: torch.Tensor, labels: torch.Tensor) -> float:
    """Average precision of one query, place by place."""
    cosines = [float(query @ row / query.norm() / row.norm()) for row in gallery]
    order = sorted(range(len(gallery)), key=lambda i: -cosines[i])
    found, total = 0, 0.0
    for place, sample in enumerate(order, 1):
        if int(labels[sample]) == label:
            found += 1
            total += found / place
    return total / max(1, found)


def test_average_precision_is_that_of_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, gallery = (torch.randn(n, 5, generator=generator).double() for n in (7, 40))
    wanted, labels = torch.arange(7) % 4, torch.arange(40) % 3  # the gallery has no class 3
    found = average_precision(queries, wanted, gallery, labels)
    expected = [oracle(query, int(label), gallery, labels) for query, label in zip(queries, wanted, strict=True)]
    assert found.tolist() == pytest.approx(expected, rel=1e-6) and found[3] == 0
    scaled = average_precision(queries * 7, wanted, gallery * torch.arange(1, 41)[:, None], labels)
    assert torch.equal(scaled, found)  # lengths do not count


def test_perfect_and_worst_order() -> None:
    gallery = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    labels = torch.tensor([0, 0, 1, 1])
    query = torch.tensor([[1.0, 0.05], [1.0, 0.05]])
    right, wrong = average_precision(query, torch.tensor([0, 1]), gallery, labels).tolist()
    assert right == 1 and wrong == pytest.approx((1 / 3 + 2 / 4) / 2)


def test_the_interval_is_that_of_a_mean() -> None:
    right = torch.cat([torch.full((5000,), 100.0), torch.zeros(5000)])
    found = estimate(right)
    assert found.mean == 50 and found.half == pytest.approx(0.98, abs=1e-3)  # 1.96 * sqrt(0.5 * 0.5 / 10,000)
    values = torch.arange(10.0)
    assert estimate(values).half == pytest.approx(1.96 * float(values.std()) / math.sqrt(10))


def test_two_students_are_compared_image_by_image() -> None:
    """Both err on the same images but for a few: paired, the difference is far from 0; apart, it is not."""
    one = torch.arange(1000.0) % 2 * 100
    other = one.clone()
    other[1:60:2] = 0
    gain = estimate(one - other)
    assert gain.mean == 3 and gain.sign == 1 and estimate(other - one).sign == -1
    assert estimate(one).half + estimate(other).half > gain.mean
    assert estimate(torch.tensor([1.0, -1.0])).sign == 0 and str(Estimate(51.23, 2.18)) == "51.2 ± 2.2"


def test_another_seed_widens_the_interval() -> None:
    values = torch.tensor([0.0, 100.0]).repeat(500)
    alone, wider = estimate(values), estimate(values, 2.0)
    assert wider.mean == alone.mean and wider.half == pytest.approx(math.hypot(alone.half, 1.96 * 2.0))


def test_one_image_has_no_interval() -> None:
    with pytest.raises(InputError, match="An interval needs at least 2 images, but there are 1"):
        estimate(torch.ones(1))

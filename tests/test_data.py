"""Images, their splits, and the tables of an epoch."""

import hashlib

import pytest
import torch

from scns.data import Images, epoch_table, of_each, padding, split
from scns.errors import InputError


def digest(*tensors: torch.Tensor) -> str:
    return hashlib.sha256(b"".join(tensor.to(torch.int64).numpy().tobytes() for tensor in tensors)).hexdigest()[:16]


@pytest.fixture
def images() -> Images:
    labels = torch.arange(12) % 3
    pixels = torch.arange(12, dtype=torch.uint8)[:, None, None, None].expand(12, 3, 8, 8).clone()
    return Images(pixels, labels, ("a", "b", "c"), (0.5,) * 3, (0.2,) * 3, labels // 2, ("x", "y"))


def test_split_takes_the_same_share_of_every_class() -> None:
    labels = torch.arange(5000) % 10
    rest, held = split(labels, 0.05, seed=1)
    assert torch.bincount(labels[held]).tolist() == [25] * 10
    assert torch.equal(torch.cat([rest, held]).sort().values, torch.arange(5000))
    assert torch.equal(held, held.sort().values) and torch.equal(rest, rest.sort().values)


@pytest.mark.parametrize("fraction", [0.0, 0.03, 0.05, 0.1, 1 / 3, 0.5, 0.999])
def test_split_has_exact_sizes_even_where_classes_do_not_divide(fraction: float) -> None:
    counts = [1, 7, 13, 2, 50, 31]
    labels = torch.repeat_interleave(torch.arange(6), torch.tensor(counts))
    rest, held = split(labels, fraction, seed=3)
    assert len(held) == int(fraction * 104 + 0.5) and len(rest) + len(held) == 104
    for kind, count in enumerate(counts):
        assert abs(int((labels[held] == kind).sum()) - fraction * count) <= 1


def test_split_takes_its_share_of_the_unlabelled_too() -> None:
    labels = torch.tensor([-1] * 40 + [0] * 20 + [1] * 20)
    rest, held = split(labels, 0.25, seed=1)
    assert labels[held].tolist() == [-1] * 10 + [0] * 5 + [1] * 5
    assert sorted(torch.cat([rest, held]).tolist()) == list(range(80))


def test_a_number_of_each_class_is_that_number_however_large_the_class() -> None:
    labels = torch.tensor([-1] * 10 + [0] * 50 + [1] * 5 + [2] * 2)
    kept = of_each(labels, 4, seed=2)
    assert labels[kept].tolist() == [0] * 4 + [1] * 4 + [2] * 2
    even = torch.arange(10).repeat(25)
    assert torch.equal(of_each(even, 5, seed=2), split(even, 0.2, seed=2)[1])


def test_split_is_the_same_on_every_machine() -> None:
    labels = torch.arange(50_000) % 10
    assert digest(*split(labels, 0.05, seed=0)) == "06c760b04538aafa"
    assert digest(*split(labels, 0.05, seed=1)) == "794eab56092e7d85"


def test_split_is_random_within_a_class() -> None:
    labels = torch.arange(2000) % 2
    _, first = split(labels, 0.5, seed=0)
    _, second = split(labels, 0.5, seed=1)
    shared = len(set(first.tolist()) & set(second.tolist()))
    assert 420 < shared < 580  # 500 expected, deviation 16
    assert 420 < int((first < 1000).sum()) < 580


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0])
def test_split_refuses_fractions_outside(fraction: float) -> None:
    with pytest.raises(InputError, match=f"{fraction}.*at least 0 and below 1"):
        split(torch.zeros(4, dtype=torch.int64), fraction)


def test_images_split_and_subset_keep_everything_together(images: Images) -> None:
    rest, held = images.split(0.25, seed=2)
    assert len(rest) == 9 and len(held) == 3 and sorted(held.labels.tolist()) == [0, 1, 2]
    for part in (rest, held):
        index = part.pixels[:, 0, 0, 0].long()
        assert torch.equal(part.labels, images.labels[index])
        assert part.coarse is not None and torch.equal(part.coarse, images.labels[index] // 2)
        assert (part.names, part.coarse_names, part.mean) == (images.names, images.coarse_names, images.mean)
    chosen = images.subset(torch.tensor([7, 0, 7]))
    assert chosen.pixels[:, 0, 0, 0].tolist() == [7, 0, 7] and chosen.labels.tolist() == [1, 0, 1]


def test_images_say_what_they_are(images: Images) -> None:
    assert (len(images), images.classes, images.size) == (12, 3, 8)
    assert torch.equal(images.to("cpu").pixels, images.pixels)


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2).long(), r"uint8 \[n, 3, height, width\].*float32"),
        (torch.zeros(2, 1, 4, 4).byte(), torch.zeros(2).long(), r"\(2, 1, 4, 4\)"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(3).long(), "2 images need 2 int64 labels, but there are 3"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2), "float32"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2, 1).long(), r"torch.int64 \(2, 1\)"),
        (torch.zeros(2, 3, 4, 4).byte().numpy(), torch.zeros(2).long(), "not ndarray and Tensor; .*torch.as_tensor"),
        (torch.zeros(2, 3, 4, 4).byte(), [0, 1], "not Tensor and list"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.tensor([0, 2]), "from 0 to 2, but 2 classes are named: 0 to 1"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.tensor([-2, 1]), "from -2 to 1"),
    ],
)
def test_images_refuse_what_does_not_fit(pixels: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Images(pixels, labels, ("a", "b"), (0.5,) * 3, (0.2,) * 3)


def test_epoch_table_comes_from_seed_and_epoch_alone() -> None:
    torch.manual_seed(1)
    first = epoch_table(1000, seed=3, epoch=7)
    torch.manual_seed(2)
    epoch_table(50, seed=9, epoch=0)
    again = epoch_table(1000, seed=3, epoch=7)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert digest(*first) == "377d6f0f835a904a"
    for other in (epoch_table(1000, seed=3, epoch=8), epoch_table(1000, seed=4, epoch=7)):
        assert not torch.equal(first.order, other.order)


def test_epoch_table_is_a_permutation_with_views_in_range() -> None:
    table = epoch_table(20_000, seed=0, epoch=0, pad=4)
    assert torch.equal(table.order.sort().values, torch.arange(20_000))
    for offset in (table.dy, table.dx):
        counts = torch.bincount(offset, minlength=9).double()
        assert len(counts) == 9
        assert float(((counts - 20_000 / 9) ** 2 / (20_000 / 9)).sum()) < 8 + 5 * 4  # chi-square, five deviations
    assert table.flip.dtype == torch.bool and abs(table.flip.double().mean() - 0.5) < 0.02
    wide = epoch_table(20_000, seed=0, epoch=0, pad=8)
    assert (wide.dy.min(), wide.dy.max()) == (0, 16)


def test_a_samples_view_does_not_depend_on_its_place() -> None:
    few, many = epoch_table(100, seed=5, epoch=2), epoch_table(5000, seed=5, epoch=2)
    by_sample = {
        name: {int(s): int(v) for s, v in zip(many.order, getattr(many, name), strict=True)}
        for name in ("dy", "dx", "flip")
    }
    for name, views in by_sample.items():
        assert [views[int(s)] for s in few.order] == getattr(few, name).tolist()


def test_padding_is_an_eighth() -> None:
    assert (padding(32), padding(64)) == (4, 8)


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.2,) * 3), ((0.5,) * 3, (0.2, 0.2)), ((0.5,) * 3, (0.2, 0, 1))])
def test_images_refuse_a_normalisation_of_other_channels(mean: tuple, std: tuple) -> None:
    with pytest.raises(InputError, match="three numbers each, std above 0"):
        Images(torch.zeros(1, 3, 4, 4).byte(), torch.zeros(1).long(), ("a",), mean, std)


def test_a_subset_by_a_list(images: Images) -> None:
    assert images.subset([2, 1]).labels.tolist() == images.subset(torch.tensor([2, 1])).labels.tolist() == [2, 1]  # type: ignore[arg-type]

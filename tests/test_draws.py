"""Draws are a function of their keys, uniform, and the same on every machine and in every version."""

import pytest
import torch

from scns import draws
from scns.errors import InputError


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def within(statistic: float, cells: int) -> bool:
    """True inside five deviations of chi-square's mean on both sides: draws that are too even are wrong as well."""
    freedom = cells - 1
    return abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5


def test_the_stream_is_pinned() -> None:
    # A change here changes every order, crop and negative of every run: it must be meant.
    assert draws.bits(0).item() == 0x6E789E6AA1B965F4  # splitmix64's second published output for seed 0
    assert draws.bits(1, 2, 3).item() == 5246500226706903259
    assert draws.bits(7, draws.NEGATIVES, 3, torch.arange(3)).tolist() == [
        -8621954358432964995,
        4256310644306055751,
        -6328359561225322852,
    ]
    assert draws.permutation(8, 0, draws.ORDER, 0).tolist() == [5, 4, 6, 0, 1, 3, 7, 2]
    assert draws.integers(9, 0, draws.CROP_Y, 1, torch.arange(6)).tolist() == [6, 1, 6, 7, 1, 8]


def splitmix(state: int) -> int:
    """The published finaliser in plain Python numbers."""
    word = (1 << 64) - 1
    state = (state + 0x9E3779B97F4A7C15) & word
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & word
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & word
    return state ^ (state >> 31)


@pytest.mark.parametrize("keys", [(0,), (5, 9), (-1, 2**40, 3), (2**63, 1), (2**64 - 1, -(2**63))])
def test_equals_splitmix_in_plain_numbers(keys: tuple[int, ...]) -> None:
    state = 0x9E3779B97F4A7C15
    for key in keys:
        state = splitmix(state ^ (key % 2**64))
    assert draws.bits(*keys).item() % 2**64 == state


@pytest.mark.parametrize("place", [0, 1, 2])
def test_numbers_and_tensors_are_the_same_keys(place: int) -> None:
    keys: list[int | torch.Tensor] = [11, -4, 2**33 + 1]
    alone = draws.bits(*keys)
    keys[place] = torch.tensor([keys[place]])
    assert draws.bits(*keys).item() == alone.item()
    assert draws.uniform(*keys).item() == draws.uniform(11, -4, 2**33 + 1).item()


def test_keys_broadcast_and_do_not_depend_on_their_neighbours() -> None:
    rows, columns = torch.arange(5)[:, None], torch.arange(7)
    grid = draws.bits(3, rows, columns)
    assert grid.shape == (5, 7)
    assert grid[4, 2] == draws.bits(3, 4, 2)
    assert torch.equal(grid[[3, 1]], draws.bits(3, torch.tensor([[3], [1]]), columns))
    assert grid.unique().numel() == 35


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_is_uniform(dtype: torch.dtype) -> None:
    drawn = draws.uniform(1, draws.MIXING, torch.arange(100_000), dtype=dtype)
    assert drawn.dtype == dtype
    assert drawn.min() >= 0 and drawn.max() < 1
    assert within(chi_square(torch.histc(drawn.double(), 100, 0, 1)), 100)


@pytest.mark.parametrize("keys", [(0, torch.arange(90_000)), (torch.arange(90_000), 0), (torch.arange(90_000), 1, 2)])
def test_integers_are_uniform_whichever_key_counts(keys: tuple[int | torch.Tensor, ...]) -> None:
    drawn = draws.integers(9, *keys)
    assert within(chi_square(torch.bincount(drawn, minlength=9).double()), 9)


def test_neighbouring_keys_are_independent() -> None:
    row = torch.arange(90_000)
    pairs = draws.integers(6, 0, draws.CROP_Y, 0, row) * 6 + draws.integers(6, 0, draws.CROP_X, 0, row)
    next_epoch = draws.integers(6, 0, draws.CROP_Y, 0, row) * 6 + draws.integers(6, 0, draws.CROP_Y, 1, row)
    next_row = draws.integers(6, 0, draws.CROP_Y, 0, row) * 6 + draws.integers(6, 0, draws.CROP_Y, 0, row + 1)
    for cells in (pairs, next_epoch, next_row):
        assert within(chi_square(torch.bincount(cells, minlength=36).double()), 36)


def test_integers_take_a_limit_a_row() -> None:
    high = torch.tensor([1, 2, 1000])
    drawn = draws.integers(high, 5, torch.arange(300)[:, None])
    assert drawn.shape == (300, 3)
    assert (drawn >= 0).all() and (drawn < high).all()
    assert drawn[:, 1].unique().tolist() == [0, 1]


def test_permutations_are_uniform() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(2400):
        order = tuple(draws.permutation(4, seed, draws.ORDER).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert within(chi_square(torch.tensor(list(counts.values())).double()), 24)


def test_permutation_is_a_permutation() -> None:
    assert torch.equal(draws.permutation(1000, 3).sort().values, torch.arange(1000))
    assert draws.permutation(0, 3).tolist() == []


def test_half_precision_and_broken_keys_are_told() -> None:
    """24 bits overflow float16, and all keys from 0 to 1 would be one."""
    with pytest.raises(InputError, match=r"not torch.float16"):
        draws.uniform(0, torch.arange(3), dtype=torch.float16)
    with pytest.raises(InputError, match=r"whole numbers, but these are torch.float32"):
        draws.uniform(0, torch.tensor([0.25, 0.5]))

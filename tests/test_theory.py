"""The theory module against exact rationals, golden numbers, simulation, and a toy whose information is known."""

import itertools
import json
import math
import re
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from scns import theory
from scns.errors import InputError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "theory.json").read_text())


def probabilities(described: object) -> object:
    """The golden file describes long lists in words."""
    if not isinstance(described, str):
        return described
    if described.startswith("zipf"):
        weights = 1 / np.arange(1, 101)
        return (weights / weights.sum())[: int(described.rpartition("..")[2])]
    if described.startswith("first 20 of softmax"):
        scale = float(re.search(r"softmax\(([\d.]+)", described)[1])
        weights = np.exp(scale * 0.9 * np.arange(1, 1001) ** -0.3)
        return (weights / weights.sum())[:20]
    assert described == "500 items each 1/500"
    return np.full(500, 1 / 500)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['fn']}-{case['inputs']}"[:70])
def test_golden(case: dict) -> None:
    inputs = {name: probabilities(value) for name, value in case["inputs"].items()}
    assert getattr(theory, case["fn"])(**inputs) == pytest.approx(
        case["expected"], rel=case.get("tol", 1e-9), abs=1e-300
    )


@pytest.mark.parametrize(
    ("M", "k", "b", "expected"),
    [
        (49500, 2500, 64, 6498.497692),
        (49500, 49500, 64, 8807.589201),
        (64, 64, 16, 19.444314),
        (200, 200, 32, 37.222068),
        (10**7, 1, 10**7, 1.581976725),  # 1 / (1 - (1 - 1e-7)^1e7): few items, and a batch of many draws
    ],
)
def test_large_numbers_of_batches_in_time(M: int, k: int, b: int, expected: float) -> None:
    start = time.perf_counter()
    assert theory.expected_batches_uniform(M, k, b) == pytest.approx(expected, rel=1e-9, abs=6e-7)
    assert time.perf_counter() - start < 4  # two seconds on an idle core


def test_a_float32_softmax_is_taken_though_it_sums_to_a_little_more_than_1() -> None:
    p = np.full(7, 1 / 7, dtype=np.float32)
    assert p.sum(dtype=np.float64) > 1 + 1e-8
    assert theory.expected_draws_unequal(p) == pytest.approx(7 * theory.harmonic(7), rel=1e-7)
    assert theory.expected_distinct([1 + 1e-8], 5) == 1


def exact_batches(M: int, k: int, b: int, replacement: bool) -> Fraction:
    def avoided(j: int) -> Fraction:
        return Fraction(M - j, M) ** b if replacement else Fraction(math.comb(M - j, b), math.comb(M, b))

    return sum((-1) ** (j + 1) * math.comb(k, j) / (1 - avoided(j)) for j in range(1, k + 1))


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(
    ("M", "k", "b"), [(1, 1, 1), (2, 1, 2), (5, 5, 1), (12, 7, 3), (30, 30, 30), (34, 20, 8), (40, 1, 9), (300, 60, 17)]
)
def test_batches_equal_exact_rationals(M: int, k: int, b: int, replacement: bool) -> None:
    exact = float(exact_batches(M, k, b, replacement))
    assert theory.expected_batches_uniform(M, k, b, replacement) == pytest.approx(exact, rel=1e-12)


def exact_draws(p: list[Fraction]) -> Fraction:
    subsets = (subset for size in range(1, len(p) + 1) for subset in itertools.combinations(p, size))
    return sum((-1) ** (len(subset) + 1) / sum(subset) for subset in subsets)


@pytest.mark.parametrize("seed", range(4))
def test_unequal_draws_equal_exact_rationals(seed: int) -> None:
    weights = np.random.default_rng(seed).gamma(0.3, size=9) + 1e-12
    p = [Fraction(float(value)) for value in weights / weights.sum() * 0.9]
    assert theory.expected_draws_unequal([float(v) for v in p]) == pytest.approx(float(exact_draws(p)), rel=1e-12)


@pytest.mark.parametrize("p", [[1.0], [0.1], [1e-9], [0.5, 0.5]])
def test_one_or_two_items(p: list[float]) -> None:
    exact = 1 / p[0] if len(p) == 1 else 3.0
    assert theory.expected_draws_unequal(p) == pytest.approx(exact, rel=1e-12)
    assert theory.expected_batches_unequal(p, 1) == pytest.approx(exact, rel=1e-9)


def test_equal_probabilities_agree_with_the_uniform_formulas() -> None:
    for M, k, b in ((100, 10, 16), (49500, 500, 64), (1000, 1, 7), (10**6, 2, 64), (10, 10, 8)):
        p = np.full(k, 1 / M)
        assert theory.expected_draws_unequal(p) == pytest.approx(theory.expected_draws_uniform(M, k), rel=1e-12)
        assert theory.expected_batches_unequal(p, b) == pytest.approx(
            theory.expected_batches_uniform(M, k, b), rel=1e-11
        )
        n = int(M * theory.harmonic(k))
        assert theory.prob_covered(p, n) == pytest.approx(theory.prob_covered_uniform(M, k, n), abs=1e-10)


def test_uniform_batches_too_large_for_the_recursion() -> None:
    # every item is missed with probability exp(-i) after i batches: E = sum_i 1 - (1 - exp(-i))^M, to order 1/M
    approximate = sum(1 - (1 - math.exp(-i)) ** 49500 for i in range(1, 60)) + 1
    assert theory.expected_batches_uniform(49500, 49500, 49500) == pytest.approx(approximate, rel=1e-3)
    one_by_one = theory.expected_draws_uniform(10**5, 10**5) / 10**3
    assert one_by_one < theory.expected_batches_uniform(10**5, 10**5, 10**3) < one_by_one + 1


def test_a_wide_range_of_probabilities_in_batches() -> None:
    b, p = 64, [0.5, 1e-6, 1e-9]
    smooth = theory.expected_draws_unequal(p) / b + (b - 1) / (2 * b)  # exact here to (b / E)^2 / 12
    assert theory.expected_batches_unequal(p, b) == pytest.approx(smooth, rel=1e-12)


def covered_by_inclusion_and_exclusion(p: list[Fraction], n: int) -> Fraction:
    subsets = (subset for size in range(len(p) + 1) for subset in itertools.combinations(p, size))
    return sum((-1) ** len(subset) * (1 - sum(subset)) ** n for subset in subsets)


@pytest.mark.parametrize("n", [0, 1, 4, 5, 30, 399, 400, 401, 2000])
def test_prob_covered_equals_exact_rationals(n: int) -> None:
    p = [Fraction(x, 1000) for x in (2, 5, 30, 100, 400)]
    exact = float(covered_by_inclusion_and_exclusion(p, n))
    assert theory.prob_covered([float(x) for x in p], n) == pytest.approx(exact, abs=1e-11)


def test_prob_covered_uniform_equals_exact_rationals() -> None:
    for M, k, n in ((7, 7, 6), (7, 7, 7), (7, 3, 20), (20, 12, 60)):
        exact = float(covered_by_inclusion_and_exclusion([Fraction(1, M)] * k, n))
        assert theory.prob_covered_uniform(M, k, n) == pytest.approx(exact, abs=1e-13)


def test_partial_draws() -> None:
    M, k = 49500, 500
    exact = [M * sum(Fraction(1, k - i) for i in range(r)) for r in (0, 1, 250, 500)]
    assert [theory.expected_draws_partial(M, k, r) for r in (0, 1, 250, 500)] == pytest.approx(
        [float(x) for x in exact]
    )
    assert theory.expected_draws_partial(M, k, k) == pytest.approx(theory.expected_draws_uniform(M, k), rel=1e-13)


def test_harmonic_series_and_sum_meet() -> None:
    for k in (999, 1000, 1001, 5000):
        assert theory.harmonic(k) == pytest.approx(float(sum(Fraction(1, i) for i in range(1, k + 1))), rel=1e-15)
    assert theory.harmonic(0) == 0


@pytest.mark.parametrize(("p", "b"), [([0.3, 0.2, 0.05], 1), ([0.3, 0.2, 0.05], 4), ([1 / 12] * 6, 3)])
def test_simulation(p: list[float], b: int) -> None:
    random, runs = np.random.default_rng(7), 20_000
    draws = np.searchsorted(np.cumsum(p), random.random((runs, 480)), side="right")  # len(p) stands for all others
    first = np.stack([(draws == item).argmax(1) for item in range(len(p))])
    assert all((draws == item).any(1).all() for item in range(len(p)))
    batches = first.max(0) // b + 1
    expected = theory.expected_batches_unequal(p, b)
    assert abs(batches.mean() - expected) < 4 * batches.std() / math.sqrt(runs)
    n = int(expected * b)
    assert (first.max(0) < n).mean() == pytest.approx(theory.prob_covered(p, n), abs=4 * 0.5 / math.sqrt(runs))
    assert (first < n).sum(0).mean() == pytest.approx(theory.expected_distinct(p, n), abs=0.03)


def test_distinct() -> None:
    assert theory.expected_distinct([0.25, 0.25], 0) == 0
    assert theory.expected_distinct([1.0], 3) == 1
    assert theory.expected_distinct(np.full(500, 1 / 49500), 1024 * 200) == pytest.approx(492.02, abs=0.005)


@pytest.mark.parametrize("b", [1, 8, 64])
def test_the_printed_alternating_sum_fails_in_float64(b: int) -> None:
    """Why the recursion is there: sum_j (-1)^(M-j+1) C(M,j) / (1 - (j/M)^b) loses its digits at about 40 items."""

    def printed(M: int) -> float:
        return sum((-1.0) ** (M - j + 1) * float(math.comb(M, j)) / (1 - (j / M) ** b) for j in range(M))

    def first(level: float) -> int:
        return next(M for M in range(20, 80) if off(M) > level)

    def off(M: int) -> float:
        return abs(printed(M) / theory.expected_batches_uniform(M, M, b) - 1)

    golden = GOLDEN["printed_sum_float64_first_failing_M"][str(b)]
    for level in ("1e-06", "0.001", "0.1"):
        assert first(float(level)) == pytest.approx(golden[level], abs=3)  # the order of the sum moves it by one or two
    assert next(M for M in range(20, 80) if printed(M) <= 0) == pytest.approx(golden["nonpositive"], abs=3)
    assert all(off(M) > 1 / 3 for M in range(64, 100))  # docs/paper.md: from about 62 on
    assert off(20) < 1e-9


def toy() -> tuple[np.ndarray, float]:
    """(p(y | x), I(x, y)) for x, y in Z_8 and p(y | x) proportional to exp(2 cos(2 pi (y - x) / 8))."""
    turn = 2 * np.pi * (np.arange(8)[None] - np.arange(8)[:, None]) / 8
    conditional = np.exp(2 * np.cos(turn))
    conditional /= conditional.sum(1, keepdims=True)
    return conditional, float((conditional / 8 * np.log(conditional * 8)).sum())


def toy_loss(negatives: str, n: int) -> float:
    """The exact InfoNCE loss of the optimal critic: an expectation over the counts of the negatives' values."""
    conditional, _ = toy()
    loss = 0.0
    for positive in range(8):  # x = 0 by symmetry
        q = np.full(8, 1 / 8)
        if negatives == "other classes":
            q = np.where(np.arange(8) == 0, 0, 1 / 7)
        values, chances = np.array([0.0]), np.array([1.0])  # distribution of the sum of the negatives' exp(score)
        for _ in range(n):
            values = np.round(np.add.outer(values, conditional[0] * 8).ravel(), 10)
            values, where = np.unique(values, return_inverse=True)
            chances = np.bincount(where, np.multiply.outer(chances, q).ravel())
        own = conditional[0, positive] * 8
        loss += conditional[0, positive] * float(chances @ np.log((own + values) / own))
    return loss


@pytest.mark.parametrize(("n", "bound"), [(1, 0.262250), (3, 0.416570), (7, 0.495744)])
def test_the_bound_holds_for_marginal_negatives(n: int, bound: float) -> None:
    information = toy()[1]
    assert information == pytest.approx(0.571697, abs=1e-6)
    assert theory.mi_lower_bound(toy_loss("marginal", n), n) == pytest.approx(bound, abs=2e-6)
    assert bound < information


@pytest.mark.parametrize(("n", "number"), [(1, 0.357788), (3, 0.610703), (7, 0.769462)])
def test_the_bound_is_exceeded_without_the_positive_class(n: int, number: float) -> None:
    assert theory.mi_lower_bound(toy_loss("other classes", n), n) == pytest.approx(number, abs=2e-6)
    assert (number > toy()[1]) == (n >= 3)


def test_alignment_weight_of_the_toy() -> None:
    turn = 2 * np.pi * np.arange(8) / 8
    circle = np.stack([np.cos(turn), np.sin(turn)], 1)
    weight = theory.alignment_weight(circle[0], 3 * circle[1:], k=2)
    assert weight == pytest.approx(0.232507, abs=1e-6)
    assert weight == pytest.approx(theory.omega_x(0.8535533906, 0.2585786438), abs=1e-9)


def test_omega_without_structure_is_log_of_the_negatives() -> None:
    assert theory.log_2Omega([0.5] * 1024) == pytest.approx(math.log(1024))
    assert theory.log_2Omega(0.5, n_negatives=7) == pytest.approx(math.log(7))
    assert theory.log_2Omega([0.2, 0.4], n_negatives=10) == pytest.approx(math.log(2 * 10 * 0.3))
    assert theory.alignment_weight([1.0, 0.0], [[0.0, 1.0], [0.0, -1.0], [0.0, 2.0]], 1) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.harmonic(-1), "k is -1"),
        (lambda: theory.harmonic(2.5), "k is 2.5"),
        (lambda: theory.harmonic(float("nan")), "k is nan"),
        (lambda: theory.harmonic(float("inf")), "k is inf"),
        (lambda: theory.harmonic(None), "k is None"),
        (lambda: theory.expected_draws_uniform(5, 6), "k = 6 .* M = 5"),
        (lambda: theory.expected_draws_uniform(5, 0), "k is 0"),
        (lambda: theory.expected_draws_partial(5, 3, 4), "r = 4 of k = 3"),
        (lambda: theory.expected_batches_uniform(5, 3, 0), "b is 0"),
        (lambda: theory.expected_batches_uniform(5, 3, 6, within_batch_replacement=False), "b = 6 .* M = 5"),
        (lambda: theory.prob_covered_uniform(5, 3, -1), "n is -1"),
        (lambda: theory.expected_draws_unequal([]), "at least one"),
        (lambda: theory.expected_draws_unequal([0.5, 0.0]), "holds 0,"),
        (lambda: theory.expected_draws_unequal([0.5, float("nan")]), "holds nan"),
        (lambda: theory.expected_draws_unequal([0.8, 0.3]), "sums to 1.1"),
        (lambda: theory.prob_covered([0.5], -2), "n is -2"),
        (lambda: theory.expected_distinct([-0.1], 2), "-0.1"),
        (lambda: theory.mi_lower_bound(1.0, 0), "n_negatives is 0"),
        (lambda: theory.mi_lower_bound(float("nan"), 3), "loss is nan"),
        (lambda: theory.omega_x(1.2, 0.3), "a_k is 1.2"),
        (lambda: theory.log_2Omega([]), "omega_x"),
        (lambda: theory.log_2Omega([0.4, 0.0]), "above 0"),
        (lambda: theory.alignment_weight([1.0], [[1.0], [2.0]], 2), "k = 2 of 2"),
        (lambda: theory.alignment_weight([1.0], [[0.0], [2.0]], 1), "not zero"),
        (lambda: theory.alignment_weight([1.0], [[0.0, 1.0]], 1), "shapes"),
        (lambda: theory.alignment_weight([1.0, 2.0], [[1.0, 2.0], [1.0]], 1), "negatives must be numbers of one shape"),
        (lambda: theory.prob_covered(["a"], 3), r"p_cover must be numbers.*list \['a'\]"),
        (lambda: theory.prob_covered((p for p in (0.1, 0.2)), 3), "p_cover must be numbers.*generator"),
        (lambda: theory.mi_lower_bound(None, 3), "loss is None"),
        (lambda: theory.mi_lower_bound(torch.ones(2), 3), "loss is tensor"),
    ],
)
def test_bad_input_is_named(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_tensors_in_training_are_taken_as_they_are() -> None:
    """A loss with its gradient, probabilities of half precision: what a loop has at hand."""
    loss, p = torch.tensor(1.5, requires_grad=True), torch.tensor([0.5, 0.25])
    assert theory.mi_lower_bound(loss, 7) == theory.mi_lower_bound(1.5, 7)
    for given in (p.bfloat16(), p.clone().requires_grad_()):
        assert theory.expected_distinct(given, 3) == theory.expected_distinct([0.5, 0.25], 3)
    anchor, negatives = torch.tensor([1.0, 2.0], requires_grad=True), torch.eye(2)
    assert theory.alignment_weight(anchor, negatives, 1) == theory.alignment_weight([1.0, 2.0], np.eye(2), 1)


def test_probabilities_of_float32_may_sum_to_a_little_more_than_one() -> None:
    """As those of samplers do, half of the time."""
    for seed in range(20):
        p = torch.randn(1000, generator=torch.Generator().manual_seed(seed)).softmax(0)
        exact = p.double() / p.double().sum()
        assert theory.expected_draws_unequal(p) == pytest.approx(theory.expected_draws_unequal(exact), rel=1e-6)
        assert 0 <= theory.prob_covered(p, 200_000) <= 1 + 1e-11
    with pytest.raises(InputError, match=r"sums to 1.0001,"):
        theory.expected_draws_unequal([0.5, 0.5001])


def test_the_bound_of_a_tensor_is_a_number() -> None:
    assert isinstance(theory.mi_lower_bound(torch.tensor(1.0), 3), float)

"""How many draws it takes to see the hardest negatives, and what the loss says about mutual information.

Coupon-collector numbers: a pool of M negatives holds k items of interest (an anchor's nearest), and negatives
are drawn one by one or in batches of b. All sums here have positive terms only, or are integrals of smooth
functions: the alternating sums in which these results are usually written lose every digit in float64 from
about 60 items on.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scns import collector
from scns.collector import Array, Counts
from scns.errors import InputError

_SERIES_FROM = 1000  # from here the series of harmonic() is exact to float64: its first dropped term is 1 / (252 k^6)
_RECURSION_WORK = 1_000_000_000  # element updates of the batch recursion: about two seconds
_LEAST_WORK = 2000  # element updates that a draw of a batch costs at least
_ROUNDING = 1e-5  # what float32 probabilities may sum to above 1: those of a million items are 1e-6 off
_CHAIN_STEPS = 20_000  # steps of the O(n k) chain before the contour integral is the faster of the two


def harmonic(k: int) -> float:
    """H_k = 1 + 1/2 + ... + 1/k."""
    k = _count("k", k, 0)
    if k < _SERIES_FROM:
        return math.fsum(1 / i for i in range(1, k + 1))
    return math.log(k) + float(np.euler_gamma) + 1 / (2 * k) - 1 / (12 * k**2) + 1 / (120 * k**4)


def expected_draws_uniform(M: int, k: int) -> float:
    """Expected uniform draws from a pool of M until k given items have all been seen: E[C] = M H_k."""
    M, k = _pool(M, k)
    return M * harmonic(k)


def expected_draws_partial(M: int, k: int, r: int) -> float:
    """Expected uniform draws from a pool of M until any r of k given items are seen: M (H_k - H_{k-r})."""
    M, k = _pool(M, k)
    r = _count("r", r, 0)
    if r > k:
        raise InputError(f"r = {r} of k = {k} items cannot be seen; r must be at most k.")
    return M * math.fsum(1 / np.arange(k - r + 1, k + 1, dtype=np.float64))


def expected_batches_uniform(M: int, k: int, b: int, within_batch_replacement: bool = True) -> float:
    """Expected batches of b uniform draws from a pool of M until k given items have all been seen.

    E = sum_{j=1..k} (-1)^(j+1) C(k,j) / (1 - (1-j/M)^b), with C(M-j,b)/C(M,b) for (1-j/M)^b where a batch
    holds no item twice. It is evaluated as a recursion over the number s of items still missing, E[s] = (1 +
    sum_{m>=1} A[s,m] E[s-m]) / sum_{m>=1} A[s,m], where A[s,m] = P(a batch hits m of the s items).
    """
    M, k = _pool(M, k)
    b = _count("b", b, 1)
    if not within_batch_replacement and b > M:
        raise InputError(f"A batch of b = {b} distinct items cannot come from a pool of M = {M}; b must be at most M.")
    work = b * max(k * collector.most_hits(M, k, b), _LEAST_WORK)
    if within_batch_replacement and work > _RECURSION_WORK:
        return collector.expected_batches(np.array([1 / M]), np.array([k]), b)
    return collector.batch_recursion(collector.batch_hits(M, k, b, within_batch_replacement))


def expected_draws_unequal(p_cover: ArrayLike) -> float:
    """Expected draws until every item has been seen, item i coming with probability p_cover[i] in each draw.

    E[T] = int_0^inf 1 - prod_i (1 - exp(-p_i x)) dx. The probabilities may sum to less than one: the rest of
    the mass belongs to items that need not be seen.
    """
    p, times = _probabilities(p_cover)
    low, high = collector.transition(p, times)
    edges = np.linspace(math.log(low), math.log(high), 97)  # 96 panels of 20 nodes: 1e-15 over 60 orders of magnitude
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = (edges[1] - edges[0]) / 2
    panels = (
        np.dot(half * weights, x * -np.expm1(collector.log_all_seen(p, times, x)))
        for x in (np.exp(start + half * (1 + nodes)) for start in edges[:-1])
    )
    return low + math.fsum(panels)


def expected_batches_unequal(p_cover: ArrayLike, b: int) -> float:
    """Expected batches of b draws until every item has been seen: sum_{i>=0} 1 - P(all seen in i b draws)."""
    return collector.expected_batches(*_probabilities(p_cover), _count("b", b, 1))


def prob_covered(p_cover: ArrayLike, n: int) -> float:
    """P(every item has been seen within n draws), item i coming with probability p_cover[i]; to 1e-11.

    n! [x^n] e^x prod_i (1 - exp(-p_i x)), by Cauchy's integral on the circle |x| = n.
    """
    return collector.covered(*_probabilities(p_cover), _count("n", n, 0))


def prob_covered_uniform(M: int, k: int, n: int) -> float:
    """P(k given items of a pool of M have all been seen within n uniform draws)."""
    M, k = _pool(M, k)
    n = _count("n", n, 0)
    if n > _CHAIN_STEPS:
        return collector.covered(np.array([1 / M]), np.array([k]), n)
    hit = np.arange(k + 1) / M  # with s items missing, a draw hits one of them with probability s / M
    missing = np.zeros(k + 1)
    missing[k] = 1
    for _ in range(n):
        moved = missing * hit
        missing -= moved
        missing[:-1] += moved[1:]
    return float(missing[0])


def expected_distinct(p_cover: ArrayLike, n: int) -> float:
    """Expected number of distinct items seen within n draws: sum_i 1 - (1 - p_i)^n."""
    p, times = _probabilities(p_cover)
    n = _count("n", n, 0)
    with np.errstate(divide="ignore"):  # p = 1 is seen at once: log1p(-1) is -inf, which is what is meant
        return float(-np.dot(times, np.expm1(n * np.log1p(-p)))) if n else 0.0


def mi_lower_bound(loss: float, n_negatives: int) -> float:
    """log(n + 1) - loss: a lower bound, in nats, on the mutual information of anchor and positive.

    It holds for n negatives drawn independently from the marginal distribution, and for those only. Negatives
    chosen by similarity, or drawn from other classes than the positive's, are not marginal: excluding the
    positive's class can push this number above the true information, and hard negatives make it very loose.
    Do not read it as mutual information in such runs.
    """
    n, value = _count("n_negatives", n_negatives, 1), _array("The loss", loss)
    if value.ndim or not np.isfinite(value):
        raise InputError(f"The loss is {loss}; the bound needs a finite number.")
    return math.log(n + 1) - float(value)


def omega_x(a_k: float, a_r: float) -> float:
    """Omega_x = 1 - a_k / (a_k + a_r): 1/2 where the k nearest are no closer than the rest, 0 at the other end.

    `a_k` is the mean alignment of the k nearest negatives, `a_r` that of the rest, both in [0, 1]; 0/0 is
    1/2.
    """
    for name, value in (("a_k", a_k), ("a_r", a_r)):
        if not 0 <= value <= 1:
            raise InputError(f"{name} is {value}, but an alignment lies between 0 and 1; use (1 + cosine) / 2.")
    return a_r / (a_k + a_r) if a_k + a_r > 0 else 0.5


def log_2Omega(omega_x: ArrayLike, n_negatives: int | None = None) -> float:
    """log(2 Omega), Omega = n * mean(omega_x): at most log n, its value where no negative is nearer than another.

    `n_negatives` is the number of negatives a draw has (by default one value of `omega_x` for each). This is
    the authors' measure of hardness; log(2 Omega) - loss is weaker than `mi_lower_bound`, not tighter.
    """
    values = np.atleast_1d(_array("omega_x", omega_x))
    if not values.size or not ((values > 0) & (values <= 1)).all():
        raise InputError(f"omega_x holds {_some(values)}, but its values must lie above 0 and be at most 1.")
    n = values.size if n_negatives is None else _count("n_negatives", n_negatives, 1)
    return math.log(2 * n * float(values.mean()))


def alignment_weight(anchor: ArrayLike, negatives: ArrayLike, k: int) -> float:
    """Omega_x of one anchor [d] among its negatives [n, d]; the alignment is A = (1 + cosine) / 2."""
    one, many = _array("anchor", anchor), _array("negatives", negatives)
    if one.ndim != 1 or many.ndim != 2 or many.shape[1] != one.shape[0]:
        raise InputError(
            f"An anchor [d] and negatives [n, d] are needed, but the shapes are {one.shape} and {many.shape}."
        )
    k = _count("k", k, 1)
    if k >= len(many):
        raise InputError(f"k = {k} of {len(many)} negatives leaves none to compare with; use at most {len(many) - 1}.")
    lengths = np.linalg.norm(many, axis=1) * np.linalg.norm(one)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise InputError("A cosine needs finite vectors that are not zero; drop the zero or non-finite rows first.")
    alignment = np.sort((1 + np.clip(many @ one / lengths, -1, 1)) / 2)[::-1]
    return omega_x(float(alignment[:k].mean()), float(alignment[k:].mean()))


def _array(name: str, values: Any) -> Array:
    """Numbers as float64; a tensor's wherever it lies, of any type, with a gradient or without."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):  # words, a generator, rows of different length
        given = f"{type(values).__name__} {str(values)[:40]}"
        raise InputError(f"{name} must be numbers of one shape, but this is {given}; convert it first.") from None


def _count(name: str, value: int, least: int) -> int:
    try:
        fits = value == int(value) and value >= least
    except (TypeError, ValueError, OverflowError):  # nothing, a word, NaN, infinity
        fits = False
    if not fits:
        raise InputError(f"{name} is {value}, but it must be a whole number of at least {least}.")
    return int(value)


def _pool(M: int, k: int) -> tuple[int, int]:
    M, k = _count("M", M, 1), _count("k", k, 1)
    if k > M:
        raise InputError(f"k = {k} items cannot be among M = {M}; k must be at most M.")
    return M, k


def _probabilities(p_cover: ArrayLike) -> tuple[Array, Counts]:
    """(the distinct probabilities, ascending; how often each occurs), checked."""
    p = _array("p_cover", p_cover)
    if p.ndim != 1 or not p.size:
        raise InputError(f"p_cover has shape {p.shape}, but it must be a list of at least one probability.")
    if not (p > 0).all():
        raise InputError(
            f"p_cover holds {_some(p[~(p > 0)])}, but an item that is never drawn is never seen; use p > 0."
        )
    if p.sum() > 1 + _ROUNDING:
        raise InputError(f"p_cover sums to {p.sum():.7g}, but probabilities sum to at most 1.")
    distinct, times = np.unique(p / max(p.sum(), 1.0), return_counts=True)
    return distinct, times.astype(np.int64)


def _some(values: Array) -> str:
    return ", ".join(f"{value:g}" for value in list(values)[:3]) + (", ..." if len(values) > 3 else "")

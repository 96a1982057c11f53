"""The numerics behind `scns.theory`: positive sums and smooth integrals for the coupon collector.

Items are given as distinct probabilities `p`, ascending, and how many `times` each occurs.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_FULL_CIRCLE = 400  # draws up to which the contour integral takes the whole circle
_EXACT_BATCHES = 256  # batches summed one by one before the smooth tail


def most_hits(M: int, k: int, b: int) -> int:
    """Hits a batch has at most but for a chance below 1e-25: 12 standard deviations and 40 over the mean."""
    mean = b * k / M
    return min(b, k, math.ceil(mean + 12 * math.sqrt(mean)) + 40)


def batch_hits(M: int, k: int, b: int, replacement: bool) -> Array:
    """A[s, m] = P(a batch of b draws hits exactly m of s given items), for s = 0 .. k."""
    missing = np.maximum(np.arange(k + 1)[:, None] - np.arange(most_hits(M, k, b) + 1), 0)  # [k + 1, hits]
    hits = np.zeros(missing.shape)
    hits[:, 0] = 1
    for drawn in range(b):
        moved = hits * missing
        moved /= M if replacement else M - drawn
        hits -= moved
        hits[:, 1:] += moved[:, :-1]
    return hits


def batch_recursion(hits: Array) -> float:
    """E[k] of E[s] = (1 + sum_{m>=1} A[s,m] E[s-m]) / sum_{m>=1} A[s,m], E[0] = 0."""
    expected = np.zeros(len(hits))
    reversed_hits = np.ascontiguousarray(hits[:, :0:-1])  # so that it meets expected[s - m] in rising order
    some = reversed_hits.sum(1)
    width = reversed_hits.shape[1]
    for s in range(1, len(hits)):
        m = min(width, s)
        expected[s] = (1 + np.dot(reversed_hits[s, width - m :], expected[s - m : s])) / some[s]
    return float(expected[-1])


def log_all_seen(p: Array, times: Counts, x: Array) -> Array:
    """sum_i log(1 - exp(-p_i x)) for every x."""
    a = np.multiply.outer(x, p)  # [x, items]
    switch = math.log(2)  # where 1 - exp(-a) is 1/2: each form keeps its digits on its own side
    small, large = np.log(-np.expm1(-np.minimum(a, switch))), np.log1p(-np.exp(-np.maximum(a, switch)))
    return np.where(a < switch, small, large) @ times


def transition(p: Array, times: Counts) -> tuple[float, float]:
    """(time below which all are seen with probability under 1e-20, time above which one is missing with e^-60)."""
    high = (math.log(times.sum()) + 60) / p[0]
    low, above = math.log(1e-20 / p[0]), math.log(high)  # already one item is seen by 1e-20 / p with 1e-20 only
    for _ in range(60):  # halves 100 nats to the last digit of float64
        middle = (low + above) / 2
        seen = log_all_seen(p, times, np.array([math.exp(middle)]))[0]
        low, above = (middle, above) if seen < math.log(1e-20) else (low, middle)
    return math.exp(low), high


def covered(p: Array, times: Counts, n: int) -> float:
    """P(all items seen within n draws) = n! [x^n] e^x prod_i (1 - exp(-p_i x)), by Cauchy's integral on |x| = n."""
    items = int(times.sum())
    if n < items:
        return 0.0
    if n <= _FULL_CIRCLE:
        angle = np.arange(8 * n + 64) * (2 * math.pi / (8 * n + 64))
        step = angle[1]
        log_scale = math.lgamma(n + 1) + n - n * math.log(n)
    else:  # the integrand is below e^-60 of its peak outside 11 standard deviations of the angle
        step = 0.2 / math.sqrt(n)
        angle = np.arange(-55, 56) * step
        log_scale = 0.5 * math.log(2 * math.pi * n) + 1 / (12 * n) - 1 / (360 * n**3)  # Stirling's series
    turn = np.expm1(1j * angle)  # e^(i angle) - 1, without cancellation near 0
    late = p * n < 50  # an item with 50 expected sightings is missed with probability e^-50
    factors = -np.expm1(-n * np.multiply.outer(1 + turn, p[late]))  # [angle, items]
    integrand = np.exp(n * (turn - 1j * angle)) * np.prod(factors ** times[late], axis=1)
    return float(np.clip(math.exp(log_scale) / (2 * math.pi) * step * integrand.real.sum(), 0, 1))


def expected_batches(p: Array, times: Counts, b: int) -> float:
    """sum_{i>=0} P(not all seen within i batches), beyond the first batches by panels of a smooth function."""

    def left(batches: int) -> float:
        n = batches * b
        with np.errstate(divide="ignore"):  # log(0): nothing seen yet
            seen = np.dot(times, np.log(-np.expm1(n * np.log1p(-np.minimum(p, 1 - 1e-16)))))
        return 1.0 if seen < -46 else 1 - covered(p, times, n)  # P <= e^seen, as seeing one item makes others rarer

    end = math.ceil((math.log(times.sum()) + 40) / p[0] / b)  # an item is still missing with probability below e^-40
    total = math.fsum(left(i) for i in range(min(_EXACT_BATCHES, end)))
    start = _EXACT_BATCHES
    while start < end:
        stop = start + start // 4
        total += smooth_sum(left, start, stop)
        start = stop
    return total


def smooth_sum(function: Callable[[int], float], start: int, stop: int) -> float:
    """sum_{i=start}^{stop-1} function(i) from 24 values: a polynomial fit, summed by Euler and Maclaurin."""
    angles = np.cos(np.pi * (np.arange(24) + 0.5) / 24)  # Chebyshev points, rounded to whole numbers
    nodes = np.unique(np.rint(start + (stop - start) * (1 - angles) / 2).astype(np.int64))
    values = [function(int(node)) for node in nodes]
    fit = np.polynomial.Chebyshev.fit(nodes, values, len(nodes) - 1, domain=[start - 0.5, stop - 0.5])
    terms = (fit.integ(), fit.deriv(1) * (-1 / 24), fit.deriv(3) * (7 / 5760), fit.deriv(5) * (-31 / 967680))
    return math.fsum(term(stop - 0.5) - term(start - 0.5) for term in terms)

"""Two samples of independent values, such as medians of launches: is one shifted, and how far?

All of it is about ranks, so no distribution is assumed. The test is the exact one of Wilcoxon, Mann
and Whitney. The shift is the median of all differences (Hodges and Lehmann), and its interval holds
the shifts that the test does not refuse (Hollander, Wolfe and Chicken, Nonparametric Statistical
Methods, 3rd edition, sections 4.1 to 4.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.order import Values, median

EXACT_UP_TO = 60
"""Values of a sample; larger ones have the normal distribution that ranks come close to."""


@dataclass(frozen=True, slots=True)
class Shift:
    """How far the second sample is shifted, with its interval; infinite where it has no end.

    ``chance`` is how likely equal samples lie apart at least as much: the p-value, two-sided.
    """

    shift: float
    low: float
    high: float
    chance: float


def shift_of(first: Values, second: Values, level: float = 0.95) -> Shift:
    """Return the shift from ``first`` (n,) to ``second`` (m,); neither is empty."""
    differences = np.sort(np.subtract.outer(second, first), axis=None)
    n, m = len(first), len(second)
    below = _rank_of_interval(n, m, level)
    low, high = ((float(differences[below - 1]), float(differences[-below])) if below
                 else (-math.inf, math.inf))
    return Shift(median(differences), low, high, _chance(differences, n, m))


def least_chance(n: int, m: int) -> float:
    """Return the smallest p-value that samples of these sizes can have."""
    return min(1.0, 2 / math.comb(n + m, n))


def _chance(differences: Values, n: int, m: int) -> float:
    """Return the two-sided p-value; a tie of two values counts half, which is conservative."""
    above = int((differences > 0).sum())
    ties = int((differences == 0).sum())
    nearer = min(above, n * m - above - ties) + ties  # as if ties were against a difference
    return min(1.0, 2 * _at_most(nearer, n, m))


def _rank_of_interval(n: int, m: int, level: float) -> int:
    """Return k: from the k-th smallest to the k-th largest difference; 0 where there is none."""
    found = 0
    while 2 * _at_most(found, n, m) <= 1 - level:
        found += 1
    return found


def _at_most(count: int, n: int, m: int) -> float:
    """Return P(U <= count) of equal samples; U counts the differences on one side."""
    if max(n, m) <= EXACT_UP_TO:
        return float(_distribution(min(n, m), max(n, m))[count])
    spread = math.sqrt(n * m * (n + m + 1) / 12)
    return 0.5 * math.erfc(-(count + 0.5 - n * m / 2) / spread / math.sqrt(2))


@lru_cache(maxsize=64)
def _distribution(n: int, m: int) -> npt.NDArray[np.float64]:
    """Return P(U <= u) for u = 0 to n m: the counts are Gaussian binomial coefficients.

    Each factor (1 - x^(m+i)) / (1 - x^i) is a difference and a running sum.
    """
    counts = np.zeros(n * m + 1)
    counts[0] = 1.0
    for i in range(1, n + 1):
        shifted = m + i
        if shifted <= n * m:
            counts[shifted:] -= counts[:-shifted].copy()
        for start in range(i, n * m + 1):
            counts[start] += counts[start - i]
        counts /= counts.sum() if i == n else 1.0
    return np.minimum(np.cumsum(counts), 1.0)

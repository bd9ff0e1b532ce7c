"""A distribution-free confidence interval of the median, also of dependent values.

Independent values: exact order statistics. The number of values below the median is binomial with
p = 1/2 whatever the distribution. So the l-th smallest and the l-th largest value enclose the
median with a known probability. Dependent values: the variance of that number is n / 4 times the
inflation of `hpcbench.statistics.dependence`; the ranks move out accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hpcbench.statistics.dependence import check_segments, dependence, segments_differ, t_of_normal
from hpcbench.statistics.order import Values

MIN_N_RELIABLE = 20
"""Below 20 values even strong dependence is often not seen."""
MIN_N_DEPENDENT = 45
"""Below 45 values dependence is seen, but its extent cannot be estimated."""


@dataclass(frozen=True, slots=True)
class Interval:
    """``low`` to ``high`` hold the median with probability ``level``.

    They are the values of this ``rank``, from 1, from either end.
    ``block_length`` successive values count about as much as one independent value would;
    ``n_blocks`` such blocks were there. Unless ``reliable``, the level is not promised and
    ``reason`` says why.
    """

    low: float
    high: float
    level: float
    n_blocks: int
    block_length: int
    reliable: bool
    reason: str
    rank: int


def median_interval(values: Values, level: float = 0.95,
                    segments: Sequence[int] = ()) -> Interval | None:
    """Return the interval of the median of ``values`` (n,), or None where n is too small for one.

    95 % takes 6 values, 99 % takes 8. ``segments`` are the lengths of the passes that the values
    stand in, in order. Raises ValueError if they do not add up to n.
    """
    n = values.size
    check_segments(n, segments)
    exact = median_ranks(n, level)
    if exact is None:
        return None
    estimate = dependence(values, np.sign(values - np.median(values)), segments)
    lowest, reason = exact[0], ""
    if estimate.degrees is not None:
        quantile = t_of_normal(NormalDist().inv_cdf((1 + level) / 2), estimate.degrees)
        half = quantile * math.sqrt(n * estimate.inflation) / 2
        lowest = min(lowest, math.floor(n / 2 - half))
        seen = f"successive values correlate by {estimate.correlation:.2f}, "
        if lowest < 1:
            lowest, reason = 1, f"{seen}and {n} of them do not hold an interval of that level"
        elif n < MIN_N_DEPENDENT:
            reason = f"{seen}of which {n} do not tell the extent"
    if segments_differ(values, segments, estimate.inflation):
        reason = "the passes differ by more than the values within them explain"
    if n < MIN_N_RELIABLE:
        reason = f"{n} values are too few to see whether they are independent"
    ends = np.partition(values, [lowest - 1, n - lowest])
    block_length = math.ceil(estimate.inflation)
    return Interval(float(ends[lowest - 1]), float(ends[n - lowest]), level,
                    max(1, n // block_length), block_length, not reason, reason, lowest)


def median_ranks(n: int, level: float) -> tuple[int, int] | None:
    """Return the ranks, from 1, whose values enclose the median, or None for n too small.

    The lower rank l is the largest with P(X < l) <= (1 - level) / 2 for X ~ Binomial(n, 1/2); the
    upper is n + 1 - l (Conover, Practical Nonparametric Statistics, 3.2).
    """
    k = np.arange(1, n // 2 + 1)
    log_choices = np.append(0.0, np.cumsum(np.log((n + 1 - k) / k)))
    at_most = np.cumsum(np.exp(log_choices - n * math.log(2)))
    lowest = int(np.searchsorted(at_most, (1 - level) / 2, side="right"))
    return (lowest, n + 1 - lowest) if lowest else None

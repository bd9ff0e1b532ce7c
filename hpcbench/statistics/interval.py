"""A distribution-free confidence interval of the median, also of dependent values.

Independent values: exact order statistics. The number of values below the median is binomial with
p = 1/2 whatever the distribution. So the l-th smallest and the l-th largest value enclose the
median with a known probability. Dependent values: that number varies more, and the ranks move out
accordingly (`hpcbench.statistics.count_below`), at most to the least and the greatest value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpcbench.statistics.count_below import (
    MIN_VISITS,
    CountBelow,
    correlation_degrees,
    count_below,
)
from hpcbench.statistics.dependence import (
    Estimate,
    check_segments,
    dependence,
    is_significant,
    num_segments,
    rank_correlation,
    ranks,
    segments_differ,
)
from hpcbench.statistics.order import Values, median

MIN_N_RELIABLE = 20
"""Below 20 values even strong dependence is often not seen."""
MIN_N_DEPENDENT = 25
"""Below 25 values dependence is seen, but its extent cannot be estimated."""
SIGNIFICANCE = 0.01
"""How often at most passes that are alike are said to differ."""
PASSES_DIFFER = "the passes differ by more than the values within them explain"
"""The reason of an interval that holds the median of these passes, if not of others."""
RANDOM_WALK = 3.0
"""n (1 - r) of values that correlate by r: below it they may be a random walk, without a median."""


@dataclass(frozen=True, slots=True)
class Interval:
    """``low`` to ``high`` hold the median with probability ``level``.

    They are the values of this ``rank``, from 1, from either end.
    ``block_length`` successive values, rounded up, count about as much as one independent value
    would; all of them count as ``n_blocks`` such values. Unless ``reliable``, the level is not
    promised and ``reason`` says why.
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
    ranked = ranks(values)
    count = count_below(values, ranked, level, segments)
    lowest = min(exact[0], math.floor(n / 2 - count.half_width)) if count.half_width else exact[0]
    reason = _doubt(n, lowest, level, count, segments)
    if passes_differ(values, segments):
        reason = reason or PASSES_DIFFER
    if n < MIN_N_RELIABLE:
        reason = f"{n} values are too few to see whether they are independent"
    lowest = max(lowest, 1)
    ends = np.partition(values, [lowest - 1, n - lowest])
    return Interval(float(ends[lowest - 1]), float(ends[n - lowest]), level,
                    max(1, int(n / count.inflation)), math.ceil(count.inflation), not reason,
                    reason, lowest)


def _doubt(
    n: int, lowest: int, level: float, count: CountBelow, segments: Sequence[int]
) -> str:
    """Return why the level is not promised, or nothing.

    An interval that would reach beyond the data ends at the least and the greatest value. It
    misses the median only if all values are on one side of it. In each segment the first is so by
    chance, and a next one stays there with (1 + r) / 2, r being the correlation of signs.
    """
    seen = f"successive values correlate by {count.correlation:.2f}, "
    states = count.states
    if states and states.visits < MIN_VISITS:
        return f"values stay in one of two states, which changed only {2 * states.visits:.0f} times"
    if lowest >= 1:
        is_open = lowest > 1 and n < MIN_N_DEPENDENT and is_significant(count.correlation, n, 1.0)
        return f"{seen}of which {n} do not tell the extent" if is_open else ""
    correlation = max(0.0, count.correlation, states.correlation if states else 0.0)
    stay = (1 + 2 / math.pi * math.asin(correlation)) / 2
    starts = num_segments(segments)
    missed = 2 * 0.5 ** starts * stay ** (n - starts)
    return f"{seen}and {n} of them do not hold an interval of that level" if (
        missed > 1 - level or n * (1 - correlation) < RANDOM_WALK) else ""


def passes_differ(
    values: Values, segments: Sequence[int], significance: float = SIGNIFICANCE,
) -> bool:
    """Return whether passes, of these lengths in order, differ beyond chance.

    Kruskal-Wallis test (p < ``significance``). How much successive values depend on one another is
    estimated without the passes' medians. With them, passes that differ would look like dependence,
    and explain themselves: three passes of 1403, 19 and 1203 us once went unseen.
    """
    if num_segments(segments) < 2:
        return False
    lengths = [length for length in segments if length]
    middles = [median(part) for part in np.split(values, np.cumsum(lengths)[:-1])]
    rest = values - np.repeat(middles, lengths)
    ranked = ranks(rest)
    correlation = rank_correlation(ranked, lengths, values.size / len(lengths))
    return segments_differ(ranks(values), lengths, _inflation_of_ranks(
        rest, ranked, correlation, lengths), significance)


def _inflation_of_ranks(values: Values, ranked: Values, correlation: float,
                        segments: Sequence[int]) -> Estimate:
    """Return the inflation of the sum of ranks: of an AR(1) process, or more if that is seen."""
    plain = Estimate(1.0)
    if correlation > 0:
        plain = Estimate((1 + correlation) / (1 - correlation),
                         correlation_degrees(correlation, values.size))
    seen = dependence(values, ranked, segments)
    if seen.degrees is None or seen.inflation <= plain.inflation:
        return plain
    return Estimate(seen.inflation, seen.degrees)


@lru_cache(maxsize=4096)
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

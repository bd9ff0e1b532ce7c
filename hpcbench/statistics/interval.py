"""By how many ranks the count of values below the median may be off half of them.

Three views of how much successive values depend on one another; the one that asks for the widest
interval counts. None of them is a test that has to be passed: a correlation that may be chance
widens the interval a little, instead of not at all below a threshold and in full above it.

A distribution-free confidence interval of the median, also of dependent values.

Independent values: exact order statistics. The number of values below the median is binomial with
p = 1/2 whatever the distribution. So the l-th smallest and the l-th largest value enclose the
median with a known probability. Dependent values: that number varies more, and the ranks move out
accordingly (`hpcbench.statistics.interval`), at most to the least and the greatest value.

What several launches say about the median of the next one.

A launch has conditions of its own (memory, cores, connections) that all of its samples share. More
samples of it do not average them out, so the unit is the launch: each counts with its median. The
intervals are order statistics of these medians and need no distribution. A t interval of two to
five medians does, and is wrong for launches of two modes (benchmarks/error_rates.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpcbench.statistics.dependence import (
    MAX_CORRELATION,
    Estimate,
    check_segments,
    dependence,
    inflation_of_signs,
    is_significant,
    num_segments,
    rank_correlation,
    ranks,
    segments_differ,
    spectral_inflation,
)
from hpcbench.statistics.order import Values, median

LEAST_DEGREES = 4.0
"""Fewer would widen everything, and the approximation of Student's t ends there."""
STATE_Z = 3.0
"""How far a threshold's correlation lies above that of an AR(1) process, in standard errors."""
MIN_IN_STATE = 5
"""Fewer values above or below a threshold are no state."""
MIN_VISITS = 10.0
"""Visits of a state; with fewer the shares of the states, and so the median, are hardly known."""


@dataclass(frozen=True, slots=True)
class States:
    """Values that stay above or below a threshold for longer than any AR(1) process does.

    ``correlation`` is that of neighbours being above it, ``visits`` how often it was entered.
    """

    correlation: float
    visits: float
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class CountBelow:
    """``half_width`` ranks on either side of n / 2, 0 where nothing speaks for dependence.

    ``correlation`` is that of neighbouring ranks, ``states`` what values stay in, if anything.
    """

    half_width: float
    inflation: float
    correlation: float
    states: States | None


def count_below(values: Values, ranked: Values, level: float,
                segments: Sequence[int] = ()) -> CountBelow:
    """Return how uncertain the count of ``values`` (n,) below their true median is.

    ``ranked`` are their ranks, ``segments`` the lengths of the passes.
    """
    n, correlation = values.size, rank_correlation(ranked, segments)
    depends = is_significant(correlation, n)
    states = _states(values, ranked, segments, correlation) if depends else None
    estimates = [Estimate(1.0), *_of_correlation(values, correlation, segments, depends)]
    if states:
        estimates.append(states.estimate)
    widest = max(estimates, key=lambda one: one.half_width(n, level))
    half_width = 0.0 if widest.inflation <= 1 else widest.half_width(n, level)
    return CountBelow(half_width, widest.inflation, correlation, states)


def _of_correlation(values: Values, correlation: float, segments: Sequence[int],
                    depends: bool) -> Iterator[Estimate]:
    """Yield what an AR(1) process of that correlation has, and what the spectrum shows."""
    n = values.size
    if correlation > 0:
        yield Estimate(inflation_of_signs(correlation, n / num_segments(segments)),
                       correlation_degrees(correlation, n))
    if depends:
        inflation, num_cosines = spectral_inflation(np.sign(values - median(values)),
                                                    correlation)
        if inflation > 1:  # its few degrees of freedom alone speak for no dependence
            yield Estimate(inflation, num_cosines)


def correlation_degrees(correlation: float, n: int) -> float:
    """Return the degrees of freedom of an inflation that follows from a correlation.

    The logarithm of (1 + r) / (1 - r) has a variance of 4 / (n (1 - r^2)), since r has one of
    (1 - r^2) / n (Bartlett 1946); that of an estimated variance is 2 / degrees.
    """
    return max(LEAST_DEGREES, n * (1 - correlation ** 2) / 2)


def _states(
    values: Values, ranked: Values, segments: Sequence[int], correlation: float
) -> States | None:
    """Return the states that ask for the widest interval, of several thresholds, if there are any.

    A chain of two states, of which the upper one has share p and neighbours correlate by r, adds
    2 s r / (1 - r) to the inflation of the signs about the median. The squared correlation of being
    above the threshold and above the median is s = min(p, 1 - p) / max(p, 1 - p).
    """
    n = ranked.size
    upper = ranked > _thresholds(values, n)[:, np.newaxis]
    changed = upper[:, 1:] != upper[:, :-1]
    if len(segments) > 1:
        borders = np.cumsum(segments)[:-1]
        changed = np.delete(changed, borders[(borders > 0) & (borders < n)] - 1, axis=1)
    plain = 2 / math.pi * math.asin(max(0.0, correlation))
    found = []
    for share, of_changes, changes in zip(
            upper.mean(axis=1).tolist(), changed.mean(axis=1).tolist(),
            changed.sum(axis=1).tolist(), strict=True):
        if min(share, 1 - share) * n < MIN_IN_STATE:
            continue
        stays = 1 - of_changes / (2 * share * (1 - share))
        error = math.sqrt(max(0.0, 1 - stays ** 2) / (4 * share * (1 - share) * n))
        if stays > plain + STATE_Z * error:
            found.append(_state(share, stays, (changes + n - changed.shape[1]) / 2, n))
    return max(found, default=None, key=lambda one: one.estimate.inflation)


def _thresholds(values: Values, n: int) -> Values:
    """Return ranks to part values at: every twentieth of them, and the widest gap between two."""
    gaps = np.diff(np.sort(values))[MIN_IN_STATE - 1:n - MIN_IN_STATE]
    widest = MIN_IN_STATE + int(np.argmax(gaps)) if gaps.size else n // 2
    return np.append(n * np.arange(1, 20) / 20, widest + 0.5)


def _state(share: float, biased: float, visits: float, n: int) -> States:
    correlation = min((n * biased + 1) / (n - 3), MAX_CORRELATION)
    nested = min(share, 1 - share) / max(share, 1 - share)
    inflation = 1 + 2 * nested * max(0.0, correlation) / (1 - correlation)
    return States(correlation, visits, Estimate(inflation, max(LEAST_DEGREES, visits)))


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


@dataclass(frozen=True, slots=True)
class OverLaunches:
    """The least and the greatest median of a launch hold the median over launches with ``level``.

    ``rank`` says which medians are the ends of the interval of the level that was asked for: those
    of this rank from either end. It is None where there are too few launches.
    """

    low: float
    high: float
    level: float
    rank: int | None


def over_launches(medians: Values, level: float) -> OverLaunches:
    """Return what the ``medians`` (launch,) of two launches or more hold.

    All of n medians lie on one side of the median over launches with probability 2 / 2^n. So two
    hold it with 50 %, five with 93.75 %; 95 % takes six.
    """
    ends = median_ranks(medians.size, level)
    return OverLaunches(float(medians.min()), float(medians.max()), 1 - 2.0 ** (1 - medians.size),
                        ends[0] if ends else None)

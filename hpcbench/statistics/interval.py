"""A distribution-free confidence interval of the median, also of dependent values.

Independent values: exact order statistics. The number of values below the median is binomial with
p = 1/2 whatever the distribution, so the l-th smallest and the l-th largest value enclose the
median with a known probability.

Dependent values: successive iterations share caches, clocks and neighbours, and at a lag-1
correlation of 0.8 a 95 % interval for independent values holds the median in 6 of 10 cases. The
measure of that is the variance inflation: the variance of a sum of dependent scores over that of as
many independent ones. The ranks move out accordingly, at most to the least and the greatest value.
Three views of the inflation are taken (an AR(1) process of that correlation, the spectrum, states),
and the one that asks for the widest interval counts. None is a test that has to be passed: a
correlation that may be chance widens the interval a little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.order import Values, median

SIGNIFICANT_Z = 1.645
"""One-sided 5 %: a correlation below it can be chance, and is taken as none."""
MIN_COSINES = 6
"""Fewer leave an estimate of the variance so uncertain that its t quantile widens everything."""
MAX_CORRELATION = 0.999
LEAST_DEGREES = 4.0
"""Fewer would widen everything, and the approximation of Student's t ends there."""
STATE_Z = 3.0
"""How far a threshold's correlation lies above that of an AR(1) process, in standard errors."""
MIN_IN_STATE = 5
"""Fewer values above or below a threshold are no state."""
MIN_VISITS = 10.0
"""Visits of a state; with fewer the shares of the states, and so the median, are hardly known."""
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
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Inflation:
    """A variance inflation, and the degrees of freedom by which it is known."""

    inflation: float
    degrees: float = math.inf

    def half_width(self, n: int, level: float) -> float:
        """Return by how many ranks the count of ``n`` values below the median may be off n / 2."""
        quantile = t_of_normal(NormalDist().inv_cdf((1 + level) / 2), self.degrees)
        return quantile * math.sqrt(n * self.inflation) / 2


def dependence(
    values: Values, scores: Values, segments: Sequence[int] = (),
) -> Inflation | None:
    """Return by how much dependence inflates the variance of the sum of ``scores``; None if not.

    The lag-1 correlation is that of the ranks of ``values`` (n,), which no distribution and no
    stall can disturb. ``scores`` (n,) are a function of the values whose sum is to be judged:
    signs about the median, or ranks. ``segments``: see `check_segments`.
    """
    correlation, n = rank_correlation(ranks(values), segments), values.size
    if not is_significant(correlation, n):
        return None
    inflation, num_cosines = spectral_inflation(scores, correlation)
    return Inflation(max(1.0, inflation, inflation_of_signs(correlation)), num_cosines)


def rank_correlation(ranked: Values, segments: Sequence[int] = (),
                     centred_over: float | None = None) -> float:
    """Return the lag-1 correlation of ranks (n,), at most 0.999; 0 where none can be seen.

    Without the bias -(1 + 3 rho) / n of such a correlation (Kendall 1954). n is the number of
    values whose middle was taken out, ``centred_over``: all of them, or those of one segment.
    """
    biased = lag1_correlation(ranked, segments)
    return 0.0 if biased is None else _unbiased(biased, centred_over or ranked.size)


def _unbiased(correlation: float, n: float) -> float:
    return min((n * correlation + 1) / (n - 3), MAX_CORRELATION) if n > 3 else MAX_CORRELATION


def is_significant(correlation: float, n: int, z: float = SIGNIFICANT_Z) -> bool:
    """Return whether an unbiased correlation of ``n`` values is ``z`` standard errors above 0."""
    return n > 3 and correlation * (n - 3) / math.sqrt(n) >= z


def check_segments(n: int, segments: Sequence[int]) -> None:
    """Raise ValueError unless ``segments`` are lengths that add up to ``n``; none mean one segment.

    A segment is a run of values measured without a pause (a pass): the last value of one and the
    first of the next are not neighbours.
    """
    if len(segments) and (min(segments) < 0 or sum(segments) != n):
        raise ValueError(f"segments {list(segments)} do not add up to {n} values")


def num_segments(segments: Sequence[int]) -> int:
    """Return how many segments have values; no lengths mean one segment."""
    return sum(1 for length in segments if length) or 1


def segments_differ(ranked: Values, segments: Sequence[int], estimate: Inflation,
                    significance: float = 0.01) -> bool:
    """Return whether some segments are slower than others beyond what chance explains.

    Kruskal-Wallis test of ``ranked``, the ranks (n,); its statistic is divided by the inflation
    that is estimated for their sum. As the estimate is uncertain, the quantile is one of Fisher's F
    instead of chi-square's; by the cube roots of Wilson and Hilferty (1931) and Paulson (1942).
    """
    lengths = np.array([length for length in segments if length])
    if lengths.size < 2:
        return False
    n, starts = ranked.size, np.append(0, np.cumsum(lengths)[:-1])
    mean_ranks = np.add.reduceat(ranked, starts) / lengths
    spread = float(lengths @ (mean_ranks - (n + 1) / 2) ** 2) * 12 / (n * (n + 1))
    degrees = lengths.size - 1
    root = float((spread / degrees / estimate.inflation) ** (1 / 3))
    own, of_estimate = 2 / (9 * degrees), 2 / (9 * estimate.degrees)
    score = (1 - of_estimate) * root - (1 - own)
    return score > NormalDist().inv_cdf(1 - significance) * math.sqrt(of_estimate * root ** 2 + own)


def normal_of_t(t: float, degrees: float) -> float:
    """Return the normal score with the tail of Student's ``t`` >= 0 (Wallace 1959).

    From 6 degrees of freedom and up to a score of 3.3 it is off by less than 0.5 %.
    """
    return _wallace(degrees) * math.sqrt(degrees * math.log1p(t * t / degrees))


def t_of_normal(z: float, degrees: float) -> float:
    """Return Student's t with the tail of the normal score ``z`` >= 0; inverse of normal_of_t."""
    if math.isinf(degrees):
        return z
    return math.sqrt(degrees * math.expm1((z / _wallace(degrees)) ** 2 / degrees))


def _wallace(degrees: float) -> float:
    return (8 * degrees + 1) / (8 * degrees + 3)


def ranks(values: Values) -> Values:
    """Return the rank of each value, 1 to n; equal values share the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    shared: Values = np.cumsum(sizes) - (sizes - 1) / 2
    return shared[group]


def lag1_correlation(values: Values, segments: Sequence[int] = ()) -> float | None:
    """Return the correlation of neighbours within segments, or None where none can be seen."""
    centred = values - values.mean()
    variance = float(centred @ centred) / values.size
    products = _within(centred[1:] * centred[:-1], segments)
    if variance == 0 or products.size == 0:
        return None
    return float(products.mean()) / variance


def _within(pairs: npt.NDArray[T], segments: Sequence[int]) -> npt.NDArray[T]:
    """Return what there is of neighbours, (..., n - 1), without those on both sides of a border."""
    if len(segments) < 2:
        return pairs
    borders = np.cumsum(segments)[:-1]
    return np.delete(pairs, borders[(borders > 0) & (borders <= pairs.shape[-1])] - 1, axis=-1)


def spectral_inflation(scores: Values, correlation: float) -> tuple[float, int]:
    """Return the variance of the sum of ``scores`` (n,) over that of as many independent ones.

    ``correlation`` is that of neighbours, above 0. Also returned is how many frequencies were used:
    0.4 n^(2/3) is the recommendation of Lazarus, Lewis, Stock and Watson (2018); and none above
    that at which the spectrum of an AR(1) process has fallen to half.

    Equal-weighted cosine estimate (Lazarus et al. 2018): the mean of the squared projections of
    the scores on the first cosines, here by a Fourier transform of scores and mirrored scores.
    Divided by what an AR(1) spectrum has lost by there, as prewhitening would (Andrews and
    Monahan 1992).
    """
    n = scores.size
    half_fallen = (1 - correlation) / math.sqrt(correlation)
    num_cosines = max(MIN_COSINES, int(min(0.4 * n ** (2 / 3), n * half_fallen / math.pi)))
    centred = scores - scores.mean()
    variance = float(centred @ centred) / n
    if variance == 0:
        return 1.0, num_cosines
    spectrum = np.fft.rfft(np.concatenate([centred, centred[::-1]]))[1:num_cosines + 1]
    power = (spectrum.real ** 2 + spectrum.imag ** 2) / (2 * n)
    frequency = np.pi * np.arange(1, power.size + 1) / n
    at_zero = (1 - correlation) ** 2
    fallen = at_zero / (at_zero + 2 * correlation * (1 - np.cos(frequency)))
    return float(power.mean()) / float(fallen.mean()) / variance, num_cosines


def inflation_of_signs(correlation: float, length: float = math.inf) -> float:
    """Return the inflation of the signs of a Gaussian AR(1) process, in segments of ``length``.

    The signs of two normal values with correlation r correlate by 2 / pi asin(r) (Sheppard 1899).
    """
    num_lags = min(math.ceil(9 / (1 - correlation)),  # beyond, a correlation is below exp(-9)
                   max(1.0, length))
    lags = np.arange(1, int(num_lags) + 1)
    return 1 + 4 / math.pi * float(((1 - lags / length) * np.arcsin(correlation ** lags)).sum())


@dataclass(frozen=True, slots=True)
class States:
    """Values that stay above or below a threshold for longer than any AR(1) process does.

    ``correlation`` is that of neighbours being above it, ``visits`` how often it was entered.
    """

    correlation: float
    visits: float
    estimate: Inflation


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
    estimates = [Inflation(1.0), *_of_correlation(values, correlation, segments, depends)]
    if states:
        estimates.append(states.estimate)
    widest = max(estimates, key=lambda one: one.half_width(n, level))
    half_width = 0.0 if widest.inflation <= 1 else widest.half_width(n, level)
    return CountBelow(half_width, widest.inflation, correlation, states)


def _of_correlation(values: Values, correlation: float, segments: Sequence[int],
                    depends: bool) -> Iterator[Inflation]:
    """Yield what an AR(1) process of that correlation has, and what the spectrum shows."""
    n = values.size
    if correlation > 0:
        yield Inflation(inflation_of_signs(correlation, n / num_segments(segments)),
                       correlation_degrees(correlation, n))
    if depends:
        inflation, num_cosines = spectral_inflation(np.sign(values - median(values)),
                                                    correlation)
        if inflation > 1:  # its few degrees of freedom alone speak for no dependence
            yield Inflation(inflation, num_cosines)


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

    Values are parted at every twentieth of their ranks, and at the widest gap between two.

    A chain of two states, of which the upper one has share p and neighbours correlate by r, adds
    2 s r / (1 - r) to the inflation of the signs about the median. The squared correlation of being
    above the threshold and above the median is s = min(p, 1 - p) / max(p, 1 - p).
    """
    n = ranked.size
    gaps = np.diff(np.sort(values))[MIN_IN_STATE - 1:n - MIN_IN_STATE]
    widest = MIN_IN_STATE + int(np.argmax(gaps)) if gaps.size else n // 2
    thresholds = np.append(n * np.arange(1, 20) / 20, widest + 0.5)
    upper = ranked > thresholds[:, np.newaxis]
    changed = _within(upper[:, 1:] != upper[:, :-1], segments)
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


def _state(share: float, biased: float, visits: float, n: int) -> States:
    correlation = _unbiased(biased, n)
    nested = min(share, 1 - share) / max(share, 1 - share)
    inflation = 1 + 2 * nested * max(0.0, correlation) / (1 - correlation)
    return States(correlation, visits, Inflation(inflation, max(LEAST_DEGREES, visits)))


@dataclass(frozen=True, slots=True)
class MedianInterval:
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
                    segments: Sequence[int] = ()) -> MedianInterval | None:
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
    return MedianInterval(float(ends[lowest - 1]), float(ends[n - lowest]), level,
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
                        segments: Sequence[int]) -> Inflation:
    """Return the inflation of the sum of ranks: of an AR(1) process, or more if that is seen."""
    plain = Inflation(1.0)
    if correlation > 0:
        plain = Inflation((1 + correlation) / (1 - correlation),
                         correlation_degrees(correlation, values.size))
    seen = dependence(values, ranked, segments)
    return seen if seen is not None and seen.inflation > plain.inflation else plain


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

"""A distribution-free confidence interval of the median, also of dependent values. Independent
values: the number below the median is binomial with p = 1/2, so the l-th smallest and largest
enclose it with a known probability. Dependent values: at a lag-1 correlation of 0.8 such a 95 %
interval holds the median in 6 of 10 cases. The variance inflation (of a sum of dependent scores
over independent ones) moves the ranks out, at most to the least and the greatest value. The widest
of three estimates (AR(1) of that correlation, spectrum, states) counts; none is a test to pass."""

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
MIN_VISITS = 10.0
"""Visits of a state; with fewer the shares of the states, and so the median, are hardly known."""
MIN_N_RELIABLE = 20
"""Below 20 values even strong dependence is often not seen."""
MIN_N_DEPENDENT = 25
"""Below 25 values dependence is seen, but its extent cannot be estimated."""
SIGNIFICANCE = 0.01
"""How often at most passes that are alike are found to differ."""
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
        """Return by how many ranks the count below the median may be off n / 2."""
        quantile = t_of_normal(NormalDist().inv_cdf((1 + level) / 2), self.degrees)
        return quantile * math.sqrt(n * self.inflation) / 2


def dependence(
    values: Values, scores: Values, segments: Sequence[int] = (),
) -> Inflation | None:
    """Return by how much dependence inflates the variance of the sum of ``scores`` (n,), signs
    about the median or ranks; None if it does not. The lag-1 correlation is that of the ranks of
    ``values`` (n,)."""
    correlation, n = rank_correlation(ranks(values), segments), values.size
    if not is_significant(correlation, n):
        return None
    inflation, num_cosines = spectral_inflation(scores, correlation)
    return Inflation(max(1.0, inflation, inflation_of_signs(correlation)), num_cosines)


def stretch_of_mean(values: Values, level: float = 0.95) -> float:
    """Return how many times as wide as for independent values the interval of the mean of a series
    (n,) is: of AR(1) correlation, spectrum and two states the widest, as for medians."""
    n, ranked = values.size, ranks(values)
    correlation = rank_correlation(ranked)
    if not is_significant(correlation, n):
        return 1.0
    estimates = [Inflation(1.0), Inflation((1 + correlation) / (1 - correlation),
                                           correlation_degrees(correlation, n)),
                 Inflation(*spectral_inflation(values, correlation))]
    if states := _states(values, ranked, (), correlation):
        stay = min(max(states.correlation, 0.0), MAX_CORRELATION)
        estimates.append(Inflation((1 + stay) / (1 - stay), states.estimate.degrees))
    return max(one.half_width(n, level) for one in estimates) / estimates[0].half_width(n, level)


def rank_correlation(ranked: Values, segments: Sequence[int] = (),
                     centred_over: float | None = None) -> float:
    """Return the lag-1 correlation of ranks (n,), 0 to 0.999, without the bias -(1 + 3 rho) / n
    (Kendall 1954), n being all values, or ``centred_over``."""
    biased = lag1_correlation(ranked, segments)
    return 0.0 if biased is None else unbiased_correlation(biased, centred_over or ranked.size)


def unbiased_correlation(correlation: float, n: float) -> float:
    return min((n * correlation + 1) / (n - 3), MAX_CORRELATION) if n > 3 else MAX_CORRELATION


def is_significant(correlation: float, n: int, z: float = SIGNIFICANT_Z) -> bool:
    return n > 3 and correlation * (n - 3) / math.sqrt(n) >= z


def check_segments(n: int, segments: Sequence[int]) -> None:
    """Raise ValueError unless ``segments``, the lengths of passes, add up to ``n``; none mean
    one."""
    if len(segments) and (min(segments) < 0 or sum(segments) != n):
        raise ValueError(f"segments {list(segments)} do not add up to {n} values")


def num_segments(segments: Sequence[int]) -> int:
    return sum(1 for length in segments if length) or 1


def segments_differ(ranked: Values, segments: Sequence[int], estimate: Inflation,
                    significance: float = 0.01) -> bool:
    """Kruskal-Wallis test of ``ranked`` (n,), its statistic divided by the estimated inflation. As
    that is uncertain, the quantile is Fisher's F instead of chi-square, by cube roots (Wilson and
    Hilferty 1931, Paulson 1942)."""
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
    """Return the normal score of Student's ``t`` >= 0 (Wallace 1959; within 0.5 % from 6 degrees
    on)."""
    return _wallace(degrees) * math.sqrt(degrees * math.log1p(t * t / degrees))


def t_of_normal(z: float, degrees: float) -> float:
    if math.isinf(degrees):
        return z
    return math.sqrt(degrees * math.expm1((z / _wallace(degrees)) ** 2 / degrees))


def _wallace(degrees: float) -> float:
    return (8 * degrees + 1) / (8 * degrees + 3)


def ranks(values: Values) -> Values:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    shared: Values = np.cumsum(sizes) - (sizes - 1) / 2
    return shared[group]


def lag1_correlation(values: Values, segments: Sequence[int] = ()) -> float | None:
    centred = values - values.mean()
    variance = float(centred @ centred) / values.size
    products = _within(centred[1:] * centred[:-1], segments)
    if variance == 0 or products.size == 0:
        return None
    return float(products.mean()) / variance


def _within(pairs: npt.NDArray[T], segments: Sequence[int]) -> npt.NDArray[T]:
    if len(segments) < 2:
        return pairs
    borders = np.cumsum(segments)[:-1]
    return np.delete(pairs, borders[(borders > 0) & (borders <= pairs.shape[-1])] - 1, axis=-1)


def spectral_inflation(scores: Values, correlation: float) -> tuple[float, int]:
    """Return the variance of the sum of ``scores`` (n,) over that of independent ones, and the
    frequencies used: 0.4 n^(2/3) (Lazarus, Lewis, Stock and Watson 2018), below those where the
    spectrum of an AR(1) process of this ``correlation`` has halved. Equal-weighted cosine estimate
    (Lazarus et al.), by a Fourier transform of mirrored scores, divided by the share
    of an AR(1) spectrum that is left there (prewhitening: Andrews and Monahan 1992)."""
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
    """Return the inflation of signs of a Gaussian AR(1) process in segments of ``length``; signs
    correlate by 2 / pi asin(r) (Sheppard 1899)."""
    num_lags = min(math.ceil(9 / (1 - correlation)),  # beyond, a correlation is below exp(-9)
                   max(1.0, length))
    lags = np.arange(1, int(num_lags) + 1)
    return 1 + 4 / math.pi * float(((1 - lags / length) * np.arcsin(correlation ** lags)).sum())


def chance_of_one_side(n: int, correlation: float, starts: int = 1) -> float:
    """Return the chance that n values of a Gaussian AR(1) process are all on one side of their
    median: in each of the segments that ``starts`` the first is by chance, and a next stays there
    with (1 + r) / 2, r = 2 / pi asin(correlation) being that of signs (Sheppard 1899)."""
    stay = 0.5 + math.asin(correlation) / math.pi
    return 2 * 0.5 ** starts * stay ** (n - starts)


def inflation_of_sum(n: int, correlation: float) -> float:
    """Return the variance of the sum of n values of an AR(1) process over that of independent ones
    (Bayley and Hammersley, JRSS Supplement 8, 1946)."""
    lags = np.arange(1, n)
    return 1 + 2 * float(((1 - lags / n) * correlation ** lags).sum())


@dataclass(frozen=True, slots=True)
class TwoStateModel:
    """Values stay above or below a threshold longer than in any AR(1) process. ``correlation`` is
    that of neighbours being above it, ``visits`` how often it was entered."""

    correlation: float
    visits: float
    estimate: Inflation


@dataclass(frozen=True, slots=True)
class MedianRankUncertainty:
    """``half_width`` ranks on either side of n / 2, 0 without dependence; ``correlation`` of
    ranks."""

    half_width: float
    inflation: float
    correlation: float
    states: TwoStateModel | None


def median_rank_uncertainty(values: Values, ranked: Values, level: float,
                segments: Sequence[int] = ()) -> MedianRankUncertainty:
    """Return the uncertainty of the count of ``values`` (n,) below their true median."""
    n, correlation = values.size, rank_correlation(ranked, segments)
    depends = is_significant(correlation, n)
    states = _states(values, ranked, segments, correlation)  # short ones hardly correlate
    estimates = [Inflation(1.0), *_of_correlation(values, correlation, segments, depends)]
    if states:
        estimates.append(states.estimate)
    widest = max(estimates, key=lambda one: one.half_width(n, level))
    half_width = 0.0 if widest.inflation <= 1 else widest.half_width(n, level)
    return MedianRankUncertainty(half_width, widest.inflation, correlation, states)


def _of_correlation(values: Values, correlation: float, segments: Sequence[int],
                    depends: bool) -> Iterator[Inflation]:
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
    """Return the degrees of freedom of an inflation that follows from a correlation: log (1 + r) /
    (1 - r) has variance 4 / (n (1 - r^2)) (Bartlett 1946), an estimated variance 2 / degrees."""
    return max(LEAST_DEGREES, n * (1 - correlation ** 2) / 2)


def _states(
    values: Values, ranked: Values, segments: Sequence[int], correlation: float
) -> TwoStateModel | None:
    """Return the states with the widest interval of several thresholds (every 20th of the ranks,
    the widest gap), if any. A chain of two states, the upper with share p, neighbours correlating
    by r, adds 2 s r / (1 - r) to the inflation of signs, s = min(p, 1 - p) / max(p, 1 - p)."""
    n = ranked.size
    gaps = np.diff(np.sort(values))[MIN_IN_STATE - 1:n - MIN_IN_STATE]
    widest = MIN_IN_STATE + int(np.argmax(gaps)) if gaps.size else n // 2
    thresholds = np.append(n * np.arange(1, 20) / 20, widest + 0.5)
    upper = ranked > thresholds[:, np.newaxis]
    changed = _within(upper[:, 1:] != upper[:, :-1], segments)
    if not changed.size:  # passes of one sample: none has a neighbour
        return None
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


def _state(share: float, biased: float, visits: float, n: int) -> TwoStateModel:
    correlation = unbiased_correlation(biased, n)
    nested = min(share, 1 - share) / max(share, 1 - share)
    inflation = 1 + 2 * nested * max(0.0, correlation) / (1 - correlation)
    return TwoStateModel(correlation, visits, Inflation(inflation, max(LEAST_DEGREES, visits)))


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """``low`` to ``high`` hold the median with probability ``level``: values of this ``rank``, from
    1, from either end. Values count as ``n_blocks`` independent ones, ``block_length`` successive
    ones as one. Unless ``reliable``, the level is not promised, by ``reason``."""

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
    """Return the interval of the median of ``values`` (n,), None for too few (6 for 95 %, 8 for 99
    %). ``segments`` are the lengths of passes in order. Raises ValueError if they do not add up to
    n."""
    n = values.size
    check_segments(n, segments)
    exact = median_ranks(n, level)
    if exact is None:
        return None
    ranked = ranks(values)
    count = median_rank_uncertainty(values, ranked, level, segments)
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
    n: int, lowest: int, level: float, count: MedianRankUncertainty, segments: Sequence[int]
) -> str:
    """Return why the level is not promised, or nothing. An interval that reaches beyond the data
    misses the median if all values are on one side."""
    seen = f"successive values correlate by {count.correlation:.2f}, "
    states = count.states
    if states and states.visits < MIN_VISITS:
        return f"values stay in one of two states, which changed only {2 * states.visits:.0f} times"
    if lowest >= 1:
        is_open = lowest > 1 and n < MIN_N_DEPENDENT and is_significant(count.correlation, n, 1.0)
        return f"{seen}too much to judge from {n}" if is_open else ""
    correlation = max(0.0, count.correlation, states.correlation if states else 0.0)
    missed = chance_of_one_side(n, correlation, num_segments(segments))
    return f"{seen}and {n} of them do not hold an interval of that level" if (
        missed > 1 - level or n * (1 - correlation) < RANDOM_WALK) else ""


def passes_differ(
    values: Values, segments: Sequence[int], significance: float = SIGNIFICANCE,
) -> bool:
    """Return whether passes differ beyond chance (Kruskal-Wallis, p < ``significance``). Dependence
    is estimated without the passes' medians, else passes that differ would explain themselves."""
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
    plain = Inflation(1.0)
    if correlation > 0:
        plain = Inflation((1 + correlation) / (1 - correlation),
                         correlation_degrees(correlation, values.size))
    seen = dependence(values, ranked, segments)
    return seen if seen is not None and seen.inflation > plain.inflation else plain


@lru_cache(maxsize=4096)
def median_ranks(n: int, level: float) -> tuple[int, int] | None:
    """Return the ranks, from 1, whose values enclose the median, None for n too small (Conover,
    Practical Nonparametric Statistics, 3.2): l is the largest with P(X < l) <= (1 - level) / 2 for
    X ~ Binomial(n, 1/2), and n + 1 - l."""
    k = np.arange(1, n // 2 + 1)
    log_choices = np.append(0.0, np.cumsum(np.log((n + 1 - k) / k)))
    at_most = np.cumsum(np.exp(log_choices - n * math.log(2)))
    lowest = int(np.searchsorted(at_most, (1 - level) / 2, side="right"))
    return (lowest, n + 1 - lowest) if lowest else None


@dataclass(frozen=True, slots=True)
class OverLaunches:
    """The least and greatest median of a launch hold the median over launches with ``level``; those
    of ``rank`` from either end with the level requested, None for too few launches."""

    low: float
    high: float
    level: float
    rank: int | None


def over_launches(medians: Values, level: float) -> OverLaunches:
    """Return the intervals of 2 or more launch ``medians``: all n lie on one side with 2 / 2^n."""
    ends = median_ranks(medians.size, level)
    return OverLaunches(float(medians.min()), float(medians.max()), 1 - 2.0 ** (1 - medians.size),
                        ends[0] if ends else None)

"""How much less n values count than n independent ones would: the autocorrelation of a series.

Successive iterations share caches, clocks and neighbours, so formulas for independent values give
intervals that are too narrow: at a lag-1 correlation of 0.8 a 95 % interval of the median holds it
in 6 of 10 cases. The measure here is the variance inflation: the variance of a sum of dependent
scores over that of as many independent ones. n values then count as n / inflation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hpcbench.statistics.order import Values

SIGNIFICANT_Z = 1.645
"""One-sided 5 %: a correlation below it can be chance, and is taken as none."""
MIN_COSINES = 6
"""Fewer leave an estimate of the variance so uncertain that its t quantile widens everything."""
MAX_CORRELATION = 0.999


@dataclass(frozen=True, slots=True)
class Dependence:
    """How values depend on one another; ``degrees`` of freedom are None without an estimate."""

    correlation: float
    inflation: float
    degrees: int | None


INDEPENDENT = Dependence(0.0, 1.0, None)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A variance inflation, and the degrees of freedom by which it is known."""

    inflation: float
    degrees: float = math.inf

    def half_width(self, n: int, level: float) -> float:
        """Return by how many ranks the count of ``n`` values below the median may be off n / 2."""
        quantile = t_of_normal(NormalDist().inv_cdf((1 + level) / 2), self.degrees)
        return quantile * math.sqrt(n * self.inflation) / 2


def dependence(values: Values, scores: Values, segments: Sequence[int] = ()) -> Dependence:
    """Return by how much dependence inflates the variance of the sum of ``scores``.

    The lag-1 correlation is that of the ranks of ``values`` (n,), which no distribution and no
    stall can disturb. ``scores`` (n,) are a function of the values whose sum is to be judged:
    signs about the median, or ranks. ``segments``: see `check_segments`.
    """
    correlation, n = rank_correlation(ranks(values), segments), values.size
    if not is_significant(correlation, n):
        return INDEPENDENT
    inflation, num_cosines = spectral_inflation(scores, correlation)
    return Dependence(correlation, max(1.0, inflation, inflation_of_signs(correlation)),
                      num_cosines)


def rank_correlation(ranked: Values, segments: Sequence[int] = (),
                     centred_over: float | None = None) -> float:
    """Return the lag-1 correlation of ranks (n,), at most 0.999; 0 where none can be seen.

    Without the bias -(1 + 3 rho) / n of such a correlation (Kendall 1954). n is the number of
    values whose middle was taken out, ``centred_over``: all of them, or those of one segment.
    """
    n, biased = centred_over or ranked.size, lag1_correlation(ranked, segments)
    if biased is None:
        return 0.0
    return min((n * biased + 1) / (n - 3), MAX_CORRELATION) if n > 3 else MAX_CORRELATION


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


def segments_differ(ranked: Values, segments: Sequence[int], estimate: Estimate,
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
    products = centred[1:] * centred[:-1]
    if len(segments) > 1:
        borders = np.cumsum(segments)[:-1]
        products = np.delete(products, borders[(borders > 0) & (borders < values.size)] - 1)
    if variance == 0 or products.size == 0:
        return None
    return float(products.mean()) / variance


def _num_cosines(n: int, correlation: float) -> int:
    """Return how many frequencies speak for frequency 0.

    0.4 n^(2/3) is the recommendation of Lazarus, Lewis, Stock and Watson (2018); and none above
    the frequency at which the spectrum of an AR(1) process has fallen to half.
    """
    half_fallen = (1 - correlation) / math.sqrt(correlation)
    return max(MIN_COSINES, int(min(0.4 * n ** (2 / 3), n * half_fallen / math.pi)))


def spectral_inflation(scores: Values, correlation: float) -> tuple[float, int]:
    """Return the variance of the sum of ``scores`` (n,) over that of as many independent ones.

    ``correlation`` is that of neighbours, above 0. Also returned is how many frequencies were used.

    Equal-weighted cosine estimate (Lazarus et al. 2018): the mean of the squared projections of
    the scores on the first cosines, here by a Fourier transform of scores and mirrored scores.
    Divided by what an AR(1) spectrum has lost by there, as prewhitening would (Andrews and
    Monahan 1992).
    """
    n = scores.size
    num_cosines = _num_cosines(n, correlation)
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

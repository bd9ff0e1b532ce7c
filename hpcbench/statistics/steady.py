"""Series of times: steady state, trend, step, drift, two modes. Findings only; nothing is removed.
The tests need no distribution. Dependence (`interval.dependence`) of many values is estimated
without the trend or step. For few runs it cannot be: the limits of Kendall's tau for `steady_drift`
hold for all stationary series tried in 99 of 100 cases (AR(1) up to 0.9, two modes for 3 or 10
runs, groups of runs: benchmarks/error_rates.py), at the price of power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.hypothesis_tests import benjamini_hochberg
from hpcbench.statistics.interval import (
    MIN_N_DEPENDENT,
    MedianInterval,
    dependence,
    inflation_of_sum,
    is_significant,
    normal_of_t,
    rank_correlation,
    ranks,
)
from hpcbench.statistics.order import Interval, Values, median, medians

BATCH = 5
"""Iterations in a batch of MSER-5 (White, Cobb and Spratt 2000)."""
MIN_N_STEADY = 20
"""Four batches; from fewer nothing is cut."""
CUT_TOLERANCE = 0.05
SIGNIFICANT_P = 0.01
MIN_TREND = 0.02
"""Share of the median, over the whole series: a smaller drift is not worth a flag."""
MIN_STEP = 0.05
"""Share of the smaller median, between the two sides of a change point."""
MIN_N_TEST = 30
MAX_POINTS = 256
"""A longer series is judged by the medians of equal blocks, so that all pairs stay cheap."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A monotonic drift: ``change`` is slope x n relative to the median, ``p`` its p-value."""

    change: float
    p: float
    significant: bool


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A step: from ``index`` on, the values have median ``after`` instead of ``before``."""

    index: int
    before: float
    after: float
    p: float


def steady_from(passes: Sequence[Values]) -> list[int]:
    """Return for each pass (n,) the index of its first steady value, at most n / 2; 0 if none is
    cut. MSER-5: the cut after whole batches of 5 with the least sum (y - mean)^2 / (number of y)^2
    after it. Changes: batches count by their median; the first cut within 5 % of the least is
    taken; and only if the first 5 values rank otherwise than those after it (rank sum, of values
    as correlated as the later halves of the passes are; p < 0.01 for all passes together, Simes,
    Biometrika 73, 1986). Halves of fewer than `MIN_N_DEPENDENT` values do not show how long a state
    lasts: there, most passes have to begin alike with p < 0.01."""
    later = [values[values.size // 2:] for values in passes if values.size >= BATCH]
    every = np.concatenate([np.empty(0), *(part - median(part) for part in later)])
    correlation = rank_correlation(ranks(every), [part.size for part in later],
                                   every.size / len(later)) if later else 0.0
    if not is_significant(correlation, every.size):
        correlation = 0.0
    deviation = math.sqrt(inflation_of_sum(BATCH, correlation))
    cuts, scores = zip(*(_cut(values, deviation) for values in passes), strict=True)
    chances = [math.erfc(abs(score) / math.sqrt(2)) for score in scores]
    alike = [sum(chance < SIGNIFICANT_P and score * other > 0 for chance, other in zip(
        chances, scores, strict=True)) > len(passes) / 2 for score in scores]
    return [cut if share < SIGNIFICANT_P and (is_alike or values.size // 2 >= MIN_N_DEPENDENT)
            else 0 for cut, share, is_alike, values in zip(
                cuts, benjamini_hochberg(chances), alike, passes, strict=True)]


def _cut(values: Values, deviation: float) -> tuple[int, float]:
    """Return the cut, and its normal score; ``deviation`` is that of sums over independent ones'.
    """
    cut = BATCH * _mser_batches(_block_medians(values, BATCH)) if values.size >= MIN_N_STEADY else 0
    if not cut:
        return 0, 0.0
    return cut, _rank_sum_z(np.concatenate([values[:BATCH], values[cut:]]), BATCH) / deviation


def _mser_batches(batches: Values) -> int:
    backwards = (batches - batches.mean())[::-1]
    count = np.arange(1, batches.size + 1)
    squares = np.cumsum(backwards ** 2) - np.cumsum(backwards) ** 2 / count
    score = (np.maximum(squares, 0) / count ** 2)[::-1][:batches.size // 2 + 1]
    rounding = 1e-12 * score.max()
    return int(np.argmax(score <= (1 + CUT_TOLERANCE) * score.min() + rounding))


def _rank_sum_z(values: Values, first: int) -> float:
    n = values.size
    excess = float(ranks(values)[:first].sum()) - first * (n + 1) / 2
    return excess / math.sqrt(first * (n - first) * (n + 1) / 12)


def _block_medians(values: Values, length: int) -> Values:
    count = values.size // length
    return medians(values[:count * length].reshape(count, length))


def trend(values: Values) -> Trend | None:
    """Return the drift of ``values`` (n,), None for n < 30: slope of Theil and Sen, test of Mann
    and Kendall with the variance of dependent values (Hamed and Rao 1998, estimated by
    `dependence`). Significant if p < 0.01 and the drift exceeds 2 % of the median."""
    if values.size < MIN_N_TEST:
        return None
    points = _block_medians(values, -(-values.size // MAX_POINTS))
    n, middle = points.size, median(points)
    earlier, later = np.triu_indices(n, 1)
    differences = points[later] - points[earlier]
    slope = median(differences / (later - earlier))
    score = abs(float(np.sign(differences).sum()))
    _, ties = np.unique(points, return_counts=True)  # of independent values (Kendall 1975)
    variance = float(n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    rest = points - slope * np.arange(n)
    z = _normal_score(max(score - 1, 0) / math.sqrt(variance), rest) if variance > 0 else 0.0
    p = math.erfc(z / math.sqrt(2))
    change = slope * n / middle if middle else 0.0
    return Trend(change, p, p < SIGNIFICANT_P and abs(change) > MIN_TREND)


def _normal_score(score: float, rest: Values) -> float:
    """Return a score as of independent values; ``rest`` is the series without trend or step."""
    estimate = dependence(rest, ranks(rest))
    if estimate is None:
        return score
    return normal_of_t(score / math.sqrt(estimate.inflation), estimate.degrees)


def change_point(values: Values) -> ChangePoint | None:
    """Return the step in ``values`` (n,), None without one. Pettitt's test (1979), p = 2 exp(-6 K^2
    / (n^3 + n^2)), at the largest rank sum over its standard deviation, 5 values or more from the
    ends. Flagged if p < 0.01 and medians differ by 5 % of the smaller."""
    n = values.size
    if n < MIN_N_TEST:
        return None
    position = np.arange(1, n)
    sums = np.abs(2 * np.cumsum(ranks(values)[:-1]) - position * (n + 1))
    inner = slice(BATCH - 1, n - BATCH)
    index = BATCH + int(np.argmax((sums / np.sqrt(position * (n - position)))[inner]))
    before, after = median(values[:index]), median(values[index:])
    if abs(after - before) < MIN_STEP * min(before, after):
        return None
    rest = values - np.where(np.arange(n) < index, before, after)
    z = _normal_score(float(sums.max()) * math.sqrt(12 / (n ** 3 + n ** 2)), rest)
    p = min(1.0, 2 * math.exp(-z * z / 2))
    return ChangePoint(index, before, after, p) if p < SIGNIFICANT_P else None


FEWEST_RUNS = 8
"""Seven runs of a stationary series rise by chance in more than 1 of 100 cases."""
LIMITS = ((32, 0.81), (20, 0.85), (12, 0.92), (FEWEST_RUNS, 0.95))
"""From so many runs on, the |tau| that a drift needs; the most runs first."""
LEAST_CHANGE = 0.03
"""Share of the median, over the whole series: a smaller drift is not worth a finding."""
DRIFT_POINTS = 64
"""A longer series of runs is judged by the medians of equal blocks."""


@dataclass(frozen=True, slots=True)
class Drift:
    """``change`` is that of the line of Theil and Sen over the series, relative to the median."""

    change: float
    tau: float
    significant: bool


def steady_drift(values: Values, at: Values) -> Drift | None:
    """Return the drift of ``values`` (run,) above 0 at ascending times ``at``; None for too few
    runs."""
    length = max(-(-values.size // DRIFT_POINTS), 1)
    points, times = (_block_medians(series, length) for series in (values, at))
    count = points.size
    if count < FEWEST_RUNS:
        return None
    earlier, later = np.triu_indices(count, 1)
    differences, gaps = points[later] - points[earlier], times[later] - times[earlier]
    tau = float(np.sign(differences).mean())
    slope = median(differences[gaps > 0] / gaps[gaps > 0]) if np.any(gaps > 0) else 0.0
    change = slope * float(at[-1] - at[0]) / median(values)
    limit = next(limit for fewest, limit in LIMITS if count >= fewest)
    return Drift(change, tau, abs(tau) >= limit and abs(change) > LEAST_CHANGE)


LEVEL = 0.99
"""Level of the interval of `theil_sen`."""
MOST_VALUES = 200
"""The exact chances of a longer series take too long."""


@dataclass(frozen=True, slots=True)
class TheilSen:
    """A line through independent values: ``change`` from first to last, relative to the median,
    with its 99 % interval; ``chance`` is the p-value. ``is_steady``: the interval excludes 0, and
    `steady_drift` is significant."""

    change: Interval
    tau: float
    chance: float
    is_steady: bool


def theil_sen(values: Values, at: Values) -> TheilSen | None:
    """Return the line through values above 0 at ascending times; None for too few or many. The
    interval is exact, by Kendall's statistic (Sen, JASA 63, 1968)."""
    if not FEWEST_RUNS <= values.size <= MOST_VALUES:
        return None
    steady = steady_drift(values, at)
    assert steady is not None
    earlier, later = np.triu_indices(values.size, 1)
    slopes = np.sort((values[later] - values[earlier]) / (at[later] - at[earlier]))
    score = abs(int(np.sign(values[later] - values[earlier]).sum()))
    cut = max((slopes.size - _limit(values.size)) // 2 - 1, 0)
    scale = float(at[-1] - at[0]) / median(values)
    change = Interval(median(slopes) * scale, float(slopes[cut]) * scale,
                      float(slopes[slopes.size - 1 - cut]) * scale)
    return TheilSen(change, steady.tau, _chance(values.size, score),
                    steady.significant and not change.holds(0.0))


@lru_cache(maxsize=64)
def _tails(n: int) -> tuple[float, ...]:
    """Return P(at least k pairs are in order) of n independent values, by k from 0."""
    shares = np.ones(1)
    for size in range(2, n + 1):
        shares = np.convolve(shares, np.full(size, 1 / size))
    return tuple(np.cumsum(shares[::-1])[::-1].tolist())


def _chance(n: int, score: int) -> float:
    pairs = n * (n - 1) // 2
    return min(1.0, 2 * _tails(n)[(pairs + score + 1) // 2])


def _limit(n: int) -> int:
    pairs = n * (n - 1) // 2
    return next((score for score in range(pairs % 2, pairs + 1, 2)
                 if _chance(n, score + 2 if score + 2 <= pairs else pairs) <= 1 - LEVEL), pairs)


LARGEST_DIP = 0.68
"""sqrt(n) times the dip exceeds it in less than 1 % of uniform samples of any n from `MIN_N_MODES`
on (simulated: `benchmarks/flags.py`)."""
MIN_N_MODES = 20
"""Fewer independent values do not show two modes."""
LEAST_SHARE = 0.2
"""Least share of the smaller mode: the median is between two modes, not at the end of one."""


@dataclass(frozen=True, slots=True)
class Mode:
    """The median of the values of one mode, and their share of all values."""

    median_s: float
    share: float


def modes_around_median(values: Values, interval: MedianInterval | None) -> tuple[Mode, ...]:
    """Return the two modes, the quicker first, that the median of ``values`` (n,) lies between,
    else nothing. ``interval``, the median's, reaches from one into the other; its ``n_blocks``
    count for `dip`."""
    if interval is None or interval.n_blocks < MIN_N_MODES or not 0 < values.min() < values.max():
        return ()
    split = best_split(np.sort(np.log(values)))
    lower = values[np.log(values) <= split]
    upper = values[np.log(values) > split]
    if not interval.low <= lower.max() < upper.min() <= interval.high:
        return ()
    if min(lower.size, upper.size) < LEAST_SHARE * values.size:
        return ()
    if dip(values) * math.sqrt(interval.n_blocks) <= LARGEST_DIP:
        return ()
    return tuple(Mode(median(part), part.size / values.size) for part in (lower, upper))


def best_split(ordered: Values) -> float:
    """Return the largest value of the lower of two groups with the least variance; ``ordered``
    rises."""
    n = np.arange(1, ordered.size)
    below = np.cumsum(ordered)[:-1]
    between = (below - n * ordered.mean()) ** 2 / (n * (ordered.size - n))
    between[ordered[1:] == ordered[:-1]] = -1.0  # equal values are of one group
    return float(ordered[np.argmax(between)])


def dip(values: Values) -> float:
    """Return the dip of ``values`` (n,): the distance to the nearest unimodal distribution
    (Hartigan and Hartigan, Annals of Statistics 13, 1985), by convex minorant and concave majorant
    around a modal interval that shrinks to where they are farthest apart. Equal values count as
    spread."""
    x, counts = np.unique(values, return_counts=True)
    middle = (np.cumsum(counts) - counts / 2) / values.size
    before, after = middle - 0.5 / values.size, middle + 0.5 / values.size
    first, last, farthest = 0, x.size - 1, 1 / values.size
    while True:
        inside = slice(first, last + 1)
        convex, concave = _hull(x[inside], before[inside]), _hull(x[inside], -after[inside])
        minorant = np.interp(x[inside], x[inside][convex], before[inside][convex])
        majorant = np.interp(x[inside], x[inside][concave], after[inside][concave])
        gap = majorant - minorant
        widest = int(convex[np.argmax(gap[convex])])
        other = int(concave[np.argmax(gap[concave])])
        if max(gap[widest], gap[other]) <= farthest:
            return farthest / 2
        if gap[widest] >= gap[other]:
            left, right = widest, int(concave[np.searchsorted(concave, widest)])
        else:
            left, right = int(convex[np.searchsorted(convex, other, side="right") - 1]), other
        farthest = max(farthest, float((after[inside] - minorant)[:left + 1].max()),
                       float((majorant - before[inside])[right:].max()))
        if (left, right) == (0, last - first):
            return farthest / 2
        first, last = first + left, first + right


def _hull(x: Values, y: Values) -> npt.NDArray[np.int64]:
    kept: list[int] = []
    xs, ys = x.tolist(), y.tolist()
    for new in range(len(xs)):
        while len(kept) > 1:
            middle, start = kept[-1], kept[-2]
            if (ys[middle] - ys[start]) * (xs[new] - xs[middle]) < (
                    ys[new] - ys[middle]) * (xs[middle] - xs[start]):
                break
            kept.pop()
        kept.append(new)
    return np.array(kept, dtype=np.int64)

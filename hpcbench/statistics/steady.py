"""Where the steady state begins, and whether it stays steady.

Nothing is removed here: a cut, a trend or a change point is a finding about values that are kept.
The tests need no distribution. Dependence between successive values (`dependence`) is estimated
without the trend or the step, and makes a finding less likely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpcbench.statistics.dependence import dependence, normal_of_t, ranks
from hpcbench.statistics.order import Values, median, medians

BATCH = 5
"""Iterations in a batch of MSER-5 (White, Cobb and Spratt 2000)."""
MIN_N_STEADY = 20
"""Four batches; from fewer nothing is cut."""
CUT_TOLERANCE = 0.05
CUT_Z = 2.576
SIGNIFICANT_P = 0.01
MIN_TREND = 0.02
"""Of the median, over the whole series: a smaller drift is not worth a flag."""
MIN_STEP = 0.05
"""Of the smaller median, between the two sides of a change point."""
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


def steady_from(values: Values) -> int:
    """Return the index of the first value of the steady state, at most n / 2; 0 if none is cut.

    MSER-5 takes, of all cuts after whole batches of 5, the one with the least
    sum (y - mean)^2 / (number of y)^2 over the batches y after it. Three changes: a batch counts
    by its median, not its mean, since a stall is no warm-up. Of cuts within 5 % of the least the
    first is taken. In flat data the least is anywhere. So there is a cut only if the first 5
    values rank otherwise than those after it (rank sum, p < 0.01).
    """
    if values.size < MIN_N_STEADY:
        return 0
    cut = BATCH * _mser_batches(_block_medians(values, BATCH))
    if not cut:
        return 0
    start_and_rest = np.concatenate([values[:BATCH], values[cut:]])
    return cut if abs(_rank_sum_z(start_and_rest, BATCH)) > CUT_Z else 0


def _mser_batches(batches: Values) -> int:
    """Return how many leading batches to cut so that the mean of the rest is known best."""
    backwards = (batches - batches.mean())[::-1]
    count = np.arange(1, batches.size + 1)
    spread = np.cumsum(backwards ** 2) - np.cumsum(backwards) ** 2 / count
    score = (np.maximum(spread, 0) / count ** 2)[::-1][:batches.size // 2 + 1]
    rounding = 1e-12 * score.max()
    return int(np.argmax(score <= (1 + CUT_TOLERANCE) * score.min() + rounding))


def _rank_sum_z(values: Values, first: int) -> float:
    """Return the normal score of Wilcoxon's rank sum of the ``first`` values."""
    n = values.size
    excess = float(ranks(values)[:first].sum()) - first * (n + 1) / 2
    return excess / math.sqrt(first * (n - first) * (n + 1) / 12)


def _block_medians(values: Values, length: int) -> Values:
    """Return the medians of successive blocks; what is left at the end joins no block."""
    count = values.size // length
    return medians(values[:count * length].reshape(count, length))


def trend(values: Values) -> Trend | None:
    """Return the drift of ``values`` (n,), or None for n < 30.

    Slope of Theil and Sen, test of Mann and Kendall with the variance for dependent values
    (Hamed and Rao 1998; their estimate is replaced by that of `dependence`). Significant if
    p < 0.01 and the drift over the series exceeds 2 % of the median.
    """
    if values.size < MIN_N_TEST:
        return None
    points = _block_medians(values, -(-values.size // MAX_POINTS))
    n, middle = points.size, median(points)
    earlier, later = np.triu_indices(n, 1)
    differences = points[later] - points[earlier]
    slope = median(differences / (later - earlier))
    score = abs(float(np.sign(differences).sum()))
    spread = _kendall_variance(points)
    rest = points - slope * np.arange(n)
    z = _normal_score(max(score - 1, 0) / math.sqrt(spread), rest) if spread > 0 else 0.0
    p = math.erfc(z / math.sqrt(2))
    change = slope * n / middle if middle else 0.0
    return Trend(change, p, p < SIGNIFICANT_P and abs(change) > MIN_TREND)


def _normal_score(score: float, rest: Values) -> float:
    """Return what a score would be were its values independent.

    ``rest`` is the series without the trend or step: its dependence is estimated, and the
    uncertainty of that estimate counts as that of Student's t.
    """
    estimate = dependence(rest, ranks(rest))
    if estimate.degrees is None:
        return score
    return normal_of_t(score / math.sqrt(estimate.inflation), estimate.degrees)


def _kendall_variance(values: Values) -> float:
    """Return the variance of Kendall's score of independent values, with ties (Kendall 1975)."""
    n = values.size
    _, ties = np.unique(values, return_counts=True)
    return float(n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18


def change_point(values: Values) -> ChangePoint | None:
    """Return the step in ``values`` (n,), or None where there is none worth a flag.

    Pettitt's test (1979) shows whether there is one: p = 2 exp(-6 K^2 / (n^3 + n^2)), which is
    2 exp(-z^2 / 2) in the normal score z of K. It is at the largest of the same rank sums over
    their standard deviations, 5 values or more from the ends. K itself would lie beside a step
    that is not in the middle. Flagged if p < 0.01 and the medians of the two sides differ by at
    least 5 % of the smaller. A drift is a step, too; `trend` shows it.
    """
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

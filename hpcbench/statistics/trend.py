"""Whether a short series of runs rises or falls steadily, with an error rate that is known.

Kendall's tau is the share of pairs of runs in which the later one is longer, less the share in
which it is shorter. A test for independent values would alarm far too often: runs near each other
share disturbances, and all runs of one process share its conditions. So the limits of tau are such
that no stationary series tried exceeds them in more than 1 of 100 cases: Gaussian values of
neighbour correlation 0 to 0.9, two modes that hold for 3 or 10 runs, and groups of runs with a
level each (benchmarks/error_rates.py). The price is power: steps and humps are not seen.

How much a short series rises or falls from its begin to its end, with an interval and a chance.

The line is that of Theil and Sen; the interval follows from the exact distribution of Kendall's
statistic (Sen, Journal of the American Statistical Association 63, 1968). Both take values as
independent. `drift.steady_drift` adds a limit for those that depend on one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpcbench.statistics.order import Values, median, medians

FEWEST_RUNS = 8
"""Seven runs of a stationary series rise by chance in more than 1 of 100 cases."""
LIMITS = ((32, 0.81), (20, 0.85), (12, 0.92), (FEWEST_RUNS, 0.95))
"""From so many runs on, the |tau| that a drift needs; the most runs first."""
LEAST_CHANGE = 0.03
"""Of the median, over the whole series: a smaller drift is not worth a finding."""
MAX_POINTS = 64
"""A longer series is judged by the medians of equal blocks."""


@dataclass(frozen=True, slots=True)
class Drift:
    """``change`` is that of the line of Theil and Sen over the series, relative to the median."""

    change: float
    tau: float
    significant: bool


def steady_drift(values: Values, at: Values) -> Drift | None:
    """Return the drift of ``values`` (run,) above 0, taken at times ``at`` (run,) that ascend.

    The result is None for fewer than FEWEST_RUNS runs.
    """
    length = -(-values.size // MAX_POINTS)
    count = values.size // length if length else 0
    if count < FEWEST_RUNS:
        return None
    points, times = (medians(series[:count * length].reshape(count, length))
                     for series in (values, at))
    earlier, later = np.triu_indices(count, 1)
    differences, gaps = points[later] - points[earlier], times[later] - times[earlier]
    tau = float(np.sign(differences).mean())
    slope = median(differences[gaps > 0] / gaps[gaps > 0]) if np.any(gaps > 0) else 0.0
    change = slope * float(at[-1] - at[0]) / median(values)
    limit = next(limit for fewest, limit in LIMITS if count >= fewest)
    return Drift(change, tau, abs(tau) >= limit and abs(change) > LEAST_CHANGE)


LEVEL = 0.99
MOST_VALUES = 200
"""The exact chances of a longer series take too long."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through a series.

    ``change`` is its change from the first value to the last, relative to the median; ``low`` to
    ``high`` is its 99 % interval. ``chance`` is how likely independent values rise or fall so
    steadily. ``is_steady``: a stationary series hardly does so even if neighbours are alike, and
    the change is more than the least one (`statistics.drift`).
    """

    change: float
    low: float
    high: float
    tau: float
    chance: float
    is_steady: bool


def trend(values: Values, at: Values) -> Trend | None:
    """Return the trend of values above 0 taken at times that ascend; None of too few or many."""
    if not FEWEST_RUNS <= values.size <= MOST_VALUES:
        return None
    steady = steady_drift(values, at)
    assert steady is not None
    earlier, later = np.triu_indices(values.size, 1)
    slopes = np.sort((values[later] - values[earlier]) / (at[later] - at[earlier]))
    score = abs(int(np.sign(values[later] - values[earlier]).sum()))
    limit = _limit(values.size)
    cut = max((slopes.size - limit) // 2 - 1, 0)
    scale = float(at[-1] - at[0]) / median(values)
    return Trend(median(slopes) * scale, float(slopes[cut]) * scale,
                 float(slopes[slopes.size - 1 - cut]) * scale, steady.tau,
                 _chance(values.size, score), steady.significant)


@lru_cache(maxsize=64)
def _tails(n: int) -> tuple[float, ...]:
    """Return P(at least k pairs are in order) of n independent values, by k from 0."""
    shares = np.ones(1)
    for size in range(2, n + 1):
        shares = np.convolve(shares, np.full(size, 1 / size))
    return tuple(np.cumsum(shares[::-1])[::-1].tolist())


def _chance(n: int, score: int) -> float:
    """Return how likely |pairs in order - pairs in disorder| is so high, or higher."""
    pairs = n * (n - 1) // 2
    return min(1.0, 2 * _tails(n)[(pairs + score + 1) // 2])


def _limit(n: int) -> int:
    """Return the score that independent values exceed with at most 1 - LEVEL."""
    pairs = n * (n - 1) // 2
    return next((score for score in range(pairs % 2, pairs + 1, 2)
                 if _chance(n, score + 2 if score + 2 <= pairs else pairs) <= 1 - LEVEL), pairs)

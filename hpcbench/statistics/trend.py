"""How much a short series rises or falls from its begin to its end, with an interval and a chance.

The line is that of Theil and Sen; the interval follows from the exact distribution of Kendall's
statistic (Sen, Journal of the American Statistical Association 63, 1968). Both take values as
independent. `drift.steady_drift` adds a limit for those that depend on one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpcbench.statistics.drift import FEWEST_RUNS, steady_drift
from hpcbench.statistics.order import Values, median

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

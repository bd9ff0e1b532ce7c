"""Order statistics, and the numbers of values that they need; intervals; Student's t.

Percentiles are interpolated linearly between order statistics (Hyndman and Fan 1996, type 7, the
default of ``numpy.percentile``), so that anyone can recompute a printed number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.distributions import distributions

MIN_N_P5_P95 = 20
"""Below 20 values p5 and p95 would lie between an extreme value and its neighbour."""
MIN_N_P99 = 100
"""Below 100 values p99 would lie between the largest value and its neighbour."""

OUTLIER_MADS = 10

Values = npt.NDArray[np.float64]


def median(values: npt.NDArray[Any]) -> float:
    """Return the middle value, or the mean of the two in the middle. ``values`` is not empty."""
    return float(medians(values))


def medians(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return ``numpy.median`` along the last axis in a tenth of the time. ``values`` are finite,
    not empty. The lower middle is the greatest of the lower half: numpy's search for both has no
    vector instructions."""
    middle = values.shape[-1] // 2
    ordered = np.array(values, order="C")  # columns that were chosen may lie one after another
    ordered.partition(middle, axis=-1)
    upper = ordered[..., middle].astype(np.float64)
    if values.shape[-1] % 2:
        return upper
    return np.asarray((ordered[..., :middle].max(axis=-1) + upper) / 2, dtype=np.float64)


def percentiles(values: Values, percents: Sequence[float]) -> list[float]:
    """Return the values below which so many per cent lie; linear, type 7."""
    return [*map(float, np.percentile(values, percents))]


def percentiles_if_enough(values: Values, percents: Sequence[float]) -> list[float | None]:
    return [value if values.size >= values_needed(percent) else None
            for value, percent in zip(percentiles(values, percents), percents, strict=True)]


def values_needed(percent: float) -> int:
    distance = min(percent, 100 - percent)
    if distance < 5:
        return MIN_N_P99
    return MIN_N_P5_P95 if distance < 25 else 1


def high_outliers(values: Values) -> npt.NDArray[np.bool_]:
    """Return which of ``values`` (n,) exceed the median by more than 10 times the (unscaled) MAD: a
    flag, they stay in every statistic."""
    above = values - median(values)
    flagged: npt.NDArray[np.bool_] = above > OUTLIER_MADS * median(np.abs(above))
    return flagged


@dataclass(frozen=True, slots=True)
class Interval:
    """A value; ``low`` to ``high`` is its interval, both None without one, of its maker's level."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        return (-math.inf if self.low is None else self.low,
                math.inf if self.high is None else self.high)

    def holds(self, *values: float) -> bool:
        """Return whether all ``values`` lie in the interval; any do without one."""
        low, high = self.ends
        return all(low <= value <= high for value in values)

    def map(self, function: Callable[[float], float]) -> Interval:
        """Return the interval of a monotonic function of the value."""
        if self.low is None or self.high is None:
            return Interval(function(self.value))
        low, high = sorted((function(self.low), function(self.high)))
        return Interval(function(self.value), low, high)


def t_tail(t: float, degrees: float) -> float:
    """Return P(T > t) for Student's t with so many degrees of freedom, 1 at least."""
    return float(distributions().stdtr(degrees, -t))


def t_quantile(tail: float, degrees: float) -> float:
    """Return the t that is exceeded with a chance of ``tail``, above 0 and at most 1/2."""
    return -float(distributions().stdtrit(degrees, tail))

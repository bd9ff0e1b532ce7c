"""Whether times follow a condition that was read beside them, and how much of them it accounts for.

Both are of passes. The condition is given as the slowdown that it would cause if nothing else
counted: a clock that is 10 % lower makes work at most 1 / 0.9 times as long. So the slope of the
logarithm of times over that of the slowdown is 1 where the condition is the cause, less where only
a part of the work feels it, and more where something else changes with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpcbench.statistics.order import Values
from hpcbench.statistics.student import t_quantile, t_tail

FEWEST_PASSES = 5
"""Fewer leave one or two degrees of freedom, with which nothing but a coincidence is clear."""
LEAST_RANGE = 0.01
"""A condition that changes by less over the passes tells nothing."""
_TAIL, _MOST = 0.005, 50.0


@dataclass(frozen=True, slots=True)
class Accounted:
    """How times follow a condition.

    Attributes:
        effect: by how much the time rises from the least to the greatest slowdown, as a share;
            ``low`` to ``high`` is its 99 % interval.
        share: which share of the rise the condition can account for, 1 at most.
        fit: which share of the variance of the times lies on the line.
        chance: how likely times that do not follow it seem to do so as surely.
    """

    effect: float
    low: float
    high: float
    share: float
    fit: float
    chance: float


def accounted(times_s: Values, slowdowns: Values) -> Accounted | None:
    """Return how times (pass,) follow slowdowns (pass,), 1 of none; None where nothing can tell."""
    n = times_s.size
    if n < FEWEST_PASSES or np.ptp(np.log(slowdowns)) < LEAST_RANGE:
        return None
    x, y = np.log(slowdowns), np.log(times_s)
    span = float(np.ptp(x))
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    left = float(((y - slope * x) ** 2).sum())
    error = math.sqrt(max(left, 1e-18) / (n - 2) / float(x @ x))
    half = t_quantile(_TAIL, n - 2) * error
    whole = float(y @ y)
    effect, low, high = (math.expm1(min(value * span, _MOST))
                         for value in (slope, slope - half, slope + half))
    return Accounted(effect, low, high, min(1.0, 1 / slope) if slope > 0 else 0.0,
                     1 - left / whole if whole > 0 else 0.0, t_tail(slope / error, n - 2))

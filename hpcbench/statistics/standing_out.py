"""Whether one of several equal ranks takes longer than all others, with a known error rate.

Steps share disturbances with their neighbours, and all steps of a pass with one another: a rank
may share its core with something for the whole of it. So a pass is one observation, however many
steps it has. The medians of ranks in passes are compared as in a two-way layout: what a rank takes
longer in some passes and not in others is the error (Scheffe, The Analysis of Variance, 4.2).

Passes depend on their neighbours, too: a rank that shares its core now will probably do so in the
next pass. The error is that of an AR(1) process (`Passes`). Its correlation is the largest that
what ranks differ by leaves possible, at most `MOST_CORRELATION`: nine passes of two ranks leave all
of that possible, twenty of four ranks much less.

A rank stands out if it is apart from *each* other rank, so from the next one: ranks that share a
core are slow together, and none of them is the slow one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.order import medians
from hpcbench.statistics.student import t_quantile, t_tail

MIN_PASSES, MIN_STEPS = 3, 5
"""Two passes leave two ranks one degree of freedom, with which only what is 800 times its error
passes a corrected test. The median of 5 steps ignores two that are disturbed."""
LEVEL = 0.99
"""Of the interval of the difference."""
MOST_CORRELATION, OF_TWO_RANKS = 0.85, 0.9
"""Of neighbouring passes, that is reckoned with; of two ranks, whose tail is exact, the second one.
They keep false alarms at 1 % of reports where passes correlate by up to 0.9
(`benchmarks/dependent_passes.py`)."""
_UNLIKELY = 1e-4
"""A correlation is ruled out if as little would be seen this rarely."""
_STEPS = 20
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Standing:
    """The rank that takes longest, beside the one that takes the next longest.

    Attributes:
        row, next_row: which they are.
        apart_s: the mean over passes of the difference of their medians.
        low_s, high_s: its interval of level `LEVEL`.
        chance: how likely any one of equal ranks is this surely more than ``least_s`` apart.
        correlation: of neighbouring passes, that this reckons with.
    """

    row: int
    next_row: int
    apart_s: float
    low_s: float
    high_s: float
    chance: float
    correlation: float = 0.0


@dataclass(frozen=True, slots=True)
class Passes:
    """What the mean over passes of an AR(1) process is known by, from the passes themselves.

    ``inflation``: n times the variance of the mean over the variance that the passes show in the
    mean. ``degrees``: how many independent values would show it as well (Satterthwaite 1946).
    """

    inflation: float
    degrees: float


@lru_cache(maxsize=1024)
def correlated_passes(n: int, correlation: float) -> Passes:
    """Return what so many passes, whose neighbours correlate so much, tell of their mean."""
    covariance = _covariance(n, correlation)
    seen = (np.eye(n) - 1 / n) @ covariance
    shown = float(np.trace(seen))
    return Passes(float(covariance.sum()) / n / (shown / (n - 1)),
                  shown ** 2 / float(np.trace(seen @ seen)))


def largest_correlation(apart_s: Times) -> float:
    """Return the largest correlation of neighbouring passes that ``apart_s`` leaves possible.

    It is (rank, pass), without the means of ranks and of passes. At most `MOST_CORRELATION`.
    """
    ranks, n = apart_s.shape
    squares = float((apart_s ** 2).sum())
    if squares <= 0:
        return MOST_CORRELATION
    seen = float((apart_s[:, 1:] * apart_s[:, :-1]).sum()) / squares
    tried = [MOST_CORRELATION * step / _STEPS for step in range(_STEPS + 1)]
    low, high = 0, _STEPS
    while low < high:  # the first that is ruled out, or the last of all
        middle = (low + high) // 2
        ruled_out = _chance_of_less(seen, n, tried[middle], ranks - 1) < _UNLIKELY
        low, high = (low, middle) if ruled_out else (middle + 1, high)
    return tried[low]


def _chance_of_less(seen: float, n: int, correlation: float, ranks: int) -> float:
    """Return how likely the neighbours of n passes of so many ranks correlate less than ``seen``.

    They do where a quadratic form is negative.
    """
    lag = np.diag(np.full(n - 1, 0.5), 1)
    centre = np.eye(n) - 1 / n
    return 1 - _chance_above_0(
        centre @ (lag + lag.T - seen * np.eye(n)) @ centre, n, correlation, ranks)


def tail_of_two(t: float, n: int, correlation: float) -> float:
    """Return P(T > t) of the mean of n passes over its error as the passes show it, exactly.

    Student's t of as many degrees of freedom has tails that are far too long.
    """
    if not math.isfinite(t) or t <= 0:
        return 0.0 if t > 0 else 0.5
    centre = np.eye(n) - 1 / n
    return _chance_above_0(
        np.full((n, n), n ** -2.0) - t * t / (n * (n - 1)) * centre, n, correlation, 1) / 2


@lru_cache(maxsize=1024)
def _quantile_of_two(tail: float, n: int, correlation: float) -> float:
    low, high = 0.0, 1.0
    while tail_of_two(high, n, correlation) > tail:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tail_of_two(middle, n, correlation) > tail else (low, middle)
    return high


def _chance_above_0(form: Times, n: int, correlation: float, ranks: int) -> float:
    """Return how likely a quadratic form of n correlated normal values, of ranks alike, is above 0.

    Imhof (Biometrika 48, 1961), the integral over the logarithm of u; within 1e-8.
    """
    root = np.linalg.cholesky(_covariance(n, correlation))
    weights = np.linalg.eigvalsh(root.T @ form @ root)
    u = np.geomspace(1e-9, 1e9, 1200)
    turned = np.outer(u, weights / np.abs(weights).max())
    angle = ranks / 2 * np.arctan(turned).sum(axis=1)
    damping = ranks / 4 * np.log1p(turned ** 2).sum(axis=1)
    values = np.sin(angle) * np.exp(-damping)
    step = math.log(u[1] / u[0])
    return 0.5 + float((values[1:] + values[:-1]).sum()) / 2 * step / math.pi


def _covariance(n: int, correlation: float) -> npt.NDArray[np.float64]:
    passes = np.arange(n)
    return np.asarray(float(correlation) ** np.abs(passes[:, None] - passes[None, :]))


def are_enough(passes: Sequence[int]) -> bool:
    """Return whether passes of so many steps each can tell whether a rank stands out."""
    return len(passes) >= MIN_PASSES and min(passes) >= MIN_STEPS


def pass_medians(times_s: Times, passes: Sequence[int]) -> Times | None:
    """Return the medians of times (rank, step) in each pass, (rank, pass), if they `are_enough`.

    ``passes`` are the numbers of steps of each pass, in order.
    """
    if not are_enough(passes):
        return None
    ends = np.cumsum(passes)
    return np.stack([medians(times_s[:, end - length:end])
                     for end, length in zip(ends, passes, strict=True)], axis=1)


def standing(medians_s: Times, least_s: float) -> Standing:
    """Return which of several ranks takes longest, from its medians, (rank, pass).

    Raises ValueError for fewer than two ranks or passes.
    """
    ranks, passes = medians_s.shape
    if min(ranks, passes) < 2:
        raise ValueError(f"{ranks} ranks and {passes} passes: both take two at least")
    row, next_row = (int(one) for one in np.argsort(-medians_s.mean(axis=1), kind="stable")[:2])
    apart = medians_s - medians_s.mean(axis=0)
    apart -= apart.mean(axis=1, keepdims=True)
    between = medians_s[row] - medians_s[next_row]
    variance = max(2 * float((apart ** 2).sum()) / ((ranks - 1) * (passes - 1)),
                   float(between.var(ddof=1)))
    correlation = largest_correlation(apart)
    mistaken = _UNLIKELY if correlation < MOST_CORRELATION else 0.0
    apart_s, deviation_s = float(between.mean()), float(np.sqrt(variance / passes))
    if ranks == 2:
        correlation = correlation if mistaken else OF_TWO_RANKS
        half_s = _quantile_of_two((1 - LEVEL) / 2, passes, correlation) * deviation_s
        tail = partial(tail_of_two, n=passes, correlation=correlation)
    else:
        known = correlated_passes(passes, correlation)
        deviation_s, degrees = deviation_s * math.sqrt(known.inflation), known.degrees * (ranks - 1)
        half_s = t_quantile((1 - LEVEL) / 2, degrees) * deviation_s
        tail = partial(t_tail, degrees=degrees)
    far = (apart_s - least_s) / deviation_s if deviation_s > 0 else (
        np.inf if apart_s > least_s else -np.inf)
    chance = ranks * tail(float(far)) + (mistaken if deviation_s > 0 else 0.0)
    return Standing(row, next_row, apart_s, apart_s - half_s, apart_s + half_s,
                    min(1.0, max(0.0, chance)), correlation)

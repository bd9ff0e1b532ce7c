"""By how many ranks the count of values below the median may be off half of them.

Three views of how much successive values depend on one another; the one that asks for the widest
interval counts. None of them is a test that has to be passed: a correlation that may be chance
widens the interval a little, instead of not at all below a threshold and in full above it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcbench.statistics.dependence import (
    MAX_CORRELATION,
    Estimate,
    inflation_of_signs,
    is_significant,
    num_segments,
    rank_correlation,
    spectral_inflation,
)
from hpcbench.statistics.order import Values, median

LEAST_DEGREES = 4.0
"""Fewer would widen everything, and the approximation of Student's t ends there."""
STATE_Z = 3.0
"""How far a threshold's correlation lies above that of an AR(1) process, in standard errors."""
MIN_IN_STATE = 5
"""Fewer values above or below a threshold are no state."""
MIN_VISITS = 10.0
"""Visits of a state; with fewer the shares of the states, and so the median, are hardly known."""


@dataclass(frozen=True, slots=True)
class States:
    """Values that stay above or below a threshold for longer than any AR(1) process does.

    ``correlation`` is that of neighbours being above it, ``visits`` how often it was entered.
    """

    correlation: float
    visits: float
    estimate: Estimate


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
    estimates = [Estimate(1.0), *_of_correlation(values, correlation, segments, depends)]
    if states:
        estimates.append(states.estimate)
    widest = max(estimates, key=lambda one: one.half_width(n, level))
    half_width = 0.0 if widest.inflation <= 1 else widest.half_width(n, level)
    return CountBelow(half_width, widest.inflation, correlation, states)


def _of_correlation(values: Values, correlation: float, segments: Sequence[int],
                    depends: bool) -> Iterator[Estimate]:
    """Yield what an AR(1) process of that correlation has, and what the spectrum shows."""
    n = values.size
    if correlation > 0:
        yield Estimate(inflation_of_signs(correlation, n / num_segments(segments)),
                       correlation_degrees(correlation, n))
    if depends:
        inflation, num_cosines = spectral_inflation(np.sign(values - median(values)),
                                                    correlation)
        if inflation > 1:  # its few degrees of freedom alone speak for no dependence
            yield Estimate(inflation, num_cosines)


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

    A chain of two states, of which the upper one has share p and neighbours correlate by r, adds
    2 s r / (1 - r) to the inflation of the signs about the median. The squared correlation of being
    above the threshold and above the median is s = min(p, 1 - p) / max(p, 1 - p).
    """
    n = ranked.size
    upper = ranked > _thresholds(values, n)[:, np.newaxis]
    changed = upper[:, 1:] != upper[:, :-1]
    if len(segments) > 1:
        borders = np.cumsum(segments)[:-1]
        changed = np.delete(changed, borders[(borders > 0) & (borders < n)] - 1, axis=1)
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


def _thresholds(values: Values, n: int) -> Values:
    """Return ranks to part values at: every twentieth of them, and the widest gap between two."""
    gaps = np.diff(np.sort(values))[MIN_IN_STATE - 1:n - MIN_IN_STATE]
    widest = MIN_IN_STATE + int(np.argmax(gaps)) if gaps.size else n // 2
    return np.append(n * np.arange(1, 20) / 20, widest + 0.5)


def _state(share: float, biased: float, visits: float, n: int) -> States:
    correlation = min((n * biased + 1) / (n - 3), MAX_CORRELATION)
    nested = min(share, 1 - share) / max(share, 1 - share)
    inflation = 1 + 2 * nested * max(0.0, correlation) / (1 - correlation)
    return States(correlation, visits, Estimate(inflation, max(LEAST_DEGREES, visits)))

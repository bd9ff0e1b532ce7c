"""How well a median is known: its interval over samples, passes or launches, and launches' range.

Samples of one launch share its conditions. So the interval of a median of several launches is made
of the medians of launches, each of which counts once (`statistics.launches`). Passes of one launch
have conditions of their own, too. Where these, or samples that depend on one another, leave no
sound interval of samples, the unit is the pass. Fewer than 8 do not show whether they differ: their
interval always reaches as far as their medians ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcbench.statistics.drift import FEWEST_RUNS, steady_drift
from hpcbench.statistics.interval import (
    MIN_N_RELIABLE,
    PASSES_DIFFER,
    Interval,
    passes_differ,
)
from hpcbench.statistics.launches import over_launches
from hpcbench.statistics.order import Values, median
from hpcbench.statistics.student import t_quantile

CI_LEVEL = 0.95
SAMPLES, PASSES, LAUNCHES = "samples", "passes", "launches"
FEWEST_SAMPLES = FEWEST_LAUNCHES = 6
"""Fewer values hold no interval of CI_LEVEL."""
FEWEST_PASSES = FEWEST_RUNS
"""Of fewer nothing tells whether they drift."""
SEEN_TO_DIFFER = 0.1
"""Eight passes and more that differ with this p-value are the unit. With 1 %, differences of a half
of the samples' spread went unseen, and 91 % of intervals held the median (simulated)."""
MOST_SPREAD = 2.0
"""An interval of few passes that reaches this factor to either side is no interval."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The fields of `results.Statistics` and `results.Timing` of the same names, and those below.

    ``low_s`` and ``high_s`` are the interval; ``unit`` is one of SAMPLES, PASSES, LAUNCHES.
    """

    low_s: float | None = None
    high_s: float | None = None
    reliable: bool = False
    unit: str = SAMPLES
    rank: int | None = None
    launch_low_s: float | None = None
    launch_high_s: float | None = None
    launch_level: float | None = None


def over_samples(interval: Interval | None) -> Precision:
    """Return what this interval over samples says; None: there are too few for one."""
    if interval is None:
        return Precision()
    return Precision(interval.low, interval.high, interval.reliable, rank=interval.rank)


def over_launch_medians(median_s: float, medians_s: Sequence[float]) -> Precision:
    """Return the interval over launches with these medians, two or more, and their range.

    It is widened to ``median_s``, the median over the samples of all, where that lies outside.
    """
    found = over_launches(np.array(medians_s), CI_LEVEL)
    launch_range = Precision(unit=LAUNCHES, launch_low_s=found.low, launch_high_s=found.high,
                             launch_level=found.level)
    if found.rank is None:
        return launch_range
    low_s, high_s = _ends(median_s, medians_s, found.rank)
    return Precision(
        low_s, high_s, True, LAUNCHES, found.rank, found.low, found.high, found.level)


def over_pass_medians(median_s: float, medians_s: Sequence[float]) -> Precision | None:
    """Return the interval over passes with these medians; None for too few, or passes that drift.

    The median over passes is that of whatever else passes could have met, if they are in no order.
    """
    medians = np.array(medians_s)
    drift = steady_drift(medians, np.arange(float(medians.size)))
    if drift is None or drift.significant:
        return None
    rank = over_launches(medians, CI_LEVEL).rank
    return None if rank is None else Precision(
        *_ends(median_s, medians_s, rank), True, PASSES, rank)


def over_few_passes(median_s: float, medians_s: Sequence[float], interval: Interval) -> Precision:
    """Return the interval over samples, widened to what 2 to 7 passes say of others like them.

    Of 6 and 7 passes that is the range of their medians, of fewer Student's interval of the
    logarithms (t with n - 1 degrees of freedom). Unreliable where that tells nothing.
    """
    unreliable = Precision(interval.low, interval.high, rank=interval.rank)
    if min(medians_s) <= 0:
        return unreliable
    logs = np.log(medians_s)
    middle, half = logs.mean(), np.ptp(logs) / 2
    if logs.size >= FEWEST_LAUNCHES:
        middle = logs.min() + half
    else:
        half = t_quantile((1 - CI_LEVEL) / 2, logs.size - 1) * logs.std(ddof=1) / logs.size ** 0.5
    if half > np.log(MOST_SPREAD):
        return unreliable
    low_s = min(interval.low, median_s, float(np.exp(middle - half)))
    high_s = max(interval.high, median_s, float(np.exp(middle + half)))
    unit = SAMPLES if (low_s, high_s) == (interval.low, interval.high) else PASSES
    return Precision(low_s, high_s, True, unit, interval.rank)


def _ends(median_s: float, medians_s: Sequence[float], rank: int) -> tuple[float, float]:
    """Return the medians of this rank from either end, or the median of all where that is outside.
    """
    ordered = sorted(medians_s)
    return min(ordered[rank - 1], median_s), max(ordered[-rank], median_s)


def precision_of(
    times_s: Sequence[Values], interval: Interval | None, launch_medians_s: Sequence[float], *,
    repeats: bool,
) -> Precision:
    """Return how well the median of samples is known, whose ``interval`` over samples is given.

    ``times_s`` are those of each pass. ``repeats``: what is called launches ran in the same
    processes, and says nothing of others.
    """
    median_s = median(np.concatenate(times_s))
    if len(launch_medians_s) > 1 and not repeats:
        return over_launch_medians(median_s, launch_medians_s)
    known, medians_s = over_samples(interval), [median(part) for part in times_s if part.size]
    if interval is None or sum(part.size for part in times_s) < MIN_N_RELIABLE:
        return known
    if len(medians_s) >= FEWEST_PASSES:
        alike = known.reliable and not passes_differ(
            np.concatenate(times_s), [part.size for part in times_s], SEEN_TO_DIFFER)
        return known if alike else over_pass_medians(median_s, medians_s) or known
    if len(medians_s) < 2 or interval.reason not in ("", PASSES_DIFFER):
        return known
    return over_few_passes(median_s, medians_s, interval)

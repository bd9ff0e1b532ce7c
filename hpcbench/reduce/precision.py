"""How well a median is known: its interval over samples or over launches, and the launches' range.

Samples of one launch share its conditions. So the interval of a median of several launches is made
of the medians of launches, each of which counts once (`statistics.launches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcbench.statistics.interval import Interval
from hpcbench.statistics.launches import over_launches

CI_LEVEL = 0.95
SAMPLES, LAUNCHES = "samples", "launches"
FEWEST_SAMPLES = FEWEST_LAUNCHES = 6
"""Fewer values hold no interval of CI_LEVEL."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The fields of `results.Statistics` and `results.Timing` of the same names, and those below.

    ``low_s`` and ``high_s`` are the interval; ``unit`` is SAMPLES or LAUNCHES.
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
    ordered = sorted(medians_s)
    return Precision(
        min(ordered[found.rank - 1], median_s), max(ordered[-found.rank], median_s), True,
        LAUNCHES, found.rank, found.low, found.high, found.level)


def precision_of(
    median_s: float, interval: Interval | None, launch_medians_s: Sequence[float], *,
    repeats: bool,
) -> Precision:
    """Return how well a median of samples is known, whose ``interval`` over samples is given.

    ``repeats``: what is called launches ran in the same processes, and says nothing of others.
    """
    if len(launch_medians_s) > 1 and not repeats:
        return over_launch_medians(median_s, launch_medians_s)
    return over_samples(interval)

"""Which of several ways to do the same thing takes the shortest time, where that is clear.

Two medians are compared by their 95 % intervals, as two estimates of which only these are known:
their distance over the root of the sum of the squares of the sides that face each other is that of
a normal variable over 1.96 (Altman and Bland, BMJ 2011;343:d2304). Logarithms are compared, because
times of different ways differ by factors. All races of a report are one family of tests
(`reduce.comparison`). What differs between jobs no single job can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import erfc, exp, hypot, log, sqrt

from hpcbench.reduce.comparison import Comparison, settled
from hpcbench.reduce.results import CaseResult, Statistics
from hpcbench.reduce.spread import interval_share

_Z = 1.96
"""Quantile of the normal distribution that belongs to an interval of 95 %."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do something: what it is called, and its time."""

    name: str
    stats: Statistics


@dataclass(frozen=True, slots=True)
class Race:
    """Several ways to do the same thing, from the shortest median to the longest.

    ``ratio`` is by how much the second takes longer. ``can_tell`` is whether all intervals are
    sound; ``is_clear``, whether the first is clearly the fastest.
    """

    problem: str
    ways: tuple[Way, ...]
    ratio: float
    can_tell: bool
    is_clear: bool = False


def races(results: Iterable[tuple[str, str, CaseResult]]) -> Iterator[Race]:
    """Yield the races among (problem, name of the way, case); cases without times are left out."""
    of_problem: dict[str, dict[str, Way]] = {}
    for problem, name, item in results:  # several blocks may have planned the same
        if item.statistics is not None and item.statistics.median_s > 0:
            of_problem.setdefault(problem, {}).setdefault(name, Way(name, item.statistics))
    found = [_race(problem, ways.values()) for problem, ways in of_problem.items()
             if len(ways) > 1]
    judged = settled([comparison for _, comparison in found])
    for (race, _), comparison in zip(found, judged, strict=True):
        yield replace(race, is_clear=comparison.is_clear)


def _race(problem: str, ways: Iterable[Way]) -> tuple[Race, Comparison]:
    ordered = tuple(sorted(ways, key=lambda way: way.stats.median_s))
    first, others = ordered[0].stats, [way.stats for way in ordered[1:]]
    ratio = others[0].median_s / first.median_s
    if any(interval_share(way.stats) is None for way in ordered):
        return Race(problem, ordered, ratio, can_tell=False), Comparison(problem)
    chance = min(1.0, len(ordered) * max(_chance(first, other) for other in others))
    return Race(problem, ordered, ratio, can_tell=True), Comparison(problem, chance)


def _chance(shorter: Statistics, longer: Statistics) -> float:
    """Return how likely equal ways are this far apart, either way; their intervals are sound."""
    high_s, low_s = shorter.ci_high_s, longer.ci_low_s
    if high_s is None or low_s is None or not low_s > 0:
        return 1.0
    apart = log(longer.median_s / shorter.median_s)
    error = hypot(log(high_s / shorter.median_s), log(longer.median_s / low_s)) / _Z
    return erfc(apart / error / sqrt(2)) if error > 0 else float(apart == 0)


def typical_ratio(found: Iterable[Race]) -> float:
    """Return the geometric mean of the ratios of races; there is at least one."""
    logs = [log(race.ratio) for race in found]
    return exp(sum(logs) / len(logs))

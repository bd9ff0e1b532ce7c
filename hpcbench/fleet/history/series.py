"""Series of a case and metric over runs: where they change, and what changed there beside them.

Runs with the same software, hardware and placement have one fingerprint. Steps and drifts are
looked for among the runs of a fingerprint; what changes from one to the next is put down to what
differs between them. A change is never put down to a node: that takes `hunt`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hpcbench.answers.compare_inputs import SideDifference
from hpcbench.fleet.history.change_points import (
    FEWEST,
    LEVEL,
    SHORTEST,
    LevelStep,
    drift,
    level_change,
    steps,
    two_states,
    unexplained,
)
from hpcbench.fleet.history.runs import StoredRun, StoredRuns
from hpcbench.plan.choice import fitting
from hpcbench.records import dataclass
from hpcbench.statistics.hypothesis_tests import benjamini_hochberg
from hpcbench.statistics.order import Interval, Values
from hpcbench.statistics.steady import LEAST_CHANGE
from hpcbench.units import grouped

STEP, DRIFT, STATES = "step", "drift", "states"
SOFTWARE, HARDWARE, PLACEMENT = "software", "hardware", "placement"
_OF_SOFTWARE = ("versions.", "variables.", "libraries.", "kernel.", "python.", "host.system",
                "imported", "mpi", "gpu.driver", "clock")
_IF_LOADED = ("versions.", "libraries.")
"""Facts that a run states only of what it loaded."""
_OF_PLACEMENT = ("ranks", "nodes", "process.", "scheduler.")
_NAMES = "nodes"
"""The fact that names nodes; how many there are is a part of the fingerprint, which they are not.
"""
FALSE_SHARE = 0.05
"""Share of the changes shown that are none, at most (false discovery rate)."""


def sort_of(fact: str) -> str:
    """Return whether a fact is of the software, the hardware or the placement."""
    if fact.startswith(_OF_SOFTWARE):
        return SOFTWARE
    return PLACEMENT if fact.startswith(_OF_PLACEMENT) else HARDWARE


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What runs have in common. ``number`` counts from 1, by the first run."""

    number: int
    facts: Mapping[str, str]
    runs: tuple[StoredRun, ...]

    def differences(self, before: Fingerprint) -> tuple[SideDifference, ...]:
        return _differing(before.facts, self.facts)


@dataclass(frozen=True, slots=True)
class Series:
    """The values of a case and metric, the oldest first; ``fingerprints`` are their numbers."""

    key: str
    label: str
    metric: str
    runs: tuple[StoredRun, ...]
    values: tuple[float, ...]
    fingerprints: tuple[int, ...]

    @property
    def more_is_better(self) -> bool:
        return self.metric.endswith("_per_s")


@dataclass(frozen=True, slots=True)
class SeriesChange:
    """A change of a series, from its run ``at`` on.

    ``sort``: a step, a drift or two states among equal runs, or the sort of what differs between
    two fingerprints. ``size`` is relative to before, or of the upper state to the lower one, with
    its 95 % interval; ``chance`` its p-value, adjusted for all series. ``environment``: what
    differs from that run on."""

    series: Series
    sort: str
    at: int
    size: Interval
    chance: float
    environment: tuple[SideDifference, ...] = ()

    @property
    def first(self) -> StoredRun:
        """Return the first run after the change; of a drift and of states the first of all."""
        return self.series.runs[self.at]

    @property
    def is_worse(self) -> bool:
        return self.sort != STATES and (self.size.value > 0) != self.series.more_is_better


@dataclass(frozen=True, slots=True)
class RunHistory:
    """All series of some runs, and their changes by time. ``too_short`` counts series of which no
    fingerprint has enough runs to find a step among them."""

    stored: StoredRuns
    fingerprints: tuple[Fingerprint, ...]
    series: tuple[Series, ...]
    changes: tuple[SeriesChange, ...]
    too_short: int


def history_of(
    stored: StoredRuns, smallest: float, only: Sequence[str] = (),
    find: Callable[[Values], list[LevelStep]] = steps,
) -> RunHistory:
    """Return the history of runs; changes smaller than a share of ``smallest`` are left out.

    ``only``: texts that choose cases, as `fitting` takes them. ``find`` finds steps in values."""
    prints = _fingerprints(stored.runs)
    every = tuple(_series(stored, prints))
    chosen = fitting({one.key: one.label for one in every}, only) if only else None
    all_series = tuple(one for one in every if chosen is None or one.key in chosen)
    places = [_by_print(one) for one in all_series]
    tested = [[*_changes(one, by_print, prints, find)]
              for one, by_print in zip(all_series, places, strict=True)]
    # a series in which nothing was found counts as one test, too
    chances = [[change.chance for change in found] or [1.0] for found in tested]
    adjusted = iter(benjamini_hochberg([chance for group in chances for chance in group]))
    kept: list[SeriesChange] = []
    for found, group in zip(tested, chances, strict=True):
        of_series = [next(adjusted) for _ in group]
        kept += [replace(change, chance=chance) for change, chance in zip(
            found, of_series, strict=False)
            if chance <= FALSE_SHARE and abs(change.size.value) >= smallest]
    short = sum(max(map(len, by_print.values())) < FEWEST for by_print in places)
    return RunHistory(stored, prints, all_series, tuple(sorted(
        kept, key=lambda one: (one.first.began_s, one.series.label))), short)


def _fingerprints(runs: Sequence[StoredRun]) -> tuple[Fingerprint, ...]:
    """Return the fingerprints of runs in order of time. What a run does not state of its libraries
    is unknown: it has the fingerprint of the latest run that contradicts it in nothing."""
    groups: list[tuple[dict[str, str], list[StoredRun]]] = []
    latest_first: list[int] = []
    for run in runs:
        facts = _compared(run.facts)
        at = next((number for number in latest_first if _agree(groups[number][0], facts)), None)
        if at is None:
            at = len(groups)
            groups.append((facts, [run]))
        else:
            groups[at][0].update(facts)
            groups[at][1].append(run)
            latest_first.remove(at)
        latest_first.insert(0, at)
    return tuple(Fingerprint(number, facts, tuple(members))
                 for number, (facts, members) in enumerate(groups, 1))


def _agree(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    return first == second or all(
        first.get(name) == second.get(name) for name in {*first, *second}
        if not _is_unknown(name, first, second))


def _is_unknown(name: str, *sides: Mapping[str, str]) -> bool:
    """Return whether a fact is of a library that a side did not load."""
    return name.startswith(_IF_LOADED) and not all(name in facts for facts in sides)


def _compared(facts: Mapping[str, str]) -> dict[str, str]:
    """Return facts with the number of nodes in place of their names."""
    return {name: str(len(value.split())) if name == _NAMES else value
            for name, value in facts.items()}


def _series(stored: StoredRuns, prints: Sequence[Fingerprint]) -> Iterator[Series]:
    number_of = {run.run_id: one.number for one in prints for run in one.runs}
    series_of = stored.series_of()
    points = grouped(((series_of[case], metric), (run, value, number, case)) for run in stored.runs
                     for number in [number_of[run.run_id]]
                     for case, values in run.values.items() for metric, value in values.items())
    for (key, metric), found in points.items():
        *columns, cases = zip(*found, strict=True)
        yield Series(key, stored.cases[cases[-1]].label, metric, *columns)


def _by_print(series: Series) -> dict[int, list[int]]:
    """Return fingerprint -> the places of its runs in a series."""
    return grouped((number, at) for at, number in enumerate(series.fingerprints))


def _changes(
    series: Series, by_print: Mapping[int, Sequence[int]], prints: Sequence[Fingerprint],
    find: Callable[[Values], list[LevelStep]],
) -> Iterator[SeriesChange]:
    """Yield the changes among the runs of each fingerprint, and from each to the next."""
    values = np.array(series.values)
    before: tuple[int, Values] | None = None
    for number, places in by_print.items():
        own = values[[*places]]
        found = find(own)
        alternating = _states(series, places[0], own, found)
        if alternating:
            found = []
        if before is not None and min(before[1].size, own.size) >= SHORTEST:
            first = own[:found[0].index] if found else own
            yield from _between(series, places[0], (before[1], first), (
                prints[before[0] - 1], prints[number - 1]))
        if instead := alternating or _drift(series, places, own, found):
            yield instead
        else:
            yield from (SeriesChange(series, STEP, places[step.index], step.change, step.chance,
                               _changed_there(series, places, found, number))
                        for number, step in enumerate(found))
        before = number, own[found[-1].index:] if found else own


def _between(
    series: Series, at: int, levels: tuple[Values, Values],
    prints: tuple[Fingerprint, Fingerprint],
) -> Iterator[SeriesChange]:
    size, chance = level_change(*levels)
    if chance <= LEVEL:
        differing = prints[1].differences(prints[0])
        sorts = dict.fromkeys(sort_of(one.key) for one in differing)
        yield SeriesChange(series, " and ".join(sorted(sorts)), at, size, chance, differing)


def _states(
    series: Series, at: int, values: Values, found: Sequence[LevelStep],
) -> SeriesChange | None:
    """Return that values go back and forth between two levels, if that explains them better than
    the steps that were found."""
    is_upper = two_states(values, [step.index for step in found])
    if is_upper is None:
        return None
    size, _ = level_change(values[~is_upper], values[is_upper])
    return SeriesChange(series, STATES, at, size, max(step.chance for step in found))


def _drift(
    series: Series, places: Sequence[int], values: Values, found: Sequence[LevelStep],
) -> SeriesChange | None:
    """Return the drift of values that a line explains better than the steps that were found."""
    times = np.array([series.runs[at].began_s for at in places])
    if values.size < FEWEST or times[0] == times[-1]:
        return None
    size, chance = drift(values, times)
    ends = [step.index for step in found]
    if chance > LEVEL or abs(size.value) < LEAST_CHANGE or (
            unexplained(values, (), times) > unexplained(values, ends)):
        return None
    return SeriesChange(series, DRIFT, places[0], size, chance)


def _changed_there(
    series: Series, places: Sequence[int], found: Sequence[LevelStep], number: int,
) -> tuple[SideDifference, ...]:
    """Return what differs between all runs of the segments before and after a step."""
    bounds = [0, *(step.index for step in found), len(places)]
    before, after = ([series.runs[at].facts for at in places[bounds[end]:bounds[end + 1]]]
                     for end in (number, number + 1))
    return tuple(one for one in _differing(before[-1], after[0])
                 if not {facts.get(one.key) for facts in before}
                 & {facts.get(one.key) for facts in after})


def _differing(
    before: Mapping[str, str], after: Mapping[str, str],
) -> tuple[SideDifference, ...]:
    return tuple(SideDifference(key, (before.get(key, "-"), after.get(key, "-")))
                 for key in sorted({**before, **after}) if before.get(key) != after.get(key)
                 and not _is_unknown(key, before, after))

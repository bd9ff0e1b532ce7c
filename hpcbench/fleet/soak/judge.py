"""Is a soak sound: wrong results, failures, and a speed that has changed?

A wrong result is corruption, however the speed is; a slow pass is none. Speed is judged by windows
of passes, for all cases together (the mean of the logarithms of their times over the median of
each) and for each case alone. A step is one of Pettitt's test, corrected for the dependence of
neighbouring windows (`statistics.steady.change_point`), with 1 % for the whole and 1 % for the
cases among them (Bonferroni), a tenth of it below `ENOUGH` windows, which do not show well how they
depend; a slope of the whole one of Kendall's tau with limits that hold for dependent series
(`steady_drift`). A step takes `FEWEST_FOR_STEP` windows, a slope 8. Of 100 simulated soaks of 8
cases whose noise is AR(0, 0.5 or 0.9), at most 2 are called changed (`test_soak.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hpcbench.errors import ExitCode
from hpcbench.fleet.soak.record import Soak, SoakCase
from hpcbench.records import dataclass
from hpcbench.statistics.order import Values, median
from hpcbench.statistics.steady import (
    FEWEST_RUNS,
    MIN_N_TEST,
    SIGNIFICANT_P,
    change_point,
    steady_drift,
)

FEWEST_FOR_STEP = MIN_N_TEST
ENOUGH = 64
ALL_CASES = "all cases together"


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A change of speed of ``what``: the share by which times rose, from ``cycle`` on; None of a
    slope, which has no beginning."""

    what: str
    share: float
    cycle: int | None

    @property
    def is_slower(self) -> bool:
        return self.share > 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """``is_corrupt``: a result was wrong, or changed within its tolerance after many cycles with
    the same bits. ``has_failed``: a case failed, or a limit was missed. ``has_errors``: GPUs had
    memory errors or XIDs. ``undecided``: why the speed cannot be judged, or not as well."""

    is_corrupt: bool
    has_failed: bool
    has_errors: bool
    changes: tuple[SpeedChange, ...]
    undecided: str = ""

    @property
    def is_slower(self) -> bool:
        return any(one.is_slower for one in self.changes)

    @property
    def is_bad(self) -> bool:
        return self.is_corrupt or self.has_failed or self.has_errors or self.is_slower


def judged(soak: Soak) -> Judgement:
    n = len(soak.windows)
    undecided = "" if n >= FEWEST_FOR_STEP else (
        f"{n} passes are too few to find a step, which takes {FEWEST_FOR_STEP}"
        + (f", or a slope, which takes {FEWEST_RUNS}" if n < FEWEST_RUNS else ""))
    errors = soak.readings.get("ecc_errors", ())
    return Judgement(
        bool(soak.wrong) or any(one.has_changed for one in soak.cases), bool(soak.problems),
        bool(soak.xids) or any(point.n and point.greatest > 0 for point in errors),
        tuple(_changes(soak)), undecided)


def exit_code(soak: Soak, judgement: Judgement) -> ExitCode:
    """Return FINDINGS for a bad soak, or one without any time; INCOMPLETE for one that was stopped
    before its end; else OK."""
    if judgement.is_bad:
        return ExitCode.FINDINGS
    if not soak.has_reached_its_end:
        return ExitCode.INCOMPLETE
    return ExitCode.OK if any(_times(one)[1].size for one in soak.cases) else ExitCode.FINDINGS


def _changes(soak: Soak) -> Iterator[SpeedChange]:
    timed = [(one, *_times(one)) for one in soak.cases]
    timed = [(one, at, times) for one, at, times in timed if times.size]
    if not timed:
        return
    together = _together(len(soak.windows), [(at, times) for _, at, times in timed])
    at = np.flatnonzero(~np.isnan(together)).tolist()
    change = _step(soak, ALL_CASES, at, together[at], SIGNIFICANT_P) or _slope(
        soak, at, together[at])
    if change:
        yield change
    for case, windows, times in timed:
        if len(timed) > 1 and (change := _step(
                soak, case.label, windows, times, SIGNIFICANT_P / len(timed))):
            yield change


def _times(case: SoakCase) -> tuple[Sequence[int], Values]:
    """Return the windows in which a case has a time, and the times in seconds."""
    at = [number for number, point in enumerate(case.pass_s) if point.n]
    return at, np.array([case.pass_s[number].mean for number in at])


def _together(n: int, timed: Sequence[tuple[Sequence[int], Values]]) -> Values:
    """Return the time of all cases over their own medians, by window; NaN where a case has none:
    the mean of the others would be another."""
    logs = np.full((len(timed), n), np.nan)
    for row, (at, times) in zip(logs, timed, strict=True):
        row[[*at]] = np.log(times / median(times))
    return np.asarray(np.exp(logs.mean(axis=0)))


def _step(
    soak: Soak, what: str, at: Sequence[int], times: Values, chance: float,
) -> SpeedChange | None:
    step = change_point(times)
    if step is None or step.p >= (chance if times.size >= ENOUGH else chance / 10):
        return None
    return SpeedChange(what, step.after / step.before - 1, soak.windows[at[step.index]].cycle)


def _slope(soak: Soak, at: Sequence[int], times: Values) -> SpeedChange | None:
    seconds = np.array([soak.windows[number].at_s for number in at])
    slope = steady_drift(times, seconds)
    return SpeedChange(ALL_CASES, slope.change, None) if slope and slope.significant else None

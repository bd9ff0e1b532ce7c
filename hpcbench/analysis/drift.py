"""Whether times rise or fall over the passes of a run: of all cases together, and of single ones.

A series is named if it is steady (`statistics.drift`), its interval excludes no change, and the
chance holds among all series of the report (Holm). Where all cases drift together, single ones are
looked at beside that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.answer import Run
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.statistics.family import holm
from hpcbench.statistics.trend import Trend, trend

ALARMS = FALSE_ALARMS / 4
"""Drift, conditions, and ranks that wait or have a low clock are four families: all of them
together name anything in at most 1 % of reports."""
FEWEST_TOGETHER = 3
"""Of fewer cases there is no course that they have in common."""
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Drifting:
    """How the time of a case, or of all of them, changes from the first pass to the last.

    Attributes:
        path, case_id, label: of which results and case; ``case_id`` is empty of all together.
        passes: how many there were; ``lasted_s`` from the first to the last, None if not known.
        change: relative to the median; ``low`` to ``high`` is its 99 % interval.
        tau: how steadily it rises or falls, 1 and -1 at most.
        chance: how likely passes that do not drift do so.
        is_clear: whether it is named.
    """

    path: str
    case_id: str
    label: str
    passes: int
    lasted_s: float | None
    change: float
    low: float
    high: float
    tau: float
    chance: float
    is_clear: bool


def drifts(runs: Sequence[Run]) -> tuple[Drifting, ...]:
    """Return the drift of each case with enough passes, and before them that of all of a run."""
    series = [one for run in runs for one in _of_run(run)]
    holds = holm([found.chance for _, found in series], ALARMS)
    return tuple(replace(drifting, is_clear=held and found.is_steady and (
                     found.low > 0 or found.high < 0))
                 for (drifting, found), held in zip(series, holds, strict=True))


def _of_run(run: Run) -> Iterator[tuple[Drifting, Trend]]:
    known = [(item.case, item.timing.pass_medians_s) for item in run.results.cases
             if item.timing is not None]
    times = {case.case_id: np.array(medians, dtype=np.float64) for case, medians in known
             if medians and all(medians)}
    labels = {case.case_id: case.label for case, _ in known}
    whole = [one / np.median(one) for one in times.values()]
    common = _common(whole)
    found = _trend(common) if common is not None else None
    if common is not None and found is not None:
        yield _drifting(run, "", f"all {len(times)} cases together", common.size, found), found
    beside = common if common is not None and found is not None and _is_steady(found) else None
    for case_id, values in times.items():
        own = values if beside is None or beside.size != values.size else values / beside
        if (alone := _trend(own)) is not None:
            yield _drifting(run, case_id, labels[case_id], values.size, alone), alone


def _common(whole: Sequence[Values]) -> Values | None:
    """Return the middle course of all cases; None of few, or of different numbers of passes."""
    if len(whole) < FEWEST_TOGETHER or len({one.size for one in whole}) > 1:
        return None
    return np.asarray(np.median(np.stack(whole), axis=0))


def _is_steady(found: Trend) -> bool:
    return found.is_steady and (found.low > 0 or found.high < 0)


def _trend(values: Values) -> Trend | None:
    return trend(values, np.arange(values.size, dtype=np.float64))


def _drifting(run: Run, case_id: str, label: str, passes: int, found: Trend) -> Drifting:
    return Drifting(run.path, case_id, label, passes, _lasted_s(run), found.change, found.low,
                    found.high, found.tau, found.chance, is_clear=False)


def _lasted_s(run: Run) -> float | None:
    """Return the seconds from the first pass of any case to the end of the last one."""
    spans = [span for item in run.results.cases if item.usage for span in item.usage.spans_ns]
    return (max(end for _, end in spans) - min(begin for begin, _ in spans)) / 1e9 if (
        spans) else None

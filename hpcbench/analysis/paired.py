"""Two ways to do the same, compared in pairs that were measured close together.

A pair is the medians of the same pass: what slows the machine for a while slows both, and cancels.
Of three launches or more each launch is one number, the mean over its passes, because launches
differ by more than passes do. Of fewer launches passes are the numbers, and what they say holds in
these launches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcbench.analysis.ways import Way
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics.overlap import mean_interval
from hpcbench.statistics.student import t_tail

FEWEST = 3
"""Fewer pairs tell nothing."""
PASSES, LAUNCHES = "passes", "launches"


@dataclass(frozen=True, slots=True)
class Paired:
    """How many times as long the second of two ways takes.

    Attributes:
        ratio: geometric mean over pairs; ``low`` to ``high`` is its 95 % interval.
        chance: how likely equal ways are so far apart; None of fewer than FEWEST pairs.
        n, unit: how many pairs there are, of PASSES or LAUNCHES.
        n_launches: in how many launches both were measured.
    """

    ratio: float
    low: float | None
    high: float | None
    chance: float | None
    n: int
    unit: str
    n_launches: int


def paired(first: Way, second: Way, passes: Sequence[int]) -> Paired:
    """Return the second way beside the first; ``passes`` are those of a launch of each run."""
    launches = [logs for run, item in first.items.items() if run in second.items
                for logs in _launches(item, second.items[run], passes[run])]
    unit = LAUNCHES if len(launches) >= FEWEST else PASSES
    numbers = ([float(np.mean(logs)) for logs in launches] if unit == LAUNCHES
               else [log for logs in launches for log in logs])
    if not numbers:
        return Paired(second_over_first(first, second), None, None, None, 0, unit, 0)
    logs = np.array(numbers)
    mean = float(logs.mean())
    if len(logs) < FEWEST:
        return Paired(math.exp(mean), None, None, None, len(logs), unit, len(launches))
    interval = mean_interval(logs)
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    chance = (2 * t_tail(abs(mean) / error, len(logs) - 1) if error > 0
              else float(mean == 0))
    return Paired(math.exp(mean), math.exp(interval.low), math.exp(interval.high), chance,
                  len(logs), unit, len(launches))


def hides(found: Paired, share: float) -> bool:
    """Return whether the interval leaves open that one way takes over ``share`` more."""
    return found.low is not None and found.high is not None and (
        found.high > 1 + share or found.low < 1 / (1 + share))


def second_over_first(first: Way, second: Way) -> float:
    """Return the ratio of the times of two ways, of all their samples."""
    return time_of(second) / time_of(first)


def time_of(way: Way) -> float:
    """Return the geometric mean of the times of a way over its runs, in seconds."""
    logs = [math.log(item.statistics.median_s) for item in way.items.values()
            if item.statistics is not None]
    return math.exp(sum(logs) / len(logs))


def _launches(first: CaseResult, second: CaseResult, passes: int) -> Iterator[list[float]]:
    """Yield, for each launch that has any pass of both, the logarithms of their ratios."""
    assert first.timing is not None and second.timing is not None
    both = [*zip(first.timing.pass_medians_s, second.timing.pass_medians_s, strict=False)]
    if first.timing.repeats or second.timing.repeats:  # of one process: they are one launch
        passes = len(both)
    for start in range(0, len(both), max(passes, 1)):
        logs = [math.log(b / a) for a, b in both[start:start + passes] if a and b]
        if logs:
            yield logs

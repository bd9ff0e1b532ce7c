"""When a case has enough samples: rank 0 decides from what all ranks measured, all obey.

A rank that decided alone would leave the others in a collective.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcbench.measure.control import Control, Integers
from hpcbench.measure.progress import Phase, SharedProgress
from hpcbench.statistics.stopping import StopRule, decide, next_checkpoint
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.schema import SAMPLE_COLUMNS, STOP_REASONS, Samples

_START, _END = (SAMPLE_COLUMNS.index(name) for name in ("start_ns", "end_ns"))

_LOOK_EVERY = 64
"""Samples after which the time is looked at between two checkpoints, which can be thousands apart:
ranks that spin on cores they share become a hundred times slower from one moment to the next."""

Fold = Callable[[Samples, Control], Integers]
"""Turns this rank's rows (row, column) into the times over all ranks, in ns; collective."""


class FixedCount:
    """As many samples as the config says."""

    def __init__(self, count: int) -> None:
        self._count = count

    def ahead(self, count: int) -> int:
        """Return how many samples follow the first ``count`` before `after` must be asked."""
        return max(self._count - count, 1)

    def after(self, count: int, rows: int) -> str:
        """Return why the case ends after ``count`` timed samples of ``rows`` in all, or ""."""
        return "fixed" if count >= self._count else ""


class EnoughSamples:
    """Samples until the median is known well enough, or the budget is used (`StopRule`)."""

    def __init__(
        self, rule: StopRule, fold: Fold, control: Control, progress: SharedProgress,
        now_ns: Callable[[], int], *, decides: bool,
    ) -> None:
        """``decides`` on rank 0 only; the budget runs from now."""
        self._rule = rule
        self._fold = fold
        self._control = control
        self._progress = progress
        self._now_ns = now_ns
        self._decides = decides
        self._began_ns = now_ns()
        self._times: list[Integers] = []
        self._seen = 0
        self._next = rule.min_n

    def ahead(self, count: int) -> int:
        """Return how many samples follow the first ``count`` before `after` must be asked."""
        look = _LOOK_EVERY - (count - self._seen) % _LOOK_EVERY
        return max(min(look if self._seen else self._next, self._next - count), 1)

    def after(self, count: int, rows: int) -> str:
        """Exchange what is new at a checkpoint; the same answer on every rank."""
        if count < self._next:
            look = self._seen and (count - self._seen) % _LOOK_EVERY == 0
            return self._out_of_time() if look else ""
        self._progress.mark(Phase.CHECK, rows - 1)  # further than who still is in that sample
        new = self._progress.span(rows - (count - self._seen), rows)
        self._times.append(self._fold(new, self._control))
        self._seen = count
        decision = self._decision(count) if self._decides else [0, 0]
        code, self._next = self._control.maximum(np.array(decision, dtype=np.int64)).tolist()
        return STOP_REASONS[code - 1] if code else ""

    def _out_of_time(self) -> str:
        """Return ``budget`` if that is used: samples may have become slower than foreseen."""
        used = self._decides and self._elapsed_s() >= self._rule.budget_s
        return "budget" if self._control.maximum(np.array([used], dtype=np.int64))[0] else ""

    def _elapsed_s(self) -> float:
        return (self._now_ns() - self._began_ns) / 1e9

    def _decision(self, count: int) -> list[int]:
        """Return the number of the reason (0: go on) and the next checkpoint."""
        elapsed_s = self._elapsed_s()
        reason = decide(self._rule, np.concatenate(self._times), elapsed_s).reason
        following = next_checkpoint(self._rule, count, elapsed_s)
        return [STOP_REASONS.index(reason) + 1 if reason else 0, following]


Stopping = FixedCount | EnoughSamples
"""Asked after the samples that it lets follow at a time, and where a sample is checked."""


def slowest_rank(rows: Samples, control: Control) -> Integers:
    """Return the maximum over ranks of end - start."""
    return control.maximum(rows[:, _END] - rows[:, _START])


def first_to_last(clock: ClockModel) -> Fold:
    """Return the fold of mode ``isolated``: last end - first start on the global clock."""
    def fold(rows: Samples, control: Control) -> Integers:
        ends, starts = clock.all_to_global(rows[:, _END]), -clock.all_to_global(rows[:, _START])
        agreed: Integers = control.maximum(np.concatenate([ends, starts]))
        return agreed[:len(rows)] + agreed[len(rows):]
    return fold

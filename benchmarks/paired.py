"""Loops that take turns in one run: what hpcbench measures, and the same without it, twice.

A turn's time is the median of its calls. Ratios (`ratios`) are made within a pass, in which each
loop has one turn; the orders of the loops take turns, too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np

from hpcbench.backends.devices import CpuDevice
from hpcbench.config.load import check_config
from hpcbench.kinds.hardware.run import HardwareRunner
from hpcbench.measurement.control import SharedControl, SharedProgress, bytes_of
from hpcbench.measurement.loop import (
    FixedCount,
    SampleSchedule,
    Surroundings,
    after_barrier,
    measure,
)
from hpcbench.measurement.process import shared_memory
from hpcbench.operations.place import AnyOperation, Place
from hpcbench.plan.expand import make_plan
from launching import fail
from ratios import Ratio

TIMEOUT_S = 300.0
Loop = Callable[[int], Sequence[float]]
"""Calls so many times; returns the times in s."""


def opened(place: Place, **block: object) -> AnyOperation:
    """Return the operation of the only case of a block of kind hardware, with its checks."""
    config = check_config({"benchmarks": [{"kind": "hardware", **block}]}, "here")
    (case,) = make_plan(config, 1).cases
    if case.skip:
        fail(f"{case.label}: {case.skip}")
    return HardwareRunner().open(case.workload, place, validate=True)


class ThroughHpcbench:
    """The worker's measuring loop over an operation."""

    def __init__(self, operation: AnyOperation, most: int) -> None:
        """Prepare for at most so many calls in a turn."""
        fd = shared_memory("hpcbench-paired", bytes_of(1))
        self._operation, self._control = operation, SharedControl(fd, 0, 1, TIMEOUT_S)
        self._progress = SharedProgress.create(most + 1)

    def check(self) -> None:
        """Call once and check the result: every element."""
        self._turn(1, is_checked=True)

    def __call__(self, calls: int) -> Sequence[float]:
        """Call so many times, after a warm-up; return the times in s."""
        return self._turn(calls, is_checked=False)

    def _turn(self, calls: int, *, is_checked: bool) -> Sequence[float]:
        around = Surroundings(after_barrier(self._control), FixedCount(calls),
                              self._control.barrier, time.perf_counter_ns)
        self._progress.begin(1)
        schedule = SampleSchedule(1, 1, validate=is_checked)
        if found := measure(self._operation, CpuDevice(), self._progress, schedule, around).wrong:
            fail(f"the result is wrong: {found[0]}")
        rows = self._progress.rows()[1:]
        return [float(end - start) / 1e9 for start, end in rows[:, :2]]


def plain(call: Callable[[], object]) -> Loop:
    """Return what one would write without hpcbench, with one warm-up."""
    def loop(calls: int) -> Sequence[float]:
        times = []
        call()
        for _ in range(calls):
            start_ns = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - start_ns) / 1e9)
        return times
    return loop


def in_turns(loops: Sequence[Loop], passes: int, calls: int) -> np.ndarray:
    """Return the times of all turns in s, (loop, pass)."""
    times_s = np.empty((len(loops), passes))
    orders = list(permutations(range(len(loops))))
    for number in range(passes):
        for which in orders[number % len(orders)]:
            times_s[which, number] = statistics.median(loops[which](calls))
    return times_s


def judged(found: Ratio, chance: Ratio, allowed: float) -> str:
    """Return whether ``found`` is within ``allowed`` of 1, or not, or nothing can be told.

    Nothing can be told where equal loops may be farther apart than that.
    """
    if chance.farther > allowed:
        return "cannot tell"
    if found.farther <= allowed:
        return "met"
    low, high = found.interval.low, found.interval.high
    return "missed" if low > 1 + allowed or high < 1 - allowed else "cannot tell"

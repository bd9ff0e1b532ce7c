"""The timed loop: warm-ups, then samples until the case has enough of them.

A sample is one call of the workload, or ``batch`` calls back to back (mode ``pipelined``). In the
time: the calls and their completion. Outside: restoring inputs, lining up the ranks, checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hpcbench.measure.drawn import drawn_samples
from hpcbench.measure.garbage import no_garbage_collection
from hpcbench.measure.progress import Phase, SharedProgress
from hpcbench.measure.start import Start
from hpcbench.measure.stop import Stopping
from hpcbench.trace.schema import UNTIMED, Flag

SINGLE_CALLS = 2
"""Rows that checking takes at most beside warm-ups and timed samples."""


class Operation(Protocol):
    """What a sample calls: the workload, or another operation in its place (a fault)."""

    name: str

    def run(self) -> None:
        """Do it once."""


class Workload(Operation, Protocol):
    """What the loop needs of a workload; only ``run`` is timed."""

    def prepare(self) -> None:
        """Restore inputs and wipe outputs."""

    def check(self) -> object | None:
        """Return what is wrong with the output that was just timed, or None."""


class Device(Protocol):
    """Runs work to completion on a device."""

    def timed(self, run: Callable[[], None], now_ns: Callable[[], int]) -> tuple[int, int]:
        """Run, wait until complete; return ns until the call returned, and ns on the device.

        Both are NO_DEVICE_TIME where the call returns when the work is done.
        """

    def synchronize(self) -> None:
        """Wait until all earlier work on the device is complete."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a case is run: warm-ups, calls of one sample, whether results are checked.

    ``seed`` draws the samples that are checked beside the first and the last.
    """

    warmup: int
    batch: int
    validate: bool
    seed: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What lines the ranks up, ends the case, reads the time, and what fault tests do when.

    ``finish`` is a barrier of the control group. ``strays`` are called instead of the workload,
    in these rows. Each timed call begins ``late_s`` later.
    """

    start: Start
    stopping: Stopping
    finish: Callable[[], None]
    now_ns: Callable[[], int]
    faults: Mapping[int, Callable[[], None]] = field(default_factory=dict)
    spoilers: Mapping[int, Callable[[], None]] = field(default_factory=dict)
    strays: Mapping[int, Operation] = field(default_factory=dict)
    late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What the checks found wrong, and why there are no more samples."""

    wrong: list[object]
    stop_reason: str


def measure(
    workload: Workload, device: Device, progress: SharedProgress, schedule: Schedule,
    around: Surroundings,
) -> Measured:
    """Run a case, stamping each sample.

    Checked are the first call of all, the first timed one, some that are drawn, and the last; where
    a sample is several calls, one call before all others and one after them, which are no samples.
    """
    loop = _Loop(workload, device, progress, around)
    apart = schedule.validate and schedule.batch > 1
    together = schedule.validate and not apart
    with no_garbage_collection():
        if apart:
            loop.sample(1, Flag.WARMUP | Flag.SINGLE, check=True)
        for index in range(schedule.warmup):
            loop.sample(schedule.batch, Flag.WARMUP, check=together and index == 0)
        count, reason = 0, ""
        drawn = drawn_samples(schedule.seed)
        following = 0
        while not reason:
            check = together and count == following
            loop.sample(schedule.batch, Flag(0), check=check)
            following = next(drawn) if count == following else following
            count += 1
            reason = around.stopping.after(count, loop.row)
        if apart:
            loop.sample(1, Flag.SINGLE, check=True)
        elif together and not check:
            loop.check_last()
    progress.mark(Phase.FINISH, loop.row)
    around.finish()  # no rank reports, and wakes its supervisor, while another still measures
    return Measured(loop.wrong, reason)


@dataclass(slots=True)
class _Loop:
    """The rows taken so far."""

    workload: Workload
    device: Device
    progress: SharedProgress
    around: Surroundings
    row: int = 0
    wrong: list[object] = field(default_factory=list)

    def sample(self, batch: int, flags: Flag, *, check: bool) -> None:
        """Take one sample of ``batch`` calls."""
        row, progress, around = self.row, self.progress, self.around
        progress.mark(Phase.PREPARE, row)
        called: Operation = around.strays.get(row, self.workload)
        run = called.run if batch == 1 else _repeated(called.run, batch)
        timed, now_ns = self.device.timed, around.now_ns
        self.workload.prepare()
        self.device.synchronize()
        progress.mark(Phase.BARRIER, row)
        flags |= around.start()
        progress.mark(Phase.RUN, row)
        if row in around.faults:
            around.faults[row]()
        if around.late_s and not flags & UNTIMED:
            time.sleep(around.late_s)
        if called is not self.workload:
            progress.stray(called.name, row)
        start_ns = now_ns()
        enqueue_ns, device_ns = timed(run, now_ns)
        end_ns = now_ns()
        progress.stamp(row, start_ns, end_ns, enqueue_ns, device_ns, int(flags))
        self.row += 1
        if row in around.spoilers:
            around.spoilers[row]()
        if check:
            self.check_last()

    def check_last(self) -> None:
        """Check the output of the last call."""
        self.progress.mark(Phase.CHECK, self.row - 1)
        self.progress.flag(self.row - 1, Flag.CHECKED)
        if (mismatch := self.workload.check()) is not None:
            self.wrong.append(mismatch)


def _repeated(run: Callable[[], None], batch: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(batch):
            run()
    return repeated

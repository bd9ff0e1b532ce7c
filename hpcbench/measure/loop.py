"""The timed loop: warm-ups, then samples until the case has enough of them.

A sample is one call of the workload, or ``batch`` calls back to back (mode ``pipelined``). In the
time: the calls and their completion. Outside: restoring inputs, lining up the ranks, checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hpcbench.measure.drawn import drawn_samples
from hpcbench.measure.garbage import no_garbage_collection
from hpcbench.measure.progress import PREPARED, ROW_BYTES, Phase, SharedProgress
from hpcbench.measure.start import Start
from hpcbench.measure.stop import Stopping
from hpcbench.trace.schema import SETTLING_CALLS, Flag

SINGLE_CALLS = 2
"""Rows that checking takes at most beside warm-ups and timed samples."""
_WARMUP, _SINGLE, _SETTLED = int(Flag.WARMUP), int(Flag.SINGLE), int(Flag.SETTLED)
_BARRIER, _RUN = int(Phase.BARRIER), int(Phase.RUN)


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

    def prepared(
        self, run: Callable[[], object], now_ns: Callable[[], int],
    ) -> Callable[[], object]:
        """Return what runs, and waits until the work is complete; what it returns says nothing."""

    def took(self) -> tuple[int, int]:
        """Return of the last such call ns until ``run`` returned, and ns on the device.

        Both are NO_DEVICE_TIME where the call returns when the work is done.
        """

    def synchronize(self) -> None:
        """Wait until all earlier work on the device is complete."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a case is run: warm-ups, calls of one sample, whether results are checked.

    ``seed`` draws the samples that are checked beside the first and the last. With ``settles``
    calls that are not recorded stand between a check and the next timed sample.
    """

    warmup: int
    batch: int
    validate: bool
    seed: str = ""
    settles: bool = False


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
    loop = _Loop(workload, device, progress, around, settles=schedule.settles)
    apart = schedule.validate and schedule.batch > 1
    together = schedule.validate and not apart
    run = _repeated(workload.run, schedule.batch)
    with no_garbage_collection():
        if apart:
            loop.samples(workload.run, _WARMUP | _SINGLE, 1, check=True)
        first = min(schedule.warmup, 1)
        loop.samples(run, _WARMUP, first, check=together and first == 1)
        loop.samples(run, _WARMUP, schedule.warmup - first)
        reason = _timed_samples(loop, run, drawn_samples(schedule.seed) if together else None)
        if apart:
            loop.samples(workload.run, _SINGLE, 1, check=True)
    progress.mark(Phase.FINISH, loop.row)
    around.finish()  # no rank reports, and wakes its supervisor, while another still measures
    return Measured(loop.wrong, reason)


def _timed_samples(loop: _Loop, run: Callable[[], None], drawn: Iterator[int] | None) -> str:
    """Take timed samples until there are enough; return why there are no more.

    Without ``drawn`` none is checked.
    """
    stopping, count, reason = loop.around.stopping, 0, ""
    checked, following = -1, 0
    while not reason:
        ahead = stopping.ahead(count)
        if drawn is not None:
            ahead = min(ahead, following + 1 - count)
        count += ahead
        is_drawn = drawn is not None and count == following + 1
        loop.samples(run, 0, ahead, check=is_drawn)
        if drawn is not None and is_drawn:
            checked, following = following, next(drawn)
        reason = stopping.after(count, loop.row)
    if drawn is not None and checked != count - 1:
        loop.check_last()
    return reason


@dataclass(slots=True)
class _Loop:
    """The rows taken so far.

    Python between two calls makes the next one slower: its code leaves the caches, and threads of
    the library fall asleep. What stands between the start and the call is in the time itself, on
    the slowest rank. So `_stretch` does the least, and faults, checks and questions are outside it.
    """

    workload: Workload
    device: Device
    progress: SharedProgress
    around: Surroundings
    settles: bool
    row: int = 0
    is_settled: bool = True
    wrong: list[object] = field(default_factory=list)

    def samples(
        self, run: Callable[[], None], flags: int, count: int, *, check: bool = False,
    ) -> None:
        """Take ``count`` samples, each of one call of ``run``; ``check`` the last of them."""
        around, row = self.around, self.row
        settling = self.settles and not self.is_settled and not flags and count > 0
        if count:
            self.is_settled = True
        if around.faults or around.strays or around.spoilers or around.late_s:
            for number in range(count):
                self._faulty_sample(run, flags, settling=settling and not number)
        else:
            self._stretch(run, flags, count, around.start, settling=settling)
        if settling:
            self.progress.flag(row, _SETTLED)
        if check:
            self.check_last()

    def _stretch(
        self, run: Callable[[], None], flags: int, count: int, start: Start, *, settling: bool,
    ) -> None:
        """Take samples one after another. Whatever needs no place in here has none.

        If ``settling``, calls of which nothing is recorded come first: checks empty the caches.
        """
        prepare, synchronize = self.workload.prepare, self.device.synchronize
        meeting, running = self.progress.entering(_BARRIER), self.progress.entering(_RUN)
        write, advance, at = self.progress.writers(self.row)
        now_ns, took = self.around.now_ns, self.device.took
        call = self.device.prepared(run, now_ns)
        self.progress.mark(Phase.PREPARE, self.row)
        for _ in range(SETTLING_CALLS if settling else 0):
            prepare()
            synchronize()
            meeting()
            self.around.start()
            running()
            call()
        for row in range(self.row + 1, self.row + count + 1):
            prepare()
            synchronize()
            meeting()
            late = start()
            running()
            start_ns = now_ns()
            call()
            end_ns = now_ns()
            write(at, start_ns, end_ns, *took(), flags | late if late else flags)
            advance(row, PREPARED, row)
            at += ROW_BYTES
        self.row += count

    def _faulty_sample(self, run: Callable[[], None], flags: int, *, settling: bool) -> None:
        """Take one sample with what is to happen in its row: between the start and the call."""
        row, progress, around = self.row, self.progress, self.around
        if settling:  # by the planned call, whatever is called in this row
            self._stretch(run, flags, 0, around.start, settling=True)

        def start() -> int | None:
            late = around.start()
            progress.entering(_RUN)()
            if row in around.faults:
                around.faults[row]()
            if around.late_s and not flags:
                time.sleep(around.late_s)
            if row in around.strays:
                progress.stray(around.strays[row].name, row)
            return late

        self._stretch(around.strays[row].run if row in around.strays else run, flags, 1, start,
                      settling=False)
        if row in around.spoilers:
            around.spoilers[row]()

    def check_last(self) -> None:
        """Check the output of the last call, when it has ended on all ranks.

        A rank that checks keeps a core from its library's threads, which others may still need.
        """
        self.progress.mark(Phase.CHECK, self.row - 1)
        self.around.finish()
        self.progress.flag(self.row - 1, Flag.CHECKED)
        self.is_settled = False
        if (mismatch := self.workload.check()) is not None:
            self.wrong.append(mismatch)


def _repeated(run: Callable[[], None], batch: int) -> Callable[[], None]:
    if batch == 1:
        return run

    def repeated() -> None:
        for _ in range(batch):
            run()
    return repeated

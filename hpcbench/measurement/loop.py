"""The timed loop: warm-ups, then samples until the case has enough of them.

A sample is one call of the workload, or ``batch`` calls back to back (mode ``pipelined``). In the
time: the calls and their completion. Outside: restoring inputs, lining up the ranks, checks.

Samples begin after a barrier, or at an agreed time: that of ReproMPI's Round-Time scheme (Hunold
and Carpen-Amarie, TPDS 2016). A barrier lets ranks leave one after another, which small operations
are then charged for. Rank 0 decides when there are enough, from what all ranks measured: a rank
that decided alone would leave the others in a collective."""

from __future__ import annotations

import ctypes
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Protocol, runtime_checkable

import numpy as np

from hpcbench.measurement.control import (
    PREPARED,
    ROW_BYTES,
    Control,
    Integers,
    SharedProgress,
    WorkerPhase,
)
from hpcbench.measurement.process import no_garbage_collection
from hpcbench.statistics.stopping import StopRule, decide, next_checkpoint
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.schema import SAMPLE_COLUMNS, SETTLING_CALLS, STOP_REASONS, Flag, Samples


def drawn_samples(seed: str) -> Iterator[int]:
    """Yield numbers of timed samples to check, from 0, without end: one of 2 and 3, one of 4 to 7,
    one of 8 to 15 and so on. With the three always checked that is 5 of 8 samples, 9 of 100, 12 of
    1000. Checks slow the next sample of small calls, so there are few (docs/method.md)."""
    draw, begin = random.Random(seed), 2
    while True:
        yield draw.randrange(begin, 2 * begin)
        begin *= 2


LATE_NS = 10_000
"""A start so much behind the agreed time is flagged: nothing shorter can be distinguished from
how long a rank takes to notice that the time has come."""
MOST_SLACK_NS = 20_000_000
_MOST_AT_FIRST_NS = 2_000_000
"""On cores that are shared, agreeing takes milliseconds whatever the slack."""
_LEAST_SPIN_NS = 30_000
_MOST_SPIN_NS = 500_000
_WINDOW = 8
_PROBES = 10
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30

_LATE = int(Flag.LATE_START)

Start = Callable[[], int | None]
"""Called before each sample; returns when it may begin, with its flags, plain integers for
speed."""


def after_barrier(control: Control) -> Start:
    return control.barrier


def of_one_rank(start: Start) -> Start:
    def unflagged() -> None:
        start()
    return unflagged


class AgreedStart:
    """The start of mode ``isolated``: one exchange fixes ``start_ns``, then each waits alone. It
    is ``slack_ns`` after the slowest rank was ready. If more than one of every 8 times passed
    before a rank knew of it, the slack grows by half; if none, it shrinks. All ranks keep the same
    slack. A rank that oversleeps sleeps less and spins longer from then on."""

    def __init__(
        self, control: Control, clock: ClockModel, now_ns: Callable[[], int], slack_ns: int,
    ) -> None:
        self.slack_ns = slack_ns
        self.start_ns = 0
        self._least_ns = slack_ns
        self._control = control
        self._clock = clock
        self._now_ns = now_ns
        self._spin_ns = _LEAST_SPIN_NS
        self._missed = 0
        self._starts = 0
        self._any_missed = 0

    def __call__(self) -> int:
        """Agree, wait, and return LATE_START if this rank was not there in time."""
        ready_ns = self._clock.to_global(self._now_ns()) + self.slack_ns
        agreed = self._control.maximum(np.array([ready_ns, self._missed], dtype=np.int64))
        self.start_ns = start_ns = self._clock.to_local(int(agreed[0]))
        self._missed = int(self._now_ns() > start_ns)
        self._adapt(int(agreed[1]))
        if wait_until(start_ns, self._now_ns, self._spin_ns):
            self._spin_ns = min(2 * self._spin_ns, _MOST_SPIN_NS)
        else:
            self._spin_ns = max(self._spin_ns * 31 // 32, _LEAST_SPIN_NS)
        return _LATE if self._now_ns() - start_ns > LATE_NS else 0

    def _adapt(self, missed_before: int) -> None:
        self._starts += 1
        self._any_missed += missed_before
        if self._starts < _WINDOW:
            return
        if self._any_missed > 1:
            self.slack_ns = min(self.slack_ns * 3 // 2, MOST_SLACK_NS)
        elif not self._any_missed:
            self.slack_ns = max(self.slack_ns * 9 // 10, self._least_ns)
        self._starts = self._any_missed = 0


def entering_late(
    start: AgreedStart, delay_ns: Callable[[], int], now_ns: Callable[[], int],
) -> Start:
    """Return the start of a rank that enters so long after the agreed time, of the coming sample.
    It spins: a rank that sleeps wakes up late, on a core that is no longer warm."""
    def late_start() -> int:
        delay, flags = delay_ns(), start()
        if not delay:
            return flags
        entry_ns = start.start_ns + delay
        while now_ns() < entry_ns:
            pass
        return _LATE if now_ns() - entry_ns > LATE_NS else 0

    return late_start


@cache
def _prctl() -> Callable[..., int] | None:
    """Return Linux's call, which keeps the GIL here: other threads could take it."""
    return getattr(ctypes.PyDLL(None), "prctl", None)


def _sleep_precisely(seconds: float) -> None:
    """Sleep without the thread's timer slack (prctl(2)), usually 50 us. It is back before the timed
    call, which may sleep, too."""
    if (prctl := _prctl()) is None:
        time.sleep(seconds)
        return
    usual_ns = prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)
    try:
        time.sleep(seconds)
    finally:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(max(usual_ns, 0)), 0, 0, 0)


def wait_until(local_ns: int, now_ns: Callable[[], int], spin_ns: int) -> bool:
    """Sleep, and spin only the last ``spin_ns``; return whether it slept beyond the time."""
    overslept = False
    if (left_ns := local_ns - now_ns()) > spin_ns:
        _sleep_precisely((left_ns - spin_ns) / 1e9)
        overslept = now_ns() > local_ns
    while now_ns() < local_ns:
        pass
    return overslept


def first_slack_ns(control: Control, now_ns: Callable[[], int]) -> int:
    """Return 3 (ReproMPI's factor) times the median of 10 agreements plus 5 us, at most 2 ms; the
    same on all ranks."""
    nothing = np.zeros(2, dtype=np.int64)
    times = []
    for _ in range(_PROBES):
        began_ns = now_ns()
        control.maximum(nothing)
        times.append(now_ns() - began_ns)
    own = 3 * int(np.median(times)) + 5_000
    return int(min(control.maximum(np.array([own], dtype=np.int64))[0], _MOST_AT_FIRST_NS))


_START, _END = (SAMPLE_COLUMNS.index(name) for name in ("start_ns", "end_ns"))

_LOOK_EVERY = 64
"""Samples between checks of the time budget: ranks that spin on shared cores can slow down a
hundredfold."""

Fold = Callable[[Samples, Control], Integers]
"""Turns this rank's rows (row, column) into the times over all ranks, in ns; collective."""


class FixedCount:
    """A fixed number of samples."""

    def __init__(self, count: int) -> None:
        self._count = count

    def ahead(self, count: int) -> int:
        return max(self._count - count, 1)

    def after(self, count: int, rows: int) -> str:
        return "fixed" if count >= self._count else ""


class EnoughSamples:
    """Samples until the median is known well enough, or the budget is used (`StopRule`)."""

    def __init__(
        self, rule: StopRule, fold: Fold, control: Control, progress: SharedProgress,
        now_ns: Callable[[], int], *, decides: bool,
    ) -> None:
        self._rule = rule
        self._fold = fold
        self._control = control
        self._progress = progress
        self._now_ns = now_ns
        self._decides = decides
        self._began_ns: int | None = None
        self._times: list[Integers] = []
        self._seen = 0
        self._next = rule.min_n

    def ahead(self, count: int) -> int:
        if self._began_ns is None:  # warm-ups are not in the budget
            self._began_ns = self._now_ns()
        look = _LOOK_EVERY - (count - self._seen) % _LOOK_EVERY
        return max(min(look if self._seen else self._next, self._next - count), 1)

    def after(self, count: int, rows: int) -> str:
        """Return why the case ends after ``count`` timed samples of ``rows``, or ""; the same on
        all ranks."""
        if count < self._next:
            look = self._seen and (count - self._seen) % _LOOK_EVERY == 0
            return self._out_of_time() if look else ""
        self._progress.mark(WorkerPhase.CHECK, rows - 1)  # further than who still is in that sample
        new = self._progress.span(rows - (count - self._seen), rows)
        self._times.append(self._fold(new, self._control))
        self._seen = count
        decision = self._decision(count) if self._decides else [0, 0]
        code, self._next = self._control.maximum(np.array(decision, dtype=np.int64)).tolist()
        return STOP_REASONS[code - 1] if code else ""

    def _out_of_time(self) -> str:
        used = self._decides and self._elapsed_s() >= self._rule.budget_s
        return "budget" if self._control.maximum(np.array([used], dtype=np.int64))[0] else ""

    def _elapsed_s(self) -> float:
        return (self._now_ns() - (self._began_ns or 0)) / 1e9

    def _decision(self, count: int) -> list[int]:
        elapsed_s = self._elapsed_s()
        reason = decide(self._rule, np.concatenate(self._times), elapsed_s).reason
        following = next_checkpoint(self._rule, count, elapsed_s)
        return [STOP_REASONS.index(reason) + 1 if reason else 0, following]


Stopping = FixedCount | EnoughSamples


def slowest_rank(rows: Samples, control: Control) -> Integers:
    return control.maximum(rows[:, _END] - rows[:, _START])


def first_to_last(clock: ClockModel) -> Fold:
    """Return the fold of mode ``isolated``: last end - first start on the global clock."""
    def fold(rows: Samples, control: Control) -> Integers:
        ends, starts = clock.all_to_global(rows[:, _END]), -clock.all_to_global(rows[:, _START])
        agreed: Integers = control.maximum(np.concatenate([ends, starts]))
        return agreed[:len(rows)] + agreed[len(rows):]
    return fold


def last_to_last(clock: ClockModel) -> Fold:
    """Return the fold where ranks enter late on purpose: last end - last start. Their delay would
    make the time seem better known than it is."""
    def fold(rows: Samples, control: Control) -> Integers:
        ends, starts = clock.all_to_global(rows[:, _END]), clock.all_to_global(rows[:, _START])
        agreed: Integers = control.maximum(np.concatenate([ends, starts]))
        return agreed[:len(rows)] - agreed[len(rows):]
    return fold


_WARMUP, _SINGLE, _SETTLED = int(Flag.WARMUP), int(Flag.SINGLE), int(Flag.SETTLED)
_BARRIER, _RUN = int(WorkerPhase.BARRIER), int(WorkerPhase.RUN)


class TimedOperation(Protocol):
    """The call of a sample: the workload, or another operation in its place (a fault)."""

    name: str

    def run(self) -> object:
        ...


class TimedWorkload(TimedOperation, Protocol):
    """A workload as the loop needs it; only ``run`` is timed."""

    def prepare(self) -> None:
        """Restore inputs and wipe outputs."""

    def check(self) -> object | None:
        """Return the mismatch of the output that was just timed, or None."""


class Device(Protocol):
    """Runs work to completion on a device."""

    def prepared(
        self, run: Callable[[], object], now_ns: Callable[[], int],
    ) -> Callable[[], object]:
        """Return a call that runs, and waits until the work is complete."""

    def took(self) -> tuple[int, int]:
        """Return ns of the last call until ``run`` returned, and ns on the device, or
        NO_DEVICE_TIME."""

    def synchronize(self) -> None:
        """Wait until all earlier work on the device is complete."""


@dataclass(frozen=True, slots=True)
class SampleSchedule:
    """Warm-ups, calls of one sample, checks. ``seed`` draws the samples that are checked, unless
    ``every`` one is; ``single`` calls are made for their check alone, before and after all others.
    With ``settles``, unrecorded calls stand between a check and the next timed sample."""

    warmup: int
    batch: int
    validate: bool
    seed: str = ""
    settles: bool = False
    single: tuple[int, int] = (0, 0)
    every: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Start, end, clock, and faults to inject. ``finish`` is a barrier of the control group.
    ``wrong_operations`` replace the workload in these rows; timed calls begin ``late_s`` later."""

    start: Start
    stopping: Stopping
    finish: Callable[[], None]
    now_ns: Callable[[], int]
    faults: Mapping[int, Callable[[], None]] = field(default_factory=dict)
    corruptions: Mapping[int, Callable[[], None]] = field(default_factory=dict)
    wrong_operations: Mapping[int, TimedOperation] = field(default_factory=dict)
    late_s: float = 0.0


@runtime_checkable
class Wrong(Protocol):
    """The mismatch of a result: how many elements, and the first of them in words."""

    @property
    def n_wrong(self) -> int:
        """Return the number of wrong elements."""

    @property
    def words(self) -> str:
        """Return the mismatch in words."""


def total_wrong(counts: Sequence[object], *, checked: bool) -> tuple[int, str]:
    """Return how many elements all checks found wrong, -1 without a check, and the first.

    The text is on the first wrong call, with the sum where several calls are wrong."""
    if not checked:
        return -1, ""
    mismatches = [item for item in counts if isinstance(item, Wrong)]
    total = sum(item.n_wrong for item in mismatches)
    text = mismatches[0].words if mismatches else ""
    several = f" ({total} in {len(mismatches)} calls)" if len(mismatches) > 1 else ""
    return total, text + several


@dataclass(frozen=True, slots=True)
class LoopResult:
    """The mismatches that checks found, and why there are no more samples."""

    wrong: list[object]
    stop_reason: str


def measure(
    workload: TimedWorkload, device: Device, progress: SharedProgress, schedule: SampleSchedule,
    around: Surroundings,
) -> LoopResult:
    """Run a case, stamping each sample. Checked are the first call, the first timed one, some that
    are drawn, and the last, or every one; with several calls a sample, single calls instead."""
    loop = _Loop(workload, device, progress, around, settles=schedule.settles)
    check_samples = schedule.validate and schedule.batch == 1
    before, after = schedule.single if schedule.validate else (0, 0)
    run = _repeated(workload.run, schedule.batch)
    checked = count(1) if schedule.every else drawn_samples(schedule.seed)
    with no_garbage_collection():
        for _ in range(before):
            loop.samples(workload.run, _WARMUP | _SINGLE, 1, check=True)
        first = min(schedule.warmup, 1)
        loop.samples(run, _WARMUP, first, check=check_samples and first == 1)
        loop.samples(run, _WARMUP, schedule.warmup - first)
        reason = _timed_samples(loop, run, checked if check_samples else None)
        for _ in range(after):
            loop.samples(workload.run, _SINGLE, 1, check=True)
    progress.mark(WorkerPhase.FINISH, loop.row)
    around.finish()  # no rank reports, and wakes its supervisor, while another still measures
    return LoopResult(loop.wrong, reason)


def _timed_samples(loop: _Loop, run: Callable[[], object], drawn: Iterator[int] | None) -> str:
    """Take timed samples until there are enough; return why. Without ``drawn`` none is checked."""
    stopping, taken, reason = loop.around.stopping, 0, ""
    checked, following = -1, 0
    while not reason:
        ahead = stopping.ahead(taken)
        if drawn is not None:
            ahead = min(ahead, following + 1 - taken)
        taken += ahead
        is_drawn = drawn is not None and taken == following + 1
        loop.samples(run, 0, ahead, check=is_drawn)
        if drawn is not None and is_drawn:
            checked, following = following, next(drawn)
        reason = stopping.after(taken, loop.row)
    if drawn is not None and checked != taken - 1:
        loop.check_last()
    return reason


@dataclass(slots=True)
class _Loop:
    """The rows taken so far. Python between two calls makes the next one slower (caches, threads of
    the library that fall asleep), and anything between start and call is in the time. So `_stretch`
    does the least; faults, checks and decisions are outside it."""

    workload: TimedWorkload
    device: Device
    progress: SharedProgress
    around: Surroundings
    settles: bool
    row: int = 0
    is_settled: bool = True
    wrong: list[object] = field(default_factory=list)

    def samples(
        self, run: Callable[[], object], flags: int, count: int, *, check: bool = False,
    ) -> None:
        if count and not self.row:  # the first call of all is looked at
            if count > 1:
                self.samples(run, flags, 1)
                count -= 1
            else:
                run = _of_work_done(run)
        around, row = self.around, self.row
        settling = self.settles and not self.is_settled and not flags and count > 0
        if count:
            self.is_settled = True
        if around.faults or around.wrong_operations or around.corruptions or around.late_s:
            for number in range(count):
                self._faulty_sample(run, flags, settling=settling and not number)
        else:
            self._stretch(run, flags, count, around.start, settling=settling)
        if settling:
            self.progress.flag(row, _SETTLED)
        if check:
            self.check_last()

    def _stretch(
        self, run: Callable[[], object], flags: int, count: int, start: Start, *, settling: bool,
    ) -> None:
        """Take samples one after another. If ``settling``, unrecorded calls come first: checks
        empty the caches."""
        prepare, synchronize = self.workload.prepare, self.device.synchronize
        meeting, running = self.progress.entering(_BARRIER), self.progress.entering(_RUN)
        write, advance, at = self.progress.writers(self.row)
        now_ns, took = self.around.now_ns, self.device.took
        call = self.device.prepared(run, now_ns)
        self.progress.mark(WorkerPhase.PREPARE, self.row)
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

    def _faulty_sample(self, run: Callable[[], object], flags: int, *, settling: bool) -> None:
        """Take one sample with the faults of its row, between the start and the call."""
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
            if row in around.wrong_operations:
                progress.record_wrong_operation(around.wrong_operations[row].name, row)
            return late

        wrong = around.wrong_operations.get(row)
        self._stretch(run if wrong is None else wrong.run, flags, 1, start, settling=False)
        if row in around.corruptions:
            around.corruptions[row]()

    def check_last(self) -> None:
        """Check the last output once all ranks ended: checking takes a core from threads others may
        need."""
        self.progress.mark(WorkerPhase.CHECK, self.row - 1)
        self.around.finish()
        self.progress.flag(self.row - 1, Flag.CHECKED)
        self.is_settled = False
        if (mismatch := self.workload.check()) is not None:
            self.wrong.append(mismatch)


def _repeated(run: Callable[[], object], batch: int) -> Callable[[], object]:
    """Return ``batch`` calls as one, which returns what the last does."""
    if batch == 1:
        return run
    before = range(batch - 1)

    def repeated() -> object:
        for _ in before:
            run()
        return run()
    return repeated


def _of_work_done(run: Callable[[], object]) -> Callable[[], object]:
    """Return the call; it raises TypeError if what it returns has still to be run."""
    def looked_at() -> None:
        if is_to_be_run(returned := run()):
            if isinstance(returned, CoroutineType):
                returned.close()  # else Python warns of it, later and elsewhere
            raise TypeError(f"the function that is timed returned a {type(returned).__name__}, "
                            "which nobody runs: give one that does the work, such as "
                            "lambda: asyncio.run(step())")
    return looked_at


def is_to_be_run(returned: object) -> bool:
    """Return whether this is a coroutine, generator or lazy iterator that nobody has begun, or
    another awaitable that is not done."""
    if isinstance(returned, CoroutineType):
        return inspect.getcoroutinestate(returned) == inspect.CORO_CREATED
    if isinstance(returned, GeneratorType):
        return inspect.getgeneratorstate(returned) == inspect.GEN_CREATED
    if isinstance(returned, Awaitable):
        done = getattr(returned, "done", None)
        return not callable(done) or not done()
    return isinstance(returned, (AsyncGeneratorType, map, filter))

"""How the samples of a case begin: after a barrier, or at an agreed time.

The agreed time is that of ReproMPI's Round-Time scheme (Hunold and Carpen-Amarie, TPDS 2016): a
barrier lets ranks leave one after another, which small operations are then charged for.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable

import numpy as np

from hpcbench.measure.control import Control
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.schema import Flag

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
_PR_SET_TIMERSLACK = 29

_LATE = int(Flag.LATE_START)

Start = Callable[[], int | None]
"""Called before each sample; returns when it may begin, with the flags of its beginning, if any.

Flags are plain integers here: combining an enumeration takes longer than a small call's own work.
"""


def after_barrier(control: Control) -> Start:
    """Return the start of modes ``barrier_start`` and ``pipelined``."""
    return control.barrier


def of_one_rank(start: Start) -> Start:
    """Return the same start without flags: no other rank waits for the only one."""
    def unflagged() -> None:
        start()
    return unflagged


class AgreedStart:
    """The start of mode ``isolated``: one exchange fixes a time, then each waits for it alone.

    The time lies ``slack_ns`` behind the moment at which the last rank was ready. Of
    every 8 times, some may have passed on a rank before it knew of them. If more than one had, the
    slack becomes half as long again; if none had, shorter. All ranks keep the same slack. A rank
    that oversleeps is late for another reason: it sleeps less and spins longer from then on.
    """

    def __init__(
        self, control: Control, clock: ClockModel, now_ns: Callable[[], int], slack_ns: int,
    ) -> None:
        self.slack_ns = slack_ns
        self._least_ns = slack_ns
        self._control = control
        self._clock = clock
        self._now_ns = now_ns
        self._spin_ns = _LEAST_SPIN_NS
        self._missed = 0
        self._starts = 0
        self._any_missed = 0
        _sleep_precisely()

    def __call__(self) -> int:
        """Agree, wait, and return LATE_START if this rank was not there in time."""
        ready_ns = self._clock.to_global(self._now_ns()) + self.slack_ns
        agreed = self._control.maximum(np.array([ready_ns, self._missed], dtype=np.int64))
        start_ns = self._clock.to_local(int(agreed[0]))
        self._missed = int(self._now_ns() > start_ns)
        self._adapt(int(agreed[1]))
        if wait_until(start_ns, self._now_ns, self._spin_ns):
            self._spin_ns = min(2 * self._spin_ns, _MOST_SPIN_NS)
        else:
            self._spin_ns = max(self._spin_ns * 31 // 32, _LEAST_SPIN_NS)
        return _LATE if self._now_ns() - start_ns > LATE_NS else 0

    def _adapt(self, missed_before: int) -> None:
        """Take in whether any rank learnt of the time before this one too late."""
        self._starts += 1
        self._any_missed += missed_before
        if self._starts < _WINDOW:
            return
        if self._any_missed > 1:
            self.slack_ns = min(self.slack_ns * 3 // 2, MOST_SLACK_NS)
        elif not self._any_missed:
            self.slack_ns = max(self.slack_ns * 9 // 10, self._least_ns)
        self._starts = self._any_missed = 0


def _sleep_precisely() -> None:
    """Have the kernel end this thread's sleeps when they are due, not up to 50 us later.

    Linux groups wake-ups within a thread's timer slack (prctl(2), PR_SET_TIMERSLACK); elsewhere
    nothing is done, and starts that come late for it are flagged as any other.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)


def wait_until(local_ns: int, now_ns: Callable[[], int], spin_ns: int) -> bool:
    """Sleep, and spin only the last ``spin_ns``: a rank that spins takes a core from another.

    Returns whether it slept beyond the time.
    """
    overslept = False
    if (left_ns := local_ns - now_ns()) > spin_ns:
        time.sleep((left_ns - spin_ns) / 1e9)
        overslept = now_ns() > local_ns
    while now_ns() < local_ns:
        pass
    return overslept


def first_slack_ns(control: Control, now_ns: Callable[[], int]) -> int:
    """Return three times what an agreement takes plus 5 us, at most 2 ms.

    What it takes is the median of 10, on the slowest rank; the factor is ReproMPI's. All ranks call
    this and get the same.
    """
    nothing = np.zeros(2, dtype=np.int64)
    times = []
    for _ in range(_PROBES):
        began_ns = now_ns()
        control.maximum(nothing)
        times.append(now_ns() - began_ns)
    own = 3 * int(np.median(times)) + 5_000
    return int(min(control.maximum(np.array([own], dtype=np.int64))[0], _MOST_AT_FIRST_NS))

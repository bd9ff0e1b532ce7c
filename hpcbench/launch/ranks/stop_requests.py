"""Requests to stop: SIGUSR1 after the running case, SIGINT and SIGTERM at once.

They are the supervisor's to judge; its template and workers ignore them.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_AFTER_CASE = signal.SIGUSR1
_REQUESTS = (_AFTER_CASE, signal.SIGINT, signal.SIGTERM)


class StopRequests:
    """The signals that request this rank to stop; read between waits."""

    def __init__(self) -> None:
        self.now = ""
        self.after_case = ""

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Signal handler: remember the first request of each kind."""
        name = signal.Signals(number).name
        if number == _AFTER_CASE:
            self.after_case = self.after_case or name
        else:
            self.now = self.now or name

    @property
    def any(self) -> str:
        """Return the name of the signal that asks for a stop, or ""."""
        return self.now or self.after_case


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Give a `StopRequests` fed by this process's signals; afterwards they are ignored.

    What follows the block is the end of the process, and a late request must not cut it short.
    """
    requests = StopRequests()
    for number in _REQUESTS:
        signal.signal(number, requests.take)
    try:
        yield requests
    finally:
        for number in _REQUESTS:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def requests_held() -> Iterator[None]:
    """Hold back requests to stop, also in a process that is started meanwhile.

    It has to call `leave_requests_to_supervisor`; here they arrive at the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _REQUESTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_requests_to_supervisor() -> None:
    """Ignore requests to stop, here and in forks of this process.

    They are the supervisor's to judge. Slurm sends them to every process of a job step: without
    this, a request to finish the running case would end it.
    """
    for number in _REQUESTS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _REQUESTS)

"""Requests to stop: SIGUSR1 after the running case, SIGINT and SIGTERM at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_AFTER_CASE = (signal.SIGUSR1,)
_NOW = (signal.SIGINT, signal.SIGTERM)


class StopRequests:
    """The signals that request this rank to stop; read between waits."""

    def __init__(self) -> None:
        self.now = ""
        self.after_case = ""

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Signal handler: remember the first request of each kind."""
        name = signal.Signals(number).name
        if number in _AFTER_CASE:
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
    for number in (*_AFTER_CASE, *_NOW):
        signal.signal(number, requests.take)
    try:
        yield requests
    finally:
        for number in (*_AFTER_CASE, *_NOW):
            signal.signal(number, signal.SIG_IGN)

"""Waiting for MPI without spinning: a rank that spins takes a core from what is being timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hpcbench.errors import RankLostError

FIRST_PAUSE_S = 20e-6
LONGEST_PAUSE_S = 2e-3
_LONG_WAIT_PAUSE_S = 20e-3
_SHARE = 0.01
"""A wait that has lasted long may last this much longer: a rank that looks every 2 ms takes 2 %
of a core, and 64 ranks on 2 cores that wait for one of them to start would leave it little."""


def wait_quietly(
    request: Any, while_waiting: Callable[[], None], timeout_s: float | None, *, lost: str,
    longest_pause_s: float = LONGEST_PAUSE_S,
) -> None:
    """Test ``request`` with pauses that grow to ``longest_pause_s``, and with the wait to 20 ms.

    ``while_waiting`` is called at every test. Raises RankLostError after ``timeout_s`` (None:
    never): ``lost`` says who has not answered.
    """
    began, pause_s = time.monotonic(), FIRST_PAUSE_S
    while not request.Test():
        while_waiting()
        refuse_lateness(began, timeout_s, lost)
        time.sleep(pause_s)
        long_wait_s = min(_LONG_WAIT_PAUSE_S, _SHARE * (time.monotonic() - began))
        pause_s = min(pause_s * 1.5, max(longest_pause_s, long_wait_s))


def refuse_lateness(began: float, timeout_s: float | None, lost: str) -> None:
    """Raise RankLostError if more than ``timeout_s`` have passed since ``began`` (monotonic)."""
    if timeout_s is not None and time.monotonic() - began > timeout_s:
        raise RankLostError(f"{lost} has not answered for {timeout_s:.0f} s; its supervisor "
                            "process is stopped, gone or cut off")

"""Waiting for other ranks without spinning: who spins takes a core from what is being timed."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from hpcbench.errors import RankLostError

FIRST_PAUSE_S = 20e-6
LONGEST_PAUSE_S = 2e-3
_LONG_WAIT_PAUSE_S = 20e-3
_INBOX_PAUSE_S = 10e-3
_SIGNAL_BYTES = 16
_SHARE = 0.01
"""A wait that has lasted long may last this much longer: a rank that looks every 2 ms takes 2 %
of a core, and 64 ranks on 2 cores that wait for one of them to start would leave it little."""


def wait_quietly(
    is_done: Callable[[], bool], while_waiting: Callable[[], None], timeout_s: float | None, *,
    lost: str, longest_pause_s: float = LONGEST_PAUSE_S,
) -> None:
    """Ask ``is_done`` with pauses that grow to ``longest_pause_s``, and with the wait to 20 ms.

    ``while_waiting`` is called each time. Raises RankLostError after ``timeout_s`` (None:
    never): ``lost`` says who has not answered.
    """
    began, pause_s = time.monotonic(), FIRST_PAUSE_S
    while not is_done():
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


class Inbox:
    """What other ranks have posted to this one as [number, value], kept until it is taken."""

    def __init__(self, posted: Callable[[], Iterable[tuple[int, Any]]]) -> None:
        """``posted`` is that of a communicator which nobody else asks meanwhile."""
        self._posted = posted
        self._came: dict[tuple[int, int], Any] = {}

    def take(self, number: int, ranks: Collection[int], timeout_s: float) -> dict[int, Any]:
        """Return by rank what these have posted as ``number``, once all have or the time is up."""
        deadline, pause_s = time.monotonic() + timeout_s, FIRST_PAUSE_S
        while True:
            for sender, (of_call, value) in self._posted():
                self._came[of_call, sender] = value
            came = [rank for rank in ranks if (number, rank) in self._came]
            if len(came) == len(ranks) or time.monotonic() >= deadline:
                return {rank: self._came.pop((number, rank)) for rank in came}
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _INBOX_PAUSE_S)


class WakeupSignal:
    """Wakes a supervisor of the same node at once, so that nobody has to look often.

    It says only "look now": MPI carries what happened. So a lost signal costs one wake-up interval,
    and a stranger's costs one look. A datagram socket in Linux's abstract namespace leaves no file.
    Elsewhere there is no such address, and every signal is lost.
    """

    def __init__(self) -> None:
        """Take a free address, which the kernel chooses."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.address: str = ""
        if sys.platform == "linux":
            self._socket.bind("")
            self.address = self._socket.getsockname().decode("latin-1")
        self.fd = self._socket.fileno()

    def __enter__(self) -> WakeupSignal:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, address: str) -> None:
        """Signal another supervisor; one that is gone or has enough signals is no error."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"\n", address.encode("latin-1"))

    def clear(self) -> bool:
        """Take all signals that have arrived; return whether there was one."""
        arrived = False
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(_SIGNAL_BYTES):
                arrived = True
        return arrived

"""Messages between two ranks with as little delay as MPI has, for comparing their clocks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from hpcbench.launch.ranks.waiting import refuse_lateness, wait_quietly

_TAG = 79
_TESTS = 30
"""So many tests (about 3 us) before each further one yields the core: the other rank may be
waiting for this very one."""
_LOOK_EVERY = 256


class Pair(Protocol):
    """This rank and one other, who take turns in sending one int64 each.

    Both ways of receiving raise RankLostError where nothing comes in time.
    """

    def send(self, value: int) -> None:
        """Send a value; returns at once. The one before it must have been answered."""

    def receive(self) -> int:
        """Return the next value as soon as it is there: keeps a core busy."""

    def wait(self, timeout_s: float) -> int:
        """Return the next value; looks only now and then."""


@contextlib.contextmanager
def open_pair(
    comm: Any, rank: int, timeout_s: float, while_waiting: Callable[[], None],
) -> Iterator[Pair]:
    """Give the pair with ``rank`` of an mpi4py communicator.

    After an error its requests are left as they are: the other rank is lost, so the job ends.
    """
    pair = _MpiPair(comm, rank, timeout_s, while_waiting)
    yield pair
    pair.close()


class _MpiPair:
    """A pair over persistent requests, which cost a tenth of mpi4py's ordinary ones."""

    def __init__(
        self, comm: Any, rank: int, timeout_s: float, while_waiting: Callable[[], None],
    ) -> None:
        self._other = f"rank {rank}"
        self._timeout_s = timeout_s
        self._while_waiting = while_waiting
        self._out = np.zeros(1, dtype=np.int64)
        self._in = np.zeros(1, dtype=np.int64)
        self._sending = comm.Send_init(self._out, rank, tag=_TAG)
        self._receiving = comm.Recv_init(self._in, rank, tag=_TAG)

    def send(self, value: int) -> None:
        self._sending.Wait()  # of a message that was answered: it cannot block
        self._out[0] = value
        self._sending.Start()

    def receive(self) -> int:
        self._receiving.Start()
        arrived, give_way = self._receiving.Test, os.sched_yield
        began, tests = time.monotonic(), 0
        while not arrived():
            tests += 1
            if tests > _TESTS:
                give_way()
            if tests % _LOOK_EVERY == 0:
                self._while_waiting()
                refuse_lateness(began, self._timeout_s, self._other)
        return int(self._in[0])

    def wait(self, timeout_s: float) -> int:
        self._receiving.Start()
        self._wait_for(self._receiving, timeout_s)
        return int(self._in[0])

    def close(self) -> None:
        """Free the requests once the last message has left its buffer."""
        self._wait_for(self._sending, self._timeout_s)
        self._sending.Free()
        self._receiving.Free()

    def _wait_for(self, request: Any, timeout_s: float) -> None:
        wait_quietly(request.Test, self._while_waiting, timeout_s, lost=self._other)

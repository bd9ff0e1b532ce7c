"""What the ranks of a case use to agree while it is measured: never the group under test.

A control group in memory that all ranks of one node map: nothing but the ranks runs for it.

A group of gloo has threads of its own. On cores that ranks fill, they still run when the operation
under test begins, and the kernel lets one of them keep a core for a tick of its clock.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class Control(Protocol):
    """All ranks of the case call these in the same order."""

    def barrier(self) -> None:
        """Return when every rank has called."""

    def maximum(self, values: Integers) -> Integers:
        """Return the element-wise maximum over ranks of ``values``, of one length everywhere."""


_WORDS_OF_TURN = 8
"""A cache line each, so that no rank's waiting slows another rank's writing."""
CAPACITY = 512
"""Values of a rank in one exchange; more are exchanged in several."""
_YIELDS_S = 1e-3
"""So long a rank that waits looks again at once; then it sleeps, for a share of its wait."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _SHARE = 5e-5, 2e-3, 0.05
_WORD = 8


def bytes_of(ranks: int) -> int:
    """Return how much memory so many ranks need."""
    return _WORD * ranks * (_WORDS_OF_TURN + 2 * CAPACITY)


class SharedControl:
    """Lines ranks up by turns: each writes its values, then the number of the exchange.

    A rank has two places for values, used in turns. It comes to the next but one exchange only when
    all have come to the next, and so have read what it then overwrites.
    """

    def __init__(
        self, fd: int, rank: int, ranks: int, timeout_s: float, *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Map ``fd``, which holds `bytes_of` zeros, or what other ranks have written since."""
        self._map = mmap.mmap(fd, bytes_of(ranks))
        words = np.frombuffer(self._map, dtype=np.int64)
        at_values = ranks * _WORDS_OF_TURN
        self._turns = memoryview(self._map)[:_WORD * at_values].cast("q")
        self._values = words[at_values:].reshape(2, ranks, CAPACITY)
        self._rank, self._timeout_s, self._now_s = rank, timeout_s, now_s
        self._others = [other * _WORDS_OF_TURN for other in range(ranks) if other != rank]
        self._own = rank * _WORDS_OF_TURN
        self._turn = 0
        self._fence = threading.Lock()
        self._fence.acquire()

    def barrier(self) -> None:
        """Return when every rank has called."""
        self._turn += 1
        self._come()

    def maximum(self, values: Integers) -> Integers:
        """Return the element-wise maximum over ranks."""
        parts = [self._maximum(values[first:first + CAPACITY])
                 for first in range(0, len(values), CAPACITY)]
        return np.concatenate(parts) if parts else values.copy()

    def _maximum(self, values: Integers) -> Integers:
        self._turn += 1
        places = self._values[self._turn % 2, :, :len(values)]
        places[self._rank] = values
        self._come()
        greatest: Integers = places.max(axis=0)
        return greatest

    def _come(self) -> None:
        """Show that what this rank wrote is there, and wait for all others to come."""
        self._order()
        self._turns[self._own] = self._turn
        for other in self._others:
            if self._turns[other] < self._turn:
                self._await(other)
        self._order()

    def _order(self) -> None:
        """Keep what is before from moving behind what follows, on processors that reorder memory.

        Nothing before a release moves behind it, and nothing after an acquisition before that.
        """
        self._fence.release()
        self._fence.acquire()

    def _await(self, other: int) -> None:
        began_s = self._now_s()
        while self._turns[other] < self._turn:
            waited_s = self._now_s() - began_s
            if waited_s < _YIELDS_S:
                os.sched_yield()
                continue
            if waited_s > self._timeout_s:
                raise RuntimeError(f"timed out: rank {other // _WORDS_OF_TURN} did not line up "
                                   f"in {self._timeout_s:g} s")
            time.sleep(min(max(_SHARE * waited_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S))

"""How ranks line up while a case is measured, and the stamps that a worker leaves.

They never use the group under test. A group of gloo has threads of its own. On cores that ranks
fill, they still run when the operation under test begins, and the kernel lets one of them keep a
core for a tick of its clock. So ranks of one node use memory that all map. Stamps and progress are
in memory that the supervisor shares: after a crash or a hang they show how far the worker came."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcbench.measurement import process
from hpcbench.trace.schema import SAMPLE_COLUMNS, Flag

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
"""So long a waiting rank checks without a pause; then it sleeps, for a share of its wait."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _SHARE = 5e-5, 2e-3, 0.05
_WORD = 8


def bytes_of(ranks: int) -> int:
    return _WORD * ranks * (_WORDS_OF_TURN + 2 * CAPACITY)


class SharedControl:
    """Lines ranks up by turns: each writes its values, then the number of the exchange. A rank has
    two places for values, used in turns: it comes to the next but one exchange only when all have
    come to the next, and so have read what it then overwrites."""

    def __init__(
        self, fd: int, rank: int, ranks: int, timeout_s: float, *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._map = mmap.mmap(fd, bytes_of(ranks))
        words = np.frombuffer(self._map, dtype=np.int64)
        at_values = ranks * _WORDS_OF_TURN
        self._turns = memoryview(self._map)[:_WORD * at_values].cast("q")
        self._values = words[at_values:].reshape(2, ranks, CAPACITY)
        self._rank, self.timeout_s, self._now_s = rank, timeout_s, now_s
        self._others = [other * _WORDS_OF_TURN for other in range(ranks) if other != rank]
        self._own = rank * _WORDS_OF_TURN
        self._turn = 0
        self._fence = threading.Lock()
        self._fence.acquire()

    def barrier(self) -> None:
        self._turn += 1
        self._come()

    def maximum(self, values: Integers) -> Integers:
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
        self._order()
        self._turns[self._own] = self._turn
        for other in self._others:
            if self._turns[other] < self._turn:
                self._await(other)
        self._order()

    def _order(self) -> None:
        """Keep memory accesses in order on processors that reorder them: nothing moves behind a
        release, nor before an acquisition."""
        self._fence.release()
        self._fence.acquire()

    def _await(self, other: int) -> None:
        began_s = self._now_s()
        while self._turns[other] < self._turn:
            waited_s = self._now_s() - began_s
            if waited_s < _YIELDS_S:
                os.sched_yield()
                continue
            if waited_s > self.timeout_s:
                raise RuntimeError(f"timed out: rank {other // _WORDS_OF_TURN} did not line up "
                                   f"in {self.timeout_s:g} s")
            time.sleep(min(max(_SHARE * waited_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S))


_NAME = "hpcbench-control"


def control_in_memory(
    rank: int, ranks: int, timeout_s: float, gather: Callable[[Any], Sequence[Any]],
) -> SharedControl | None:
    """Return the control in memory of rank 0; None on all ranks where it cannot be used.
    Collective: ``gather`` returns each rank's value.

    Ranks need a core each (a waiting rank would take one from those it waits for), and must see
    each other's files, as in containers and on other nodes they do not."""
    with _memory_of(rank, ranks) as (own, address):
        gathered = gather((address, process.own_cores()))
        suffice = (process.ranks_a_core([cores for _, cores in gathered]) <= 1
                   and process.granted_cores(process.KernelFiles()) >= ranks)
        shared = _mapped(gathered[0][0], own, rank, ranks, timeout_s) if suffice else None
        all_have_it = all(gather(shared is not None))
    return shared if all_have_it else None


def _mapped(
    address: tuple[str, str], own: int | None, rank: int, ranks: int, timeout_s: float,
) -> SharedControl | None:
    """Return the control in rank 0's memory, or None where that cannot be had."""
    path, name = address
    try:
        if own is None and name not in str(Path(path).readlink()):
            return None  # another file is in its place
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC) if own is None else os.dup(own)
    except OSError:
        return None
    try:
        return SharedControl(fd, rank, ranks, timeout_s)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


@contextlib.contextmanager
def _memory_of(rank: int, ranks: int) -> Iterator[tuple[int | None, tuple[str, str]]]:
    """Give rank 0's descriptor of new memory, and where to find it under which name."""
    if rank:
        yield None, ("", "")
        return
    name = f"{_NAME}-{secrets.token_hex(8)}"
    try:
        fd = process.shared_memory(name, bytes_of(ranks))
    except OSError:
        yield None, ("", name)
        return
    try:
        yield fd, (f"/proc/{os.getpid()}/fd/{fd}", name)
    finally:
        os.close(fd)


_HEADER_WORDS = 16
_ROW_WORDS = len(SAMPLE_COLUMNS)
_ROW = struct.Struct(f"@{_ROW_WORDS}q")
ROW_BYTES = _ROW.size
_HEAD = struct.Struct("@3q")
"""Iteration, phase and number of rows, which are neighbours."""
_START, _END, _FLAGS = map(SAMPLE_COLUMNS.index, ("start_ns", "end_ns", "flags"))
_CASE, _ITERATION, _PHASE, _ROWS, _WRONG_ITERATION, _STEP = range(6)
_WRONG_OPERATION = slice(8, 16)  # the header's second half: a name in ASCII, padded with NUL
_NAME_BYTES = 64
_HEAD_AT = 8 * _ITERATION


class WorkerPhase(IntEnum):
    """The activity of a worker, in the order of one iteration."""

    IDLE = 0
    JOIN = 1
    SETUP = 2
    PREPARE = 3
    BARRIER = 4
    RUN = 5
    CHECK = 6
    FINISH = 7


_PHASES = frozenset(map(int, WorkerPhase))
_MOST = 1 << 40
PREPARED = int(WorkerPhase.PREPARE)
"""The phase that a row begins with."""


class SharedProgress:
    """int64 words in shared memory: case number, iteration, phase, row count, first wrong
    operation, rows. Only rows that are written take memory."""

    def __init__(self, fd: int, capacity: int) -> None:
        self.fd = fd
        self.capacity = capacity
        self._map = mmap.mmap(fd, 8 * (_HEADER_WORDS + capacity * _ROW_WORDS))
        self._words = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, capacity: int) -> SharedProgress:
        n_bytes = 8 * (_HEADER_WORDS + capacity * _ROW_WORDS)
        return cls(process.shared_memory("hpcbench-progress", n_bytes), capacity)

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.fd)

    def begin(self, case_number: int) -> None:
        self._write_wrong_operation("")
        for word in (_ROWS, _ITERATION, _WRONG_ITERATION, _STEP):
            self._words[word] = 0
        self._words[_PHASE] = WorkerPhase.IDLE
        self._words[_CASE] = case_number

    def mark(self, phase: WorkerPhase, iteration: int = 0) -> None:
        self._words[_ITERATION] = iteration
        self._words[_PHASE] = phase

    def entering(self, phase: int) -> Callable[[], object]:
        """Return a callable without Python code that sets this phase of the same iteration."""
        return partial(self._words.__setitem__, _PHASE, phase)

    def step(self, number: int) -> None:
        self._words[_STEP] = number

    def record_wrong_operation(self, operation: str, iteration: int) -> None:
        """Record that ``operation`` runs instead of the planned one; the first one stays."""
        if not self.wrong_operation:
            self._words[_WRONG_ITERATION] = iteration
            self._write_wrong_operation(operation)

    def _write_wrong_operation(self, name: str) -> None:
        padded = name.encode("ascii")[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
        self._words[_WRONG_OPERATION] = memoryview(padded).cast("q")

    def stamp(
        self, row: int, start_ns: int, end_ns: int, enqueue_ns: int, device_ns: int, flags: int,
    ) -> None:
        write, advance, at = self.writers(row)
        write(at, start_ns, end_ns, enqueue_ns, device_ns, flags)
        advance(row + 1, PREPARED, row + 1)

    def writers(self, row: int) -> tuple[Callable[..., None], Callable[..., None], int]:
        """Return callables without Python code: one writes a sample at an offset, one takes the
        next row, `PREPARED` and the number of rows; and row's offset, of which the next is
        `ROW_BYTES` on."""
        return (partial(_ROW.pack_into, self._map), partial(_HEAD.pack_into, self._map, _HEAD_AT),
                8 * _HEADER_WORDS + row * ROW_BYTES)

    def flag(self, row: int, flags: int) -> None:
        self._words[_HEADER_WORDS + row * _ROW_WORDS + _FLAGS] |= flags

    @property
    def case_number(self) -> int:
        return self._words[_CASE]

    @property
    def iteration(self) -> int:
        return self._words[_ITERATION]

    @property
    def phase(self) -> WorkerPhase:
        """Return the phase, IDLE for a number that is none (`problem`)."""
        number = self._words[_PHASE]
        return WorkerPhase(number) if number in _PHASES else WorkerPhase.IDLE

    @property
    def within(self) -> int:
        return self._words[_STEP]

    @property
    def wrong_operation(self) -> str:
        return self._name.decode("ascii", "replace")

    @property
    def wrong_iteration(self) -> int:
        return self._words[_WRONG_ITERATION]

    @property
    def _name(self) -> bytes:
        return bytes(self._words[_WRONG_OPERATION]).rstrip(b"\0")

    def problem(self, case_number: int, began_ns: int, now_ns: int) -> str:
        """Return what no worker can have written from ``began_ns`` to ``now_ns``, "" if nothing is.

        A case has whatever memory it shares within its reach."""
        for name, at, most in (("phase", _PHASE, max(_PHASES)), ("iteration", _ITERATION, _MOST),
                               ("number of samples", _ROWS, self.capacity), ("step", _STEP, _MOST),
                               ("iteration", _WRONG_ITERATION, _MOST)):
            if not 0 <= self._words[at] <= most:
                return f"{name} {self._words[at]}"
        if self.case_number != case_number:
            return f"case {self.case_number} in place of {case_number}"
        if not re.fullmatch(rb"[ -~]*", self._name):
            return "an operation without a name"
        rows = self.rows()
        start_ns, end_ns = rows[:, _START], rows[:, _END]
        bad = ((start_ns < began_ns) | (end_ns < start_ns) | (end_ns > now_ns)
               | (rows[:, _FLAGS] & ~sum(Flag)).astype(bool))
        return f"sample {int(bad.argmax())} {rows[bad.argmax()].tolist()}" if bad.any() else ""

    def rows(self) -> npt.NDArray[np.int64]:
        """Return a copy of the rows, as many as there can be."""
        return self.span(0, min(max(self._words[_ROWS], 0), self.capacity))

    def span(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return a copy of rows ``first`` to ``last`` - 1, int64 (row, SAMPLE_COLUMNS)."""
        part = slice(_HEADER_WORDS + first * _ROW_WORDS, _HEADER_WORDS + last * _ROW_WORDS)
        return np.array(self._words[part], dtype=np.int64).reshape(-1, _ROW_WORDS)

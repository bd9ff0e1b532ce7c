"""Cases reduced in several processes, and handed on in the order of the plan.

Each process reduces a group of cases at a time and sends one case after another. What a process
cannot do or send, because it was killed or an error came up, is done again here, where errors are
told. The results are the same bytes, whatever the number of processes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Literal

from hpcbench.measure.process import rare_collection
from hpcbench.reduce.case_groups import GROUP_BYTES, Group
from hpcbench.reduce.reduced_case import CasePacker, CaseReducer, GroupMemory, ReducedCase

_MOST = 2
"""Four take up to 1.5 times the CPU time, and 599 MiB (benchmarks/results/reducer.md)."""
_WORTH_BYTES = {"fork": 32 << 20, "spawn": 256 << 20}
"""Records for each process, below which its start costs more than it saves."""
_LEAST_GROUP_BYTES = 8 << 20
_GROUPS_EACH = 2
"""So many groups for each process, so that all of them end at about the same time."""
_GIVEN = 2
"""Groups that a process knows of: it begins the second while the first one's end is written."""


@dataclass(frozen=True, slots=True)
class Processes:
    """How many processes may reduce at once, and how they start.

    ``fork`` takes milliseconds, ``spawn`` half a second. Use ``spawn`` where MPI or torch is
    loaded: their threads and the memory that they register do not stand a fork.
    """

    most: int = 1
    start: Literal["fork", "spawn"] = "fork" if sys.platform == "linux" else "spawn"

    def for_bytes(self, n_bytes: int, of_case: int) -> Processes:
        """Return as many of them as are worth it for records of this size, of the largest case.

        A case is a group of its own if it is larger than groups should be. Then as few processes
        work at once that they have no more memory than with groups.
        """
        return replace(self, most=max(1, min(
            self.most, _MOST, n_bytes // _WORTH_BYTES[self.start],
            2 * GROUP_BYTES // max(of_case, 1))))


def group_bytes(n_bytes: int, n_processes: int) -> int:
    """Return the size of groups for records of this size."""
    if n_processes == 1:
        return GROUP_BYTES
    return min(2 * GROUP_BYTES // n_processes,
               max(_LEAST_GROUP_BYTES, n_bytes // (_GROUPS_EACH * n_processes)))


@dataclass(frozen=True, slots=True)
class Work:
    """The groups of a run's cases, what reduces them, and in which processes.

    A group takes ``group_bytes``, unless it is one larger case. A chunk of the results has
    ``rows_of_chunk``.
    """

    reducer: CaseReducer
    groups: Sequence[Group]
    group_bytes: int
    rows_of_chunk: int
    processes: Processes


@contextlib.contextmanager
def reduced_cases(work: Work) -> Iterator[Iterator[ReducedCase]]:
    """Give the reduced cases in order; samples of one hold until the next is asked for."""
    start, number = work.processes.start, work.processes.most
    if number == 1:
        memory = GroupMemory(work.group_bytes)
        yield (item for group in work.groups for item in work.reducer.cases(group, memory))
        return
    context = (multiprocessing.get_context("fork") if start == "fork"
               else multiprocessing.get_context("spawn"))
    ends: list[Connection] = []
    processes = []
    try:
        # with fewer it takes longer, and no more; sending them a plug-in's class can raise anything
        with contextlib.suppress(Exception), _interrupts_held(start):
            for _ in range(number):
                end, other = context.Pipe()
                # a fork inherits all ends: while it held one, the others would not see it closed
                inherited = [*ends, end] if start == "fork" else []
                process = context.Process(
                    target=_reduce, args=(work, other, inherited), daemon=True)
                process.start()
                processes.append(process)
                ends.append(end)
                other.close()
        yield _Shared(work, ends).cases()
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.terminate()
            process.join()


@contextlib.contextmanager
def _interrupts_held(start: str) -> Iterator[None]:
    """Hold Ctrl-C back from this thread, and from processes that it starts until they ignore it."""
    if start == "spawn":
        resource_tracker.ensure_running()  # its start would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reduce(work: Work, end: Connection, inherited: Sequence[Connection]) -> None:
    """Reduce the groups whose numbers come in; None stands behind the cases of each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # our parent has it, too, and ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for one in inherited:
        one.close()
    packer, memory = CasePacker(work.rows_of_chunk), GroupMemory(work.group_bytes)
    with rare_collection(), contextlib.suppress(Exception):  # the parent does it again, and tells
        while True:
            cases = work.reducer.cases(work.groups[end.recv()], memory)
            for position, item in enumerate(cases):
                end.send_bytes(_pickled(packer.packed(item), position))
            end.send(None)


def _pickled(item: ReducedCase, position: int) -> bytes:
    """Return a case as it is sent, or its position in the group if the parent has to do it."""
    with contextlib.suppress(Exception):  # of a plug-in's class
        if not isinstance(item.observed, Exception):  # not each of these can be made again
            return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    return pickle.dumps(position)


class _Shared:
    """Groups that processes at the ``ends`` of connections reduce."""

    def __init__(self, work: Work, ends: Sequence[Connection]) -> None:
        self._work = work
        self._given: dict[Connection, deque[int]] = {end: deque() for end in ends}
        self._begun: dict[Connection, list[ReducedCase | int]] = {end: [] for end in ends}
        self._done: dict[int, list[ReducedCase | int]] = {}
        self._next = 0
        self._memory = GroupMemory(work.group_bytes)

    def cases(self) -> Iterator[ReducedCase]:
        """Yield the cases of all groups in order."""
        most = _GIVEN * len(self._given)
        for number, group in enumerate(self._work.groups):
            self._next = max(self._next, number)
            self._give(number + most)
            while number not in self._done and any(
                    number in given for given in self._given.values()):
                self._receive()
                self._give(number + most)
            self._next = max(self._next, number + 1)
            yield from self._completed(group, self._done.pop(number, range(len(group))))

    def _completed(
        self, group: Group, sent: Sequence[ReducedCase | int],
    ) -> Iterator[ReducedCase]:
        """Yield what was sent of a group; cases of which only positions are, are reduced here."""
        for is_left, items in groupby(sent, lambda item: isinstance(item, int)):
            if is_left:
                left = [group[item] for item in items if isinstance(item, int)]
                yield from self._work.reducer.cases(left, self._memory)
            else:
                yield from (item for item in items if not isinstance(item, int))

    def _give(self, limit: int) -> None:
        """Give groups before number ``limit`` to processes that have too few, in turn."""
        for most in range(1, _GIVEN + 1):
            for end, given in [*self._given.items()]:
                if len(given) >= most or self._next >= min(limit, len(self._work.groups)):
                    continue
                try:
                    end.send(self._next)
                except OSError:  # it has ended
                    self._leave(end)
                    continue
                given.append(self._next)
                self._next += 1

    def _receive(self) -> None:
        """Take what processes have sent."""
        for end in wait([*self._given]):
            assert isinstance(end, Connection)
            try:
                item = end.recv()
            except Exception:  # it has ended, or sent what some plug-in's class cannot be made of
                self._leave(end)
                continue
            if item is None:
                self._done[self._given[end].popleft()] = self._begun[end]
                self._begun[end] = []
            else:
                self._begun[end].append(item)

    def _leave(self, end: Connection) -> None:
        """Take nothing more from a process; its groups are nobody's again."""
        del self._given[end], self._begun[end]

"""Groups of cases whose records are read together, and how they are read.

What the reducer makes of one case, from the records of all its ranks.

A case depends on no other one. So cases can be reduced in any process, and then be put together.

Cases reduced in several processes, and handed on in the order of the plan.

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
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Literal

from hpcbench.measure.process import rare_collection
from hpcbench.plan.case import Case, Plan
from hpcbench.reduce.history import Attempts
from hpcbench.reduce.outcome import Context, Outcome, judge
from hpcbench.reduce.records import Observations, Observed, observe
from hpcbench.reduce.results import CaseResult, Finding
from hpcbench.reduce.results_file import RowMaker, RowPacker, SampleRows
from hpcbench.reduce.run_checks import ExecutedOrder
from hpcbench.reduce.topology import Topology
from hpcbench.reduce.usage import Usages, UsedPasses, used_passes
from hpcbench.trace.arena import Arena, Empty
from hpcbench.trace.schema import SAMPLE_COLUMNS, Record

GROUP_BYTES = 64 << 20
"""Records read at a time; a single case larger than this is a group of its own."""
_RECORD_BYTES = 1024
"""About what a record takes beside its samples."""
RecordsByRank = dict[int, list[Record]]
Group = Sequence[Case]


def case_groups(
    plan: Plan, counts: Mapping[str, int], limit_bytes: int,
) -> Iterator[Group]:
    """Yield the cases in order, in groups whose records fit into ``limit_bytes``.

    ``counts`` says how many samples a rank has of each case.
    """
    group: list[Case] = []
    group_bytes = 0
    for case in plan.cases:
        size_bytes = _records_bytes(case, plan, counts)
        if group and group_bytes + size_bytes > limit_bytes:
            yield group
            group, group_bytes = [], 0
        group.append(case)
        group_bytes += size_bytes
    if group:
        yield group


def case_bytes(plan: Plan, counts: Mapping[str, int]) -> Sequence[int]:
    """Return the size of the records of each case."""
    return [_records_bytes(case, plan, counts) for case in plan.cases]


def _records_bytes(case: Case, plan: Plan, counts: Mapping[str, int]) -> int:
    """Return the size of the records that all ranks have of a case."""
    row_bytes = 8 * len(SAMPLE_COLUMNS) * (1 + case.workload.features.has_phases)
    rows_bytes = counts.get(case.case_id, 0) * row_bytes
    return (rows_bytes + _RECORD_BYTES * plan.passes * plan.launches) * case.world_size


def sample_counts(plan: Plan, attempts: Attempts) -> Mapping[str, int]:
    """Return the samples that a rank, the first that has the case, has of it over all attempts.

    The plan does not show it, because a case that stops by itself takes far fewer than it may.
    """
    counts: Counter[str] = Counter()
    wanted = {case.case_id for case in plan.cases if case.skip is None}
    for intake in attempts.intakes:
        of_rank: dict[str, int] = {}
        for source in intake.sources.values():
            of_rank = {**source.sample_counts(), **of_rank}
            if wanted <= of_rank.keys():
                break
        counts.update(of_rank)
    return counts


def usual_rows(plan: Plan, counts: Mapping[str, int]) -> int:
    """Return how many samples of all ranks most cases have; 0 of no case."""
    rows = Counter(rows for case in plan.cases
                   if (rows := counts.get(case.case_id, 0) * case.world_size))
    return rows.most_common(1)[0][0] if rows else 0


def read_group(
    group: Group, attempts: Attempts, memory: Arena,
) -> Iterator[tuple[Case, RecordsByRank]]:
    """Yield the cases with the records of every rank that has some.

    Samples lie in ``memory``, which is cleared before. Each trace is opened once for the group.
    """
    memory.clear()
    records: dict[str, RecordsByRank] = {case.case_id: {} for case in group}
    for source in attempts.sources:
        for record in source.records(records.keys(), empty=memory.empty):
            records[record.case_id].setdefault(source.header.rank, []).append(record)
    yield from ((case, records[case.case_id]) for case in group)


@dataclass(frozen=True, slots=True)
class ReducedCase:
    """The outcome of a case, and what it adds to what is known of all cases.

    ``packed`` are its samples in place of those of ``outcome``, if they were packed.
    """

    case: Case
    outcome: Outcome
    executed: ExecutedOrder
    used: UsedPasses
    observed: Observed | None
    packed: SampleRows | None = None


class GroupMemory:
    """Memory for the records of a group of cases, and for the samples of one case stacked."""

    def __init__(self, group_bytes: int) -> None:
        self.records = Arena(group_bytes)
        self.stacked = Arena(group_bytes)


@dataclass(frozen=True, slots=True)
class CaseReducer:
    """Reduces the cases of one run, which has these traces."""

    attempts: Attempts
    context: Context
    topology: Topology

    def cases(self, group: Group, memory: GroupMemory) -> Iterator[ReducedCase]:
        """Yield the cases of a group; samples of one hold until the next is asked for.

        No thread reads ahead: most of the time goes to short calls, between which two threads only
        hand Python's lock to and fro (benchmarks/results/reducer.md).
        """
        for case, records in read_group(group, self.attempts, memory.records):
            memory.stacked.clear()
            yield self._reduced(case, records, memory.stacked.empty)

    def _reduced(self, case: Case, records: RecordsByRank, empty: Empty) -> ReducedCase:
        outcome, executed = judge(case, records, self.context, empty), ExecutedOrder()
        executed.add(records.get(0, ()))
        observed = None if outcome.samples is None else observe(
            outcome.result, outcome.samples, self.topology)
        return ReducedCase(case, outcome, executed, used_passes(case, records), observed)


class CasePacker:
    """Packs the samples of reduced cases into chunks of so many rows."""

    def __init__(self, rows_of_chunk: int) -> None:
        self._maker = RowMaker()
        self._packer = RowPacker(rows_of_chunk)

    def packed(self, item: ReducedCase) -> ReducedCase:
        """Return a case with its samples packed, as it is where they do not fill whole chunks."""
        samples = item.outcome.samples
        if samples is None or (rows := self._packer.packed(
                self._maker.rows(item.case, samples))) is None:
            return item
        return replace(item, outcome=replace(item.outcome, samples=None), packed=rows)


class AllCases:
    """What is known of all cases, put together while they go by in the order of the plan.

    ``unbracketed`` are ranks of each case, by its label, whose clocks were not synchronised around.
    """

    def __init__(self, topology: Topology) -> None:
        self.results: list[CaseResult] = []
        self.findings: list[Finding] = []
        self.unbracketed: dict[str, frozenset[int]] = {}
        self.executed = ExecutedOrder()
        self.used = Usages()
        self.observed = Observations(topology)

    def add(self, item: ReducedCase) -> None:
        """Add one case."""
        case, outcome = item.case, item.outcome
        self.results.append(outcome.result)
        self.findings += outcome.findings
        if outcome.unbracketed:
            self.unbracketed[case.label] = outcome.unbracketed
        self.executed.update(item.executed)
        self.used.add_case(case, item.used)
        self.observed.keep(case.case_id, item.observed)


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

"""What the reducer makes of one case, from the records of all its ranks.

A case depends on no other one. So cases can be reduced in any process, and then be put together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpcbench.plan.case import Case
from hpcbench.reduce.case_groups import Group, RecordsByRank, read_group
from hpcbench.reduce.history import Attempts
from hpcbench.reduce.outcome import Outcome, judge
from hpcbench.reduce.passes import Context
from hpcbench.reduce.records import Observations, Observed, observe
from hpcbench.reduce.results import CaseResult, Finding
from hpcbench.reduce.run_checks import ExecutedOrder
from hpcbench.reduce.sample_rows import RowMaker, RowPacker, SampleRows
from hpcbench.reduce.topology import Topology
from hpcbench.reduce.usage_sums import Usages, UsedPasses, used_passes
from hpcbench.trace.arena import Arena, Empty


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

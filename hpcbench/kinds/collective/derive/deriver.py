"""The deriver of collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.collective.derive.rates import bandwidth
from hpcbench.kinds.collective.derive.record import CollectiveRecord, collective_record
from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.kinds.kind import Deriver
from hpcbench.plan.case import Case
from hpcbench.reduce.checks import Problem, bandwidth_problem
from hpcbench.reduce.results import CaseResult


class CollectiveDeriver(Deriver):
    """Derives bandwidths."""

    record = CollectiveRecord

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, CollectiveRecord]:
        """Return the rates of each case."""
        return {item.case.case_id: collective_record(item) for item in items}

    def problems(
        self, case: Case, time_s: float, nodes: Mapping[int, str], hardware: Mapping[str, Any],
    ) -> Iterator[Problem]:
        """Yield HB128 if the bus bandwidth is above the declared peak."""
        rates = bandwidth(collective_of(case), case.world_size, time_s)
        yield from bandwidth_problem(case, rates, nodes, hardware)

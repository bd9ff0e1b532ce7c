"""The planner of collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.config.block import Block
from hpcbench.config.schema import Config
from hpcbench.kinds.collective.plan.block import CollectiveBlock
from hpcbench.kinds.collective.plan.canary import canary_case
from hpcbench.kinds.collective.plan.cases import collective_cases
from hpcbench.kinds.collective.plan.points import axes_of
from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.kind import Planner
from hpcbench.plan.case import Case
from hpcbench.plan.points import PlanRequest


class CollectivePlanner(Planner):
    """Plans collectives, and the canary of every job."""

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the number of values of each axis."""
        assert isinstance(block, CollectiveBlock)
        return {name: len(values) for name, values in axes_of(block, config).items()
                if name != "env"}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the case of every point."""
        assert isinstance(block, CollectiveBlock)
        return collective_cases(title, block, job)

    def workload_from_json(self, data: Mapping[str, Any]) -> Collective:
        """Rebuild a collective."""
        return Collective(**data)

    def canary(self, world_size: int, timeout_s: float, wakeup_s: float) -> Case:
        """Return an all_reduce of 64 KiB on gloo, which every worker can run."""
        return canary_case(world_size, timeout_s, wakeup_s)

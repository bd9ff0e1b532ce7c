"""The planner of collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hpcbench.config.block import Block
from hpcbench.kinds.collective.plan.block import CollectiveBlock
from hpcbench.kinds.collective.plan.cases import axes_of, draft, points
from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.kind import Planner
from hpcbench.plan.assemble import assemble
from hpcbench.plan.case import CANARY_ID, Case
from hpcbench.plan.points import PlanRequest

if TYPE_CHECKING:
    from hpcbench.config.schema import Config

_CANARY_BYTES = 64 * 1024
_CANARY_WARMUP, _CANARY_ITERATIONS = 3, 20
_CANARY_RANK_CALLS = 640
"""Calls by all ranks together, above which it is called less often: a ring has a step a rank."""
_FEWEST_ITERATIONS = 6
"""Fewer have no interval of 95 % (`statistics.interval`)."""


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
        for point in points(block, job):
            yield assemble(title, block, job, point.common, draft(point, job))

    def workload_from_json(self, data: Mapping[str, Any]) -> Collective:
        """Rebuild a collective."""
        return Collective(**data)

    def canary(self, world_size: int, timeout_s: float, wakeup_s: float) -> Case:
        """Return an all_reduce of 64 KiB on gloo over all ranks: what every worker can do."""
        work = Collective(
            collective="all_reduce", dtype="fp32", op="sum", root=None, in_place=True,
            requested_bytes=_CANARY_BYTES, size_bytes=_CANARY_BYTES, count=_CANARY_BYTES // 4)
        iterations = max(_FEWEST_ITERATIONS,
                         min(_CANARY_ITERATIONS, _CANARY_RANK_CALLS // world_size))
        return Case(
            case_id=CANARY_ID, index=-1, block=CANARY_ID, kind="collective", backend="gloo",
            device="cpu", world_size=world_size, env=(), mode="barrier_start",
            warmup=_CANARY_WARMUP, iterations=iterations, validate=True,
            timeout_s=timeout_s, wakeup_s=wakeup_s, workload=work, skip=None, needs=(),
            estimate_s=0.0, memory_bytes=3 * _CANARY_BYTES, min_iterations=iterations)

"""The plan of a kind whose plug-in cannot be imported: a skip with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.config.block import Block
from hpcbench.config.schema import Config
from hpcbench.kinds.kind import Planner
from hpcbench.plan.case import Case, case_id
from hpcbench.plan.points import PlanRequest
from hpcbench.plan.workload import UnknownWorkload


class UnusablePlanner(Planner):
    """Plans one skipped case for each block; of stored cases it keeps what was stored."""

    def __init__(self, kind: str, problem: str) -> None:
        self._kind = kind
        self._problem = problem

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return no axis: which of the block's keys are axes is unknown."""
        return {}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the one case that stands for all points of the block."""
        keys = block.model_dump(mode="json", exclude=set(Block.model_fields))
        identity = block.model_dump(mode="json", exclude={"name"})
        config = job.config
        yield Case(
            case_id=case_id({**identity, "job_size": job.world_size}), index=0, block=title,
            kind=self._kind, backend=block.backend[0], device=block.device[0],
            world_size=job.world_size, env=(), mode=config.measure.mode, warmup=0, iterations=1,
            validate=False, timeout_s=config.launch.timeout_s, wakeup_s=config.launch.wakeup_s,
            workload=UnknownWorkload(keys, self._kind), needs=(), estimate_s=0.0,
            skip=f"kind {self._kind} cannot be used: {self._problem}", memory_bytes=0)

    def workload_from_json(self, data: Mapping[str, Any]) -> UnknownWorkload:
        """Keep what was stored."""
        return UnknownWorkload(data, self._kind)

"""The planner of sleeps, and what a case of one runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from hpcbench.plugins import (
    COMMON_AXES,
    Case,
    Config,
    Draft,
    Label,
    Planner,
    PlanRequest,
    Workload,
    assemble,
    common_points,
    listed_lengths,
    resolve_device,
)
from hpcbench_sleep.block import SleepBlock


@dataclass(frozen=True, slots=True)
class Sleep(Workload):
    """Each rank sleeps for so many milliseconds."""

    milliseconds: int
    dtype: str
    groups: int = 1

    def label(self, world_size: int) -> Label:
        return Label("sleep", ["sleep", f"{self.milliseconds}ms", f"ranks={world_size}"])


class SleepPlanner(Planner):
    """Plans sleeps."""

    def lengths(self, block: SleepBlock, config: Config) -> Mapping[str, int]:
        return listed_lengths(block, ("milliseconds", *COMMON_AXES))

    def cases(self, title: str, block: SleepBlock, job: PlanRequest) -> Iterator[Case]:
        for point, milliseconds in product(common_points(block, job), block.milliseconds):
            yield assemble(title, block, job, point, Draft(
                workload=Sleep(milliseconds, point.dtype), validate=point.validate,
                device=resolve_device(point.backend, point.device), memory_bytes=0, skip=None,
                estimate_s=0.0, identity={"kind": "sleep", "milliseconds": milliseconds}))

    def workload_from_json(self, data: Mapping[str, Any]) -> Sleep:
        return Sleep(**data)

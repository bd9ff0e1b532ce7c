"""Cases that look for the largest batch: where each search begins, and what it may cost.

The planner of memory: cases are those of trainings, with few steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcbench.config.section import Block
from hpcbench.errors import ConfigError
from hpcbench.kinds.kind import Planner
from hpcbench.kinds.memory.plan.block import MemoryBlock
from hpcbench.kinds.memory.plan.workload import MemoryWork, Search, predicted_largest
from hpcbench.kinds.training.plan.build_workload import (
    TrainingPoint,
    make_training,
    training_points,
)
from hpcbench.kinds.training.plan.planner import TrainingPlanner, case_of
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.case import Case, case_id
from hpcbench.plan.order import INLINE_BACKENDS
from hpcbench.plan.points import PlanRequest, too_large
from hpcbench.plan.workload import Workload

if TYPE_CHECKING:
    from hpcbench.config.schema import Config


_MOST_PARTS = 64
"""Of a batch by its strategy, as far as a unit is looked for."""
_TRIES, _TRIES_FROM_ONE = 4, 12
"""Assumed: from what is predicted, and from one unit where no limit is known before."""
_START_S = 1.5
"""Assumed of new workers for each try."""


def searches(title: str, block: MemoryBlock, job: PlanRequest) -> Iterator[Case]:
    """Yield the case of every point and limit. Raises ConfigError."""
    if block.memory_limit and job.config.launch.memory_limit_gb:
        raise ConfigError(f"benchmarks: {title}: memory_limit and launch.memory_limit_gb both "
                          "limit the workers; take one of the two away")
    for point in training_points(title, block, job):
        for limit_bytes in block.memory_limit or (0,):
            yield _search(title, block, job, point, limit_bytes)


def _search(
    title: str, block: MemoryBlock, job: PlanRequest, point: TrainingPoint, limit_bytes: int,
) -> Case:
    """Return the case that looks for the largest batch of a point."""
    unit = _unit(point)
    case = case_of(title, block, job, _with_batch(point, unit))
    known_bytes = limit_bytes or _known_limit(job.config, case.device)
    first = predicted_largest(training_of(case), unit, known_bytes) if (
        known_bytes and not case.skip) else None
    work = MemoryWork(replace(training_of(case), count_step=False),
                      Search(unit, first or unit, known_bytes))
    skip = case.skip or _not_isolated(case, job.config) or too_large(
        limit_bytes, 0, case.device, job.config.hardware)
    tries = _TRIES if known_bytes else _TRIES_FROM_ONE
    return replace(
        case, workload=work, skip=skip, needs=() if skip else case.needs,
        case_id=case_id({"kind": block.kind, "of": case.case_id, "limit_bytes": limit_bytes}),
        # what is asked for is to be there; of a share of what is there only one unit is needed
        memory_bytes=limit_bytes or case.memory_bytes,
        memory_error=0.0 if limit_bytes else case.memory_error,
        estimate_s=0.0 if skip else tries * (_START_S + _try_s(
            title, block, job, _with_batch(point, first or unit))))


def _with_batch(point: TrainingPoint, batch: int) -> TrainingPoint:
    return point._replace(setting=point.setting._replace(batch_size=batch))


def _unit(point: TrainingPoint) -> int:
    """Return the smallest batch that can be divided as the point asks for, as far as one is found.
    """
    parts = point.setting.accumulation
    return next((parts * count for count in range(1, _MOST_PARTS + 1)
                 if make_training(_with_batch(point, parts * count))[1] is None), parts)


def _known_limit(config: Config, device: str) -> int:
    """Return what a rank may use as declared, in bytes; 0 if nothing is."""
    hardware = config.hardware
    if hardware.memory_per_device_gb is None or hardware.device_type not in (None, device):
        return 0
    return int(hardware.memory_per_device_gb * 1e9)


def _not_isolated(case: Case, config: Config) -> str | None:
    """Return why no new worker can be had for each try, or None."""
    if config.launch.inline or case.backend in INLINE_BACKENDS:
        return ("largest_batch needs a new process for each try: not with --inline, torchrun or "
                "backend mpi, whose workers are the ranks' own processes")
    return None


def _try_s(title: str, block: MemoryBlock, job: PlanRequest, point: TrainingPoint) -> float:
    """Return the assumed seconds of a try, of which two steps are followed."""
    unproved = point._replace(common=point.common._replace(validate=False))
    return case_of(title, block, job, unproved).estimate_s


_STEPS = {"warmup": (1,), "iterations": (2,)}
"""Steps where a block gives none: a step holds the same again and again, once it has states."""


class MemoryPlanner(Planner):
    """Plans what trainings hold, as the planner of trainings plans them."""

    def __init__(self) -> None:
        self._trainings = TrainingPlanner()

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        assert isinstance(block, MemoryBlock)
        return {**self._trainings.lengths(block, config),
                "memory_limit": len(block.memory_limit or (None,))}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        assert isinstance(block, MemoryBlock)
        block = _with_steps(block)
        if block.largest_batch:
            yield from searches(title, block, job)
            return
        for case in self._trainings.cases(title, block, job):
            # steps are followed here: none need be counted, too
            training = replace(training_of(case), count_step=False)
            yield replace(case, workload=MemoryWork(training),
                          case_id=case_id({"kind": block.kind, "of": case.case_id}))

    def problems(self, block: Block) -> Iterator[str]:
        return self._trainings.problems(block)

    def workload_from_json(self, data: Mapping[str, Any]) -> MemoryWork:
        search = Search(**data["search"]) if data.get("search") else None
        return MemoryWork(self._trainings.workload_from_json(data["training"]), search)

    def advice(self, work: Workload, available_bytes: int) -> str:
        assert isinstance(work, MemoryWork)
        if work.search:  # which looks for such a setting itself
            return f"give memory_limit {available_bytes} or less" if not work.search.batch else ""
        return self._trainings.advice(work.training, available_bytes)


def _with_steps(block: MemoryBlock) -> MemoryBlock:
    """Return the block with few steps where it gives none."""
    missing = {name: steps for name, steps in _STEPS.items() if getattr(block, name) is None
               and not (name == "iterations" and block.max_steps)}
    return block.model_copy(update=missing)

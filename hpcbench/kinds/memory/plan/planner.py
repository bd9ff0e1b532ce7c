"""The planner of memory: cases are those of trainings, with few steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcbench.config.block import Block
from hpcbench.kinds.kind import Planner
from hpcbench.kinds.memory.plan.block import MemoryBlock
from hpcbench.kinds.memory.plan.plan_search import searches
from hpcbench.kinds.memory.plan.search import Search
from hpcbench.kinds.memory.plan.workload import MemoryWork
from hpcbench.kinds.training.plan.planner import TrainingPlanner
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.case import Case, case_id
from hpcbench.plan.points import PlanRequest
from hpcbench.plan.workload import Workload

if TYPE_CHECKING:
    from hpcbench.config.schema import Config

_STEPS = {"warmup": (1,), "iterations": (2,)}
"""Steps where a block gives none: a step holds the same again and again, once it has states."""


class MemoryPlanner(Planner):
    """Plans what trainings hold, as the planner of trainings plans them."""

    def __init__(self) -> None:
        self._trainings = TrainingPlanner()

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the number of values of each axis."""
        assert isinstance(block, MemoryBlock)
        return {**self._trainings.lengths(block, config),
                "memory_limit": len(block.memory_limit or (None,))}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the case of every point. Raises ConfigError that lists every unknown name."""
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
        """Yield unknown models, strategies, options and values."""
        return self._trainings.problems(block)

    def workload_from_json(self, data: Mapping[str, Any]) -> MemoryWork:
        """Rebuild the workload."""
        search = Search(**data["search"]) if data.get("search") else None
        return MemoryWork(self._trainings.workload_from_json(data["training"]), search)

    def advice(self, work: Workload, available_bytes: int) -> str:
        """Return which settings of the training would fit into so much memory."""
        assert isinstance(work, MemoryWork)
        if work.search:  # which looks for such a setting itself
            return f"give memory_limit {available_bytes} or less" if not work.search.batch else ""
        return self._trainings.advice(work.training, available_bytes)


def _with_steps(block: MemoryBlock) -> MemoryBlock:
    """Return the block with few steps where it gives none."""
    missing = {name: steps for name, steps in _STEPS.items() if getattr(block, name) is None
               and not (name == "iterations" and block.max_steps)}
    return block.model_copy(update=missing)

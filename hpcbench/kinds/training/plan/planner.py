"""The planner of trainings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.config.block import Block
from hpcbench.config.schema import Config
from hpcbench.kinds.kind import Planner
from hpcbench.kinds.training.plan.block import TrainingBlock
from hpcbench.kinds.training.plan.cases import training_cases
from hpcbench.kinds.training.plan.fits import advice
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.case import Case
from hpcbench.plan.points import COMMON_AXES, PlanRequest, listed_lengths, number_of_sets
from hpcbench.plan.workload import Workload

_AXES = ("model", "layers", "hidden", "vocab", "seq_length", "width", "classes", "image_size",
         "batch_size", "accumulation", "optimizer", "checkpointing", "communication", "data",
         "library", "compile", *COMMON_AXES)


class TrainingPlanner(Planner):
    """Plans trainings."""

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the number of values of each axis; of strategies that of their sets."""
        assert isinstance(block, TrainingBlock)
        return {**listed_lengths(block, _AXES), "strategies": number_of_sets(block.strategies)}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the case of every point."""
        assert isinstance(block, TrainingBlock)
        return training_cases(title, block, job)

    def workload_from_json(self, data: Mapping[str, Any]) -> Training:
        """Rebuild a training; earlier versions stored the place of its strategy's class, too."""
        kept = {name: value for name, value in data.items() if name != "runner"}
        return Training(**{
            **kept, "options": tuple((str(name), value) for name, value in data["options"]),
            "flops": tuple((str(name), int(count)) for name, count in data["flops"]),
            "calls": tuple(data["calls"]), "modules": tuple(data.get("modules", ()))})

    def advice(self, work: Workload, available_bytes: int) -> str:
        """Return which settings of the training would fit into so much memory."""
        assert isinstance(work, Training)
        return advice(work, available_bytes)

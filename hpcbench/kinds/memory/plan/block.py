"""A block of a sweep file that measures the memory of trainings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from hpcbench.kinds.training.plan.block import TrainingBlock


class MemoryBlock(TrainingBlock):
    """One sweep over what trainings hold: its axes are those of trainings."""

    scales: ClassVar[bool] = False
    own: ClassVar[Mapping[str, Any]] = MappingProxyType({
        "model": "gpt2", "layers": 4, "hidden": 192, "heads": 6, "vocab": 8192, "seq_length": 128,
        "batch_size": [2, 8], "checkpointing": ["none", "full"],
        "strategies": ["single", "data", "zero1", "fsdp"]})

    @model_validator(mode="after")
    def _steps_can_be_followed(self) -> MemoryBlock:
        problem = ""
        if "only" in self.communication:
            problem = ("communication only holds no model, so it has no memory to measure; "
                       "take on or off")
        elif any(self.compile):
            problem = ("compile true hides what compiled blocks allocate; take false, or kind "
                       "training")
        if problem:
            raise PydanticCustomError("not_followed", "{problem}", {"problem": problem})
        return self

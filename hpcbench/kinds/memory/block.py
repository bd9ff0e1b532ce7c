"""A block of a sweep file that measures the memory of trainings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.axes import Sizes
from hpcbench.kinds.training.block import TrainingBlock
from hpcbench.units import format_bytes

LEAST_LIMIT_BYTES = 16 * 2**20
"""Threads, their stacks and the allocator's own pages take some of it."""


class MemoryBlock(TrainingBlock):
    """One sweep over the memory use of trainings; its axes are those of trainings."""

    scales: ClassVar[bool] = False
    own: ClassVar[Mapping[str, Any]] = MappingProxyType({
        "model": "gpt2", "layers": 4, "hidden": 192, "heads": 6, "vocab": 8192, "seq_length": 128,
        "batch_size": [2, 8], "checkpointing": ["none", "full"],
        "strategies": ["single", "data", "zero1", "fsdp"]})

    largest_batch: bool | None = Field(
        default=None, description="Look for the largest batch that fits, by tries in new workers; "
        "then batch_size is not given.")
    memory_limit: Sizes | None = Field(
        default=None, description="Bytes that the training may take on a rank: 512MiB, 2GiB; a "
        "list is an axis. Only with largest_batch; default: the rank's share of what is granted.")

    @model_validator(mode="after")
    def _steps_can_be_followed(self) -> MemoryBlock:
        problem = ""
        if "only" in self.communication:
            problem = ("communication only holds no model, so it has no memory to measure; "
                       "take on or off")
        elif any(self.compile):
            problem = ("compile true hides what compiled blocks allocate; take false, or kind "
                       "training")
        elif self.checkpoint_every:
            problem = ("checkpoint_every copies what a rank holds while its peak is measured; "
                       "leave it out, or take kind training")
        if problem:
            raise PydanticCustomError("not_followed", "{problem}", {"problem": problem})
        return self

    @model_validator(mode="after")
    def _search_is_whole(self) -> MemoryBlock:
        least, problem = min(self.memory_limit or (LEAST_LIMIT_BYTES,)), ""
        usual = type(self).model_fields["batch_size"].default
        if self.memory_limit and not self.largest_batch:
            problem = ("memory_limit is of the search for the largest batch; give largest_batch "
                       "true, or take memory_limit away (launch.memory_limit_gb limits workers)")
        elif self.largest_batch and self.batch_size != usual:
            problem = "batch_size is what largest_batch true looks for; take one of the two away"
        elif least < LEAST_LIMIT_BYTES:
            problem = (f"memory_limit {format_bytes(least)} is too little for a step of torch; "
                       f"give {format_bytes(LEAST_LIMIT_BYTES)} or more")
        if problem:
            raise PydanticCustomError("search", "{problem}", {"problem": problem})
        return self

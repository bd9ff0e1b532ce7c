"""What blocks of every kind have: where a sweep runs, and how its cases are measured.

Every key that takes a list is an axis; a block is measured at each point of the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from hpcbench.config.axes import Axis, Environment, Iterations, WorldSize
from hpcbench.config.section import (
    NAME_PATTERN,
    Backend,
    Device,
    Dtype,
    Kind,
    Mode,
    Section,
    Timeout,
    Wakeup,
    Warmup,
    key,
)

Extent = Annotated[int, Field(ge=1, le=2**31)]


@dataclass(frozen=True, slots=True)
class Replaceable:
    """A key of a block whose names another key, or a flag, can replace.

    ``described_by`` are the keys that say more of what was named, and have no meaning for another.
    ``lacking`` maps other keys to the names for which they have no meaning.
    """

    key: str
    described_by: tuple[str, ...] = ()
    lacking: Mapping[str, frozenset[str]] = field(default_factory=dict)


class Block(Section):
    """What every sweep has: where it runs, and how its cases are measured.

    ``replaceable`` maps a key of the file, such as ``model``, to what it replaces in the block.
    ``scales``: whether ``benchmark: scaling`` runs it, on several numbers of ranks.
    ``later`` are keys that blocks did not have at first. Where they are not given, plans are those
    of before, so that their runs can go on. ``own`` are the keys of a block that runs where
    ``benchmark`` names the kind, and the file has no block of it; empty: there is none.
    """

    scales: ClassVar[bool] = False
    later: ClassVar[tuple[str, ...]] = ("cuda_graph",)
    own: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    replaceable: ClassVar[Mapping[str, Replaceable]] = MappingProxyType({})
    kind: Kind = Field(description="collective (or comm), primitive, training (or train), "
                             "hardware (or machine), or memory.")
    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = key(
        None, "Title of the block's table; default: kind and number.")
    backend: Axis[Backend] = key(("gloo",), "Who does it.")
    device: Axis[Device] = key(
        ("auto",), "Where the buffers are; auto: cpu for gloo, cuda for nccl.")
    env: Environment = key({}, "Environment variables of the workers.")
    world_size: Axis[WorldSize] = key(
        ("all",), "Run on the first k ranks of the job; all: on every rank.")
    dtype: Axis[Dtype] = key(("fp32",), "Element type.")
    mode: Axis[Mode] | None = key(None, "Instead of measure.mode.")
    warmup: Axis[Warmup] | None = key(None, "Instead of measure.warmup.")
    iterations: Axis[Iterations] | None = key(None, "Instead of measure.iterations.")
    check: Axis[bool] | None = key(None, "Instead of measure.validate.", alias="validate")
    wakeup_s: Axis[Wakeup] | None = key(None, "Instead of launch.wakeup_s.")
    cuda_graph: Axis[bool] | None = key(
        None, "Capture the call in a CUDA graph, and replay it as the sample.")
    timeout_s: Timeout | None = key(None, "Instead of launch.timeout_s; a limit, so no list.")


class UnusableBlock(Block):
    """A block of a kind whose plug-in cannot be imported: its own keys are kept unchecked."""

    model_config = ConfigDict(extra="allow")

"""A block of a recorded job in a sweep file."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hpcbench.config.axes import Axis
from hpcbench.config.section import Block, Text


class ReplayBlock(Block):
    """The recorded calls of a job in their order, on each of its backends and with each gap."""

    beside: ClassVar[tuple[str, ...]] = ("traffic",)
    paths: ClassVar[tuple[str, ...]] = beside
    traffic: Text = Field(description="Recorded communication; relative to the sweep file.")
    gaps: Axis[Literal["recorded", "together", "none"]] = Field(
        default=("recorded",), description="Before each call: each rank's own gap, the shortest of "
        "its ranks without recorded waits on all of them, or none.")
    signature: Axis[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, description="Numbers of `signatures` in the record, from 0 on: one call of "
        "each, alone, in place of all in order; without `gaps` and `calls`.")
    calls: Annotated[int, Field(ge=1)] = Field(
        default=1000, description="Most calls of a sample: the first of the record.")

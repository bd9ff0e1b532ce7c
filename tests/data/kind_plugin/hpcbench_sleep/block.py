"""A block of sleeps in a sweep file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hpcbench.plugins import Axis, Block


class SleepBlock(Block):
    """One sweep over sleeps: the product of all lists."""

    milliseconds: Axis[Annotated[int, Field(ge=1, le=1000)]] = Field(
        default=(10,), description="How long each rank sleeps.")

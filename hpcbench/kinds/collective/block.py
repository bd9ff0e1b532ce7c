"""A block of collectives in a sweep file."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from hpcbench.config.axes import Axis, Groups, Sizes
from hpcbench.config.section import Block, Cache, CollectiveName, Op, Uneven


class CollectiveBlock(Block):
    """One sweep over collectives: the product of all lists."""

    scales: ClassVar[bool] = True
    collective: Axis[CollectiveName] = Field(description="The collective.")
    op: Axis[Op] = Field(
        default=("sum",), description="Reduction of all_reduce, reduce_scatter and reduce.")
    root: Axis[Annotated[int, Field(ge=0)]] = Field(
        default=(0,), description="Root of broadcast, reduce, gather and scatter, in its group.")
    in_place: Axis[bool] | None = Field(
        default=None, description="Send from the receive buffer; default: as the collective does.")
    uneven: Axis[Uneven] = Field(
        default=("none",),
        description="Parts of different sizes for all_gather, reduce_scatter and all_to_all.")
    groups: Axis[Groups] = Field(
        default=(1,), description="Equal groups of ranks that run it concurrently: how many of "
        "consecutive ranks, or {size, stride}, {stride}, {count, stride}.")
    cache: Axis[Cache] | None = Field(
        default=None,
        description="warm (default): restored before each call; cold: sets of buffers take turns.")
    asynchronous: Axis[bool] | None = Field(
        default=None, alias="async",
        description="true: issue the call with async_op, then wait; the time to issue is recorded.")
    size: Sizes = Field(
        default=(2**20,),
        description="Bytes, as nccl-tests' size column: 8, 64KiB, {from, to, factor}.")

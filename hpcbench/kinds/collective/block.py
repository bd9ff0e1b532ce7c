"""A block of collectives in a sweep file."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.axes import Axis, Groups, Sizes, UnevenAxis
from hpcbench.config.section import Block, Cache, CollectiveName, Op, Text
from hpcbench.operations.loads import MATRIX


class CollectiveBlock(Block):
    """One sweep over collectives: the product of all lists."""

    scales: ClassVar[bool] = True
    beside: ClassVar[tuple[str, ...]] = (MATRIX,)
    paths: ClassVar[tuple[str, ...]] = beside
    collective: Axis[CollectiveName] = Field(description="The collective.")
    op: Axis[Op] = Field(
        default=("sum",), description="Reduction of all_reduce, reduce_scatter and reduce.")
    root: Axis[Annotated[int, Field(ge=0)]] = Field(
        default=(0,), description="Root of broadcast, reduce, gather and scatter, in its group.")
    in_place: Axis[bool] | None = Field(
        default=None, description="Send from the receive buffer; default: as the collective does.")
    uneven: Axis[UnevenAxis] = Field(
        default=("none",),
        description="Parts of different sizes for all_gather, reduce_scatter and all_to_all.")
    matrix: Text | None = Field(
        default=None, description="Of uneven matrix: a table of bytes, a row for each sender; "
        "relative to the sweep file.")
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

    @model_validator(mode="after")
    def _matrix_is_given(self) -> CollectiveBlock:
        if (MATRIX in self.uneven) != (self.matrix is not None):
            raise PydanticCustomError("matrix", "uneven matrix and the key matrix, a file, belong "
                                      "together; give both, or neither")
        return self

"""A block of primitives in a sweep file."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.axes import Axis, WorldSize
from hpcbench.config.section import Block, Extent, Implementations, Text
from hpcbench.operations.loads import MATRIX


class PrimitiveBlock(Block):
    """One sweep over distributed primitives: the product of all lists and implementations."""

    beside: ClassVar[tuple[str, ...]] = (MATRIX,)
    paths: ClassVar[tuple[str, ...]] = beside
    primitive: Axis[Text] = Field(description="The primitive; hpcbench list names them.")
    implementations: Implementations = Field(
        description="Who does it: names, or a mapping of names to options; lists are axes.")
    order: Axis[Text] | None = Field(
        default=None, description="Which comes first, communication or product; default: the "
        "primitive's first.")
    options: Annotated[dict[str, Axis[str | int | bool]], Field()] = Field(
        default={}, description="Options of primitives or implementations, for all of the block's.")
    m: Axis[Extent] | None = Field(default=None, description="Rows: tokens of all ranks.")
    n: Axis[Extent] | None = Field(default=None, description="Columns of the (first) weight.")
    k: Axis[Extent] | None = Field(default=None, description="Inner extent of the product.")
    model: Axis[Text] | None = Field(
        default=None, description="Instead of m, n and k: the model that has the layer.")
    layer: Axis[Text] | None = Field(
        default=None, description="Layers of the model; default: all that the primitive takes.")
    tokens: Axis[Extent] | None = Field(
        default=None, description="With model: m, the tokens of all ranks.")
    degree: Axis[WorldSize] | None = Field(
        default=None, description="With model: ranks that a layer is divided among; default of "
        "tensor parallelism: all, those that run it.")

    matrix: Text | None = Field(
        default=None, description="Of load matrix: a table of bytes; relative to the sweep file.")

    @model_validator(mode="after")
    def _shape_is_given(self) -> PrimitiveBlock:
        problem = self._shape_problem()
        if problem:
            raise PydanticCustomError("shape", "{problem}", {"problem": problem})
        return self

    def _shape_problem(self) -> str | None:
        """Return the error in the keys that give the shape, or None."""
        given = self._given("m", "n", "k")
        beside_model = self._given("layer", "tokens", "degree")
        if self.model is not None and given:
            return f"model and {', '.join(given)} both give the shape; keep one of them"
        if self.model is not None:
            return None if self.tokens is not None else "model needs tokens: the rows of all ranks"
        if beside_model:
            return f"{', '.join(beside_model)} without model; give model, or m, n and k alone"
        if not given:
            return "no shape; give m, n and k, or model and tokens"
        missing = [name for name in ("m", "n", "k") if name not in given]
        return f"{', '.join(missing)} missing; give m, n and k" if missing else None

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

"""A block of a sweep file: one sweep over collectives, primitives or trainings.

Every key that takes a list is an axis; a block is measured at each point of the product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config import names
from hpcbench.config.axes import Axis, Environment, Iterations, Sizes, WorldSize
from hpcbench.config.implementations import Implementations, Strategies
from hpcbench.config.section import (
    NAME_PATTERN,
    Backend,
    Checkpointing,
    CollectiveName,
    Communication,
    Device,
    Dtype,
    Kind,
    Library,
    Mode,
    Op,
    Optimizer,
    Section,
    Split,
    Text,
    Timeout,
    TrainingDtype,
    Wakeup,
    Warmup,
)

Extent = Annotated[int, Field(ge=1, le=2**31)]


class Block(Section):
    """What every sweep has: where it runs, and how its cases are measured."""

    kind: Kind = Field(description="collective (or comm), primitive, or training (or train).")
    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = Field(
        default=None, description="Title of the block's table; default: kind and number.")
    backend: Axis[Backend] = Field(default=("gloo",), description="Who does it.")
    device: Axis[Device] = Field(
        default=("auto",), description="Where the buffers are; auto: cpu for gloo, cuda for nccl.")
    env: Environment = Field(default={}, description="Environment variables of the workers.")
    world_size: Axis[WorldSize] = Field(
        default=("all",), description="Run on the first k ranks of the job; all: on every rank.")
    dtype: Axis[Dtype] = Field(default=("fp32",), description="Element type.")
    mode: Axis[Mode] | None = Field(default=None, description="Instead of measure.mode.")
    warmup: Axis[Warmup] | None = Field(default=None, description="Instead of measure.warmup.")
    iterations: Axis[Iterations] | None = Field(
        default=None, description="Instead of measure.iterations.")
    check: Axis[bool] | None = Field(
        default=None, alias="validate", description="Instead of measure.validate.")
    wakeup_s: Axis[Wakeup] | None = Field(default=None, description="Instead of launch.wakeup_s.")
    timeout_s: Timeout | None = Field(
        default=None, description="Instead of launch.timeout_s; a limit, so no list.")


class CollectiveBlock(Block):
    """One sweep over collectives: the product of all lists."""

    collective: Axis[CollectiveName] = Field(description="What is measured.")
    op: Axis[Op] = Field(
        default=("sum",), description="Reduction of all_reduce, reduce_scatter and reduce.")
    root: Axis[Annotated[int, Field(ge=0)]] = Field(
        default=(0,), description="Root of broadcast, reduce, gather and scatter, in its group.")
    in_place: Axis[bool] | None = Field(
        default=None, description="Send from the receive buffer; default: as the collective does.")
    split: Axis[Split] = Field(
        default=("even",),
        description="How all_gather, reduce_scatter and all_to_all divide the data among ranks.")
    groups: Axis[Annotated[int, Field(ge=1)]] = Field(
        default=(1,), description="Equal groups of consecutive ranks that run it at once.")
    size: Sizes = Field(
        default=(2**20,),
        description="Bytes, as nccl-tests' size column: 8, 64KiB, {from, to, factor}.")


class PrimitiveBlock(Block):
    """One sweep over distributed primitives: the product of all lists and implementations."""

    primitive: Axis[Text] = Field(description="What is measured; hpcbench list names them.")
    implementations: Implementations = Field(
        description="Who does it: names, or a mapping of names to options; lists are axes.")
    order: Axis[Text] | None = Field(
        default=None, description="Which comes first, communication or product; default: the "
        "primitive's first. Orders of other primitives are dropped.")
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
        default=None, description="With model: ranks that a layer is divided among; each rank gets "
        "such a share. all, and the default of tensor parallelism: the ranks that run it.")

    @model_validator(mode="after")
    def _shape_is_given(self) -> PrimitiveBlock:
        problem = self._shape_problem()
        if problem:
            raise PydanticCustomError("shape", "{problem}", {"problem": problem})
        return self

    def _shape_problem(self) -> str | None:
        """Return what is wrong with the keys that give the shape, or None."""
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


class TrainingBlock(Block):
    """One sweep over training steps: the product of all lists and strategies."""

    model: Axis[Text] = Field(description="What is trained; hpcbench list names them.")
    strategies: Strategies = Field(
        description="How it is spread over the ranks: names, or a mapping of names to options; "
        "lists are axes.")
    dtype: Axis[TrainingDtype] = Field(
        default=("fp32",), description="Of the arithmetic; bf16 and fp16 over fp32 weights.")
    layers: Axis[Extent] | None = Field(
        default=None, description="Instead of the model's own number of blocks.")
    hidden: Axis[Extent] | None = Field(
        default=None, description="Instead of a transformer's own width; heads stay as many.")
    vocab: Axis[Extent] | None = Field(
        default=None, description="Instead of a transformer's own vocabulary.")
    seq_length: Axis[Extent] | None = Field(
        default=None, description="Tokens of a sample of a transformer; default: its longest.")
    width: Axis[Extent] | None = Field(
        default=None, description="Instead of a ResNet's own channels of the first stage.")
    classes: Axis[Extent] | None = Field(
        default=None, description="Instead of a ResNet's own number of classes.")
    image_size: Axis[Extent] | None = Field(
        default=None, description="Height and width of a ResNet's images, in pixels.")
    batch_size: Axis[Extent] = Field(
        default=(8,), description="Samples of one data-parallel replica in one step.")
    accumulation: Axis[Extent] = Field(
        default=(1,), description="Equal parts that they are computed in, one after another.")
    optimizer: Axis[Optimizer] = Field(default=("adamw",), description="Who updates the weights.")
    checkpointing: Axis[Checkpointing] = Field(
        default=("none",), description="Activations that are computed again, not kept.")
    communication: Axis[Communication] = Field(
        default=("on",), description="off: the same steps without communication; only: nothing but "
        "the communication of a step. Beside on they tell what of it is exposed.")
    data: Axis[Text] = Field(
        default=("synthetic",), description="Random tokens, or the path of a file of tokens.")
    library: Axis[Library] = Field(
        default=("hpcbench",), description="Whose model of that shape it is.")
    compile: Axis[bool] = Field(
        default=(False,), description="Blocks and loss compiled by torch.compile.")


BLOCKS: Mapping[str, type[Block]] = {
    "collective": CollectiveBlock, "primitive": PrimitiveBlock, "training": TrainingBlock}
"""Kind -> its block."""


def _kind_of(value: Any) -> str:
    """Return the tag of a raw block; one of no known kind is told so as a collective."""
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    kind = names.KIND_ALIASES.get(str(kind), str(kind))
    return kind if kind in BLOCKS else "collective"


AnyBlock = Annotated[
    Annotated[CollectiveBlock, Tag("collective")] | Annotated[PrimitiveBlock, Tag("primitive")]
    | Annotated[TrainingBlock, Tag("training")],
    Discriminator(_kind_of),
]

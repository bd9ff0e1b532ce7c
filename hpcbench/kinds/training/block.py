"""A block of trainings in a sweep file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.axes import DTYPE_ALIASES, MAX_ITERATIONS, Axis, Checked, named
from hpcbench.config.section import Block, Extent, Replaceable, Strategies, Text
from hpcbench.kinds.training.plan.any_model import RESNETS
from hpcbench.kinds.training.plan.model_file import MOST_LAYERS, SUFFIX
from hpcbench.kinds.training.plan.models import CHECKPOINTINGS, checkpointing_of
from hpcbench.kinds.training.plan.spec import AUTO
from hpcbench.kinds.training.plan.workload import LOSSES, PRECISIONS
from hpcbench.operations.models import MODELS, OWN_LIBRARY, shipped

TRAINING_DTYPES = ("fp32", "bf16", "fp16")
OPTIMIZERS = ("adamw", "adamw8bit", "sgd")
COMMUNICATIONS = ("on", "off", "only")
"""Whether a training step communicates, does all but that, or nothing but that."""
LIBRARIES = (OWN_LIBRARY, "transformers")  # whose model of the shape is trained
TrainingDtype = Annotated[str, named(TRAINING_DTYPES, {
    alias: name for alias, name in DTYPE_ALIASES.items() if name in TRAINING_DTYPES})]
Precision = Annotated[str, named(PRECISIONS)]
Optimizer = Annotated[str, named(OPTIMIZERS)]
Checkpointing = Annotated[str, Checked(checkpointing_of, lambda: {"anyOf": [
    {"enum": list(CHECKPOINTINGS)}, {"type": "string", "pattern": "^selective:[1-9][0-9]*$"}]})]
Communication = Annotated[str, named(COMMUNICATIONS)]
Library = Annotated[str, named(LIBRARIES)]
Loss = Annotated[str, named((AUTO, *LOSSES))]
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
Steps = Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]
OfTransformer = Annotated[
    Axis[Extent] | None, Field(description="Instead of a transformer's own.")]
OfResNet = Annotated[Axis[Extent] | None, Field(description="Instead of a ResNet's own.")]


class TrainingBlock(Block):
    """One sweep over training steps: the product of all lists and strategies."""

    scales: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ("data", "model")
    named_beside: ClassVar[Mapping[str, str]] = MappingProxyType({"model": SUFFIX})
    replaceable: ClassVar[Mapping[str, Replaceable]] = MappingProxyType({
        "model": Replaceable("model", (
            "layers", "hidden", "heads", "kv_heads", "inner", "vocab", "width", "classes"),
            {"seq_length": frozenset(RESNETS), "image_size": frozenset(MODELS)}),
        "strategy": Replaceable("strategies", ("lora_rank",))})
    model: Axis[Annotated[Text, AfterValidator(shipped)]] = Field(
        description="The model; hpcbench list names them. Or a Hugging Face config.json, relative "
        "to the sweep file.")
    strategies: Strategies = Field(
        description="How it is spread over the ranks: names, or a mapping of names to options; "
        "lists are axes.")
    dtype: Axis[TrainingDtype] = Field(
        default=("fp32",), description="The arithmetic; bf16 and fp16 over fp32 weights.")
    layers: Axis[Layers] | None = Field(
        default=None, description="Instead of the model's own number of blocks.")
    hidden: OfTransformer = None
    heads: OfTransformer = None
    kv_heads: OfTransformer = None
    inner: OfTransformer = None
    vocab: OfTransformer = None
    seq_length: Axis[Extent] | None = Field(
        default=None, description="Tokens of a sample of a transformer; default: its longest.")
    width: OfResNet = None
    classes: OfResNet = None
    image_size: Axis[Extent] | None = Field(
        default=None, description="Height and width of a ResNet's images, in pixels.")
    batch_size: Axis[Extent] = Field(
        default=(8,), description="Samples of one data-parallel replica in one step.")
    accumulation: Axis[Extent] = Field(
        default=(1,), description="Equal parts that they are computed in, one after another.")
    optimizer: Axis[Optimizer] = Field(
        default=("adamw",), description="Who updates the weights; adamw8bit: bitsandbytes'.")
    precision: Axis[Precision] | None = Field(
        default=None, description="mixed (default): fp32 weights; bf16: all is bf16; bf16_master: "
        "but the optimizer; fp8: products of blocks.")
    offload_state: Axis[bool] | None = Field(
        default=None, description="Whether a GPU's optimizer is on the host; default: false.")
    checkpointing: Axis[Checkpointing] = Field(
        default=("none",), description="Activations that are computed again, not kept; selective: "
        "of every second block, selective:3: of every third; offload: kept on the host.")
    communication: Axis[Communication] = Field(
        default=("on",), description="on; off: the same steps without communication; only: a "
        "step's communication alone.")
    data: Axis[Text] = Field(
        default=("synthetic",), description="Random tokens, or the path of a file of tokens.")
    library: Axis[Library] = Field(
        default=("hpcbench",), description="Whose model of that shape it is.")
    compile: Axis[bool] = Field(
        default=(False,), description="Blocks and loss compiled by torch.compile.")
    count_step: bool | None = Field(
        default=None, description="Whether an untimed step counts calls, FLOPs and activations.")
    loss: Axis[Loss] | None = Field(
        default=None, description="cross_entropy; chunked_cross_entropy: an eighth of the tokens "
        "at a time; linear_cross_entropy: product and loss in one call; auto (default): chunked "
        "above 256 MiB of logits in fp32.")
    checkpoint_every: Axis[Steps] | None = Field(
        default=None, description="Steps from one asynchronous checkpoint to the next; default: "
        "none.")
    documents: Axis[Extent] | None = Field(
        default=None, description="Documents that each sample is packed of, in lengths that follow "
        "from their number; none sees another. Default: 1.")
    max_steps: Axis[Steps] | None = Field(
        default=None, description="Timed steps; another name of iterations.")
    lora_rank: Axis[Extent] | None = Field(
        default=None, description="Option rank of those strategies of the block that have it.")

    @model_validator(mode="after")
    def _steps_are_given_once(self) -> TrainingBlock:
        if self.max_steps and self.iterations and self.max_steps != self.iterations:
            raise PydanticCustomError(
                "steps", "max_steps {steps} and iterations {iterations} are the same key and "
                "contradict each other; keep one",
                {"steps": _listed(self.max_steps), "iterations": _listed(self.iterations)})
        return self


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values))

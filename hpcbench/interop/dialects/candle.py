"""Configurations of the Candle suite (github.com/3whiskeywhiskey/candle-nvlink-benchmark).

Keys and meanings are those of its src/config.rs and src/parallelization.rs at commit 12b768e:
``batch_size`` is divided among the replicas, and a replica's layers among its devices. Keys that
are only accepted become notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config import section as sections
from hpcbench.config.axes import MAX_ITERATIONS, named
from hpcbench.operations.models import MODELS, ModelShape

_SEQ_LENGTH = 512
"""Tokens of a sample where a file leaves it open: what the suite's gen-config writes."""
_TOLERANCE = 0.05
"""How far a file's ``parameters`` may be from those of its extents, as a share."""
_BF16_CAPABILITY = 8.0
"""The first compute capability whose tensor cores take bf16 (NVIDIA Ampere)."""
_EXTENTS = {"layers": ("layers",), "hidden": ("hidden_size",),
            "heads": ("attention_heads", "heads"), "kv_heads": ("kv_heads",),
            "inner": ("intermediate_size",), "vocab": ("vocab_size",)}
"""Our key -> those of section ``model``."""
_NOTED = {
    "training": (("learning_rate", "num_epochs", "warmup_steps", "checkpoint_interval"),
                 "not used; steps of adamw are measured, not a training"),
    "benchmark": (("memory_profiling", "communication_profiling", "power_profiling",
                   "output_detailed_logs"),
                  "not used; memory and phases are always recorded, power never; key "
                  "communication of a block measures its cost"),
    "model": (("input_shape", "output_shape"),
              "not used; batch_size, sequence_length and vocab_size have it")}
"""Section -> keys that are only accepted, and the note on them."""
STRATEGIES = ("data", "model", "pipeline", "hybrid")
Iterations = Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Ignored = dict[str, Any]


class CandleSection(sections.Section):
    """A section; ``spellings`` are groups of keys of which a file has one."""

    spellings: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @model_validator(mode="after")
    def _one_spelling(self) -> CandleSection:
        for names in self.spellings:
            present = [name for name in names if getattr(self, name) is not None]
            if len(present) > 1:
                raise PydanticCustomError("spellings", "{names} mean the same; keep one of them",
                                          {"names": " and ".join(present)})
        return self

    def first_set(self, *names: str) -> Any:
        """Return the value of the first of these keys that the file has, or None."""
        return next((value for name in names if (value := getattr(self, name)) is not None), None)


class CandleHardware(CandleSection):
    """Section ``hardware``."""

    device_type: sections.DeviceType = Field(description="metal, cuda or cpu.")
    num_devices: Annotated[int, Field(ge=1)] | None = None
    memory_per_device_gb: sections.Positive | None = None
    interconnect: Annotated[str, named(("unified", "nvlink", "system", "none"))] | None = None
    network_bandwidth_gbps: sections.Positive | None = None
    compute_capability: sections.Text | None = None


class CandleModel(CandleSection):
    """Section ``model``."""

    spellings = (("attention_heads", "heads"),)
    model_type: Annotated[str, named(("transformer",))] = Field(description="transformer.")
    size: Annotated[str, named(("small", "medium", "large"))] = Field(
        description="small, medium or large.")
    parameters: Annotated[int, Field(ge=1)] | None = None
    layers: sections.Extent | None = None
    hidden_size: sections.Extent | None = None
    attention_heads: sections.Extent | None = None
    heads: sections.Extent | None = None
    kv_heads: sections.Extent | None = None
    intermediate_size: sections.Extent | None = None
    vocab_size: sections.Extent | None = None
    input_shape: tuple[sections.Extent, ...] | None = None
    output_shape: tuple[sections.Extent, ...] | None = None


class CandleTraining(CandleSection):
    """Section ``training``."""

    spellings = (("sequence_length", "seq_length"),)
    batch_size: sections.Extent | None = None
    sequence_length: sections.Extent | None = None
    seq_length: sections.Extent | None = None
    gradient_accumulation_steps: sections.Extent | None = None
    mixed_precision: bool = False
    learning_rate: Number | None = None
    num_epochs: Number | None = None
    warmup_steps: Number | None = None
    checkpoint_interval: Number | None = None


class CandleParallelization(CandleSection):
    """Section ``parallelization``; degrees that are left out follow from the ranks."""

    strategy: Annotated[str, named(STRATEGIES, {f"{name}-parallel": name for name in STRATEGIES})
                        ] = Field(description="data, model, pipeline or hybrid.")
    data_parallel_size: sections.Extent | None = None
    model_parallel_size: sections.Extent | None = None
    pipeline_parallel_size: sections.Extent | None = None
    gradient_sync_freq: sections.Extent | None = None
    communication_backend: Annotated[str, named(("nccl", "gloo", "mpi"))] | None = None

    @property
    def stages(self) -> int | None:
        """Return how many devices share a replica's layers; None where the file leaves it open."""
        return max(self.model_parallel_size or 0, self.pipeline_parallel_size or 0) or None

    @property
    def ranks(self) -> int | None:
        """Return the ranks that the sizes make, or None where they leave it open."""
        if self.strategy in ("model", "pipeline"):
            return self.stages
        if self.data_parallel_size is None:
            return None
        return self.data_parallel_size * (self.hybrid_stages if self.strategy == "hybrid" else 1)

    @property
    def hybrid_stages(self) -> int:
        """Return the stages of a hybrid: 2, as ours have, where the file leaves it open."""
        return self.stages or 2

    @model_validator(mode="after")
    def _sizes_suit_the_strategy(self) -> CandleParallelization:
        replicas, stages = self.data_parallel_size or 1, self.stages or 1
        if min(self.model_parallel_size or 1, self.pipeline_parallel_size or 1) > 1:
            raise PydanticCustomError("both", "model_parallel_size and pipeline_parallel_size both "
                                      "divide the layers; write 1 for one of them")
        if self.strategy == "data" and stages > 1:
            raise PydanticCustomError(
                "whole", "strategy data divides no model, but {stages} devices share one; write "
                "model_parallel_size 1, or strategy hybrid", {"stages": stages})
        if self.strategy in ("model", "pipeline") and replicas > 1:
            raise PydanticCustomError(
                "alone", "strategy {strategy} has one replica, not {replicas}; write "
                "data_parallel_size 1, or strategy hybrid",
                {"strategy": self.strategy, "replicas": replicas})
        return self


class CandleBenchmark(CandleSection):
    """Section ``benchmark``; also the keys of other tools' command lines."""

    spellings = (("warmup_iterations", "warmup"), ("sequence_length", "seq_length"),
                 ("measurement_iterations", "iterations", "iters", "max_steps"))
    warmup_iterations: sections.Warmup | None = None
    warmup: sections.Warmup | None = None
    measurement_iterations: Iterations | None = None
    iterations: Iterations | None = None
    iters: Iterations | None = None
    max_steps: Iterations | None = None
    batch_size: sections.Extent | None = None
    sequence_length: sections.Extent | None = None
    seq_length: sections.Extent | None = None
    lora_rank: sections.Extent | None = None
    memory_profiling: bool | None = None
    communication_profiling: bool | None = None
    power_profiling: bool | None = None
    output_detailed_logs: bool | None = None


class CandleFile(sections.Dialect):
    """A whole configuration of the suite."""

    tool: ClassVar[str] = "the Candle suite"
    hardware: CandleHardware = Field(description="The machine.")
    model: CandleModel = Field(description="The model.")
    parallelization: CandleParallelization = Field(description="How it is divided.")
    training: CandleTraining = CandleTraining()
    benchmark: CandleBenchmark = CandleBenchmark()
    optimization: Ignored | None = None
    monitoring: Ignored | None = None

    @classmethod
    def own_keys(cls, raw: Mapping[str, Any]) -> tuple[str, ...]:
        """Return its sections that are in the file; in ours ``model`` is a name or a list."""
        return tuple(name for name in ("parallelization", "training", "model") if name in raw and (
            name != "model" or isinstance(raw[name], Mapping)))

    @property
    def global_batch(self) -> int | None:
        """Return the samples of all replicas in a step; None where the file leaves it open."""
        return self.training.batch_size or self.benchmark.batch_size

    @property
    def seq_length(self) -> int | None:
        """Return the tokens of a sample; None where the file leaves it open."""
        training, benchmark = self.training, self.benchmark
        return (training.sequence_length or training.seq_length
                or benchmark.sequence_length or benchmark.seq_length)

    @model_validator(mode="after")
    def _sections_agree(self) -> CandleFile:
        for name in ("batch_size", "sequence_length"):
            first, second = getattr(self.training, name), getattr(self.benchmark, name)
            if first and second and first != second:
                raise PydanticCustomError(
                    "contradiction", "training.{name} {first} and benchmark.{name} {second} "
                    "contradict each other; keep one",
                    {"name": name, "first": first, "second": second})
        sizes, total = self.parallelization, self.global_batch
        if self.benchmark.lora_rank and sizes.strategy != "data":
            raise PydanticCustomError(
                "adapters", "benchmark.lora_rank: adapters are trained by replicas of the whole "
                "model; write strategy data, not {strategy}", {"strategy": sizes.strategy})
        if total is None or sizes.strategy in ("model", "pipeline"):
            return self
        if sizes.data_parallel_size is None:
            raise PydanticCustomError(
                "replicas", "batch_size {total} is of all replicas together: give "
                "parallelization.data_parallel_size, too", {"total": total})
        if total % sizes.data_parallel_size:
            raise PydanticCustomError(
                "division", "batch_size {total} cannot be divided evenly among "
                "parallelization.data_parallel_size {replicas}; write a multiple of it",
                {"total": total, "replicas": sizes.data_parallel_size})
        return self

    def translated(self, file: str = "") -> dict[str, Any]:
        hardware = self.hardware.model_dump(exclude_none=True, exclude={"compute_capability"})
        measure = {"warmup": self.benchmark.first_set("warmup_iterations", "warmup"),
                   "iterations": self.benchmark.first_set(
                       "measurement_iterations", "iterations", "iters", "max_steps")}
        return {"name": "candle", "title": sections.TITLE, "notes": list(_notes(self)),
                "hardware": hardware, "benchmarks": [_block(self)],
                "measure": {name: value for name, value in measure.items() if value is not None}}


def _block(file: CandleFile) -> dict[str, Any]:
    """Return the block; samples of all replicas become those of one."""
    sizes, device = file.parallelization, file.hardware.device_type
    block = {
        "kind": "training", "model": f"transformer-{file.model.size}", **_extents(file.model),
        "backend": sizes.communication_backend or ("nccl" if device == "cuda" else "gloo"),
        "device": device, "dtype": _dtype(file), "world_size": sizes.ranks or "all",
        "seq_length": file.seq_length or _SEQ_LENGTH, "strategies": _strategies(file)}
    if file.global_batch is not None:
        block["batch_size"] = file.global_batch // (sizes.data_parallel_size or 1)
    if file.training.gradient_accumulation_steps is not None:
        block["accumulation"] = file.training.gradient_accumulation_steps
    return block


def _extents(model: CandleModel) -> dict[str, Any]:
    """Return the extents that the file has and the named model has not."""
    own = MODELS[f"transformer-{model.size}"]
    extents = {name: model.first_set(*keys) for name, keys in _EXTENTS.items()}
    return {name: value for name, value in extents.items()
            if value is not None and value != getattr(own, name)}


def _dtype(file: CandleFile) -> str:
    """Return the type of the arithmetic: fp16 if it is mixed on GPUs that have no bf16."""
    if not file.training.mixed_precision:
        return "fp32"
    try:
        capability = float(file.hardware.compute_capability or _BF16_CAPABILITY)
    except ValueError:  # such as M4
        return "bf16"
    return "bf16" if capability >= _BF16_CAPABILITY else "fp16"


def _strategies(file: CandleFile) -> dict[str, Any]:
    """Return the strategy with its options; a hybrid of which one side is 1 is the other alone."""
    sizes = file.parallelization
    name, alone = sizes.strategy, sizes.ranks == 1
    if rank := file.benchmark.lora_rank:
        return {"lora": {"rank": rank, "over": "single" if alone else "data"}}
    if name == "hybrid" and sizes.hybrid_stages > 1:
        if sizes.data_parallel_size != 1:
            return {"hybrid": {"pp": sizes.hybrid_stages}}
        name = "model"
    if name in ("data", "hybrid"):
        return {"single" if alone else "data": {}}
    return {name: {}}


def _notes(file: CandleFile) -> Iterator[str]:
    hardware, model = file.hardware, file.model
    if hardware.network_bandwidth_gbps and hardware.interconnect in ("nvlink", "unified"):
        yield (f"hardware.network_bandwidth_gbps {hardware.network_bandwidth_gbps:g}: taken as "
               f"Gbit/s of the network between nodes, not of {hardware.interconnect}")
    yield from _noted(file, "model")
    counted = parameters(_shape(file))
    if model.parameters and abs(model.parameters / counted - 1) > _TOLERANCE:
        yield (f"model.parameters {model.parameters:,}: a {model.size} transformer of these "
               f"extents has {counted:,}, which is what is trained")
    if file.global_batch is None:
        yield ("training.batch_size is not in the file: 8 samples of each replica, unless --set "
               "benchmarks.0.batch_size gives others")
    if file.seq_length is None:
        yield (f"training.sequence_length is not in the file: {_SEQ_LENGTH} tokens, as the suite's "
               "gen-config writes, unless --set benchmarks.0.seq_length gives others")
    if (steps := file.training.gradient_accumulation_steps or 1) > 1:
        yield (f"training.gradient_accumulation_steps {steps}: the samples of a replica are "
               f"computed in {steps} parts, not more often")
    yield from _noted(file, "training")
    yield from _noted(file, "benchmark")
    if (often := file.parallelization.gradient_sync_freq or 1) > 1:
        yield (f"parallelization.gradient_sync_freq {often}: not used; gradients are exchanged in "
               "every step")
    yield from (f"{name}: not used; docs/training.md has what a block can say" for name in (
        "optimization", "monitoring") if getattr(file, name) is not None)


def _noted(file: CandleFile, section: str) -> Iterator[str]:
    """Yield a line on the keys that are only accepted, if the file has some, not switched off."""
    keys, why = _NOTED[section]
    if names := [key for key in keys if getattr(getattr(file, section), key) not in (None, False)]:
        yield f"{section}.{', '.join(names)}: {why}"


def _shape(file: CandleFile) -> ModelShape:
    """Return the shape with the file's extents; the MLP keeps its ratio to the width."""
    own, extents = MODELS[f"transformer-{file.model.size}"], _extents(file.model)
    extents.setdefault("kv_heads", extents.get("heads", own.heads))
    extents.setdefault("inner", own.inner * extents.get("hidden", own.hidden) // own.hidden)
    return replace(own, **extents, seq_length=file.seq_length or _SEQ_LENGTH)


def parameters(shape: ModelShape) -> int:
    """Return the parameters of a transformer that is built as GPT-2.

    Products with biases, learned positions, two norms in each block and one behind them; logits
    use the embedding's weight (Radford et al., 2019)."""
    hidden, keys = shape.hidden, shape.kv_hidden
    attention = 2 * (hidden * hidden + hidden) + 2 * (hidden * keys + keys)
    mlp = 2 * hidden * shape.inner + shape.inner + hidden
    return ((shape.vocab + shape.seq_length) * hidden + 2 * hidden
            + shape.layers * (attention + mlp + 4 * hidden))

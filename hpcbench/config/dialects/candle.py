"""A checked configuration of the Candle suite as a raw mapping of ours, with notes.

Configurations of the Candle suite (github.com/3whiskeywhiskey/candle-nvlink-benchmark).

Keys and meanings are those of its src/config.rs and src/parallelization.rs at commit 12b768e:
``batch_size`` is divided among the replicas, and a replica's layers among its devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.axes import MAX_ITERATIONS, named
from hpcbench.config.dialects.dialect import TITLE, Dialect
from hpcbench.config.section import DeviceType, Extent, Positive, Section, Text, Warmup, key
from hpcbench.operations.models import MODELS, ModelShape

_SEQ_LENGTH = 512
"""Tokens of a sample where a file leaves it open: what the suite's gen-config writes."""
_TOLERANCE = 0.05
"""How far the parameters that a file tells may be from those that its extents have."""
_BF16_CAPABILITY = 8.0
"""The first compute capability whose tensor cores take bf16 (NVIDIA Ampere)."""


def raw_sweep(file: CandleFile) -> dict[str, Any]:
    hardware = file.hardware.model_dump(exclude_none=True, exclude={"compute_capability"})
    return {"name": "candle", "title": TITLE, "notes": list(_notes(file)), "hardware": hardware,
            "measure": _measure(file), "benchmarks": [_block(file)]}


def _measure(file: CandleFile) -> dict[str, Any]:
    own = {"warmup": file.benchmark.given("warmup_iterations", "warmup"),
           "iterations": file.benchmark.given(
               "measurement_iterations", "iterations", "iters", "max_steps")}
    return {name: value for name, value in own.items() if value is not None}


def _block(file: CandleFile) -> dict[str, Any]:
    """Return the block; samples of all replicas become those of one."""
    sizes, device = file.parallelization, file.hardware.device_type
    replicas = sizes.data_parallel_size or 1
    block = {
        "kind": "training", "model": f"transformer-{file.model.size}", **_extents(file),
        "backend": sizes.communication_backend or ("nccl" if device == "cuda" else "gloo"),
        "device": device, "dtype": _dtype(file), "world_size": _ranks(file) or "all",
        "seq_length": file.seq_length or _SEQ_LENGTH, "strategies": _strategies(file)}
    if file.global_batch is not None:
        block["batch_size"] = file.global_batch // replicas
    if file.training.gradient_accumulation_steps is not None:
        block["accumulation"] = file.training.gradient_accumulation_steps
    return block


def _extents(file: CandleFile) -> dict[str, int]:
    """Return the extents that the file has and the named model has not."""
    own, model = MODELS[f"transformer-{file.model.size}"], file.model
    given = {"layers": model.layers, "hidden": model.hidden_size,
             "heads": model.given("attention_heads", "heads"), "kv_heads": model.kv_heads,
             "inner": model.intermediate_size, "vocab": model.vocab_size}
    return {name: value for name, value in given.items()
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


def _ranks(file: CandleFile) -> int | None:
    """Return the ranks that the sizes make, or None where they leave it open."""
    sizes = file.parallelization
    if sizes.strategy in ("model", "pipeline"):
        return sizes.stages
    if sizes.data_parallel_size is None:
        return None
    return sizes.data_parallel_size * (_stages(file) if sizes.strategy == "hybrid" else 1)


def _stages(file: CandleFile) -> int:
    """Return the stages of a hybrid; 2, as our own hybrids have, where the file leaves it open."""
    return file.parallelization.stages or 2


def _strategies(file: CandleFile) -> dict[str, Any]:
    """Return the strategy with its options; one rank has nobody to exchange gradients with.

    A hybrid of which one side is 1 is the other side alone.
    """
    name, alone = file.parallelization.strategy, _ranks(file) == 1
    if rank := file.benchmark.lora_rank:
        return {"lora": {"rank": rank, "over": "single" if alone else "data"}}
    if name == "hybrid" and _stages(file) > 1:
        if file.parallelization.data_parallel_size != 1:
            return {"hybrid": {"pp": _stages(file)}}
        name = "model"
    if name in ("data", "hybrid"):
        return {"single" if alone else "data": {}}
    return {name: {}}


def _notes(file: CandleFile) -> Iterator[str]:
    yield from _hardware_notes(file)
    yield from _model_notes(file)
    training, benchmark, sizes = file.training, file.benchmark, file.parallelization
    if file.global_batch is None:
        yield ("training.batch_size is not in the file: 8 samples of each replica, unless --set "
               "benchmarks.0.batch_size gives others")
    if file.seq_length is None:
        yield (f"training.sequence_length is not in the file: {_SEQ_LENGTH} tokens, as the suite's "
               "gen-config writes, unless --set benchmarks.0.seq_length gives others")
    if (steps := training.gradient_accumulation_steps or 1) > 1:
        yield (f"training.gradient_accumulation_steps {steps}: the samples of a replica are "
               f"computed in {steps} parts, not more often")
    if names := training.present("learning_rate", "num_epochs", "warmup_steps",
                                 "checkpoint_interval"):
        yield f"training.{', '.join(names)}: not used; steps of adamw are measured, not a training"
    if names := benchmark.present("memory_profiling", "communication_profiling", "power_profiling",
                                  "output_detailed_logs"):
        yield (f"benchmark.{', '.join(names)}: no switches here; memory and phases are always "
               "recorded, power never; key communication of a block tells what that costs")
    if (often := sizes.gradient_sync_freq or 1) > 1:
        yield (f"parallelization.gradient_sync_freq {often}: not used; gradients are exchanged in "
               "every step")
    yield from (f"{name}: not used; docs/training.md has what a block can say" for name in (
        "optimization", "monitoring") if getattr(file, name) is not None)


def _hardware_notes(file: CandleFile) -> Iterator[str]:
    hardware = file.hardware
    if hardware.network_bandwidth_gbps and hardware.interconnect in ("nvlink", "unified"):
        yield (f"hardware.network_bandwidth_gbps {hardware.network_bandwidth_gbps:g}: taken as "
               f"Gbit/s of the network between nodes, not of {hardware.interconnect}")


def _model_notes(file: CandleFile) -> Iterator[str]:
    model = file.model
    if names := model.present("input_shape", "output_shape"):
        yield (f"model.{', '.join(names)}: not used; batch_size, sequence_length and vocab_size "
               "say it")
    counted = parameters(_shape(file))
    if model.parameters and abs(model.parameters / counted - 1) > _TOLERANCE:
        yield (f"model.parameters {model.parameters:,}: a {model.size} transformer of these "
               f"extents has {counted:,}, which is what is trained")


def _shape(file: CandleFile) -> ModelShape:
    """Return the shape with the file's extents; the MLP keeps its ratio to the width."""
    own, given = MODELS[f"transformer-{file.model.size}"], _extents(file)
    heads = given.get("heads", own.heads)
    inner = given.get("inner", own.inner * given.get("hidden", own.hidden) // own.hidden)
    return replace(
        own, layers=given.get("layers", own.layers), hidden=given.get("hidden", own.hidden),
        heads=heads, kv_heads=given.get("kv_heads", heads), inner=inner,
        vocab=given.get("vocab", own.vocab), seq_length=file.seq_length or _SEQ_LENGTH)


def parameters(shape: ModelShape) -> int:
    """Return the parameters of a transformer that is built as GPT-2.

    Products with biases, learned positions, two norms in each block and one behind them; logits
    use the embedding's weight (Radford et al., 2019).
    """
    hidden, keys = shape.hidden, shape.kv_hidden
    attention = 2 * (hidden * hidden + hidden) + 2 * (hidden * keys + keys)
    mlp = 2 * hidden * shape.inner + shape.inner + hidden
    return ((shape.vocab + shape.seq_length) * hidden + 2 * hidden
            + shape.layers * (attention + mlp + 4 * hidden))


Iterations = Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Ignored = dict[str, Any]
Spellings = tuple[tuple[str, ...], ...]
STRATEGIES = ("data", "model", "pipeline", "hybrid")


class CandleSection(Section):
    """A section; ``spellings`` are groups of keys of which a file has one."""

    spellings: ClassVar[Spellings] = ()

    @model_validator(mode="after")
    def _one_spelling(self) -> CandleSection:
        for names in self.spellings:
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) > 1:
                raise PydanticCustomError("spellings", "{names} mean the same; keep one of them",
                                          {"names": " and ".join(given)})
        return self

    def given(self, *names: str) -> Any:
        """Return the value of the first of these keys that the file has, or None."""
        return next((value for name in names if (value := getattr(self, name)) is not None), None)

    def present(self, *names: str) -> list[str]:
        """Return those of these keys that the file has, and that are not switched off."""
        return [name for name in names if getattr(self, name) not in (None, False)]


class CandleHardware(CandleSection):
    """Section ``hardware``."""

    device_type: DeviceType = Field(description="metal, cuda or cpu.")
    num_devices: Annotated[int, Field(ge=1)] | None = key(None, "Devices of the machine.")
    memory_per_device_gb: Positive | None = key(None, "GB of memory of a device.")
    interconnect: Annotated[str, named(("unified", "nvlink", "system", "none"))] | None = key(
        None, "What the devices are connected by.")
    network_bandwidth_gbps: Positive | None = key(None, "Gbit/s of the network.")
    compute_capability: Text | None = key(None, "Such as 7.0 of a V100.")


class CandleModel(CandleSection):
    """Section ``model``."""

    spellings: ClassVar[Spellings] = (("attention_heads", "heads"),)
    model_type: Annotated[str, named(("transformer",))] = Field(description="transformer.")
    size: Annotated[str, named(("small", "medium", "large"))] = Field(
        description="small, medium or large.")
    parameters: Annotated[int, Field(ge=1)] | None = key(None, "Compared with the model's own.")
    layers: Extent | None = key(None, "Blocks.")
    hidden_size: Extent | None = key(None, "Width.")
    attention_heads: Extent | None = key(None, "Heads of the queries.")
    heads: Extent | None = key(None, "The same.")
    kv_heads: Extent | None = key(None, "Heads of keys and values.")
    intermediate_size: Extent | None = key(None, "Inner extent of the MLP.")
    vocab_size: Extent | None = key(None, "Words.")
    input_shape: tuple[Extent, ...] | None = key(None, "Accepted, with a note.")
    output_shape: tuple[Extent, ...] | None = key(None, "Accepted, with a note.")


class CandleTraining(CandleSection):
    """Section ``training``."""

    spellings: ClassVar[Spellings] = (("sequence_length", "seq_length"),)
    batch_size: Extent | None = key(None, "Samples of all replicas together in a step.")
    sequence_length: Extent | None = key(None, "Tokens of a sample.")
    seq_length: Extent | None = key(None, "The same.")
    gradient_accumulation_steps: Extent | None = key(None, "Parts of a replica's samples.")
    mixed_precision: bool = key(False, "16-bit arithmetic over fp32 weights.")
    learning_rate: Number | None = key(None, "Accepted, with a note.")
    num_epochs: Number | None = key(None, "Accepted, with a note.")
    warmup_steps: Number | None = key(None, "Accepted, with a note.")
    checkpoint_interval: Number | None = key(None, "Accepted, with a note.")


class CandleParallelization(CandleSection):
    """Section ``parallelization``; degrees that are left out follow from the ranks."""

    strategy: Annotated[str, named(STRATEGIES, {f"{name}-parallel": name for name in STRATEGIES})
                        ] = Field(description="data, model, pipeline or hybrid.")
    data_parallel_size: Extent | None = key(None, "Replicas.")
    model_parallel_size: Extent | None = key(None, "Devices that share a replica's layers.")
    pipeline_parallel_size: Extent | None = key(None, "The same.")
    gradient_sync_freq: Extent | None = key(None, "Accepted, with a note.")
    communication_backend: Annotated[str, named(("nccl", "gloo", "mpi"))] | None = key(
        None, "nccl, gloo or mpi.")

    @property
    def stages(self) -> int | None:
        """Return how many devices share a replica's layers; None where the file leaves it open."""
        sizes = [size for size in (self.model_parallel_size, self.pipeline_parallel_size) if size]
        return max(sizes) if sizes else None

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

    spellings: ClassVar[Spellings] = (
        ("warmup_iterations", "warmup"), ("sequence_length", "seq_length"),
        ("measurement_iterations", "iterations", "iters", "max_steps"))
    warmup_iterations: Warmup | None = key(None, "Iterations before the timed ones.")
    warmup: Warmup | None = key(None, "The same.")
    measurement_iterations: Iterations | None = key(None, "Timed iterations.")
    iterations: Iterations | None = key(None, "The same.")
    iters: Iterations | None = key(None, "The same.")
    max_steps: Iterations | None = key(None, "The same.")
    batch_size: Extent | None = key(None, "As in training.")
    sequence_length: Extent | None = key(None, "As in training.")
    seq_length: Extent | None = key(None, "The same.")
    lora_rank: Extent | None = key(None, "Train adapters of this rank.")
    memory_profiling: bool | None = key(None, "Accepted, with a note.")
    communication_profiling: bool | None = key(None, "Accepted, with a note.")
    power_profiling: bool | None = key(None, "Accepted, with a note.")
    output_detailed_logs: bool | None = key(None, "Accepted, with a note.")


class CandleFile(Dialect):
    """A whole configuration of the suite."""

    tool: ClassVar[str] = "the Candle suite"
    hardware: CandleHardware = Field(description="The machine.")
    model: CandleModel = Field(description="What is trained.")
    parallelization: CandleParallelization = Field(description="How it is divided.")
    training: CandleTraining = CandleTraining()
    benchmark: CandleBenchmark = CandleBenchmark()
    optimization: Ignored | None = key(None, "Accepted, with a note.")
    monitoring: Ignored | None = key(None, "Accepted, with a note.")

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
        own = (self.training.given("sequence_length", "seq_length"),
               self.benchmark.given("sequence_length", "seq_length"))
        return next((tokens for tokens in own if tokens), None)

    @model_validator(mode="after")
    def _sections_agree(self) -> CandleFile:
        for name in ("batch_size", "sequence_length"):
            first, second = getattr(self.training, name), getattr(self.benchmark, name)
            if first and second and first != second:
                raise PydanticCustomError(
                    "contradiction", "training.{name} {first} and benchmark.{name} {second} "
                    "contradict each other; keep one",
                    {"name": name, "first": first, "second": second})
        if self.benchmark.lora_rank and self.parallelization.strategy != "data":
            raise PydanticCustomError(
                "adapters", "benchmark.lora_rank: adapters are trained by replicas of the whole "
                "model; write strategy data, not {strategy}",
                {"strategy": self.parallelization.strategy})
        self._check_batch()
        return self

    def _check_batch(self) -> None:
        """Raise an error if the samples of all replicas cannot be divided among them."""
        sizes, total = self.parallelization, self.global_batch
        if total is None or sizes.strategy in ("model", "pipeline"):
            return
        if sizes.data_parallel_size is None:
            raise PydanticCustomError(
                "replicas", "batch_size {total} is of all replicas together: give "
                "parallelization.data_parallel_size, too", {"total": total})
        if total % sizes.data_parallel_size:
            raise PydanticCustomError(
                "division", "batch_size {total} cannot be divided evenly among "
                "parallelization.data_parallel_size {replicas}; write a multiple of it",
                {"total": total, "replicas": sizes.data_parallel_size})

    def translated(self) -> dict[str, Any]:
        return raw_sweep(self)

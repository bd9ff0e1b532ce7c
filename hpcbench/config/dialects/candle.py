"""Configurations of the Candle suite (github.com/3whiskeywhiskey/candle-nvlink-benchmark).

Keys and meanings are those of its src/config.rs and src/parallelization.rs at commit 12b768e:
``batch_size`` is divided among the replicas, and a replica's layers among its devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.axes import MAX_ITERATIONS, named
from hpcbench.config.block import Extent
from hpcbench.config.dialects.candle_translated import raw_sweep
from hpcbench.config.dialects.dialect import Dialect
from hpcbench.config.section import DeviceType, Positive, Section, Text, Warmup, key

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
        """Return the same sweep as a raw mapping of ours."""
        return raw_sweep(self)

"""A checked configuration of the Candle suite as a raw mapping of ours, with notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hpcbench.config.dialects.dialect import TITLE
from hpcbench.operations.models import MODELS, ModelShape

if TYPE_CHECKING:
    from hpcbench.config.dialects.candle import CandleFile

_SEQ_LENGTH = 512
"""Tokens of a sample where a file leaves it open: what the suite's gen-config writes."""
_TOLERANCE = 0.05
"""How far the parameters that a file tells may be from those that its extents have."""
_BF16_CAPABILITY = 8.0
"""The first compute capability whose tensor cores take bf16 (NVIDIA Ampere)."""


def raw_sweep(file: CandleFile) -> dict[str, Any]:
    """Return the same sweep as a raw mapping of ours."""
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
    """Yield what is not carried over, and what the file leaves open."""
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

"""Strategies in which a rank has a part of the model: of every layer, some layers, or both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from hpcbench.kinds.training.plan.models import keeps_products
from hpcbench.kinds.training.plan.schedules import AUTO, SCHEDULE_NAMES, pipelining, unscheduled
from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option, Values

_FOLDER = "hpcbench.kinds.training.run.strategies"
_SWITCH = Values(False, (False, True))
_TENSOR = MappingProxyType({"sequence_parallel": _SWITCH, "loss_parallel": _SWITCH})
_PIPELINE = MappingProxyType({
    "schedule": Values("1F1B", SCHEDULE_NAMES), "microbatches": Values(4),
    "stages_per_rank": Values(AUTO, (AUTO, 1, 2, 3, 4, 6, 8))})
_HYBRID = MappingProxyType({
    "tp": Values(1), "pp": Values(1), "data": Values("replicate", ("replicate", "fsdp")),
    **_TENSOR, **_PIPELINE})


def _of_tensors(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    return Degrees(tp=ranks) if ranks > 1 else "one rank has no other to share a layer with"


def _of_stages(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    return Degrees(pp=ranks) if ranks > 1 else "one rank is no pipeline"


def _several(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    """Return the degrees: what tp and pp leave of the ranks are replicas."""
    tp, pp = int(options["tp"]), int(options["pp"])
    if ranks % (tp * pp):
        return f"{ranks} ranks cannot be divided evenly into replicas of tp={tp} x pp={pp}"
    degrees = Degrees(dp=ranks // (tp * pp), tp=tp, pp=pp)
    if sum(degree > 1 for degree in (degrees.dp, tp, pp)) < 2:
        return (f"dp={degrees.dp} x tp={tp} x pp={pp} has not two dimensions: give tp and pp that "
                "have, or take strategy data, fsdp, tensor or pipeline")
    return degrees


def _unfit_tensors(work: Training) -> str | None:
    """Return why the model cannot be divided by tensors beyond heads and columns, or None."""
    if work.tp > 1 and work.option("sequence_parallel") and work.seq_length % work.tp:
        return f"{work.seq_length} tokens cannot be divided evenly among {work.tp} ranks (tp)"
    return None


def _unfit_stages(work: Training) -> str | None:
    """Return why layers and samples do not go into stages and micro-batches, or None."""
    if work.pp == 1:
        return None
    schedule, stages_per_rank, microbatches = pipelining(work)
    stages, samples = work.pp * stages_per_rank, work.batch_size // work.accumulation
    if reason := unscheduled(schedule, work.pp, stages_per_rank, microbatches):
        return reason
    if schedule.halves and (reason := _whole_backward(work)):
        return f"{schedule.name} runs backward in two halves, {reason}"
    if work.layers % stages:
        return f"{work.layers} layers cannot be divided evenly among {stages} stages"
    if samples % microbatches:
        return (f"{samples} samples (batch_size / accumulation) cannot be divided evenly into "
                f"{microbatches} micro-batches")
    return None


def _whole_backward(work: Training) -> str | None:
    """Return why backward cannot be run in halves, or None; seen with torch 2.13."""
    if keeps_products(work.checkpointing):
        return "and torch lets what checkpointing operators keeps be used by one backward only"
    if work.checkpointing != "none":
        return (f"and with checkpointing {work.checkpointing} torch computes blocks again for "
                "each, and for each group of weights: several times instead of once")
    return "and that of a compiled block is in one piece" if work.compile else None


def _unfit_hybrid(work: Training) -> str | None:
    return _without_effect(work) or _unfit_tensors(work) or _unfit_stages(work)


def _without_effect(work: Training) -> str | None:
    """Return what is asked of a dimension that is not there: two cases would be the same."""
    for name, degree, options in (("tp", work.tp, _TENSOR), ("pp", work.pp, _PIPELINE),
                                  ("dp", work.dp, {"data": _HYBRID["data"]})):
        changed = [option for option, values in options.items()
                   if work.option(option) != values.default]
        if degree == 1 and changed:
            return f"{changed[0]}={work.option(changed[0])} has no effect with {name}=1"
    return None


def _calls_of_tensors(work: Training) -> Iterator[str]:
    yield "all_reduce"
    if work.option("sequence_parallel"):
        yield "reduce_scatter"
    if work.option("sequence_parallel") or not work.option("loss_parallel"):
        yield "all_gather"


def _calls(work: Training) -> tuple[str, ...]:
    """Return what the dimensions call together, each once."""
    calls = [*(_calls_of_tensors(work) if work.tp > 1 else ()),
             *(("send_recv",) if work.pp > 1 else ())]
    if work.dp > 1:
        calls += (["all_gather", "reduce_scatter"] if work.option("data") == "fsdp" else
                  ["all_reduce"])
    return tuple(dict.fromkeys(calls))


MODEL_PARALLEL = (
    StrategySpec(
        "tensor", "every layer is divided among the ranks: heads, columns, words (Megatron)",
        f"{_FOLDER}.tensor:Tensor", degrees=_of_tensors, unfit=_unfit_tensors, calls=_calls,
        options=_TENSOR),
    StrategySpec(
        "model", "layers are divided among the ranks, of which one works at a time",
        f"{_FOLDER}.pipeline:Pipeline", degrees=_of_stages, unfit=_unfit_stages, calls=_calls),
    StrategySpec(
        "pipeline", "layers are divided among the ranks, micro-batches pass through them",
        f"{_FOLDER}.pipeline:Pipeline", degrees=_of_stages, unfit=_unfit_stages, calls=_calls,
        options=_PIPELINE),
    StrategySpec(
        "hybrid", "replicas or shards x pipeline x tensor, by degrees; replicas are what is left",
        f"{_FOLDER}.hybrid:hybrid", degrees=_several, unfit=_unfit_hybrid, calls=_calls,
        options=_HYBRID),
)

"""Strategies that divide the model: a part of each layer to each rank, or some of the layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from hpcbench.config.axes import DTYPE_BYTES
from hpcbench.kinds.training.plan import spec as schedules
from hpcbench.kinds.training.plan.models import keeps_products
from hpcbench.kinds.training.plan.spec import Degrees, Groups, Layout, StrategySpec
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.points import Option, Values

_RUN = "hpcbench.kinds.training.run.strategies"
_SWITCH = Values(False, (False, True))
_TENSOR_OPTIONS = MappingProxyType({"sequence_parallel": _SWITCH, "loss_parallel": _SWITCH})
_PIPELINE_OPTIONS = MappingProxyType({
    "schedule": Values("1F1B", schedules.SCHEDULE_NAMES), "microbatches": Values(4),
    "stages_per_rank": Values(schedules.AUTO, (schedules.AUTO, 1, 2, 3, 4, 6, 8))})
_DATA = MappingProxyType({"data": Values("replicate", ("replicate", "fsdp"))})


def _layout(work: Training) -> Layout:
    """Return the layout of tensor parts and stages; ``model`` has no options of them."""
    options = dict(work.options)
    return Layout(
        by_tokens=bool(options.get("sequence_parallel", False)),
        by_words=bool(options.get("loss_parallel", False)),
        pipeline=_pipelining(options) if work.pp > 1 else None)


def _pipelining(options: Mapping[str, Option]) -> schedules.Pipelining:
    schedule = schedules.schedule_of(str(options.get("schedule", "GPipe")))
    stages = options.get("stages_per_rank", schedules.AUTO)
    stages = schedule.stages_per_rank if stages == schedules.AUTO else int(stages)
    return schedules.Pipelining(schedule, stages, int(options.get("microbatches", 1)))


def _of_tensors(ranks: int, _options: Mapping[str, Option]) -> Degrees | str:
    return Degrees(tp=ranks) if ranks > 1 else "one rank has no other to share a layer with"


def _of_stages(ranks: int, _options: Mapping[str, Option]) -> Degrees | str:
    return Degrees(pp=ranks) if ranks > 1 else "one rank is no pipeline"


def _of_hybrid(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
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
    schedule, stages_per_rank, microbatches = _pipelining(dict(work.options))
    stages, samples = work.pp * stages_per_rank, work.batch_size // work.accumulation
    if reason := schedules.unscheduled(schedule, work.pp, stages_per_rank, microbatches):
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


def _tensor_calls(work: Training) -> tuple[str, ...]:
    by_tokens, by_words = work.option("sequence_parallel"), work.option("loss_parallel")
    return ("all_reduce", *(("reduce_scatter",) if by_tokens else ()),
            *(("all_gather",) if by_tokens or not by_words else ()))


def _groups(work: Training) -> Groups | None:
    """Return how replicas of a hybrid share parameters; None where there is one replica.

    A pipeline gathers its stages once for all micro-batches, and exchanges gradients behind them.
    """
    element = DTYPE_BYTES[work.dtype]
    if work.dp == 1:
        return None
    times = work.accumulation if work.pp > 1 else 1
    if work.option("data") != "fsdp":
        return Groups(1, work.dp, element, exchanges=times)
    return Groups(work.dp, 1, element, reshard=work.pp == 1, rounds=work.accumulation,
                  exchanges=times)


def _without_effect(work: Training) -> str | None:
    """Return which option is of a dimension that is not there: two cases would be the same."""
    for name, degree, options in (("tp", work.tp, _TENSOR_OPTIONS),
                                  ("pp", work.pp, _PIPELINE_OPTIONS), ("dp", work.dp, _DATA)):
        changed = [option for option, values in options.items()
                   if work.option(option) != values.default]
        if degree == 1 and changed:
            return f"{changed[0]}={work.option(changed[0])} has no effect with {name}=1"
    return None


def _hybrid_calls(work: Training) -> tuple[str, ...]:
    """Return what the dimensions call together, each once."""
    names = [*(_tensor_calls(work) if work.tp > 1 else ()),
             *(("send_recv",) if work.pp > 1 else ())]
    if work.dp > 1:
        names += (["all_gather", "reduce_scatter"] if work.option("data") == "fsdp" else
                  ["all_reduce"])
    return tuple(dict.fromkeys(names))


_MODEL = StrategySpec(
    name="model", meaning="layers are divided among the ranks, of which one works at a time",
    runner=f"{_RUN}.pipeline:Pipeline", order=70, degrees=_of_stages, unfit=_unfit_stages,
    also=("mp", "model_parallel"),
    layout=_layout, calls=lambda _work: ("send_recv",), divides_model=True)
SPECS = (
    StrategySpec(
        name="tensor",
        meaning="every layer is divided among the ranks: heads, columns, words (Megatron)",
        runner=f"{_RUN}.tensor:Tensor", order=60, also=("tp", "tensor_parallel", "megatron"),
        degrees=_of_tensors, unfit=_unfit_tensors, layout=_layout, calls=_tensor_calls,
        options=_TENSOR_OPTIONS, divides_model=True),
    _MODEL,
    replace(_MODEL, name="pipeline", order=80, also=("pp", "pipeline_parallel"),
            options=_PIPELINE_OPTIONS,
            meaning="layers are divided among the ranks, micro-batches pass through them"),
    StrategySpec(
        name="hybrid",
        meaning="replicas or shards x pipeline x tensor, by degrees; replicas are what is left",
        runner=f"{_RUN}.pipeline:hybrid", order=90, also=("3d", "nd"), degrees=_of_hybrid,
        unfit=lambda work: _without_effect(work) or _unfit_tensors(work) or _unfit_stages(work),
        layout=lambda work: replace(_layout(work), groups=_groups(work)), calls=_hybrid_calls,
        divides_model=True, together=MappingProxyType({"tp": 1, "pp": 2}),
        options=MappingProxyType({
            "tp": Values(1), "pp": Values(1), **_DATA, **_TENSOR_OPTIONS, **_PIPELINE_OPTIONS})),
)

"""What strategies have in common in which a rank has a part of each layer, or some layers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.models import keeps_products
from hpcbench.kinds.training.plan.schedules import (
    AUTO,
    SCHEDULE_NAMES,
    Pipelining,
    schedule_of,
    unscheduled,
)
from hpcbench.kinds.training.plan.spec import Degrees
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option, Values

_SWITCH = Values(False, (False, True))
TENSOR_OPTIONS = MappingProxyType({"sequence_parallel": _SWITCH, "loss_parallel": _SWITCH})
PIPELINE_OPTIONS = MappingProxyType({
    "schedule": Values("1F1B", SCHEDULE_NAMES), "microbatches": Values(4),
    "stages_per_rank": Values(AUTO, (AUTO, 1, 2, 3, 4, 6, 8))})


def model_parallel_layout(work: Training) -> Layout:
    """Return the layout of tensor parts and stages; without their options as `model` has it."""
    options = dict(work.options)
    return Layout(
        by_tokens=bool(options.get("sequence_parallel", False)),
        by_words=bool(options.get("loss_parallel", False)),
        pipeline=_pipelining(options) if work.pp > 1 else None)


def _pipelining(options: Mapping[str, Option]) -> Pipelining:
    schedule = schedule_of(str(options.get("schedule", "GPipe")))
    stages = options.get("stages_per_rank", AUTO)
    return Pipelining(schedule, schedule.stages_per_rank if stages == AUTO else int(stages),
                      int(options.get("microbatches", 1)))


def stage_degrees(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    """Return a pipeline of all ranks."""
    return Degrees(pp=ranks) if ranks > 1 else "one rank is no pipeline"


def unfit_tensors(work: Training) -> str | None:
    """Return why the model cannot be divided by tensors beyond heads and columns, or None."""
    if work.tp > 1 and work.option("sequence_parallel") and work.seq_length % work.tp:
        return f"{work.seq_length} tokens cannot be divided evenly among {work.tp} ranks (tp)"
    return None


def unfit_stages(work: Training) -> str | None:
    """Return why layers and samples do not go into stages and micro-batches, or None."""
    if work.pp == 1:
        return None
    schedule, stages_per_rank, microbatches = _pipelining(dict(work.options))
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


def tensor_call_names(work: Training) -> tuple[str, ...]:
    """Return the collectives that tensor-parallel ranks call in a step."""
    by_tokens, by_words = work.option("sequence_parallel"), work.option("loss_parallel")
    return ("all_reduce", *(("reduce_scatter",) if by_tokens else ()),
            *(("all_gather",) if by_tokens or not by_words else ()))


def stage_call_names(work: Training) -> tuple[str, ...]:
    """Return what the stages of a pipeline call: messages to each other."""
    return ("send_recv",)

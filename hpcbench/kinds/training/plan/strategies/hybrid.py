"""Strategy ``hybrid``: replicas or shards x pipeline stages x tensor parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.kinds.training.plan.layout import Groups, Layout
from hpcbench.kinds.training.plan.model_parallel import (
    PIPELINE_OPTIONS,
    TENSOR_OPTIONS,
    model_parallel_layout,
    stage_call_names,
    tensor_call_names,
    unfit_stages,
    unfit_tensors,
)
from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option, Values

_DATA = MappingProxyType({"data": Values("replicate", ("replicate", "fsdp"))})


def _degrees(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    """Return the degrees: what tp and pp leave of the ranks are replicas."""
    tp, pp = int(options["tp"]), int(options["pp"])
    if ranks % (tp * pp):
        return f"{ranks} ranks cannot be divided evenly into replicas of tp={tp} x pp={pp}"
    degrees = Degrees(dp=ranks // (tp * pp), tp=tp, pp=pp)
    if sum(degree > 1 for degree in (degrees.dp, tp, pp)) < 2:
        return (f"dp={degrees.dp} x tp={tp} x pp={pp} has not two dimensions: give tp and pp that "
                "have, or take strategy data, fsdp, tensor or pipeline")
    return degrees


def _layout(work: Training) -> Layout:
    return replace(model_parallel_layout(work), groups=_groups(work))


def _groups(work: Training) -> Groups | None:
    """Return how replicas share parameters; None where there is one replica.

    A pipeline gathers its stages once for all micro-batches, and exchanges gradients behind them.
    """
    element = DTYPE_BYTES[work.dtype]
    if work.dp == 1:
        return None
    times = work.accumulation if work.pp > 1 else 1
    if work.option("data") != "fsdp":
        return Groups(1, work.dp, element, exchanges=times)
    return Groups(work.dp, 1, element, reshard=work.pp == 1, reshard_root=work.pp == 1,
                  rounds=work.accumulation, exchanges=times)


def _unfit(work: Training) -> str | None:
    return _without_effect(work) or unfit_tensors(work) or unfit_stages(work)


def _without_effect(work: Training) -> str | None:
    """Return which option is of a dimension that is not there: two cases would be the same."""
    for name, degree, options in (("tp", work.tp, TENSOR_OPTIONS), ("pp", work.pp,
                                  PIPELINE_OPTIONS), ("dp", work.dp, _DATA)):
        changed = [option for option, values in options.items()
                   if work.option(option) != values.default]
        if degree == 1 and changed:
            return f"{changed[0]}={work.option(changed[0])} has no effect with {name}=1"
    return None


def _calls(work: Training) -> tuple[str, ...]:
    """Return what the dimensions call together, each once."""
    names = [*(tensor_call_names(work) if work.tp > 1 else ()),
             *(stage_call_names(work) if work.pp > 1 else ())]
    if work.dp > 1:
        names += (["all_gather", "reduce_scatter"] if work.option("data") == "fsdp" else
                  ["all_reduce"])
    return tuple(dict.fromkeys(names))


SPEC = StrategySpec(
    name="hybrid",
    meaning="replicas or shards x pipeline x tensor, by degrees; replicas are what is left",
    runner="hpcbench.kinds.training.run.strategies.pipeline:hybrid", order=90,
    degrees=_degrees, unfit=_unfit, layout=_layout, calls=_calls, divides_model=True,
    options=MappingProxyType({
        "tp": Values(1), "pp": Values(1), **_DATA, **TENSOR_OPTIONS, **PIPELINE_OPTIONS}))

"""Strategy ``data``: every rank has the whole model (DistributedDataParallel)."""

from __future__ import annotations

from types import MappingProxyType

from hpcbench.kinds.training.plan.data_parallel import (
    BALANCE,
    BUCKETS,
    ddp_layout,
    replicas,
    speed_calls,
    with_speeds,
)
from hpcbench.kinds.training.plan.shares import unfit_to_balance
from hpcbench.kinds.training.plan.spec import StrategySpec
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Values


def _unfit(work: Training) -> str | None:
    if work.option("comm_hook") == "powersgd" and work.dtype == "fp16":
        return ("PowerSGD keeps what it did not send and adds it to the next gradients, which "
                "fp16's changing loss scale would make wrong")
    return unfit_to_balance(work)


SPEC = StrategySpec(
    name="data",
    meaning="every rank has the whole model, gradients are averaged in buckets (DDP)",
    runner="hpcbench.kinds.training.run.strategies.data:Data", order=20,
    degrees=replicas, unfit=_unfit, layout=ddp_layout,
    calls=lambda work: with_speeds(work, "all_reduce"),
    traffic=lambda work, _held: speed_calls(work), later_options=("balance",),
    options=MappingProxyType({
        **BUCKETS, **BALANCE, "bucket_view": Values(False, (False, True)),
        "comm_hook": Values("none", ("none", "bf16", "fp16", "powersgd"))}))

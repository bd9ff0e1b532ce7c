"""Strategies without parts of a model: one rank alone, and all ways of data parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpcbench.kinds.training.plan.shares import is_dynamic, unfit_to_balance
from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option, Values

_FOLDER = "hpcbench.kinds.training.run.strategies"
_BUCKETS = MappingProxyType({"bucket_mb": Values(25)})
"""torch's default; MiB. A first bucket of 1 MiB, which torch adds, lets exchange begin early."""
_BALANCE = MappingProxyType({"balance": Values("static", ("static", "dynamic"))})
"""Not where ranks wait for one another's parameters all the time: they look equally fast then."""
_RESHARD = MappingProxyType({"reshard": Values(True, (True, False))})


def agreed(work: Training) -> tuple[str, ...]:
    """Return what shards of fp16 call to agree on whether a gradient overflowed."""
    return ("all_reduce",) if work.dtype == "fp16" and work.dp > 1 else ()


def _alone(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    if ranks == 1:
        return Degrees()
    return f"single trains on one rank, not on {ranks}: give world_size 1"


def _replicas(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    """Return as many replicas as ranks: each rank has samples of its own, sharded or not."""
    return Degrees(dp=ranks)


def _groups_of_shards(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    replicas = options["replicas"]
    if ranks % int(replicas):
        return f"{ranks} ranks cannot be divided evenly into {replicas} replicas"
    return Degrees(dp=ranks)


def _suits(work: Training) -> str | None:
    """Return None: whatever a rank can train alone suits."""
    return None


def _feedback_suits(work: Training) -> str | None:
    if work.option("comm_hook") == "powersgd" and work.dtype == "fp16":
        return ("PowerSGD keeps what it did not send and adds it to the next gradients, which "
                "fp16's changing loss scale would make wrong")
    return unfit_to_balance(work)


def _with_speeds(work: Training, *calls: str) -> tuple[str, ...]:
    """Return what a step calls, with the exchange of the ranks' speeds."""
    return (*calls, "all_gather") if is_dynamic(work) else calls


DATA_PARALLEL = (
    StrategySpec(
        "single", "one rank trains alone: what all others are compared with",
        f"{_FOLDER}.single:Single", degrees=_alone, unfit=_suits, calls=lambda _work: (),
        ranks=lambda _options: 1),
    StrategySpec(
        "data", "every rank has the whole model, gradients are averaged in buckets (DDP)",
        f"{_FOLDER}.data:Data", degrees=_replicas, unfit=_feedback_suits,
        calls=lambda work: _with_speeds(work, "all_reduce"),
        options=MappingProxyType({
            **_BUCKETS, **_BALANCE, "bucket_view": Values(False, (False, True)),
            "comm_hook": Values("none", ("none", "bf16", "fp16", "powersgd"))})),
    StrategySpec(
        "zero1", "DDP whose optimizer states are divided among the ranks (ZeRO stage 1)",
        f"{_FOLDER}.zero1:Zero1", degrees=_replicas, unfit=unfit_to_balance,
        calls=lambda work: _with_speeds(work, "all_reduce", "broadcast"),
        options=MappingProxyType({**_BUCKETS, **_BALANCE})),
    StrategySpec(
        "fsdp", "every parameter is divided among the ranks, gathered block by block (FSDP2)",
        f"{_FOLDER}.fsdp:Fsdp", degrees=_replicas, unfit=_suits,
        calls=lambda work: ("all_gather", "reduce_scatter", *agreed(work)), options=_RESHARD),
    StrategySpec(
        "hsdp", "the same within groups of consecutive ranks, which average gradients (HSDP)",
        f"{_FOLDER}.fsdp:Hsdp", degrees=_groups_of_shards, unfit=_suits,
        calls=lambda _work: ("all_gather", "reduce_scatter", "all_reduce"),
        options=MappingProxyType({**_RESHARD, "replicas": Values(2)})),
)

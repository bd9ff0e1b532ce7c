"""Strategies that give each rank samples of its own: one rank, copies of the model, shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from hpcbench.config.axes import DTYPE_BYTES
from hpcbench.kinds.training.plan.models import Tensor
from hpcbench.kinds.training.plan.spec import (
    Buckets,
    Calls,
    Degrees,
    Groups,
    Layout,
    StrategySpec,
    calls,
)
from hpcbench.kinds.training.plan.step import SPEED_BYTES, is_dynamic, unfit_to_balance
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.points import Option, Values

_RUN = "hpcbench.kinds.training.run.strategies"
BUCKETS = MappingProxyType({"bucket_mb": Values(25)})
"""torch's default; MiB. A first bucket of 1 MiB, which torch adds, lets exchange begin early."""
_BALANCE = MappingProxyType({"balance": Values("static", ("static", "dynamic"))})
"""Not where ranks wait for one another's parameters all the time: they look equally fast then."""
RESHARD = MappingProxyType({"reshard": Values(True, (True, False))})
SYNC_EACH = "sync_each_batch"
"""As Hugging Face Accelerate calls it: shards of gradients are exchanged in each part of an
accumulation. Otherwise whole gradients are added up until the last one."""
_SHARDED = MappingProxyType({**RESHARD, SYNC_EACH: Values(False, (False, True))})


def agreed(work: Training) -> tuple[str, ...]:
    """Return what shards of fp16 call to agree on whether a gradient overflowed."""
    return ("all_reduce",) if work.dtype == "fp16" and work.dp > 1 else ()


def bucketed(work: Training) -> Buckets:
    options = dict(work.options)
    return Buckets(int(options["bucket_mb"]),
                   bool(options.get("bucket_view", False)), str(options.get("comm_hook", "none")))


def sharded_groups(work: Training, copies: int = 1) -> Groups:
    """Return how parameters are sharded within each of ``copies`` groups of ranks."""
    each = bool(dict(work.options).get(SYNC_EACH, False))
    return Groups(work.dp // copies, copies, DTYPE_BYTES[work.dtype],
                  reshard=bool(work.option("reshard")), rounds=work.accumulation,
                  exchanges=work.accumulation if each else 1)


def _unfit_to_sync(work: Training) -> str | None:
    if dict(work.options).get(SYNC_EACH) and work.accumulation == 1:
        return f"{SYNC_EACH}=True has no effect with accumulation 1: there is one exchange"
    return None


def _alone(ranks: int, _options: Mapping[str, Option]) -> Degrees | str:
    if ranks == 1:
        return Degrees()
    return f"single trains on one rank, not on {ranks}: give world_size 1"


def _replicas(ranks: int, _options: Mapping[str, Option]) -> Degrees:
    return Degrees(dp=ranks)


def _groups_of_shards(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    replicas = options["replicas"]
    if ranks % int(replicas):
        return f"{ranks} ranks cannot be divided evenly into {replicas} replicas"
    return Degrees(dp=ranks)


def _unfit_for_ddp(work: Training) -> str | None:
    if work.option("comm_hook") == "powersgd" and work.dtype == "fp16":
        return ("PowerSGD keeps what it did not send and adds it to the next gradients, which "
                "fp16's changing loss scale would make wrong")
    return unfit_to_balance(work)


def _ddp_layout(work: Training, state_ranks: int = 1) -> Layout:
    return Layout(buckets=bucketed(work), state_ranks=state_ranks,
                  balanced=work.option("balance") == "dynamic")


def _with_speeds(work: Training, *called: str) -> tuple[str, ...]:
    """Return what a step calls, with the exchange of the ranks' speeds."""
    return (*called, "all_gather") if is_dynamic(work) else called


def _speed_calls(work: Training, _held: Sequence[Tensor]) -> Iterator[Calls]:
    """Yield the exchange of the ranks' speeds, by which samples are divided."""
    if work.dp > 1 and is_dynamic(work):
        yield calls("all_gather", work.dp, [SPEED_BYTES * work.dp])


def _zero1_traffic(work: Training, held: Sequence[Tensor]) -> Iterator[Calls]:
    """Yield a broadcast of each parameter by the rank that has updated it."""
    if work.dp > 1:
        yield calls("broadcast", work.dp, [4 * item.elements for item in held])
    yield from _speed_calls(work, held)


SPECS = (
    StrategySpec(
        name="single", meaning="one rank trains alone: what all others are compared with",
        runner=f"{_RUN}.replica:Replica", order=10, also=("none", "one_gpu", "baseline"),
        degrees=_alone, calls=lambda _work: (), ranks=lambda _options: 1,
        alone_by=lambda _work: "single"),
    StrategySpec(
        name="data",
        meaning="every rank has the whole model, gradients are averaged in buckets (DDP)",
        runner=f"{_RUN}.data:Data", order=20, also=("ddp", "dp", "data_parallel"),
        degrees=_replicas, unfit=_unfit_for_ddp, layout=_ddp_layout,
        calls=lambda work: _with_speeds(work, "all_reduce"), traffic=_speed_calls,
        later_options=("balance",), cuts=tuple(BUCKETS), options=MappingProxyType({
            **BUCKETS, **_BALANCE, "bucket_view": Values(False, (False, True)),
            "comm_hook": Values("none", ("none", "bf16", "fp16", "powersgd"))})),
    StrategySpec(
        name="zero1",
        meaning="DDP whose optimizer states are divided among the ranks (ZeRO stage 1)",
        runner=f"{_RUN}.data:Zero1", order=30, also=("zero", "zero_redundancy_optimizer"),
        degrees=_replicas, unfit=unfit_to_balance,
        layout=lambda work: _ddp_layout(work, state_ranks=work.dp),
        calls=lambda work: _with_speeds(work, "all_reduce", "broadcast"), traffic=_zero1_traffic,
        options=MappingProxyType({**BUCKETS, **_BALANCE}), later_options=("balance",),
        cuts=tuple(BUCKETS)),
    StrategySpec(
        name="fsdp",
        meaning="every parameter is divided among the ranks, gathered block by block (FSDP2)",
        runner=f"{_RUN}.fsdp:Fsdp", order=40,
        also=("fsdp2", "zero2", "zero3", "full_shard", "shard_grad_op", "deepspeed"),
        degrees=_replicas, unfit=_unfit_to_sync,
        layout=lambda work: Layout(groups=sharded_groups(work)),
        calls=lambda work: ("all_gather", "reduce_scatter", *agreed(work)),
        options=_SHARDED, later_options=(SYNC_EACH,)),
    StrategySpec(
        name="hsdp",
        meaning="the same within groups of consecutive ranks, which average gradients (HSDP)",
        runner=f"{_RUN}.fsdp:Hsdp", order=50, also=("hybrid_shard",),
        degrees=_groups_of_shards, unfit=_unfit_to_sync, layout=lambda work: Layout(
            groups=sharded_groups(work, copies=int(work.option("replicas")))),
        calls=lambda _work: ("all_gather", "reduce_scatter", "all_reduce"),
        options=MappingProxyType({**_SHARDED, "replicas": Values(2)}),
        later_options=(SYNC_EACH,)),
)

"""Our training strategies: their meanings, and how they lie on ranks.

Some give each rank samples of its own: one rank, copies of the model, shards. Some divide the
model: a part of each layer to each rank, or some of the layers. `context` divides the tokens of a
sample. `lora` and `qlora` train low-rank adapters beside frozen weights, also in 4 bits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from hpcbench.config.axes import DTYPE_BYTES
from hpcbench.kinds.training.plan import context, spec
from hpcbench.kinds.training.plan import experts as of_experts
from hpcbench.kinds.training.plan.experts import spread_of
from hpcbench.kinds.training.plan.extents import divisors
from hpcbench.kinds.training.plan.models import (
    NF4_BLOCK,
    TARGETS,
    Adapters,
    Tensor,
    keeps_products,
    shape_of,
)
from hpcbench.kinds.training.plan.step import SPEED_BYTES, is_dynamic, unfit_to_balance
from hpcbench.kinds.training.plan.workload import OFFLOAD, Training
from hpcbench.plan.points import Option, Values
from hpcbench.units import plural

_RUN = "hpcbench.kinds.training.run.strategies"
BUCKETS = MappingProxyType({"bucket_mb": Values(25)})
"""torch's default; MiB. A first bucket of 1 MiB, which torch adds, lets exchange begin early."""
_BALANCE = MappingProxyType({"balance": Values("static", ("static", "dynamic"))})
"""Not where ranks wait for one another's parameters all the time: they look equally fast then."""
RESHARD = MappingProxyType({"reshard": Values(True, (True, False))})
SYNC_EACH = "sync_each_batch"
"""As Hugging Face Accelerate calls it: shards of gradients are exchanged in each part of an
accumulation. Otherwise whole gradients are added up until the last one."""
REPLICAS = "replicas"  # groups of shards that have the same
_SHARDED = MappingProxyType({**RESHARD, SYNC_EACH: Values(False, (False, True))})


def agreed(work: Training) -> tuple[str, ...]:
    """Return the call of fp16 shards to agree on whether a gradient overflowed."""
    return ("all_reduce",) if work.dtype == "fp16" and work.dp > 1 else ()


def bucketed(work: Training) -> spec.Buckets:
    options = dict(work.options)
    return spec.Buckets(int(options["bucket_mb"]),
                        bool(options.get("bucket_view", False)),
                        str(options.get("comm_hook", "none")))


def sharded_groups(work: Training, copies: int = 1) -> spec.Groups:
    each = bool(dict(work.options).get(SYNC_EACH, False))
    return spec.Groups(work.dp * work.cp // copies, copies, DTYPE_BYTES[work.dtype],
                       work.weight_bytes, reshard=bool(work.option("reshard")),
                       rounds=work.accumulation, exchanges=work.accumulation if each else 1)


def _unfit_to_sync(work: Training) -> str | None:
    if dict(work.options).get(SYNC_EACH) and work.accumulation == 1:
        return f"{SYNC_EACH}=True has no effect with accumulation 1: there is one exchange"
    return None


def _alone(ranks: int, _options: Mapping[str, Option]) -> spec.Degrees | str:
    if ranks == 1:
        return spec.Degrees()
    return f"single trains on one rank, not on {ranks}: give world_size 1"


def _replicas(ranks: int, _options: Mapping[str, Option]) -> spec.Degrees:
    return spec.Degrees(dp=ranks)


def _groups_of_shards(ranks: int, options: Mapping[str, Option]) -> spec.Degrees | str:
    replicas = options[REPLICAS]
    if ranks % int(replicas):
        return (f"{plural(ranks, 'rank')} cannot be divided evenly into {replicas} replicas"
                f"{spec.nearest(REPLICAS, int(replicas), divisors(ranks))}")
    return spec.Degrees(dp=ranks)


def _unfit_for_ddp(work: Training) -> str | None:
    if work.option("comm_hook") == "powersgd" and work.dtype == "fp16":
        return ("PowerSGD keeps what it did not send and adds it to the next gradients, which "
                "fp16's changing loss scale would make wrong")
    return unfit_to_balance(work)


def _ddp_layout(work: Training, state_ranks: int = 1) -> spec.Layout:
    return spec.Layout(buckets=bucketed(work), state_ranks=state_ranks,
                       balanced=work.option("balance") == "dynamic")


def _with_speeds(work: Training, *called: str) -> tuple[str, ...]:
    return (*called, "all_gather") if is_dynamic(work) else called


def _speed_calls(work: Training, _tensors: Sequence[Tensor]) -> Iterator[spec.Calls]:
    """Yield the exchange of the ranks' speeds, by which samples are divided."""
    if work.dp > 1 and is_dynamic(work):
        yield spec.calls("all_gather", work.dp, [SPEED_BYTES * work.dp])


def _zero1_traffic(work: Training, tensors: Sequence[Tensor]) -> Iterator[spec.Calls]:
    if work.dp > 1:
        yield spec.calls("broadcast", work.dp, [item.held_bytes for item in tensors])
    yield from _speed_calls(work, tensors)


_OF_SAMPLES = (
    spec.StrategySpec(
        name="single", meaning="one rank trains alone: what all others are compared with",
        runner=f"{_RUN}.replica:Replica", order=10, holds=True,
        also=("none", "one_gpu", "baseline"), degrees=_alone, calls=lambda _work: (),
        ranks=lambda _options: 1, alone_by=lambda _work: "single"),
    spec.StrategySpec(
        name="data",
        meaning="every rank has the whole model, gradients are averaged in buckets (DDP)",
        runner=f"{_RUN}.data:Data", order=20, holds=True, also=("ddp", "dp", "data_parallel"),
        degrees=_replicas, unfit=_unfit_for_ddp, layout=_ddp_layout,
        calls=lambda work: _with_speeds(work, "all_reduce"), traffic=_speed_calls,
        later_options=("balance",), cuts=tuple(BUCKETS), options=MappingProxyType({
            **BUCKETS, **_BALANCE, "bucket_view": Values(False, (False, True)),
            "comm_hook": Values("none", ("none", "bf16", "fp16", "powersgd"))})),
    spec.StrategySpec(
        name="zero1",
        meaning="DDP whose optimizer states are divided among the ranks (ZeRO stage 1)",
        runner=f"{_RUN}.data:Zero1", order=30, holds=True,
        also=("zero", "zero_redundancy_optimizer"), degrees=_replicas, unfit=unfit_to_balance,
        layout=lambda work: _ddp_layout(work, state_ranks=work.dp),
        calls=lambda work: _with_speeds(work, "all_reduce", "broadcast"), traffic=_zero1_traffic,
        options=MappingProxyType({**BUCKETS, **_BALANCE}), later_options=("balance",),
        cuts=tuple(BUCKETS)),
    spec.StrategySpec(
        name="fsdp",
        meaning="every parameter is divided among the ranks, gathered block by block (FSDP2)",
        runner=f"{_RUN}.replica:Fsdp", order=40, holds=True,
        also=("fsdp2", "zero2", "zero3", "full_shard", "shard_grad_op", "deepspeed"),
        degrees=_replicas, unfit=_unfit_to_sync,
        layout=lambda work: spec.Layout(groups=sharded_groups(work)),
        calls=lambda work: ("all_gather", "reduce_scatter", *agreed(work)),
        options=_SHARDED, later_options=(SYNC_EACH,)),
    spec.StrategySpec(
        name="hsdp",
        meaning="the same within groups of consecutive ranks, which average gradients (HSDP)",
        runner=f"{_RUN}.replica:Hsdp", order=50, holds=True, also=("hybrid_shard",),
        degrees=_groups_of_shards, unfit=_unfit_to_sync, layout=lambda work: spec.Layout(
            groups=sharded_groups(work, copies=int(work.option(REPLICAS)))),
        calls=lambda _work: ("all_gather", "reduce_scatter", "all_reduce"),
        options=MappingProxyType({**_SHARDED, REPLICAS: Values(2)}),
        later_options=(SYNC_EACH,)),
)


def _exchange_calls(work: Training) -> tuple[str, ...]:
    return ("all_to_all",) if dict(work.options).get("ep", 1) != 1 else ()


_MOE = spec.StrategySpec(
    name="moe", meaning="fsdp whose experts are divided among neighbours, to whom tokens travel",
    runner=f"{_RUN}.tensor:TensorParallel", order=55, holds=True,
    also=("ep", "expert_parallel", "experts"), degrees=_replicas, unfit=_unfit_to_sync,
    calls=lambda work: (
        "all_gather", "reduce_scatter", *_exchange_calls(work), *agreed(work)),
    layout=lambda work: spec.Layout(groups=sharded_groups(work), experts=spread_of(work)),
    idle=of_experts.idle,
    options=MappingProxyType({**_SHARDED, "ep": Values(2), **of_experts.OPTIONS}),
    later_options=("capacity_factor", "dispatch"))


def _of_tensor(ranks: int, _options: Mapping[str, Option]) -> spec.Degrees | str:
    return spec.Degrees(tp=ranks) if ranks > 1 else "one rank has no other to share a layer with"


RING, ULYSSES = "ring", "ulysses"
_SHARING = MappingProxyType({
    "attention": Values(RING, (RING, ULYSSES)), "balance": Values("zigzag", ("zigzag", "none")),
    "rotate": Values("allgather", ("allgather", "alltoall"))})


def _idle_sharing(options: Mapping[str, Option]) -> dict[str, str]:
    return (dict.fromkeys(("balance", "rotate"), f"with attention={ULYSSES}")
            if options["attention"] == ULYSSES else {})


def _of_context(ranks: int, options: Mapping[str, Option]) -> spec.Degrees | str:
    cp = int(options["cp"]) or ranks
    if cp == 1:
        return "one rank has no other to share a sample with: give cp=2 or more"
    if ranks % cp:
        return (f"{plural(ranks, 'rank')} cannot be divided evenly into groups of {cp} (cp)"
                f"{spec.nearest('cp', cp, divisors(ranks)[1:])}")
    return spec.Degrees(dp=ranks // cp, cp=cp)


def _token_sharing(work: Training) -> spec.TokenSharing:
    by_heads = work.option("attention") == ULYSSES
    return spec.TokenSharing(by_heads, not by_heads and work.option("balance") == "zigzag",
                             work.option("rotate") == "allgather")


def _unfit_context(work: Training) -> str | None:
    if work.of_images:
        return f"{work.model} takes images, which have no tokens to share"
    ring = work.option("attention") == RING
    if ring and work.option("balance") == "zigzag" and not shape_of(work).causal:
        return f"balance=zigzag evens out a causal mask, which {work.model} has not: balance=none"
    if not ring and (reason := _undivided_heads(work)):
        return reason
    if work.seq_length % (parts := context.token_parts(work)):
        return (f"{work.seq_length} tokens cannot be divided evenly into {parts} parts, for "
                f"{work.cp} ranks (cp)")
    if work.compile:
        return "compile: torch makes no graph of a block whose attention exchanges tokens"
    if ring and keeps_products(work.checkpointing):
        return ("checkpointing operators would keep what attention returns for each part of the "
                "ring, not the sum: take selective or full")
    return None


def _undivided_heads(work: Training) -> str | None:
    heads = math.gcd(work.heads, work.kv_heads)
    if heads % (work.cp * work.tp) == 0:
        return None
    usable = [str(cp) for cp in range(2, heads + 1)
              if heads % (cp * work.tp) == 0 and work.ranks % (cp * work.tp) == 0]
    instead = f"cp={' or '.join(usable)}, or attention=ring" if usable else "attention=ring"
    by = f"{work.cp} ranks (cp)" + f" of {work.tp} (tp)" * (work.tp > 1)
    return (f"{work.heads} attention heads and {work.kv_heads} key-value heads cannot be divided "
            f"evenly among {by}: take {instead}")


def _sharing_calls(work: Training) -> tuple[str, ...]:
    if work.option("attention") == ULYSSES:
        return "all_to_all", "all_reduce"
    gathers = work.option("rotate") == "allgather"
    return (*(("all_gather",) if gathers else ()), "send_recv", "all_reduce")


_SWITCH = Values(False, (False, True))
_TENSOR_OPTIONS = MappingProxyType({"sequence_parallel": _SWITCH, "loss_parallel": _SWITCH})
_PIPELINE_OPTIONS = MappingProxyType({
    "schedule": Values("1F1B", spec.SCHEDULE_NAMES), "microbatches": Values(4),
    "stages_per_rank": Values(spec.AUTO, (spec.AUTO, 1, 2, 3, 4, 6, 8))})
_DATA = MappingProxyType({"data": Values("replicate", ("replicate", "fsdp", "hsdp")),
                          SYNC_EACH: Values(False, (False, True))})


def _model_layout(work: Training) -> spec.Layout:
    options = dict(work.options)
    return spec.Layout(
        by_tokens=bool(options.get("sequence_parallel", False)),
        by_words=bool(options.get("loss_parallel", False)),
        pipeline=_pipelining(options) if work.pp > 1 else None)


def _pipelining(options: Mapping[str, Option]) -> spec.Pipelining:
    schedule = spec.schedule_of(str(options.get("schedule", "GPipe")))
    stages = options.get("stages_per_rank", spec.AUTO)
    stages = schedule.stages_per_rank if stages == spec.AUTO else int(stages)
    return spec.Pipelining(schedule, stages, int(options.get("microbatches", 1)))


def _of_hybrid(ranks: int, options: Mapping[str, Option]) -> spec.Degrees | str:
    tp, pp, cp = int(options["tp"]), int(options["pp"]), int(options["cp"])
    parts = f"tp={tp} x pp={pp}" + f" x cp={cp}" * (cp > 1)
    if ranks % (tp * pp * cp):
        fitting = [one for one in divisors(ranks) if ranks % (tp * pp * one) == 0 and (
            1 < tp * pp < ranks or min(tp, pp) > 1)]
        return (f"{plural(ranks, 'rank')} cannot be divided evenly into replicas of {parts}"
                f"{spec.nearest('cp', cp, fitting) if cp > 1 else ''}")
    degrees = spec.Degrees(dp=ranks // (tp * pp * cp), tp=tp, pp=pp, cp=cp)
    if tp * pp == 1 or sum(degree > 1 for degree in (degrees.dp, cp, tp, pp)) < 2:
        others = ("moe" if int(options.get("ep", 1)) > 1 else
                  "context" if cp > 1 else "data, fsdp, tensor or pipeline")
        return (f"dp={degrees.dp} x {parts} has not two dimensions: give tp and pp that have, or "
                f"take strategy {others}")
    return degrees


def _unfit_tensors(work: Training) -> str | None:
    tokens = work.seq_length // work.cp
    if work.tp > 1 and work.option("sequence_parallel") and tokens % work.tp:
        return f"{tokens} tokens cannot be divided evenly among {work.tp} ranks (tp)"
    return None


def _unfit_stages(work: Training) -> str | None:
    if work.pp == 1:
        return None
    schedule, stages_per_rank, microbatches = _pipelining(dict(work.options))
    stages, samples = work.pp * stages_per_rank, work.batch_size // work.accumulation
    if reason := spec.unscheduled(schedule, work.pp, stages_per_rank, microbatches):
        return reason
    if schedule.halves and (reason := _whole_backward(work)):
        return f"{schedule.name} runs backward in two halves, {reason}"
    if work.layers < stages:
        return (f"{work.layers} layers are fewer than {stages} stages (pp x stages_per_rank): take "
                "fewer stages")
    if samples % microbatches:
        return (f"{samples} samples (batch_size / accumulation) cannot be divided evenly into "
                f"{microbatches} micro-batches")
    return None


def _whole_backward(work: Training) -> str | None:
    """Return why backward cannot be run in halves, or None; seen with torch 2.13."""
    if keeps_products(work.checkpointing):
        return "and torch lets what checkpointing operators keeps be used by one backward only"
    if work.checkpointing == OFFLOAD:
        return f"for each of which checkpointing {OFFLOAD} would bring all of a block back"
    if work.checkpointing != "none":
        return (f"and with checkpointing {work.checkpointing} torch computes blocks again for "
                "each, and for each group of weights: several times instead of once")
    whole = "a compiled block" if work.compile else "a product in 8 bits" * work.in_8_bits
    return f"and that of {whole} is in one piece" if whole else None


def _tensor_calls(work: Training) -> tuple[str, ...]:
    by_vocab, scatters = work.option("loss_parallel"), (
        work.option("sequence_parallel") or work.tp > work.kv_heads)
    return ("all_reduce", *(("reduce_scatter",) if scatters else ()),
            *(("all_gather",) if scatters or not by_vocab else ()))


def _groups(work: Training) -> spec.Groups | None:
    """Return how replicas of a hybrid share parameters; None where there is one replica.

    A pipeline gathers its stages once for all micro-batches, and exchanges gradients behind them.
    """
    ranks, data = work.dp * work.cp, work.option("data")
    if ranks == 1 and not shape_of(work).experts:  # which one rank, too, has in the dtype as shards
        return None
    copies = {"replicate": ranks, "fsdp": 1}.get(str(data)) or int(work.option(REPLICAS))
    each = work.pp > 1 or dict(work.options).get(SYNC_EACH)
    return spec.Groups(
        max(ranks // copies, 1), copies, DTYPE_BYTES[work.dtype], work.weight_bytes,
        reshard=work.pp == 1 and data != "replicate", rounds=work.accumulation,
        exchanges=work.accumulation if each else 1)


def _without_effect(work: Training) -> str | None:
    for name, degree, options in (("tp", work.tp, _TENSOR_OPTIONS),
                                  ("pp", work.pp, _PIPELINE_OPTIONS),
                                  ("dp", work.dp * work.cp, _DATA)):
        changed = [option for option, values in options.items()
                   if dict(work.options).get(option, values.default) != values.default]
        if degree == 1 and changed:
            return f"{changed[0]}={work.option(changed[0])} has no effect with {name}=1"
    return _unfit_to_sync(work) or _unfit_copies(work)


def _unfit_copies(work: Training) -> str | None:
    copies = int(work.option(REPLICAS)) if work.option("data") == "hsdp" else 1
    if work.dp % copies == 0 and (copies == 1 or work.dp > copies > 1):
        return None
    return (f"data=hsdp cannot divide dp={work.dp} into {copies} copies of two or more ranks: take "
            "other replicas, or data=replicate")


def _idle_in_hybrid(options: Mapping[str, Option]) -> dict[str, str]:
    idle = (_idle_sharing(options) if int(options["cp"]) > 1 else
            dict.fromkeys(("cp", *_SHARING), "with cp=1"))
    if options["data"] != "hsdp":
        idle[REPLICAS] = f"with data={options['data']}"
    if options["ep"] == 1:  # labels of models without experts do not name what they have not
        idle |= of_experts.idle(options) | {name: "with ep=1" for name, values in (
            ("ep", Values(1)), *of_experts.OPTIONS.items()) if options[name] == values.default}
    if int(options["pp"]) > 1:
        idle[SYNC_EACH] = "with pp above 1: stages exchange gradients in each part"
    return idle


def _hybrid_calls(work: Training) -> tuple[str, ...]:
    names = [*(_tensor_calls(work) if work.tp > 1 else ()),
             *(("send_recv",) if work.pp > 1 else ()),
             *(_sharing_calls(work) if work.cp > 1 else ()), *_exchange_calls(work)]
    if work.dp * work.cp > 1:
        data = work.option("data")
        names += ["all_gather", "reduce_scatter"] * (data != "replicate")
        names += ["all_reduce"] * (data != "fsdp")
    return tuple(dict.fromkeys(names))


_MODEL = spec.StrategySpec(
    name="model", meaning="layers are divided among the ranks, of which one works at a time",
    runner=f"{_RUN}.pipeline:Pipeline", order=70, holds=True, degrees=lambda ranks, _options: (
        spec.Degrees(pp=ranks) if ranks > 1 else "one rank is no pipeline"), unfit=_unfit_stages,
    also=("mp", "model_parallel"),
    layout=_model_layout, calls=lambda _work: ("send_recv",), divides_model=True)
_OF_MODEL = (
    spec.StrategySpec(
        name="tensor",
        meaning="every layer is divided among the ranks: heads, columns, words (Megatron)",
        runner=f"{_RUN}.tensor:TensorParallel", order=60, holds=True,
        also=("tp", "tensor_parallel", "megatron"),
        degrees=_of_tensor, unfit=_unfit_tensors, layout=_model_layout, calls=_tensor_calls,
        options=_TENSOR_OPTIONS, divides_model=True),
    _MODEL,
    replace(_MODEL, name="pipeline", order=80, also=("pp", "pipeline_parallel"),
            options=_PIPELINE_OPTIONS,
            meaning="layers are divided among the ranks, micro-batches pass through them"),
    spec.StrategySpec(
        name="hybrid",
        meaning="replicas or shards x pipeline x tensor, by degrees; replicas are what is left",
        runner=f"{_RUN}.pipeline:hybrid", order=90, holds=True, also=("3d", "nd"),
        degrees=_of_hybrid,
        unfit=lambda work: (
            _without_effect(work) or (_unfit_context(work) if work.cp > 1 else None)
            or _unfit_tensors(work) or _unfit_stages(work)),
        layout=lambda work: replace(
            _model_layout(work), groups=_groups(work), experts=spread_of(work),
            context=_token_sharing(work) if work.cp > 1 else None), calls=_hybrid_calls,
        divides_model=True, together=MappingProxyType({"tp": 1, "pp": 2}), idle=_idle_in_hybrid,
        later_options=(SYNC_EACH, REPLICAS, "cp", *_SHARING, "ep", *of_experts.OPTIONS),
        options=MappingProxyType({
            "tp": Values(1), "pp": Values(1), "cp": Values(1), **_DATA,
            REPLICAS: Values(2, least=2), **_TENSOR_OPTIONS, **_PIPELINE_OPTIONS, **_SHARING,
            "ep": Values(1), **of_experts.OPTIONS})),
)


_CONTEXT = spec.StrategySpec(
    name="context", order=95, holds=True, runner=f"{_RUN}.context:ContextParallel",
    meaning="the tokens of each sample are divided among the ranks (ring attention, Ulysses), over "
            "FSDP2",
    also=("cp", "context_parallel", "ring_attention", "ulysses"), degrees=_of_context,
    unfit=_unfit_context, layout=lambda work: spec.Layout(
        groups=sharded_groups(work), context=_token_sharing(work)),
    calls=lambda work: tuple(dict.fromkeys(
        ("all_gather", "reduce_scatter", *_sharing_calls(work)))),
    divides_model=True, idle=_idle_sharing,
    options=MappingProxyType({"cp": Values(0, least=0), **_SHARING, **RESHARD}))


_OPTIONS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "single": (), "data": ("bucket_mb",), "fsdp": ("reshard",), "tensor": ()})
"""How frozen weights and adapters are spread -> the options that this has."""
_CALLS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "single": (), "data": ("all_reduce",), "fsdp": ("all_gather", "reduce_scatter"),
    "tensor": ("all_reduce", "all_gather", "reduce_scatter")})
DORA = "dora"
_ADAPTER_OPTIONS = MappingProxyType({
    "over": Values("data", tuple(_OPTIONS_OF)), "rank": Values(16), "alpha": Values(32),
    "targets": Values("all", tuple(TARGETS)), "variant": Values("lora", ("lora", DORA)),
    **BUCKETS, **RESHARD})


def _adapters_layout(work: Training, *, packed: bool) -> spec.Layout:
    over = work.option("over")
    return spec.Layout(
        groups=sharded_groups(work) if over == "fsdp" else None,
        buckets=bucketed(work) if over == "data" else None,
        adapters=Adapters(int(work.option("rank")), str(work.option("targets")), packed,
                          work.option("variant") == DORA))


def _adapters_degrees(ranks: int, options: Mapping[str, Option]) -> spec.Degrees | str:
    if options["over"] == "single" and ranks > 1:
        return f"over=single trains on one rank, not on {ranks}: give world_size 1"
    if options["over"] == "tensor":
        return _of_tensor(ranks, options)
    return spec.Degrees(dp=ranks)


def _trained_part(work: Training) -> tuple[object, ...]:
    if not work.adapters:
        return ()
    distribution = {"over", *(name for names in _OPTIONS_OF.values() for name in names)}
    return (work.strategy, *(option for option in work.options if option[0] not in distribution))


def _adapters_calls(work: Training) -> tuple[str, ...]:
    over = str(work.option("over"))
    return (*_CALLS[over], *(agreed(work) if over == "fsdp" else ()))


def _other_ways(options: Mapping[str, Option]) -> dict[str, str]:
    over = str(options["over"])
    return {name: f"with over={over}" for names in _OPTIONS_OF.values() for name in names
            if name not in _OPTIONS_OF[over]}


def _rows_are_blocks(work: Training) -> str | None:
    """Return why weights cannot be held in 4 bits, or None.

    bitsandbytes' CPU kernel (0.50.2) unpacks wrongly where a row does not begin with a new block.
    """
    return next((f"{what}={extent} is not a multiple of {NF4_BLOCK}: the rows of weights must be "
                 f"whole blocks of NF4" for what, extent in (
                     ("hidden", work.hidden), ("inner", work.inner)) if extent % NF4_BLOCK), None)


def _unfit_adapters(work: Training, *, packed: bool) -> str | None:
    dora, rank = work.option("variant") == DORA, int(work.option("rank"))
    divided = (
        (packed, "torch divides no weights in 4 bits: take over=fsdp"),
        (dora, f"peft takes norms of whole rows, for variant={DORA}: take over=fsdp"),
        (work.tp > work.kv_heads, f"adapters of {work.kv_heads} key-value heads are not divided "
         f"among {work.tp} ranks (tp): take over=fsdp"),
        (rank % work.tp, f"rank={rank} cannot be divided evenly among {work.tp} ranks (tp)"))
    if found := next((reason for holds, reason in divided if work.tp > 1 and holds), None):
        return f"over=tensor: {found}"
    reasons = (
        (packed, "peft takes norms of weights when adapters are put in, before these are there to "
         "be packed: take strategy lora"),
        (work.compile, "peft looks up the class of a weight in each pass, of which torch makes no "
         "graph"),
        (keeps_products(work.checkpointing), "checkpointing operators would keep each product of A "
         "and B, as large as a weight: take selective or full"))
    found = next((f"variant={DORA}: {reason}" for holds, reason in reasons if dora and holds), None)
    return found or (_rows_are_blocks(work) if packed else None)


_LORA = spec.StrategySpec(
    name="lora", meaning="low-rank adapters are trained, the model is frozen (peft)",
    runner=f"{_RUN}.data:low_rank", order=100, degrees=_adapters_degrees, calls=_adapters_calls,
    layout=partial(_adapters_layout, packed=False), options=_ADAPTER_OPTIONS, idle=_other_ways,
    cuts=tuple(BUCKETS), modules=("peft",), later_options=("variant",),
    unfit=partial(_unfit_adapters, packed=False),
    ranks=lambda options: 1 if options["over"] == "single" else None, trained_part=_trained_part,
    alone_by=lambda work: "over=single" if work.option("over") == "single" else "")
_QLORA = replace(
    _LORA, name="qlora", meaning="the same over weights in 4 bits (NF4, peft and bitsandbytes)",
    order=110, layout=partial(_adapters_layout, packed=True), modules=("peft", "bitsandbytes"),
    unfit=partial(_unfit_adapters, packed=True))
SPECS = (*_OF_SAMPLES, _MOE, *_OF_MODEL, _CONTEXT, _LORA, _QLORA)

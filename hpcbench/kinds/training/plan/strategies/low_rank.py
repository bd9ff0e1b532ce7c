"""Strategies ``lora`` and ``qlora``: low-rank adapters beside frozen weights, also in 4 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from hpcbench.kinds.training.plan.adapters import NF4_BLOCK, TARGETS, Adapters
from hpcbench.kinds.training.plan.spec import Degrees, Layout, StrategySpec
from hpcbench.kinds.training.plan.strategies import data_parallel
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.points import Option, Values

_OPTIONS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "single": (), "data": ("bucket_mb",), "fsdp": ("reshard",)})
"""How frozen weights and adapters are spread -> the options that this has."""
_CALLS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "single": (), "data": ("all_reduce",), "fsdp": ("all_gather", "reduce_scatter")})
_OPTIONS = MappingProxyType({
    "over": Values("data", tuple(_OPTIONS_OF)), "rank": Values(16), "alpha": Values(32),
    "targets": Values("all", tuple(TARGETS)), **data_parallel.BUCKETS, **data_parallel.RESHARD})


def _layout(work: Training, *, packed: bool) -> Layout:
    """Return the layout of adapters; ``packed``: beside weights in 4 bits."""
    over = work.option("over")
    return Layout(
        groups=data_parallel.sharded_groups(work) if over == "fsdp" else None,
        buckets=data_parallel.bucketed(work) if over == "data" else None,
        adapters=Adapters(int(work.option("rank")), str(work.option("targets")), packed))


def _degrees(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    if options["over"] == "single" and ranks > 1:
        return f"over=single trains on one rank, not on {ranks}: give world_size 1"
    return Degrees(dp=ranks)


def _trained_part(work: Training) -> tuple[object, ...]:
    """Return the strategy and its options but for how adapters are spread; () without adapters."""
    if not work.adapters:
        return ()
    spread = {"over", *(name for names in _OPTIONS_OF.values() for name in names)}
    return (work.strategy, *(option for option in work.options if option[0] not in spread))


def _calls(work: Training) -> tuple[str, ...]:
    over = str(work.option("over"))
    return (*_CALLS[over], *(data_parallel.agreed(work) if over == "fsdp" else ()))


def _idle(options: Mapping[str, Option]) -> dict[str, str]:
    """Return the options of other ways to spread than that which is taken."""
    over = str(options["over"])
    return {name: f"with over={over}" for names in _OPTIONS_OF.values() for name in names
            if name not in _OPTIONS_OF[over]}


def _rows_are_blocks(work: Training) -> str | None:
    """Return why weights cannot be held in 4 bits, or None.

    bitsandbytes packs blocks that follow one another, whatever the rows; its CPU kernel (0.50.2)
    unpacks as if each row began with a new one, and so gives other weights where it does not.
    """
    return next((f"{what}={extent} is not a multiple of {NF4_BLOCK}: the rows of weights must be "
                 f"whole blocks of NF4" for what, extent in (
                     ("hidden", work.hidden), ("inner", work.inner)) if extent % NF4_BLOCK), None)


_LORA = StrategySpec(
    name="lora", meaning="low-rank adapters are trained, the model is frozen (peft)",
    runner="hpcbench.kinds.training.run.strategies.low_rank:low_rank", order=100,
    degrees=_degrees, calls=_calls, layout=partial(_layout, packed=False), options=_OPTIONS,
    idle=_idle, cuts=tuple(data_parallel.BUCKETS), modules=("peft",),
    ranks=lambda options: 1 if options["over"] == "single" else None, trained_part=_trained_part,
    alone_by=lambda work: "over=single" if work.option("over") == "single" else "")
SPECS = (_LORA, replace(
    _LORA, name="qlora", meaning="the same over weights in 4 bits (NF4, peft and bitsandbytes)",
    order=110, layout=partial(_layout, packed=True), modules=("peft", "bitsandbytes"),
    unfit=_rows_are_blocks))

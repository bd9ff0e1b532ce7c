"""What strategies have in common that train low-rank adapters beside frozen weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpcbench.kinds.training.plan.adapters import TARGETS, Adapters
from hpcbench.kinds.training.plan.data_parallel import (
    BUCKETS,
    RESHARD,
    agreed,
    bucketed,
    sharded_groups,
)
from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option, Values

_OPTIONS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "single": (), "data": ("bucket_mb",), "fsdp": ("reshard",)})
"""How frozen weights and adapters are spread -> the options that this has."""
_CALLS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "single": (), "data": ("all_reduce",), "fsdp": ("all_gather", "reduce_scatter")})
_OPTIONS = MappingProxyType({
    "over": Values("data", tuple(_OPTIONS_OF)), "rank": Values(16), "alpha": Values(32),
    "targets": Values("all", tuple(TARGETS)), **BUCKETS, **RESHARD})


def low_rank_strategy(
    name: str, meaning: str, *, modules: tuple[str, ...], layout: Callable[[Training], Layout],
    order: int,
) -> StrategySpec:
    """Return a strategy of adapters: the spread of weights and adapters is an option of it."""
    return StrategySpec(
        name, meaning, "hpcbench.kinds.training.run.strategies.low_rank:low_rank",
        degrees=_degrees, calls=_calls, layout=layout, options=_OPTIONS, idle=_idle,
        ranks=lambda options: 1 if options["over"] == "single" else None, modules=modules,
        trained_part=_trained_part, order=order,
        alone_by=lambda work: "over=single" if work.option("over") == "single" else "")


def low_rank_layout(work: Training, *, packed: bool) -> Layout:
    """Return the layout of adapters; ``packed``: beside weights in 4 bits."""
    over = work.option("over")
    return Layout(
        groups=sharded_groups(work) if over == "fsdp" else None,
        buckets=bucketed(work) if over == "data" else None,
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
    return (*_CALLS[over], *(agreed(work) if over == "fsdp" else ()))


def _idle(options: Mapping[str, Option]) -> dict[str, str]:
    """Return the options of other ways to spread than that which is taken."""
    over = str(options["over"])
    return {name: f"with over={over}" for names in _OPTIONS_OF.values() for name in names
            if name not in _OPTIONS_OF[over]}

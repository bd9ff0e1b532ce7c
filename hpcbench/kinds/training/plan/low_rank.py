"""Strategies that train low-rank adapters beside frozen weights, over one rank or replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hpcbench.kinds.training.plan.adapters import NF4_BLOCK, TARGETS
from hpcbench.kinds.training.plan.data_parallel import agreed
from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option, Values

_RUNNER = "hpcbench.kinds.training.run.strategies.low_rank:low_rank"
_OF: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "single": (), "data": ("bucket_mb",), "fsdp": ("reshard",)})
"""How frozen weights and adapters are spread -> the options that this has."""
_CALLS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "single": (), "data": ("all_reduce",), "fsdp": ("all_gather", "reduce_scatter")})
_OPTIONS = MappingProxyType({
    "over": Values("data", tuple(_OF)), "rank": Values(16), "alpha": Values(32),
    "targets": Values("all", tuple(TARGETS)), "bucket_mb": Values(25),
    "reshard": Values(True, (True, False))})


def _spread(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    if options["over"] == "single" and ranks > 1:
        return f"over=single trains on one rank, not on {ranks}: give world_size 1"
    return Degrees(dp=ranks)


def _all_ranks(options: Mapping[str, Option]) -> int | None:
    return 1 if options["over"] == "single" else None


def what_is_trained(work: Training) -> tuple[object, ...]:
    """Return the strategy and its options but for how adapters are spread; () without adapters."""
    if not work.adapters:
        return ()
    spread = {"over", *(name for names in _OF.values() for name in names)}
    return (work.strategy, *(option for option in work.options if option[0] not in spread))


def _calls(work: Training) -> tuple[str, ...]:
    over = str(work.option("over"))
    return (*_CALLS[over], *(agreed(work) if over == "fsdp" else ()))


def _idle(options: Mapping[str, Option]) -> dict[str, str]:
    """Return the options of other ways to spread than that which is taken."""
    over = str(options["over"])
    return {name: f"with over={over}" for names in _OF.values() for name in names
            if name not in _OF[over]}


def _suits(work: Training) -> str | None:
    """Return None: every model has products that adapters can stand beside."""
    return None


def _rows_are_blocks(work: Training) -> str | None:
    """Return why weights cannot be held in 4 bits, or None.

    bitsandbytes packs blocks that follow one another, whatever the rows; its CPU kernel (0.50.2)
    unpacks as if each row began with a new one, and so gives other weights where it does not.
    """
    return next((f"{what}={extent} is not a multiple of {NF4_BLOCK}: the rows of weights must be "
                 f"whole blocks of NF4" for what, extent in (
                     ("hidden", work.hidden), ("inner", work.inner)) if extent % NF4_BLOCK), None)


def _strategy(name: str, meaning: str, unfit: Callable[[Training], str | None],
              *modules: str) -> StrategySpec:
    return StrategySpec(
        name, meaning, _RUNNER, degrees=_spread, unfit=unfit,
        calls=_calls, options=_OPTIONS, idle=_idle, ranks=_all_ranks, modules=modules)


LOW_RANK = (
    _strategy("lora", "low-rank adapters are trained, the model is frozen (peft)",
              _suits, "peft"),
    _strategy("qlora", "the same over weights in 4 bits (NF4, peft and bitsandbytes)",
              _rows_are_blocks, "peft", "bitsandbytes"),
)

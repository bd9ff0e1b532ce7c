"""Strategy ``hsdp``: shards within groups of ranks, copies between them (fully_shard)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpcbench.kinds.training.plan.data_parallel import RESHARD, sharded_groups
from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option, Values


def _groups_of_shards(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    replicas = options["replicas"]
    if ranks % int(replicas):
        return f"{ranks} ranks cannot be divided evenly into {replicas} replicas"
    return Degrees(dp=ranks)


def _layout(work: Training) -> Layout:
    return Layout(groups=sharded_groups(work, copies=int(work.option("replicas"))))


SPEC = StrategySpec(
    name="hsdp",
    meaning="the same within groups of consecutive ranks, which average gradients (HSDP)",
    runner="hpcbench.kinds.training.run.strategies.fsdp:Hsdp", order=50,
    degrees=_groups_of_shards, layout=_layout,
    calls=lambda _work: ("all_gather", "reduce_scatter", "all_reduce"),
    options=MappingProxyType({**RESHARD, "replicas": Values(2)}))

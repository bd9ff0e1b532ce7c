"""Strategy ``fsdp``: every parameter is divided among the ranks (fully_shard)."""

from __future__ import annotations

from hpcbench.kinds.training.plan.data_parallel import RESHARD, agreed, replicas, sharded_groups
from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.spec import StrategySpec

SPEC = StrategySpec(
    name="fsdp",
    meaning="every parameter is divided among the ranks, gathered block by block (FSDP2)",
    runner="hpcbench.kinds.training.run.strategies.fsdp:Fsdp", order=40,
    degrees=replicas, layout=lambda work: Layout(groups=sharded_groups(work)),
    calls=lambda work: ("all_gather", "reduce_scatter", *agreed(work)), options=RESHARD)

"""Strategy ``single``: one rank trains alone."""

from __future__ import annotations

from collections.abc import Mapping

from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.plan.options import Option


def _alone(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    if ranks == 1:
        return Degrees()
    return f"single trains on one rank, not on {ranks}: give world_size 1"


SPEC = StrategySpec(
    name="single", meaning="one rank trains alone: what all others are compared with",
    runner="hpcbench.kinds.training.run.strategies.replica:Replica", order=10,
    degrees=_alone, calls=lambda _work: (), ranks=lambda _options: 1,
    alone_by=lambda _work: "single")

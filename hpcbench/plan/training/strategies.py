"""Our training strategies: what each is, how it divides the ranks, and what it cannot train.

What runs is in `workloads.training.strategies`.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpcbench.plan.case import Option, Training
from hpcbench.plan.training.spec import Degrees, StrategySpec

_FOLDER = "hpcbench.workloads.training.strategies"


def _alone(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    if ranks == 1:
        return Degrees()
    return f"single trains on one rank, not on {ranks}: give world_size 1"


def _suits(work: Training) -> None:
    """Return None: whatever a rank can train alone suits."""


def _no_calls(work: Training) -> tuple[str, ...]:
    return ()


STRATEGIES = (
    StrategySpec(
        "single", "one rank trains alone: what all others are compared with",
        f"{_FOLDER}.single:Single", degrees=_alone, unfit=_suits, calls=_no_calls),
)


def strategy(name: str) -> StrategySpec | None:
    """Return the strategy of a name, or None."""
    return next((spec for spec in STRATEGIES if spec.name == name), None)

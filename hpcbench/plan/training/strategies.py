"""Our training strategies: what each is, how it divides the ranks, and what it cannot train.

What runs is in `workloads.training.strategies`.
"""

from __future__ import annotations

from hpcbench.plan.training.data_parallel import DATA_PARALLEL
from hpcbench.plan.training.low_rank import LOW_RANK
from hpcbench.plan.training.model_parallel import MODEL_PARALLEL
from hpcbench.plan.training.spec import StrategySpec

STRATEGIES = (*DATA_PARALLEL, *MODEL_PARALLEL, *LOW_RANK)


def strategy(name: str) -> StrategySpec | None:
    """Return the strategy of a name, or None."""
    return next((spec for spec in STRATEGIES if spec.name == name), None)

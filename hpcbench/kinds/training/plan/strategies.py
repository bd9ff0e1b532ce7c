"""Our training strategies: what each is, how it divides the ranks, and what it cannot train.

What runs is in `kinds.training.run.strategies`.
"""

from __future__ import annotations

from hpcbench.kinds.training.plan.data_parallel import DATA_PARALLEL
from hpcbench.kinds.training.plan.low_rank import LOW_RANK
from hpcbench.kinds.training.plan.model_parallel import MODEL_PARALLEL
from hpcbench.kinds.training.plan.spec import StrategySpec

STRATEGIES = (*DATA_PARALLEL, *MODEL_PARALLEL, *LOW_RANK)


def strategy(name: str) -> StrategySpec | None:
    """Return the strategy of a name, or None."""
    return next((spec for spec in STRATEGIES if spec.name == name), None)

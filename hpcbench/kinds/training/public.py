"""Names of kind training for packages of others: `hpcbench.plugins` has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcbench.kinds.training.plan.models import Tensor as Tensor
    from hpcbench.kinds.training.plan.spec import Buckets as Buckets
    from hpcbench.kinds.training.plan.spec import Calls as Calls
    from hpcbench.kinds.training.plan.spec import Degrees as Degrees
    from hpcbench.kinds.training.plan.spec import Groups as Groups
    from hpcbench.kinds.training.plan.spec import Layout as Layout
    from hpcbench.kinds.training.plan.spec import StrategySpec as StrategySpec
    from hpcbench.kinds.training.plan.spec import calls as calls
    from hpcbench.kinds.training.plan.workload import Training as Training
    from hpcbench.kinds.training.run.models.model import Model as Model
    from hpcbench.kinds.training.run.strategies.base import Batch as Batch
    from hpcbench.kinds.training.run.strategies.base import Grid as Grid
    from hpcbench.kinds.training.run.strategies.base import PhaseClock as PhaseClock
    from hpcbench.kinds.training.run.strategies.base import Strategy as Strategy
    from hpcbench.kinds.training.run.strategies.replica import Replica as Replica

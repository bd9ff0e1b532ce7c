"""ZeRO stage 1: DDP, but each rank keeps and updates its part of the optimizer's states only."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from hpcbench.kinds.training.run.memory import Held, held, states
from hpcbench.kinds.training.run.optimizers import RECIPES
from hpcbench.kinds.training.run.strategies.data import Data


class Zero1(Data):
    """torch's ZeroRedundancyOptimizer: each rank updates some parameters, and broadcasts them."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer, sharded over the group under test."""
        recipe = RECIPES[self.spec.optimizer]
        self._sharded = ZeroRedundancyOptimizer(
            self.plain.parameters(), optimizer_class=recipe.kind,
            process_group=self.place.group, **recipe.settings)
        return self._sharded

    def held(self) -> Held:
        """Return the bytes that this rank holds; the states are those of its own part."""
        return held(self.plain.parameters(), self._sharded.optim)

    def states(self) -> Iterator[torch.Tensor]:
        """Yield the states of its own part."""
        return states(self._sharded.optim)

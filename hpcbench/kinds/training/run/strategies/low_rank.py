"""Low-rank adapters over frozen weights, which are copied or sharded as other strategies do it."""

from __future__ import annotations

from dataclasses import replace

import torch

from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.memory import Held, local, local_bytes
from hpcbench.kinds.training.run.models.adapted import (
    draft,
    fill,
    is_adapter,
    plain,
    scales_of,
)
from hpcbench.kinds.training.run.models.model import Model, Part
from hpcbench.kinds.training.run.optimizers import make_optimizer
from hpcbench.kinds.training.run.strategies.base import Strategy
from hpcbench.kinds.training.run.strategies.data import Data
from hpcbench.kinds.training.run.strategies.fsdp import Fsdp
from hpcbench.kinds.training.run.strategies.replica import Replica, whole
from hpcbench.operations.place import Place


def low_rank(spec: Training, place: Place) -> Strategy:
    """Return the strategy for the way that weights and adapters are spread."""
    kinds: dict[str, type[LowRank]] = {"single": LowRank, "data": Copies, "fsdp": Shards}
    return kinds[str(spec.option("over"))](spec, place)


class LowRank(Replica):
    """One rank has them: gradients and optimizer are those of the adapters."""

    def draft(self) -> Model:
        """Return the model with adapters, without memory."""
        return draft(self.spec)

    def fill(self, model: Model, part: Part) -> None:
        """Give a part of it memory and the weights of the seed."""
        fill(model, part, self.spec, self.place.device)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of the adapters."""
        return make_optimizer(self.spec.optimizer, [
            parameter for parameter in self.plain.parameters() if parameter.requires_grad])

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return every gradient whole; of frozen weights there is to be none."""
        return {plain(name): item for name, item in super().full_gradients().items()}

    def full_weights(self) -> dict[str, torch.Tensor]:
        """Return every adapter whole, fp32 on the CPU."""
        return {plain(name): whole(parameter) for name, parameter in self.plain.named_parameters()
                if is_adapter(name)}

    def frozen(self) -> dict[str, torch.Tensor]:
        """Return a copy of this rank's part of every weight that is not trained, as it is held."""
        return {plain(name): local(parameter.detach()).clone()
                for name, parameter in self.plain.named_parameters() if not is_adapter(name)}

    def held(self) -> Held:
        """Return the bytes that this rank holds; scales of packed weights count as parameters."""
        held = super().held()
        return replace(held, parameters=held.parameters + sum(
            map(local_bytes, scales_of(self.plain))))


class Copies(LowRank, Data):
    """Every rank has them; gradients of adapters are averaged (DistributedDataParallel)."""


class Shards(LowRank, Fsdp):
    """Every rank has a part of each weight and of each adapter (fully_shard)."""

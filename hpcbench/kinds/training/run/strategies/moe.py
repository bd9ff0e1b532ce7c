"""Expert parallelism: ranks divide the experts, all else is sharded over all ranks (FSDP2).

Groups of ``ep`` neighbours have all experts together, each rank an equal part, which it shares with
the ranks of the other groups that have the same. Gradients of experts are of all tokens of a group:
`fully_shard` takes the mean over groups, and it is divided by a group's ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from hpcbench.kinds.training.plan.experts import capacity_of, routing_of, spread_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.build import build
from hpcbench.kinds.training.run.models.experts import Dispatch, MixtureOfExperts, alone
from hpcbench.kinds.training.run.models.model import Model
from hpcbench.kinds.training.run.strategies import base
from hpcbench.kinds.training.run.strategies.replica import Fsdp, Sharder
from hpcbench.operations.place import Place


class ExpertParallel(Fsdp):
    """A step whose tokens travel to the ranks of their experts and back."""

    def __init__(self, spec: Training, place: Place) -> None:
        spread = spread_of(spec)
        assert spread is not None  # noqa: S101  (the strategy has one)
        self._spread = spread
        super().__init__(spec, place)
        group = self.grid.groups["ep"] if self.grid and self._spread.ep > 1 else None
        dispatch = Dispatch(routing_of(spec), place.rank % self._spread.ep, self._spread.dedup,
                            capacity_of(spec), group, place.device)
        for mixture in mixtures(self.plain):
            mixture.dispatch = dispatch

    def build(self) -> Model:
        if self._spread.ep > 1:
            self.grid = base.Grid(self.place, {
                "shard": self.place.world_size // self._spread.ep, "ep": self._spread.ep})
        self._sharder = Sharder(self.open_mesh(), self.spec)
        return build(self.draft(), self.place.device, self.fill, self._divide, self._shard)

    def _divide(self, part: nn.Module) -> None:
        if self.grid is None:
            return
        mesh = self.grid.row("ep")
        for mixture in mixtures(part):
            for name, whole in [*mixture.experts.named_parameters()]:
                # Each rank has computed the whole weights from the seed: none is to be sent.
                own = distribute_tensor(whole.data, mesh, [Shard(0)], src_data_rank=None)
                setattr(mixture.experts, name, nn.Parameter(own))

    def _shard(self, part: nn.Module) -> None:
        if self.grid is not None and not isinstance(part, Model):
            for mixture in mixtures(part):
                # a rank may have fewer experts than others have the same: their matrices are cut
                self._sharder.shard(mixture.experts, self.grid.row("shard"), dimension=1)
                # not set_gradient_divide_factor: gloo has none of the sums of multiples it asks for
                mixture.experts.set_all_reduce_hook(lambda mean: mean.div_(self._spread.ep))
        self._sharder.shard(part)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return base.grouped_optimizer(self.spec.optimizer, self.plain.parameters())

    def make_scaler(self) -> torch.amp.GradScaler:
        return base.AgreedScaler(self.spec.dtype, self.place.device, self.place.group)


def mixtures(part: nn.Module) -> Iterator[Any]:
    return (module for module in part.modules() if isinstance(module, MixtureOfExperts))


def route_alone(spec: Training, model: nn.Module, replica: int, device: torch.device) -> None:
    """Have a model with all experts send a replica's tokens where the strategy sends them."""
    found = [*mixtures(model)]
    if found:
        routing = routing_of(spec)
        dispatch = Dispatch(alone(routing, replica % routing.ranks), 0, "expert",
                            capacity_of(spec), None, device)
        for mixture in found:
            mixture.dispatch = dispatch

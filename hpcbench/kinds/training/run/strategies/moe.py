"""Expert parallelism: ranks divide the experts, all else is sharded over all ranks (FSDP2).

Groups of ``ep`` neighbours have all experts together, each rank an equal part, which it shares with
the ranks of the other groups that have the same. Gradients of experts are of all tokens of a group:
`fully_shard` takes the mean over groups, and it is divided by a group's ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

from hpcbench.backends.counting_backend import COUNTING_BACKEND
from hpcbench.kinds.training.plan.experts import (
    Spread,
    capacity_of,
    routing_of,
    spread_of,
)
from hpcbench.kinds.training.plan.planner import WATCHED_STEPS
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.build import build
from hpcbench.kinds.training.run.models.experts import (
    Exchange,
    GivenRoutes,
    MixtureOfExperts,
    RouterRoutes,
    alone,
)
from hpcbench.kinds.training.run.models.model import Model
from hpcbench.kinds.training.run.strategies import base
from hpcbench.kinds.training.run.strategies.replica import Fsdp, Sharder
from hpcbench.operations.data import all_gather_tensor
from hpcbench.operations.place import Place


class ExpertParallel(Fsdp):
    """A step whose tokens travel to the ranks of their experts and back."""

    def __init__(self, spec: Training, place: Place) -> None:
        spread = spread_of(spec)
        assert spread is not None  # noqa: S101  (the strategy has one)
        self._spread = spread
        super().__init__(spec, place)
        self._exchange = Exchange(self.grid.groups["ep"] if self.grid else None,
                                  in_8_bits=spread.in_8_bits)
        is_dry = place.group and dist.get_backend(place.group) == COUNTING_BACKEND
        given = None if spread.router and not is_dry else GivenRoutes(
            routing_of(spec), place.rank % spread.ep, spread.dedup, capacity_of(spec),
            self._exchange, place.device)
        self._routers = _routed(spec, spread, self.plain, given, self._exchange)

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

    def follow(self, scores: Sequence[Sequence[torch.Tensor]]) -> None:
        for router, expected in zip(self._routers, scores, strict=True):
            router.expected = expected

    def strays(self) -> Iterator[tuple[str, float]]:
        return ((f"block with experts {number}", router.stray)
                for number, router in enumerate(self._routers))

    def measured(self, step: Callable[[], object] | None) -> dict[str, float]:
        measured = self._routed()
        if self._exchange.group is not None and step is not None:
            measured["expert_wait_share"] = self._waited(step)
        return measured

    def _waited(self, step: Callable[[], object]) -> float:
        """Return the share of a step that this rank waits in exchanges for the others: its time in
        each beyond that of the rank of its group with least, which came last."""
        clock = self._exchange.clock = base.phase_clock(self.place.device)
        for _ in range(WATCHED_STEPS):
            clock.begin()
            step()
            clock.end(Exchange.APART)
        self._exchange.clock = None
        clock.resolve()
        own = torch.tensor([[took for name, took in one.items() if name != Exchange.APART]
                            for one in clock.steps], device=self.place.device)
        every = own.new_empty(self._spread.ep * own.numel())
        all_gather_tensor(every, own.flatten(), group=self._exchange.group)
        waits = (own - every.view(-1, *own.shape).amin(0)).sum(1).tolist()
        return float(median(wait / sum(one.values()) for wait, one in zip(
            waits, clock.steps, strict=True)))

    def _routed(self) -> dict[str, float]:
        """Return the load of the block in which it is most uneven, in the last part of a batch."""
        seen = [router.seen for router in self._routers if router.seen]
        if not seen:
            return {}
        ep, own = self._spread.ep, self.place.rank % self._spread.ep
        table = torch.stack([torch.cat((counts, counts.new_zeros(ep).index_fill_(
            0, counts.new_tensor([own]), received))) for counts, received in seen])
        if self._exchange.group is not None:
            dist.all_reduce(table, group=self._exchange.group)
        of_experts, received = table.cpu().double().split([table.shape[1] - ep, ep], 1)
        dropped = 1 - of_experts.sum(1) / (ep * self._routers[0].pairs)
        return {"expert_tokens": int(of_experts.max()),
                "expert_max_over_mean": float((of_experts.amax(1) / of_experts.mean(1)).max()),
                "received_max_over_mean": float((received.amax(1) / received.mean(1)).max()),
                **({"dropped_share": float(dropped.max())} if capacity_of(self.spec) else {})}

    def make_optimizer(self) -> torch.optim.Optimizer:
        return base.grouped_optimizer(self.spec.optimizer, self.plain.parameters())

    def make_scaler(self) -> torch.amp.GradScaler:
        return base.AgreedScaler(self.spec.dtype, self.place.device, self.place.group)


def mixtures(part: nn.Module) -> Iterator[Any]:
    return (module for module in part.modules() if isinstance(module, MixtureOfExperts))


def _routed(spec: Training, spread: Spread, model: nn.Module, given: GivenRoutes | None,
            exchange: Exchange) -> list[RouterRoutes]:
    """Give the experts of a model routes: those given, or the router's; return the latter."""
    routers = []
    for mixture in mixtures(model):
        mixture.routes = given
        if spread.router:
            mixture.routes = RouterRoutes(mixture.of, spread, routing_of(spec).tokens,
                                          capacity_of(spec), exchange, given)
            routers.append(mixture.routes)
    return routers


def route_alone(spec: Training, model: nn.Module, replica: int,
                device: torch.device) -> list[RouterRoutes]:
    """Have a model with all experts send a replica's tokens where the strategy sends them, or where
    its router does; return those."""
    spread = spread_of(spec)
    if spread is None:
        return []
    routing, exchange = routing_of(spec), Exchange(None, in_8_bits=spread.in_8_bits)
    # a rank that adds up weighs gradients that were rounded
    dedup = spread.dedup if spread.in_8_bits else "expert"
    given = None if spread.router else GivenRoutes(
        alone(routing, replica % routing.ranks), 0, dedup, capacity_of(spec), exchange, device)
    routers = _routed(spec, spread, model, given, exchange)
    for router in routers:
        router.scores = []
    return routers

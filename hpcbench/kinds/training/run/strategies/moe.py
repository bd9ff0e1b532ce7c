"""Expert parallelism: ranks divide the experts; all else is spread as without.

Groups of ``ep`` neighbours have all experts together, each rank an equal part, which it shares with
the ranks of the other groups that have the same. Gradients of experts are of all tokens of a group:
`fully_shard` takes the mean over groups, and it is divided by a group's ranks. Ranks of a tensor
group have the same tokens, and each its columns of every expert, as of other products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from hpcbench.backends.counting_backend import COUNTING_BACKEND
from hpcbench.kinds.training.plan.experts import capacity_of, routing_of
from hpcbench.kinds.training.plan.models import shape_of
from hpcbench.kinds.training.plan.planner import WATCHED_STEPS
from hpcbench.kinds.training.plan.spec import layout_of, parts_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.experts import (
    Exchange,
    GivenRoutes,
    InTurn,
    MixtureOfExperts,
    RouterRoutes,
    alone,
)
from hpcbench.kinds.training.run.models.model import Model
from hpcbench.kinds.training.run.strategies import base
from hpcbench.kinds.training.run.strategies.context import places_of
from hpcbench.kinds.training.run.strategies.replica import Sharder
from hpcbench.operations.data import all_gather_tensor
from hpcbench.operations.place import Place


class SpreadExperts:
    """How a rank has some of the experts of the blocks of a model, or of stages of one; of models
    without experts nothing.

    ``place.rank`` is the tensor part, then the stage, then the ranks that divide experts."""

    def __init__(self, spec: Training, place: Place, grid: base.Grid) -> None:
        layout = layout_of(spec)
        self._spec, self._place, self._grid, self._spread = spec, place, grid, layout.experts
        self._routers: dict[int, RouterRoutes] = {}
        self._number = place.rank // (spec.pp * spec.tp)
        self._mesh: DeviceMesh | None = None
        if groups := layout.expert_groups:
            extents = {"copies": groups.copies, "shards": groups.shards, "ep": self._ep,
                       "pp": spec.pp, "tp": spec.tp}
            self._mesh = grid.divide(place, {
                name: extent for name, extent in extents.items() if extent > 1 or name == "shards"})
        self._exchange = Exchange(grid.groups.get("ep"), in_8_bits=bool(
            self._spread and self._spread.in_8_bits))

    @property
    def _ep(self) -> int:
        return self._spread.ep if self._spread else 1

    def divide(self, part: nn.Module) -> None:
        """Leave a rank its experts, and of each the columns that tensor parts have."""
        mesh = self._grid.row("ep", "tp", of=self._mesh)
        if mesh is None:
            return
        for mixture in mixtures(part):
            for name, whole in [*mixture.experts.named_parameters()]:
                inner = Shard(2 if name == "down" else 1)
                # Each rank has computed the whole weights from the seed: none is to be sent.
                own = distribute_tensor(whole.data, mesh, [
                    *([Shard(0)] * (self._ep > 1)), *([inner] * (self._spec.tp > 1))],
                    src_data_rank=None)
                setattr(mixture.experts, name, nn.Parameter(own))

    def shard(self, part: nn.Module, sharder: Sharder) -> None:
        """Spread experts of a block that ranks divide over those that have the same."""
        if self._mesh is not None and not isinstance(part, Model):
            for mixture in mixtures(part):
                # a rank may have fewer experts than others have the same: their matrices are cut
                sharder.shard(mixture.experts, self._grid.row("copies", "shards", of=self._mesh),
                              dimension=1)
                # not set_gradient_divide_factor: gloo has none of the sums of multiples it asks for
                mixture.experts.set_all_reduce_hook(lambda mean: mean.div_(self._ep))

    def route(self, model: Model) -> None:
        spec, place, spread = self._spec, self._place, self._spread
        if spread is None:
            return
        is_dry = place.group and dist.get_backend(place.group) == COUNTING_BACKEND
        given = None if spread.router and not is_dry else GivenRoutes(
            routing_of(spec), self._number % spread.ep, spread.dedup, capacity_of(spec),
            self._exchange, place.device)
        blocks = [int(number) for number, block in model.blocks.items() if any(mixtures(block))]
        self._routers |= zip(blocks, _routed(spec, model, given, self._exchange), strict=False)

    def follow(self, scores: Sequence[Sequence[torch.Tensor]]) -> None:
        """Route by one process's scores of each block with experts and part of the tokens."""
        if experts := shape_of(self._spec).experts:
            for number, router in self._routers.items():
                of_parts = scores[number - experts.dense_layers]
                router.expected = of_parts[self._number % self._spec.cp::self._spec.cp]

    def strays(self) -> Iterator[tuple[str, float]]:
        return ((f"block {number}", router.stray) for number, router in self._routers.items())

    def measured(self, step: Callable[[], object] | None) -> dict[str, float]:
        measured = self._routed()
        if self._exchange.group is not None and step is not None:
            measured["expert_wait_share"] = self._waited(step)
        return measured

    def _waited(self, step: Callable[[], object]) -> float:
        """Return the share of a step that this rank waits in exchanges for the others: its time in
        each beyond that of the rank of its group with least, which came last."""
        clock = self._exchange.clock = base.phase_clock(self._place.device)
        for _ in range(WATCHED_STEPS):
            clock.begin()
            step()
            clock.end(Exchange.APART)
        self._exchange.clock = None
        clock.resolve()
        own = torch.tensor([[took for name, took in one.items() if name != Exchange.APART]
                            for one in clock.steps], device=self._place.device)
        if not own.numel():  # no experts are in the stages
            return 0.0
        every = own.new_empty(self._ep * own.numel())
        all_gather_tensor(every, own.flatten(), group=self._exchange.group)
        waits = (own - every.view(-1, *own.shape).amin(0)).sum(1).tolist()
        return float(median(wait / sum(one.values()) for wait, one in zip(
            waits, clock.steps, strict=True)))

    def _routed(self) -> dict[str, float]:
        """Return the load of the block in which it is most uneven, in the last part of a batch."""
        seen = [(router.seen, router.pairs) for router in self._routers.values() if router.seen]
        if not seen:
            return {}
        ep, own = self._ep, self._number % self._ep
        table = torch.stack([torch.cat((counts, counts.new_zeros(ep).index_fill_(
            0, counts.new_tensor([own]), received))) for (counts, received), _ in seen])
        if self._exchange.group is not None:
            dist.all_reduce(table, group=self._exchange.group)
        of_experts, received = table.cpu().double().split([table.shape[1] - ep, ep], 1)
        dropped = 1 - of_experts.sum(1) / (ep * seen[0][1])
        return {"expert_tokens": int(of_experts.max()),
                "expert_max_over_mean": float((of_experts.amax(1) / of_experts.mean(1)).max()),
                "received_max_over_mean": float((received.amax(1) / received.mean(1)).max()),
                **({"dropped_share": float(dropped.max())} if capacity_of(self._spec) else {})}


class WithExperts(base.Strategy):
    """A strategy of models that may have experts."""

    experts: SpreadExperts

    def follow(self, scores: Sequence[Sequence[torch.Tensor]]) -> None:
        self.experts.follow(scores)

    def strays(self) -> Iterator[tuple[str, float]]:
        return self.experts.strays()

    def measured(self, step: Callable[[], object] | None) -> dict[str, float]:
        return self.experts.measured(step)


def mixtures(part: nn.Module) -> Iterator[Any]:
    return (module for module in part.modules() if isinstance(module, MixtureOfExperts))


def _routed(spec: Training, model: nn.Module, given: GivenRoutes | InTurn | None,
            exchange: Exchange) -> list[RouterRoutes]:
    """Give the experts of a model routes: those given, or the router's, which are ``given`` in a
    dry run; return the latter."""
    spread, routers = layout_of(spec).experts, []
    for mixture in mixtures(model):
        mixture.routes = given
        if spread and spread.router:
            mixture.routes = RouterRoutes(mixture.of, spread, routing_of(spec).tokens,
                                          capacity_of(spec), exchange, given)
            routers.append(mixture.routes)
    return routers


def route_alone(spec: Training, model: nn.Module, replica: int,
                device: torch.device) -> list[RouterRoutes]:
    """Have a model with all experts send a replica's tokens where the strategy sends them, or where
    its router does; return those."""
    spread = layout_of(spec).experts
    if spread is None:
        return []
    routing, exchange = routing_of(spec), Exchange(None, in_8_bits=spread.in_8_bits)
    # a rank that adds up weighs gradients that were rounded
    dedup = spread.dedup if spread.in_8_bits else "expert"
    given = None if spread.router else InTurn([GivenRoutes(
        alone(routing, (replica * spec.cp + part) % routing.ranks), 0, dedup, capacity_of(spec),
        exchange, device) for part in range(spec.cp)])
    routers = _routed(spec, model, given, exchange)
    for router in routers:
        router.scores = []
    return routers


def part_by_part(spec: Training, model: nn.Module) -> None:
    """Have experts of a model get tokens in the order of micro-batches, and in each of the ranks
    that share its samples."""
    order = torch.cat([places_of(spec, part) for part in range(spec.cp)])
    parts = parts_of(spec)

    def before(_mixture: nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        x = inputs[0][:, order].unflatten(0, (parts, -1)).unflatten(2, (spec.cp, -1))
        return x.transpose(1, 2)

    def behind(_mixture: nn.Module, _inputs: object, result: torch.Tensor) -> torch.Tensor:
        return result.transpose(1, 2).flatten(2, 3).flatten(0, 1)[:, order.argsort()]

    for mixture in mixtures(model) if spec.cp > 1 else ():
        mixture.register_forward_pre_hook(before)
        mixture.register_forward_hook(behind)

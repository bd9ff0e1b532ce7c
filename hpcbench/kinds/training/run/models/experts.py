"""A mixture of experts, and the exchange of its tokens among ranks that have some of the experts.

Which experts a token goes to is given by a load (`operations.loads`), or by the router, whose
scores weigh what the experts return in any case. Dispatch and combine are one all_to_all each, as
in GShard (Lepikhin et al., arXiv:2006.16668, section 2.2) and torchtitan. The splits of a load are
known; those of the router are exchanged first, and the host waits for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional as F

from hpcbench.kinds.training.plan.spec import Spread
from hpcbench.kinds.training.run.memory import local
from hpcbench.kinds.training.run.models.fp8 import packed, unpacked
from hpcbench.operations.loads import Routing
from hpcbench.operations.models import Experts, ModelShape
from hpcbench.operations.token_copies import ExpertTables, copies_to, within

_GROUPED_BYTES = 16  # of which the rows of a grouped product are multiples


Splits = list[int] | None
"""Rows from and to each rank; None: equally many."""


class Exchange:
    """An all_to_all of rows among the ranks of a group; None: a rank alone, whose rows stay.

    ``in_8_bits``: those to experts travel so, and are rounded so where they stay. ``clock``: notes
    in the step under way what each call took, and all else as APART."""

    APART = "apart"

    def __init__(self, group: Any, *, in_8_bits: bool = False) -> None:
        self.group, self.in_8_bits = group, in_8_bits
        self.clock: Any = None

    def __call__(self, rows: torch.Tensor, received: Splits, sent: Splits) -> torch.Tensor:
        if self.group is None:
            return rows
        if self.clock:
            self.clock.end(self.APART)
        count = len(rows) if received is None else sum(received)
        result = rows.new_empty((count, *rows.shape[1:]))
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=self.group)
        if self.clock:
            self.clock.end(f"call {self.clock.noted}")
        return result

    def to_experts(self, rows: torch.Tensor, received: Splits, sent: Splits) -> torch.Tensor:
        if not self.in_8_bits:
            return self(rows, received, sent)
        return unpacked(self(packed(rows), received, sent), rows.shape[1], rows.dtype)


Way = Callable[[torch.Tensor, Splits, Splits], torch.Tensor]


class RowExchange(torch.autograd.Function):  # type: ignore[misc]
    """Rows ``there``, to each rank of a group; backward sends their gradients ``back``."""

    @staticmethod
    def forward(
        context: Any, rows: torch.Tensor, received: Splits, sent: Splits, there: Way, back: Way,
    ) -> torch.Tensor:
        context.way = received, sent, back
        return there(rows, received, sent)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        received, sent, back = context.way
        return back(gradient, sent, received), None, None, None, None


def alone(routing: Routing, rank: int) -> Routing:
    """Return the routing of one rank's tokens where it has all experts."""
    return Routing(1, routing.tokens, routing.experts, tuple(range(routing.tokens)),
                   tuple(routing.experts_of(rank)))


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How the tokens of a micro-batch go through the experts of the ranks of a group, and back.

    ``rows`` are the tokens of the rows that this rank
    sends, ``slots`` the places of its pairs in a table (tokens, experts of a token). Here are
    ``counts`` pairs of each expert, the rows ``pair_rows`` in the order of experts, which ``order``
    gives; ``ends`` are behind each."""

    exchange: Exchange
    by_rank: bool
    sent: list[int]
    received: list[int]
    pairs_sent: list[int]
    pairs_received: list[int]
    rows: torch.Tensor
    slots: torch.Tensor
    pair_rows: torch.Tensor
    order: torch.Tensor
    counts: list[int]
    ends: torch.Tensor

    def through(
        self, tokens: torch.Tensor, weights: torch.Tensor, experts: nn.Module,
    ) -> torch.Tensor:
        """Return the sum of what each token's experts return, times its weights (tokens, k)."""
        plain, to_experts = self.exchange, self.exchange.to_experts
        rows = RowExchange.apply(tokens[self.rows], self.received, self.sent, to_experts, plain)
        slots = weights.flatten()[self.slots]
        done = experts(rows[self.pair_rows], self.counts, self.ends)
        if self.by_rank:  # a rank adds up before it sends back: it needs the weights
            there = RowExchange.apply(slots, self.pairs_received, self.pairs_sent, plain, plain)
            done = done * there[self.order, None].to(done.dtype)
        summed = done.new_zeros((len(rows), done.shape[-1])).index_add(0, self.pair_rows, done)
        back = RowExchange.apply(summed, self.sent, self.received, plain, to_experts)
        if not self.by_rank:
            back = back * slots[:, None].to(back.dtype)
        return back.new_zeros((len(tokens), back.shape[-1])).index_add(0, self.rows, back)


class GivenRoutes:
    """The same ``choices`` (tokens, experts of a token) for every micro-batch: those of a load.

    ``capacity``: how many of a rank's tokens an expert takes, 0: all."""

    def __init__(self, routing: Routing, rank: int, dedup: str, capacity: int,
                 exchange: Exchange, device: torch.device) -> None:
        each, ranks, tables = routing.experts // routing.ranks, range(routing.ranks), ExpertTables(
            routing)
        own = tables.of(rank)
        kept = within(own, capacity)
        sent = [copies_to(kept, receiver, each, dedup) for receiver in ranks]
        got = [copies_to(within(tables.of(sender), capacity), rank, each, dedup)
               for sender in ranks]
        starts = np.cumsum([0, *(len(one.token) for one in got)])
        rows = np.concatenate([one.copy + at for one, at in zip(got, starts, strict=False)])
        expert = np.concatenate([one.expert for one in got])
        order = np.argsort(expert, kind="stable")
        counts = np.bincount(expert, minlength=each)
        slots = [one.token[one.copy] * own.shape[1] + one.choice for one in sent]

        def here(values: Any) -> torch.Tensor:
            return torch.from_numpy(values).to(device)

        self.tokens, self.choices = routing.tokens, here(own)
        (sends, gets), (pairs_sent, pairs_got) = (
            [[len(getattr(one, of)) for one in side] for side in (sent, got)]
            for of in ("token", "copy"))
        self.dispatch = Dispatch(
            exchange, dedup == "rank", sends, gets, pairs_sent, pairs_got,
            here(np.concatenate([one.token for one in sent])), here(np.concatenate(slots)),
            here(rows[order]), here(order), counts.tolist(),
            here(counts.cumsum().astype(np.int32)))

    def of(self, scores: torch.Tensor) -> tuple[torch.Tensor, Dispatch]:
        return self.choices, self.dispatch


class RouterRoutes:
    """The experts with the highest scores of each token. Ranks tell each other how many rows they
    send, and of each row which experts work on it.

    ``assumed``: routes of a dry run, in which scores have no values. ``scores``: a list that gets
    those of each micro-batch. ``expected``: scores by which
    tokens are routed instead, one table a micro-batch; ``stray`` is then by what share the least
    score of a token's own choice is below that of the best one, at most. ``seen``: of the last
    micro-batch, tokens of each expert that this rank's tokens have, and the rows it got."""

    def __init__(self, experts: Experts, spread: Spread, tokens: int, capacity: int,
                 exchange: Exchange, assumed: GivenRoutes | InTurn | None = None) -> None:
        self.tokens, self._experts, self._ranks = tokens, experts, (
            spread.ep if exchange.group else 1)
        self._by_rank, self._capacity = spread.dedup == "rank", capacity
        self._exchange, self._assumed, self.pairs = exchange, assumed, tokens * experts.per_token
        self.scores: list[torch.Tensor] | None = None
        self.expected: Sequence[torch.Tensor] = ()
        self.stray = 0.0
        self.seen: tuple[torch.Tensor, int] | None = None

    def of(self, scores: torch.Tensor) -> tuple[torch.Tensor, Dispatch]:
        if self._assumed:
            choices, dispatch = self._assumed.of(scores)
            self._exchange(choices.new_zeros(self._ranks), None, None)
            width = choices.shape[1] if self._by_rank else 1
            self._exchange(choices.new_zeros((sum(dispatch.sent), width)), dispatch.received,
                           dispatch.sent)
            return choices, dispatch
        choices = self._chosen(scores.detach())
        return choices, self._dispatched(_within(choices, self._capacity))

    def _chosen(self, scores: torch.Tensor) -> torch.Tensor:
        groups, best = self._best(scores)
        if self.scores is not None:
            self.scores.append(scores)
        if not self.expected:
            return best
        # those of the same micro-batch are nearest, also where backward comes here again
        theirs = min((one.to(scores.device) for one in self.expected),
                     key=lambda one: float((one - scores).norm()))
        self.stray = max(self.stray, _short(_of_groups(theirs, self._experts), groups),
                         _short(_within_groups(theirs, groups, self._experts), best))
        return self._best(theirs)[1]

    def _best(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each token's groups of experts and, of these, experts."""
        experts = self._experts
        groups = _of_groups(scores, experts).topk(experts.groups_per_token).indices
        return groups, _within_groups(scores, groups, experts).topk(experts.per_token).indices

    def _dispatched(self, kept: torch.Tensor) -> Dispatch:
        each, flat, per_token = self._experts.number // self._ranks, kept.flatten(), kept.shape[1]
        pairs = (flat >= 0).nonzero().squeeze(1)
        owner = flat[pairs] // each
        owner, order = owner.sort(stable=True)
        slots = pairs[order]
        token, choice = slots // per_token, slots % per_token
        first = torch.ones_like(token, dtype=torch.bool)  # of the pairs of a row
        if self._by_rank:
            first[1:] = (token[1:] != token[:-1]) | (owner[1:] != owner[:-1])
        numbers = token.new_full((int(first.sum()), per_token if self._by_rank else 1), -1)
        numbers[first.cumsum(0) - 1, choice if self._by_rank else 0] = flat[slots] % each
        rows, pairs_sent = (_counted(one, self._ranks) for one in (owner[first], owner))
        sent, pairs_sent, received = torch.stack(
            (rows, pairs_sent, self._exchange(rows, None, None))).tolist()
        arrived = self._exchange(numbers, received, sent)
        self.seen = _counted(flat[pairs], self._experts.number), sum(received)
        return self._arrived(arrived, (sent, received, pairs_sent), token[first], slots)

    def _arrived(self, numbers: torch.Tensor, splits: tuple[list[int], list[int], list[int]],
                 rows: torch.Tensor, slots: torch.Tensor) -> Dispatch:
        sent, received, pairs_sent = splits
        row, choice = (numbers >= 0).nonzero(as_tuple=True)
        expert, order = numbers[row, choice].sort(stable=True)
        counts = _counted(expert, self._experts.number // self._ranks)
        senders = torch.arange(self._ranks, device=row.device).repeat_interleave(
            torch.tensor(received, device=row.device))
        return Dispatch(
            self._exchange, self._by_rank, sent, received, pairs_sent,
            _counted(senders[row], self._ranks).tolist(), rows, slots, row[order], order,
            counts.tolist(), counts.cumsum(0).to(torch.int32))


def _of_groups(scores: torch.Tensor, experts: Experts) -> torch.Tensor:
    """Return the scores of groups, (tokens, groups): of the best expert, of sigmoids the best two.

    DeepSeek-V2, arXiv:2405.04434, section 2.1.2, and V3, arXiv:2412.19437, section 2.1.2."""
    of_each = scores.unflatten(1, (experts.groups, -1))
    best = min(2, of_each.shape[2]) if experts.scores == "sigmoid" else 1
    return of_each.topk(best).values.sum(-1)


def _within_groups(
    scores: torch.Tensor, groups: torch.Tensor, experts: Experts,
) -> torch.Tensor:
    """Return scores (tokens, experts), 0 outside of a token's groups."""
    kept = scores.new_zeros((len(scores), experts.groups)).scatter(1, groups, 1)
    return (scores.unflatten(1, (experts.groups, -1)) * kept[:, :, None]).flatten(1)


def _short(scores: torch.Tensor, chosen: torch.Tensor) -> float:
    """Return by what share the least of a token's chosen scores is below the least of the best."""
    least = scores.topk(chosen.shape[1]).values[:, -1]
    return float((1 - scores.gather(1, chosen).amin(1) / least).max())


def _counted(values: torch.Tensor, number: int) -> torch.Tensor:
    return torch.bincount(values, minlength=number)


def _within(choices: torch.Tensor, capacity: int) -> torch.Tensor:
    """Return the same as `token_copies.within`."""
    if not capacity:
        return choices
    ordered, order = choices.flatten().sort(stable=True)
    earlier = torch.arange(len(order), device=order.device) - torch.searchsorted(ordered, ordered)
    kept = choices.flatten().clone()
    kept[order[earlier >= capacity]] = -1
    return kept.view_as(choices)


class ExpertStack(nn.Module):  # type: ignore[misc]
    """The matrices of experts, of each kind together: SwiGLU, as in `FeedForward`.

    Rows come in the order of the experts. All experts are one grouped product of torch, where it
    has that and rows are whole units of 16 bytes; else one after the other, as in fp64."""

    def __init__(self, shape: ModelShape, experts: Experts) -> None:
        super().__init__()
        up = (experts.number, experts.inner, shape.hidden)
        self.gate, self.up = nn.Parameter(torch.empty(up)), nn.Parameter(torch.empty(up))
        self.down = nn.Parameter(torch.empty(experts.number, shape.hidden, experts.inner))

    def forward(
        self, rows: torch.Tensor, counts: Sequence[int], ends: torch.Tensor,
    ) -> torch.Tensor:
        gate, up, down = map(local, (self.gate, self.up, self.down))
        operands = [rows, gate, up, down]
        if isinstance(rows, FakeTensor):  # torch 2.13 fakes a grouped product in bf16 only
            operands = [one.bfloat16() for one in operands]
        if _is_grouped(operands[0], gate):
            product = partial(F.grouped_mm, offs=ends)
            x, (of_gate, of_up, of_down) = operands[0], (
                one.transpose(1, 2) for one in operands[1:])
            return product(F.silu(product(x, of_gate)) * product(x, of_up), of_down).to(rows.dtype)
        return torch.cat([
            F.linear(F.silu(F.linear(part, of_gate)) * F.linear(part, of_up), of_down)
            for part, of_gate, of_up, of_down in zip(
                rows.split(list(counts)), gate, up, down, strict=True)])


def _is_grouped(rows: torch.Tensor, weights: torch.Tensor) -> bool:
    """Return whether torch has a grouped product of these."""
    size = rows.element_size()
    return hasattr(F, "grouped_mm") and rows.dtype != torch.float64 and not any(
        extent * size % _GROUPED_BYTES for extent in weights.shape[1:])


class InTurn:
    """Routes of several ranks' tokens, one part after another."""

    def __init__(self, routes: Sequence[GivenRoutes]) -> None:
        self.tokens, self._routes = routes[0].tokens, cycle(routes)

    def of(self, scores: torch.Tensor) -> tuple[torch.Tensor, Dispatch]:
        return next(self._routes).of(scores)


def _own(whole: torch.Tensor) -> torch.Tensor:
    """Return a tensor that ranks which divide each expert have alike; its gradient is the sum of
    theirs."""
    return whole.to_local(grad_placements=[Partial()]) if isinstance(whole, DTensor) else whole


class MixtureOfExperts(nn.Module):  # type: ignore[misc]
    """The router, its experts, and the MLP that every token passes. ``routes`` are set later.

    Ranks that divide each expert return parts of a sum."""

    routes: GivenRoutes | RouterRoutes | InTurn

    def __init__(self, shape: ModelShape, experts: Experts, shared: nn.Module | None) -> None:
        super().__init__()
        self.of = experts
        self.router = nn.Linear(shape.hidden, experts.number, bias=False)
        self.experts = ExpertStack(shape, experts)
        self.shared = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat, each = x.flatten(0, -2), self.routes.tokens
        tokens = _own(flat)
        scores = F.linear(tokens, _own(self.router.weight))
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = wide.softmax(-1) if self.of.scores == "softmax" else wide.sigmoid()
        parts = []
        for part, some in zip(tokens.split(each), scores.split(each), strict=True):
            choices, dispatch = self.routes.of(some)
            parts.append(dispatch.through(part, self._weights(some, choices), self.experts))
        mixed = torch.cat(parts) if len(parts) > 1 else parts[0]
        return (mixed if self.shared is None else mixed + self.shared(flat)).view(x.shape)

    def _weights(self, scores: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        picked = scores.gather(1, choices)
        if self.of.normalised:
            picked = picked / picked.sum(-1, keepdim=True)
        return picked * self.of.scale

"""A mixture of experts, and the exchange of its tokens among ranks that have some of the experts.

Which experts a token goes to is given (`operations.loads`), as the load is what is measured; the
router's product is computed all the same, and its scores weigh what the experts return. Dispatch
and combine are one all_to_all each, as in GShard (Lepikhin et al., arXiv:2006.16668, section 2.2)
and torchtitan. The splits are known, so no rank waits for counts of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from hpcbench.kinds.training.run.memory import local
from hpcbench.operations.loads import Routing
from hpcbench.operations.models import Experts, ModelShape
from hpcbench.operations.token_copies import ExpertTables, copies_to, within

_GROUPED_BYTES = 16  # of which the rows of a grouped product are multiples


Splits = list[int] | None
"""Rows from and to each rank; None: equally many."""


class RowExchange(torch.autograd.Function):  # type: ignore[misc]
    """Rows to each rank of a group; backward sends the gradients back the same way."""

    @staticmethod
    def forward(
        context: Any, rows: torch.Tensor, received: Splits, sent: Splits, group: Any,
    ) -> torch.Tensor:
        context.way = received, sent, group
        return _exchanged(rows, received, sent, group)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        received, sent, group = context.way
        return _exchanged(gradient, sent, received, group), None, None, None


def _exchanged(
    rows: torch.Tensor, received: Splits, sent: Splits, group: Any,
) -> torch.Tensor:
    count = len(rows) if received is None else sum(received)
    result = rows.new_empty((count, *rows.shape[1:]))
    dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
    return result


def alone(routing: Routing, rank: int) -> Routing:
    """Return the routing of one rank's tokens where it has all experts."""
    return Routing(1, routing.tokens, routing.experts, tuple(range(routing.tokens)),
                   tuple(routing.experts_of(rank)))


class Dispatch:
    """How the tokens of a micro-batch go through the experts of the ranks of a group, and back.

    ``group`` None: one rank has all experts. ``capacity``: how many of a rank's tokens an expert
    takes, 0: all. ``choices`` (tokens, experts of a token) are those of each of this rank's tokens,
    dropped ones too; ``counts`` how many rows each of its experts gets, ``ends`` the rows behind
    them."""

    def __init__(self, routing: Routing, rank: int, dedup: str, capacity: int, group: Any,
                 device: torch.device) -> None:
        each, ranks, tables = routing.experts // routing.ranks, range(routing.ranks), ExpertTables(
            routing)
        own = tables.of(rank)
        kept = within(own, capacity)
        sent = [copies_to(kept, receiver, each, dedup) for receiver in ranks]
        got = [copies_to(within(tables.of(sender), capacity), rank, each, dedup)
               for sender in ranks]
        self.group, self.tokens, self.by_rank = group, routing.tokens, dedup == "rank"
        self.sent, self.received = ([len(one.token) for one in side] for side in (sent, got))
        self.pairs_sent, self.pairs_received = (
            [len(one.copy) for one in side] for side in (sent, got))
        starts = np.cumsum([0, *self.received])
        rows = np.concatenate([one.copy + at for one, at in zip(got, starts, strict=False)])
        expert = np.concatenate([one.expert for one in got])
        order = np.argsort(expert, kind="stable")
        counts = np.bincount(expert, minlength=each)
        self.counts: list[int] = counts.tolist()
        slots = [one.token[one.copy] * own.shape[1] + one.choice for one in sent]
        self.choices, self.rows, self.slots, self.pair_rows, self.order = (
            torch.from_numpy(values).to(device) for values in (
                own, np.concatenate([one.token for one in sent]), np.concatenate(slots),
                rows[order], order))
        self.ends = torch.from_numpy(counts.cumsum().astype(np.int32)).to(device)

    def through(
        self, tokens: torch.Tensor, weights: torch.Tensor, experts: nn.Module,
    ) -> torch.Tensor:
        """Return the sum of what each token's experts return, times its weights (tokens, k)."""
        rows = self._exchange(tokens[self.rows], self.received, self.sent)
        slots = weights.flatten()[self.slots]
        done = experts(rows[self.pair_rows], self.counts, self.ends)
        if self.by_rank:  # a rank adds up before it sends back: it needs the weights
            there = self._exchange(slots, self.pairs_received, self.pairs_sent)
            done = done * there[self.order, None].to(done.dtype)
        summed = done.new_zeros((len(rows), done.shape[-1])).index_add(0, self.pair_rows, done)
        back = self._exchange(summed, self.sent, self.received)
        if not self.by_rank:
            back = back * slots[:, None].to(back.dtype)
        return back.new_zeros((len(tokens), back.shape[-1])).index_add(0, self.rows, back)

    def _exchange(
        self, rows: torch.Tensor, received: list[int], sent: list[int],
    ) -> torch.Tensor:
        if self.group is None:
            return rows
        exchanged: torch.Tensor = RowExchange.apply(rows, received, sent, self.group)
        return exchanged


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
        if _is_grouped(rows, gate):
            product = partial(F.grouped_mm, offs=ends)
            of_gate, of_up, of_down = (one.transpose(1, 2) for one in (gate, up, down))
            return product(F.silu(product(rows, of_gate)) * product(rows, of_up), of_down)
        return torch.cat([
            F.linear(F.silu(F.linear(part, of_gate)) * F.linear(part, of_up), of_down)
            for part, of_gate, of_up, of_down in zip(
                rows.split(list(counts)), gate, up, down, strict=True)])


def _is_grouped(rows: torch.Tensor, weights: torch.Tensor) -> bool:
    """Return whether torch has a grouped product of these; 2.13 fakes it in bf16 only."""
    size = rows.element_size()
    unlike = rows.dtype == torch.float64 or (
        isinstance(rows, FakeTensor) and rows.dtype != torch.bfloat16)
    return hasattr(F, "grouped_mm") and not unlike and not any(
        extent * size % _GROUPED_BYTES for extent in weights.shape[1:])


class MixtureOfExperts(nn.Module):  # type: ignore[misc]
    """The router, its experts, and the MLP that every token passes. ``dispatch`` is set later."""

    dispatch: Dispatch

    def __init__(self, shape: ModelShape, experts: Experts, shared: nn.Module | None) -> None:
        super().__init__()
        self.of = experts
        self.router = nn.Linear(shape.hidden, experts.number, bias=False)
        self.experts = ExpertStack(shape, experts)
        self.shared = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, dispatch = x.flatten(0, -2), self.dispatch
        weights = self._weights(self.router(tokens), dispatch.choices)
        parts = [dispatch.through(part, some, self.experts) for part, some in zip(
            tokens.split(dispatch.tokens), weights.split(dispatch.tokens), strict=True)]
        mixed = torch.cat(parts) if len(parts) > 1 else parts[0]
        return (mixed if self.shared is None else mixed + self.shared(tokens)).view_as(x)

    def _weights(self, scores: torch.Tensor, choices: torch.Tensor) -> torch.Tensor:
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        probabilities = wide.softmax(-1) if self.of.scores == "softmax" else wide.sigmoid()
        parts = len(wide) // len(choices)
        chosen = choices.repeat(parts, 1) if parts > 1 else choices
        picked = probabilities.gather(1, chosen)
        if self.of.normalised:
            picked = picked / picked.sum(-1, keepdim=True)
        return picked * self.of.scale

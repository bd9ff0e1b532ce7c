"""A mixture of experts, and the exchange of its tokens among ranks that have some of the experts.

Which experts a token goes to is given (`operations.loads`), as the load is what is measured; the
router's product is computed all the same, and its scores weigh what the experts return. Dispatch
and combine are one all_to_all each, as in GShard (Lepikhin et al., arXiv:2006.16668, section 2.2)
and torchtitan. The splits are known, so no rank waits for counts of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from hpcbench.kinds.training.run.memory import local
from hpcbench.operations.loads import Routing
from hpcbench.operations.models import Experts, ModelShape

Integers = npt.NDArray[np.int64]
_GROUPED_BYTES = 16  # of which the rows of a grouped product are multiples


class _AllToAll(torch.autograd.Function):  # type: ignore[misc]
    """Rows to each rank of a group; backward sends the gradients back the same way."""

    @staticmethod
    def forward(
        context: Any, rows: torch.Tensor, received: list[int], sent: list[int], group: Any,
    ) -> torch.Tensor:
        context.way = received, sent, group
        return _exchanged(rows, received, sent, group)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        received, sent, group = context.way
        return _exchanged(gradient, sent, received, group), None, None, None


def _exchanged(
    rows: torch.Tensor, received: list[int], sent: list[int], group: Any,
) -> torch.Tensor:
    result = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
    return result


@dataclass(frozen=True, slots=True)
class Sent:
    """What one rank sends, in the order of the experts' ranks: ``rows`` are its tokens, one for
    each row. A row has ``pairs`` with experts (``row`` of each, ``expert``, and ``slot``: token x
    experts of a token + which of these)."""

    rows: Integers
    row: Integers
    expert: Integers
    slot: Integers


def _experts_of(routing: Routing, rank: int) -> Integers:
    """Return the experts (tokens, experts of a token) of a rank's tokens."""
    numbers = np.arange(routing.tokens, dtype=np.int64) * routing.ranks + rank
    runs = np.searchsorted(np.asarray(routing.starts), numbers, side="right") - 1
    return np.asarray(routing.sets, dtype=np.int64)[runs]


def received_from(
    routing: Routing, sender: int, rank: int, dedup: str,
) -> tuple[int, Integers, Integers]:
    """Return how many rows a rank gets from another, and the row and expert of each pair."""
    experts, each = _experts_of(routing, sender), routing.experts // routing.ranks
    token, place = np.nonzero(experts // each == rank)
    expert = experts[token, place]
    order = np.lexsort((token, expert) if dedup == "expert" else (expert, token))
    token, expert = token[order], expert[order]
    if dedup == "expert" or not len(token):
        return len(token), np.arange(len(token)), expert
    row = np.cumsum(np.concatenate(([0], token[1:] != token[:-1])))
    return int(row[-1]) + 1, row, expert


def sent_by(routing: Routing, rank: int, dedup: str) -> Sent:
    """Return the rows of a rank's tokens: one for each expert, or one for each rank that has any
    of a token's experts."""
    experts = _experts_of(routing, rank)
    token, place = np.divmod(np.arange(experts.size), experts.shape[1])
    each = routing.experts // routing.ranks
    order = np.lexsort((token, experts.ravel()) if dedup == "expert" else
                       (experts.ravel(), token, experts.ravel() // each))
    token, expert, slot = token[order], experts.ravel()[order], order
    if dedup == "expert":
        return Sent(token, np.arange(len(order)), expert, slot)
    key = expert // each * routing.tokens + token
    first = np.concatenate(([True], key[1:] != key[:-1]))
    return Sent(token[first], np.cumsum(first) - 1, expert, slot)


def alone(routing: Routing, rank: int) -> Routing:
    """Return the routing of one rank's tokens where it has all experts."""
    return Routing(1, routing.tokens, routing.experts, tuple(range(routing.tokens)),
                   tuple(routing.experts_of(rank)))


class Dispatch:
    """How the tokens of a micro-batch go through the experts of the ranks of a group, and back.

    ``group`` None: one rank has all experts. ``choices`` (tokens, experts of a token) are those of
    each of this rank's tokens; ``counts`` how many rows each of its experts gets."""

    def __init__(self, routing: Routing, rank: int, dedup: str, group: Any,
                 device: torch.device) -> None:
        each, ranks = routing.experts // routing.ranks, range(routing.ranks)
        own = sent_by(routing, rank, dedup)
        self.group, self.tokens, self.by_rank = group, routing.tokens, dedup == "rank"
        choices = np.empty_like(own.expert)
        choices[own.slot] = own.expert
        first_pair = np.unique(own.row, return_index=True)[1]
        self.sent = _counted(own.expert[first_pair] // each, ranks)
        self.pairs_sent = _counted(own.expert // each, ranks)
        mine = [received_from(routing, one, rank, dedup) for one in ranks]
        self.received = [count for count, _, _ in mine]
        self.pairs_received = [len(row) for _, row, _ in mine]
        starts = np.cumsum([0, *self.received])
        row = np.concatenate([at + rows for at, (_, rows, _) in zip(starts, mine, strict=False)])
        expert = np.concatenate([experts for _, _, experts in mine]) - rank * each
        order = np.argsort(expert, kind="stable")
        self.counts = _counted(expert, range(each))
        self.choices = _tensor(choices.reshape(routing.tokens, -1), device)
        self.rows, self.slots = _tensor(own.rows, device), _tensor(own.slot, device)
        self.pair_rows, self.order = _tensor(row[order], device), _tensor(order, device)

    def through(
        self, tokens: torch.Tensor, weights: torch.Tensor, experts: nn.Module,
    ) -> torch.Tensor:
        """Return the sum of what each token's experts return, times its weights (tokens, k)."""
        rows = self._exchange(tokens[self.rows], self.received, self.sent)
        slots = weights.flatten()[self.slots]
        done = experts(rows[self.pair_rows], self.counts)
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
        exchanged: torch.Tensor = _AllToAll.apply(rows, received, sent, self.group)
        return exchanged


def _counted(values: Integers, of: range) -> list[int]:
    counts: list[int] = np.bincount(values, minlength=len(of)).tolist()
    return counts


def _tensor(values: Integers, device: torch.device) -> torch.Tensor:
    return torch.tensor(values.tolist() if values.size < 2 else values, device=device)


class ExpertStack(nn.Module):  # type: ignore[misc]
    """The matrices of experts, of each kind together: SwiGLU, as in `FeedForward`.

    Rows come in the order of the experts. All experts are one grouped product of torch, where it
    has that and rows are whole units of 16 bytes; else one after the other, as in fp64."""

    def __init__(self, shape: ModelShape, experts: Experts) -> None:
        super().__init__()
        up = (experts.number, experts.inner, shape.hidden)
        self.gate, self.up = nn.Parameter(torch.empty(up)), nn.Parameter(torch.empty(up))
        self.down = nn.Parameter(torch.empty(experts.number, shape.hidden, experts.inner))

    def forward(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        gate, up, down = map(local, (self.gate, self.up, self.down))
        if _is_grouped(rows, gate):
            ends = torch.tensor(counts, device=rows.device).cumsum(0, dtype=torch.int32)
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

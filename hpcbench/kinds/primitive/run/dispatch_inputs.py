"""The operands of `plan.dispatch`: tokens, the experts that they go to, and the expected sums.

Tokens are normal numbers that the type of the way to the experts holds, so that it loses nothing.
What is rounded behind it is bounded, element by element, as in `operands`."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from hpcbench.kinds.primitive.plan.dispatch import ExpertTypes, routing_of
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run import operands
from hpcbench.kinds.primitive.run.inputs import Inputs
from hpcbench.operations.data import DTYPES
from hpcbench.operations.loads import FP8, planned_matrix
from hpcbench.operations.place import Place
from hpcbench.operations.token_copies import ExpertTables, Integers, copies_to

WAYS = {**DTYPES, FP8: torch.float8_e4m3fn}
"""Name -> torch's type of elements on the way."""
_STEPS = 8
"""Roundings in fp32 of a weighted sum, beside one for each term."""


class WeightedCopies(NamedTuple):
    """`TokenCopies` with numbers: ``weight`` of each copy, by which its result is multiplied when
    it is back, and ``factor`` of each pair, by which its result is multiplied there."""

    token: torch.Tensor
    weight: torch.Tensor
    copy: torch.Tensor
    expert: torch.Tensor
    factor: torch.Tensor


class DispatchInputs(Inputs):
    """``tokens`` (m / d, k) of this rank in the type that is sent, and `copies` from rank to rank.

    ``accumulator`` is the type in which sums are formed. The result is (m / d, k) in the case's
    type. ``additions``: how often a term is rounded to the type of the way back, at most."""

    additions = 1

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        options = dict(spec.options)
        self.wire = ExpertTypes.of(options, spec.dtype)
        self.dedup, self.product = str(options["dedup"]), str(options["product"])
        matrix = planned_matrix(spec.matrix, spec.matrix_sha256) if spec.matrix else None
        self.routing = routing_of(
            options, place.world_size, spec.m, spec.k, spec.dtype, matrix)
        self.tables = ExpertTables(self.routing)
        self.experts_each = self.routing.experts // place.world_size
        self.accumulator = torch.float64 if spec.dtype == "fp64" else torch.float32
        self._tokens = _drawn((spec.m // place.world_size, spec.k), 1, place.rank).to(
            WAYS[self.wire.dispatch])
        self.tokens = self.here(self._tokens)

    def table(self, rank: int) -> torch.Tensor:
        """Return the experts of a rank's tokens, (m / d, most of a token); -1: it has fewer."""
        return torch.from_numpy(self.tables.of(rank))

    def copies(self, table: Integers, receiver: int) -> WeightedCopies:
        """Return the copies that a rank with this one of `tables` sends to another."""
        found = copies_to(table, receiver, self.experts_each, self.dedup)
        token, copy, expert, choice = map(torch.from_numpy, found)
        weight = router_weights(table.shape[1], self.accumulator)[choice]
        whole = torch.ones(len(token), dtype=self.accumulator)
        if self.dedup == "expert":
            return WeightedCopies(token, weight, copy, expert, whole)
        return WeightedCopies(token, whole, copy, expert, weight)

    def scale(self, expert: torch.Tensor) -> torch.Tensor:
        """Return by which number experts multiply their tokens where there is no product."""
        return torch.exp2(expert % 3 - 1.0).to(self.accumulator)

    def weights_of(self, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return W1 (k, n) and W2 (n, k) of an expert, on the CPU."""
        k, n = self.spec.k, self.spec.n
        up, down = _drawn((k, n), 2, expert), _drawn((n, k), 3, expert)
        return (up / math.sqrt(k)).to(self.dtype), (down / math.sqrt(n)).to(self.dtype)

    def expected(self, part: str) -> operands.Expected:
        """Return this rank's sums, of each token's experts, one after the other."""
        table = self.table(self.place.rank)
        value = torch.zeros(self._tokens.shape, dtype=torch.float64)
        absolute, bound = torch.zeros_like(value), torch.zeros_like(value)
        weights = router_weights(table.shape[1], torch.float64)
        tokens = self._tokens.to(self.dtype)
        for expert in table.unique().tolist():
            token, choice = (table == expert).nonzero(as_tuple=True)
            if expert >= 0:
                result, weight = self._result(expert, tokens[token]), weights[choice, None]
                off = torch.zeros_like(result.value) if result.bound is None else result.bound
                value.index_add_(0, token, weight * result.value)
                absolute.index_add_(0, token, weight * (result.value.abs() + off))
                bound.index_add_(0, token, weight * off)
        return operands.Expected(value, (bound + self._rounding(table) * absolute).float().mul_(
            1 + 2.0**-20).add_(torch.finfo(WAYS[self.wire.combine]).smallest_normal))

    def _rounding(self, table: torch.Tensor) -> float:
        """Return the share of all terms together by which a sum may be off."""
        sums = operands.accumulated_roundoff(self.spec.dtype) * (len(table[0]) + _STEPS)
        ways = self.additions * operands.unit_roundoff(self.wire.combine)
        return ways + sums + operands.unit_roundoff(self.spec.dtype)

    def _result(self, expert: int, rows: torch.Tensor) -> operands.Expected:
        """Return what an expert makes of tokens."""
        if self.product == "none":
            return operands.Expected(rows.double() * self.scale(torch.tensor(expert)).double())
        up, down = self.weights_of(expert)
        inner = operands.activated(
            operands.product([(rows, up)], self.spec.dtype, exact=False), "relu", self.spec.dtype)
        return operands.product([(inner.value, down)], self.spec.dtype, exact=False,
                                errors=[inner.bound])


def _drawn(shape: tuple[int, int], *seed: int) -> torch.Tensor:
    number = sum(part << (20 * place) for place, part in enumerate(seed))
    return torch.randn(shape, generator=torch.Generator().manual_seed(number))


def router_weights(width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the router's weights of a token's choices, together 1; neighbours differ."""
    parts = 1 + torch.arange(width) % 3
    return (parts / parts.sum()).to(dtype)

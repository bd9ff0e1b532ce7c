"""Inputs and results of ep_all_to_all (`plan.primitives.ep_all_to_all` says what it is)."""

from __future__ import annotations

import torch

from hpcbench.kinds.primitive.plan.primitives import tokens_of_experts
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.expected import Expected, joined, product
from hpcbench.kinds.primitive.run.inputs.base import Inputs
from hpcbench.kinds.primitive.run.operands import left_operand, magnitude, right_operand
from hpcbench.operations.place import Place


class Experts(Inputs):
    """``tokens`` (m / d, k): this rank's, sorted by expert, and ``weight`` (k, n) of its expert.

    ``counts`` of a rank's tokens go to each expert, the same on every rank: what a rank sends.
    ``received``: how many come from each rank, all ``counts`` of this rank's expert; ``arriving``
    is their sum. The result is (m / d, n), in the order of ``tokens``. ``compute_only`` takes each
    pair of ``products`` and ends with the results one below the other; ``comm_only`` sends
    ``tokens`` and, back, ``sent``, and ends with what arrived, (arriving, k) and then (m / d, n),
    as one row of numbers.
    """

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        ranks = place.world_size
        size = magnitude(spec.dtype, spec.k)
        self._exact = size > 0
        self._x = left_operand((spec.m, spec.k), spec.dtype, size, seed=1)
        self._experts = right_operand((ranks, spec.k, spec.n), spec.dtype, size, seed=2)
        self.counts = list(
            tokens_of_experts(str(spec.option("split")), ranks, spec.m // ranks))
        self.received = [self.counts[place.rank]] * ranks
        self.arriving = sum(self.received)
        self.tokens = self.here(self.own(self._x, 0))
        self.weight = self.here(self._experts[place.rank])

    @property
    def products(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the (tokens, weight) of this rank's expert, unsharded of every expert."""
        return [(self.here(tokens), self.here(weight)) for tokens, weight in self._products()]

    @property
    def sent(self) -> torch.Tensor:
        """Return what the communication alone sends back: this expert's results, (arriving, n)."""
        return self.here(self._arrived(self.place.rank)) @ self.weight

    def expected(self, part: str) -> Expected:
        """Return this rank's results; those of the products; or all that it received."""
        if part == "compute":
            return self._multiplied(self._products())
        split = self.own(self._x, 0).split(self.counts)
        results = self._multiplied(list(zip(split, self._experts, strict=True)))
        if part == "communicate":
            arrived = Expected(self._arrived(self.place.rank).double())
            return joined([arrived.flat(), results.flat()])
        return results

    def _arrived(self, expert: int) -> torch.Tensor:
        """Return all tokens of an expert, by the rank they come from."""
        return torch.cat([tokens.split(self.counts)[expert] for tokens in self.parts(self._x, 0)])

    def _products(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        experts = range(self.place.world_size) if self.unsharded else [self.place.rank]
        return [(self._arrived(expert), self._experts[expert]) for expert in experts]

    def _multiplied(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Expected:
        return joined([product([pair], self.spec.dtype, exact=self._exact) for pair in pairs])

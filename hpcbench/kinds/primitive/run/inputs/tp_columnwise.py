"""Inputs and results of tp_columnwise (`plan.primitives.tp_columnwise` says what it is)."""

from __future__ import annotations

import torch

from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.expected import Expected, product
from hpcbench.kinds.primitive.run.inputs.base import Inputs
from hpcbench.kinds.primitive.run.operands import left_operand, magnitude, right_operand
from hpcbench.operations.place import Place


class Columnwise(Inputs):
    """``rows`` (m / d, k) of A, and ``weight``: (k, n / d) of W, or all of it (k, n).

    ``gather_first``: the order is AG_before. ``compute_only`` multiplies ``left`` by ``weight``;
    ``comm_only`` gathers ``sent``.
    """

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        size = magnitude(spec.dtype, spec.k)
        self._exact = size > 0
        self._a = left_operand((spec.m, spec.k), spec.dtype, size, seed=1)
        self.gather_first = spec.order == "AG_before"
        sharded = (self.gather_first and spec.option("weight") == "sharded"
                   and not self.unsharded)
        parts = place.world_size if sharded else 1
        weight = right_operand((spec.k, spec.n), spec.dtype, size, seed=2, parts=parts)
        self._weight = self.own(weight, 1) if sharded else weight
        self.rows = self.here(self.own(self._a, 0))
        self.weight = self.here(self._weight)
        self._left = self._a if self.gather_first or self.unsharded else self.own(self._a, 0)

    @property
    def left(self) -> torch.Tensor:
        """Return what the product alone multiplies: all of A, or this rank's rows."""
        return self.here(self._left)

    @property
    def sent(self) -> torch.Tensor:
        """Return what the communication alone gathers: rows of A, or of C."""
        return self.rows if self.gather_first else self.rows @ self.weight

    def expected(self, part: str) -> Expected:
        """Return C or this rank's columns of it; its product; or what the gathering ends with."""
        if part == "communicate" and self.gather_first:
            return Expected(self._a.double())
        left = self._left if part == "compute" else self._a
        return product([(left, self._weight)], self.spec.dtype, exact=self._exact)

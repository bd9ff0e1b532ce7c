"""Inputs and results of tp_rowwise (`plan.primitives.tp_rowwise` says what it is)."""

from __future__ import annotations

import torch

from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.expected import Expected, product
from hpcbench.kinds.primitive.run.inputs.base import Inputs
from hpcbench.kinds.primitive.run.operands import left_operand, magnitude, right_operand
from hpcbench.operations.place import Place


class Rowwise(Inputs):
    """``columns`` (m, k / d) of A, and ``weight`` (k / d, n): rows of W.

    ``scatter``: the order is RS_after, the result (m / d, n); otherwise it is (m, n). Unsharded,
    both operands are whole, (m, k) and (k, n). ``compute_only`` multiplies ``columns`` by
    ``weight`` and ends with (m, n); ``comm_only`` reduces ``sent``.
    """

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        size = magnitude(spec.dtype, spec.k)
        self._exact = size > 0
        self._a = left_operand((spec.m, spec.k), spec.dtype, size, seed=1)
        self._w = right_operand((spec.k, spec.n), spec.dtype, size, seed=2)
        self.scatter = spec.order == "RS_after"
        self._columns = self._a if self.unsharded else self.own(self._a, 1)
        self._weight = self._w if self.unsharded else self.own(self._w, 0)
        self.columns = self.here(self._columns)
        self.weight = self.here(self._weight)

    @property
    def sent(self) -> torch.Tensor:
        """Return what the communication alone reduces: this rank's partial sum of C, (m, n)."""
        return self.columns @ self.weight

    def expected(self, part: str) -> Expected:
        """Return C or this rank's rows of it; or, of ``compute``, the product on this rank."""
        if part == "compute":
            return product([(self._columns, self._weight)], self.spec.dtype, exact=self._exact)
        rows = self.own(self._a, 0) if self.scatter else self._a
        parts = list(zip(self.parts(rows, 1), self.parts(self._w, 0), strict=True))
        return product(parts, self.spec.dtype, exact=self._exact)

"""Inputs and results of dp_allreduce (`plan.primitives.dp_allreduce` says what it is)."""

from __future__ import annotations

import torch

from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.expected import Expected, product
from hpcbench.kinds.primitive.run.inputs.base import Inputs
from hpcbench.kinds.primitive.run.operands import left_operand, magnitude, right_operand
from hpcbench.operations.place import Place


class Gradients(Inputs):
    """``tokens`` (m / d, k): rows of X, which all layers share, and ``gradients`` of each layer.

    ``gradients`` (layers, m / d, n) are those of the layers' outputs, D. The result is
    (layers, n, k): of each layer D^T X. Unsharded, both operands have all m rows.
    ``compute_only`` ends with this rank's own sum, ``comm_only`` reduces ``sent``.
    """

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        self.layers = int(spec.option("layers"))
        size = magnitude(spec.dtype, spec.m)
        self._exact = size > 0
        self._x = right_operand((spec.m, spec.k), spec.dtype, size, seed=1)
        self._d = left_operand((self.layers, spec.m, spec.n), spec.dtype, size, seed=2)
        self._tokens = self._x if self.unsharded else self.own(self._x, 0)
        self._gradients = self._d if self.unsharded else self.own(self._d, 1)
        self.tokens = self.here(self._tokens)
        self.gradients = self.here(self._gradients)

    @property
    def sent(self) -> torch.Tensor:
        """Return what the communication alone reduces: this rank's sums, (layers, n, k)."""
        return self.gradients.mT @ self.tokens

    def expected(self, part: str) -> Expected:
        """Return the gradients of all weights, over all tokens, or this rank's for ``compute``."""
        if part == "compute":
            pairs = [(self._gradients.mT, self._tokens)]
        else:
            pairs = [(own.mT, tokens) for own, tokens in
                     zip(self.parts(self._d, 1), self.parts(self._x, 0), strict=True)]
        return product(pairs, self.spec.dtype, exact=self._exact)

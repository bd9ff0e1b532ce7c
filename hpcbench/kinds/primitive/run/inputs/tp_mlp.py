"""Inputs and results of tp_mlp (`plan.primitives.tp_mlp` says what it is)."""

from __future__ import annotations

import math

import torch

from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.activations import IN_PLACE, Activation, activated
from hpcbench.kinds.primitive.run.expected import Expected, joined, product
from hpcbench.kinds.primitive.run.inputs.base import Inputs
from hpcbench.kinds.primitive.run.operands import left_operand, magnitude, right_operand
from hpcbench.operations.place import Place


class Mlp(Inputs):
    """``tokens`` of X, ``up`` (k, n / d): columns of W1, and ``down`` (n / d, k): rows of W2.

    ``sequence_parallel``: tokens are this rank's rows (m / d, k), and so is the result; otherwise
    (order AR_after) both are (m, k). ``activate`` changes a tensor in place. Unsharded, ``up`` and
    ``down`` are whole, (k, n) and (n, k). ``compute_only`` takes ``left`` (m, k) through both
    products and ends with (m, k). ``comm_only`` gathers ``tokens`` under ``sequence_parallel``,
    reduces ``sent``, and ends with one below the other: (m + m / d, k), or (m, k).

    Relu keeps integers; gelu does not, so its operands are normally distributed, with W1 divided
    by sqrt(k): what enters gelu is about 1, where it differs from relu.
    """

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        self._name = str(spec.option("activation"))
        size = magnitude(spec.dtype, spec.k, spec.n) if self._name == "relu" else 0
        self._exact = size > 0
        self._x = left_operand((spec.m, spec.k), spec.dtype, size, seed=1)
        self._up = right_operand((spec.k, spec.n), spec.dtype, size, seed=2,
                                 parts=place.world_size)
        if not self._exact:
            self._up = self._up / math.sqrt(spec.k)
        self._down = right_operand((spec.n, spec.k), spec.dtype, size, seed=3)
        self.sequence_parallel = spec.order == "sequence_parallel"
        self.activate: Activation = IN_PLACE[self._name]
        self.tokens = self.here(self.own(self._x, 0) if self.sequence_parallel else self._x)
        self._own_up = self._up if self.unsharded else self.own(self._up, 1)
        self._own_down = self._down if self.unsharded else self.own(self._down, 0)
        self.up = self.here(self._own_up)
        self.down = self.here(self._own_down)

    @property
    def left(self) -> torch.Tensor:
        """Return what the products alone start from: all of X, (m, k)."""
        return self.here(self._x)

    @property
    def sent(self) -> torch.Tensor:
        """Return what the communication alone reduces: this rank's partial sum of Y, (m, k)."""
        return self.activate(self.left @ self.up) @ self.down

    def expected(self, part: str) -> Expected:
        """Return Y or this rank's rows; this rank's products; or what communication ends with."""
        if part == "compute":
            return self._through(self._x, [self._own_up], [self._own_down])
        rows = self.own(self._x, 0) if self.sequence_parallel else self._x
        reduced = self._through(rows, self.parts(self._up, 1), self.parts(self._down, 0))
        if part == "communicate" and self.sequence_parallel:
            return joined([Expected(self._x.double()), reduced])
        return reduced

    def _through(
        self, rows: torch.Tensor, ups: list[torch.Tensor], downs: list[torch.Tensor],
    ) -> Expected:
        """Return act(rows W1) W2, summed over pairs of columns of W1 and rows of W2."""
        dtype = self.spec.dtype
        inner = [activated(product([(rows, up)], dtype, exact=self._exact), self._name, dtype)
                 for up in ups]
        parts = [(item.value, down) for item, down in zip(inner, downs, strict=True)]
        return product(parts, dtype, exact=self._exact,
                       errors=[item.bound for item in inner])

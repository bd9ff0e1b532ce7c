"""fsdp_forward: the operands on a rank, what must come out, and one way to do it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcbench.plugins import (
    Expected,
    Implementation,
    Inputs,
    Place,
    Primitive,
    left_operand,
    magnitude,
    product,
    right_operand,
)


class Forward(Inputs):
    """``rows``: (m / d, k) of X. ``part_of_weight``: (k / d, n) of W."""

    def __init__(self, spec: Primitive, place: Place) -> None:
        super().__init__(spec, place)
        size = magnitude(spec.dtype, spec.k)  # integers with exact results, where there are any
        self._exact = size > 0
        self._x = left_operand((spec.m, spec.k), spec.dtype, size, seed=1)
        self._weight = right_operand((spec.k, spec.n), spec.dtype, size, seed=2)
        self.rows = self.here(self.own(self._x, 0))
        self.part_of_weight = self.here(self.own(self._weight, 0))

    def expected(self, part: str) -> Expected:
        """Return this rank's rows of Y, or the gathered weight."""
        if part == "communicate":
            return Expected(self._weight.double())
        return product([(self.own(self._x, 0), self._weight)], self.spec.dtype, exact=self._exact)


class Gathered(Implementation[Forward]):
    """All-gather of the weight, then the product."""

    def __init__(self, inputs: Forward) -> None:
        super().__init__(inputs)
        work = inputs.spec
        self._weight = self.empty(work.k, work.n)
        self.output = self.empty(work.m // self.ranks, work.n)

    def run(self) -> None:
        """Gather, then multiply."""
        dist.all_gather_into_tensor(self._weight, self.inputs.part_of_weight, group=self.group)
        torch.matmul(self.inputs.rows, self._weight, out=self.output)

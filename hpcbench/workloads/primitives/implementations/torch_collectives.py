"""Implementation ``torch``: torch.distributed's collectives and torch.matmul, one by one."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcbench.workloads.primitives.implementations.base import Implementation
from hpcbench.workloads.primitives.inputs.tp_columnwise import Columnwise as ColumnwiseInputs


class Columnwise(Implementation[ColumnwiseInputs]):
    """All-gather before the product, or after it."""

    def __init__(self, inputs: ColumnwiseInputs) -> None:
        super().__init__(inputs)
        m, columns = inputs.spec.m, inputs.weight.shape[1]
        self.output = self.empty(m, columns)
        self._between = (self.empty(m, inputs.spec.k) if inputs.gather_first else
                         self.empty(m // self.ranks, columns))

    def run(self) -> None:
        """Gather and multiply, in the order asked for."""
        if self.inputs.gather_first:
            self._gather_first()
        else:
            self._multiply_first()

    def _gather_first(self) -> None:
        dist.all_gather_into_tensor(self._between, self.inputs.rows, group=self.group)
        torch.matmul(self._between, self.inputs.weight, out=self.output)

    def _multiply_first(self) -> None:
        torch.matmul(self.inputs.rows, self.inputs.weight, out=self._between)
        dist.all_gather_into_tensor(self.output, self._between, group=self.group)

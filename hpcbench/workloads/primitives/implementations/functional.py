"""Implementation ``functional``: functional collectives, which return what they have made.

They allocate their results, and a result waits when it is first used; the last one is waited for
here. `torch.distributed._functional_collectives` is what torch.compile and DTensor see.
"""

from __future__ import annotations

import torch
import torch.distributed._functional_collectives as functional

from hpcbench.workloads.primitives.implementations.base import Implementation
from hpcbench.workloads.primitives.inputs.tp_columnwise import Columnwise as ColumnwiseInputs


class Columnwise(Implementation[ColumnwiseInputs]):
    """All-gather before the product, or after it."""

    def __init__(self, inputs: ColumnwiseInputs) -> None:
        super().__init__(inputs)
        if inputs.gather_first:
            self.output = self.empty(inputs.spec.m, inputs.weight.shape[1])
        else:
            self._own = self.empty(inputs.rows.shape[0], inputs.weight.shape[1])

    def run(self) -> None:
        """Gather and multiply, in the order asked for."""
        if self.inputs.gather_first:
            whole = functional.all_gather_tensor(self.inputs.rows, 0, self.group)
            torch.mm(functional.wait_tensor(whole), self.inputs.weight, out=self.output)
        else:
            torch.mm(self.inputs.rows, self.inputs.weight, out=self._own)
            self.output = functional.wait_tensor(
                functional.all_gather_tensor(self._own, 0, self.group))

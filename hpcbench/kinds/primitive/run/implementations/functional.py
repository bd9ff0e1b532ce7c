"""Implementation ``functional``: functional collectives, which return what they have made.

They are what torch.compile and DTensor see. Their results are tensors of their own, allocated at
each call, that must be waited for; products go to buffers as everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed._functional_collectives as functional

from hpcbench.kinds.primitive.run.implementations.returned import Returning
from hpcbench.kinds.primitive.run.inputs.dp_allreduce import Gradients as GradientsInputs
from hpcbench.kinds.primitive.run.inputs.ep_all_to_all import Experts as ExpertsInputs
from hpcbench.kinds.primitive.run.inputs.tp_columnwise import Columnwise as ColumnwiseInputs
from hpcbench.kinds.primitive.run.inputs.tp_mlp import Mlp as MlpInputs
from hpcbench.kinds.primitive.run.inputs.tp_rowwise import Rowwise as RowwiseInputs
from hpcbench.operations.torch_calls import renamed

_all_gather = renamed(functional, "all_gather_single", "all_gather_tensor")
_reduce_scatter = renamed(functional, "reduce_scatter_single", "reduce_scatter_tensor")


def _gathered(rows: torch.Tensor, group: Any) -> torch.Tensor:
    """Return all ranks' rows, in rank order."""
    return functional.wait_tensor(_all_gather(rows, 0, group))


def _reduced(partial: torch.Tensor, group: Any, *, scatter: bool) -> torch.Tensor:
    """Return the sum of all ranks' partial results, or this rank's rows of it."""
    return functional.wait_tensor(
        _reduce_scatter(partial, "sum", 0, group) if scatter else
        functional.all_reduce(partial, "sum", group))


class Columnwise(Returning[ColumnwiseInputs]):
    """All-gather before the product, or after it."""

    def __init__(self, inputs: ColumnwiseInputs) -> None:
        super().__init__(inputs)
        rows = inputs.spec.m if inputs.gather_first else inputs.rows.shape[0]
        self._product = self.empty(rows, inputs.weight.shape[1])

    def run(self) -> None:
        """Gather and multiply, in the order of the case."""
        if self.inputs.gather_first:
            whole = _gathered(self.inputs.rows, self.group)
            self.output = torch.mm(whole, self.inputs.weight, out=self._product)
        else:
            torch.mm(self.inputs.rows, self.inputs.weight, out=self._product)
            self.output = _gathered(self._product, self.group)


class Rowwise(Returning[RowwiseInputs]):
    """The product, then a reduction."""

    def __init__(self, inputs: RowwiseInputs) -> None:
        super().__init__(inputs)
        self._partial = self.empty(inputs.spec.m, inputs.spec.n)

    def run(self) -> None:
        """Multiply, and reduce."""
        torch.mm(self.inputs.columns, self.inputs.weight, out=self._partial)
        self.output = _reduced(self._partial, self.group, scatter=self.inputs.scatter)


class Mlp(Returning[MlpInputs]):
    """All-gather if tokens are divided, both products, a reduction."""

    def __init__(self, inputs: MlpInputs) -> None:
        super().__init__(inputs)
        self._hidden = self.empty(inputs.spec.m, inputs.up.shape[1])
        self._partial = self.empty(inputs.spec.m, inputs.spec.k)

    def run(self) -> None:
        """Gather where tokens are divided, multiply twice, and reduce."""
        tokens, divided = self.inputs.tokens, self.inputs.sequence_parallel
        if divided:
            tokens = _gathered(tokens, self.group)
        torch.mm(tokens, self.inputs.up, out=self._hidden)
        self.inputs.activate(self._hidden)
        torch.mm(self._hidden, self.inputs.down, out=self._partial)
        self.output = _reduced(self._partial, self.group, scatter=divided)


class Gradients(Returning[GradientsInputs]):
    """The products of all layers, then one all-reduce."""

    def __init__(self, inputs: GradientsInputs) -> None:
        super().__init__(inputs)
        self._partial = self.empty(inputs.layers, inputs.spec.n, inputs.spec.k)

    def run(self) -> None:
        """Multiply, and reduce."""
        for gradients, weight in zip(self.inputs.gradients, self._partial, strict=True):
            torch.mm(gradients.T, self.inputs.tokens, out=weight)
        self.output = _reduced(self._partial, self.group, scatter=False)


class Experts(Returning[ExpertsInputs]):
    """All-to-all of tokens, the product, all-to-all of results."""

    def __init__(self, inputs: ExpertsInputs) -> None:
        super().__init__(inputs)
        self._made = self.empty(inputs.arriving, inputs.spec.n)

    def run(self) -> None:
        """Send tokens to their experts, multiply what arrives, and send the results back."""
        counts, received = self.inputs.counts, self.inputs.received
        arrived = functional.wait_tensor(
            functional.all_to_all_single(self.inputs.tokens, received, counts, self.group))
        torch.mm(arrived, self.inputs.weight, out=self._made)
        self.output = functional.wait_tensor(
            functional.all_to_all_single(self._made, counts, received, self.group))

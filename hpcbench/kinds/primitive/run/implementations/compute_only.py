"""Implementation ``compute_only``: the products of a primitive, on operands already in place."""

from __future__ import annotations

import torch

from hpcbench.kinds.primitive.run.implementations.base import Implementation
from hpcbench.kinds.primitive.run.inputs.dp_allreduce import Gradients as GradientsInputs
from hpcbench.kinds.primitive.run.inputs.ep_all_to_all import Experts as ExpertsInputs
from hpcbench.kinds.primitive.run.inputs.tp_columnwise import Columnwise as ColumnwiseInputs
from hpcbench.kinds.primitive.run.inputs.tp_mlp import Mlp as MlpInputs
from hpcbench.kinds.primitive.run.inputs.tp_rowwise import Rowwise as RowwiseInputs


class Columnwise(Implementation[ColumnwiseInputs]):
    """The product of gathered rows, or of this rank's."""

    part = "compute"

    def __init__(self, inputs: ColumnwiseInputs) -> None:
        super().__init__(inputs)
        self._left = inputs.left
        self.output = self.empty(self._left.shape[0], inputs.weight.shape[1])

    def run(self) -> None:
        """Multiply."""
        torch.matmul(self._left, self.inputs.weight, out=self.output)


class Rowwise(Implementation[RowwiseInputs]):
    """This rank's partial sum."""

    part = "compute"

    def __init__(self, inputs: RowwiseInputs) -> None:
        super().__init__(inputs)
        self.output = self.empty(inputs.spec.m, inputs.spec.n)

    def run(self) -> None:
        """Multiply."""
        torch.matmul(self.inputs.columns, self.inputs.weight, out=self.output)


class Mlp(Implementation[MlpInputs]):
    """Both products of this rank's part of the weights, of all tokens."""

    part = "compute"

    def __init__(self, inputs: MlpInputs) -> None:
        super().__init__(inputs)
        m, k = inputs.spec.m, inputs.spec.k
        self._left = inputs.left
        self._inner = self.empty(m, inputs.up.shape[1])
        self.output = self.empty(m, k)

    def run(self) -> None:
        """Multiply, activate, multiply."""
        torch.matmul(self._left, self.inputs.up, out=self._inner)
        self.inputs.activate(self._inner)
        torch.matmul(self._inner, self.inputs.down, out=self.output)


class Gradients(Implementation[GradientsInputs]):
    """The gradients of every layer over this rank's tokens."""

    part = "compute"

    def __init__(self, inputs: GradientsInputs) -> None:
        super().__init__(inputs)
        self.output = self.empty(inputs.layers, inputs.spec.n, inputs.spec.k)

    def run(self) -> None:
        """Multiply, layer by layer."""
        for gradients, weight in zip(self.inputs.gradients, self.output, strict=True):
            torch.matmul(gradients.T, self.inputs.tokens, out=weight)


class Experts(Implementation[ExpertsInputs]):
    """The product of one expert, or of all, with the tokens that belong to it."""

    part = "compute"

    def __init__(self, inputs: ExpertsInputs) -> None:
        super().__init__(inputs)
        self._products = inputs.products
        rows = [len(tokens) for tokens, _ in self._products]
        self.output = self.empty(sum(rows), inputs.spec.n)
        self._results = self.output.split(rows)

    def run(self) -> None:
        """Multiply, expert by expert."""
        for (tokens, weight), result in zip(self._products, self._results, strict=True):
            torch.matmul(tokens, weight, out=result)

"""Implementation ``torch``: torch.distributed's collectives and torch.matmul, one by one."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcbench.kinds.primitive.run.implementations.base import Implementation
from hpcbench.kinds.primitive.run.inputs.dp_allreduce import Gradients as GradientsInputs
from hpcbench.kinds.primitive.run.inputs.ep_all_to_all import Experts as ExpertsInputs
from hpcbench.kinds.primitive.run.inputs.tp_columnwise import Columnwise as ColumnwiseInputs
from hpcbench.kinds.primitive.run.inputs.tp_mlp import Mlp as MlpInputs
from hpcbench.kinds.primitive.run.inputs.tp_rowwise import Rowwise as RowwiseInputs
from hpcbench.operations.torch_calls import all_gather_tensor, reduce_scatter_tensor


class Columnwise(Implementation[ColumnwiseInputs]):
    """All-gather before the product, or after it."""

    def __init__(self, inputs: ColumnwiseInputs) -> None:
        super().__init__(inputs)
        m, columns = inputs.spec.m, inputs.weight.shape[1]
        self.output = self.empty(m, columns)
        self._between = (self.empty(m, inputs.spec.k) if inputs.gather_first else
                         self.empty(m // self.ranks, columns))

    def run(self) -> None:
        """Gather and multiply, in the order of the case."""
        if self.inputs.gather_first:
            self._gather_first()
        else:
            self._multiply_first()

    def _gather_first(self) -> None:
        all_gather_tensor(self._between, self.inputs.rows, group=self.group)
        torch.matmul(self._between, self.inputs.weight, out=self.output)

    def _multiply_first(self) -> None:
        torch.matmul(self.inputs.rows, self.inputs.weight, out=self._between)
        all_gather_tensor(self.output, self._between, group=self.group)


class Rowwise(Implementation[RowwiseInputs]):
    """The product, and its reduce-scatter or all-reduce."""

    def __init__(self, inputs: RowwiseInputs) -> None:
        super().__init__(inputs)
        m, n = inputs.spec.m, inputs.spec.n
        self._partial = self.empty(m, n)
        self.output = self.empty(m // self.ranks, n) if inputs.scatter else self._partial

    def run(self) -> None:
        """Multiply and reduce."""
        torch.matmul(self.inputs.columns, self.inputs.weight, out=self._partial)
        if self.inputs.scatter:
            reduce_scatter_tensor(self.output, self._partial, group=self.group)
        else:
            dist.all_reduce(self.output, group=self.group)


class Mlp(Implementation[MlpInputs]):
    """All-gather, both products, reduce-scatter; or both products, and the all-reduce."""

    def __init__(self, inputs: MlpInputs) -> None:
        super().__init__(inputs)
        m, k = inputs.spec.m, inputs.spec.k
        self._gathered = self.empty(m, k) if inputs.sequence_parallel else inputs.tokens
        self._inner = self.empty(m, inputs.up.shape[1])
        self._partial = self.empty(m, k)
        self.output = (self.empty(m // self.ranks, k) if inputs.sequence_parallel else
                       self._partial)

    def run(self) -> None:
        """Gather if tokens are scattered, multiply, activate, multiply, reduce."""
        if self.inputs.sequence_parallel:
            all_gather_tensor(self._gathered, self.inputs.tokens, group=self.group)
        torch.matmul(self._gathered, self.inputs.up, out=self._inner)
        self.inputs.activate(self._inner)
        torch.matmul(self._inner, self.inputs.down, out=self._partial)
        if self.inputs.sequence_parallel:
            reduce_scatter_tensor(self.output, self._partial, group=self.group)
        else:
            dist.all_reduce(self.output, group=self.group)


class Gradients(Implementation[GradientsInputs]):
    """The gradients of every layer, and one all-reduce of them all."""

    def __init__(self, inputs: GradientsInputs) -> None:
        super().__init__(inputs)
        self.output = self.empty(inputs.layers, inputs.spec.n, inputs.spec.k)

    def run(self) -> None:
        """Multiply, layer by layer, and reduce."""
        for gradients, weight in zip(self.inputs.gradients, self.output, strict=True):
            torch.matmul(gradients.T, self.inputs.tokens, out=weight)
        dist.all_reduce(self.output, group=self.group)


class Experts(Implementation[ExpertsInputs]):
    """An all_to_all of tokens, the product, and an all_to_all of results."""

    def __init__(self, inputs: ExpertsInputs) -> None:
        super().__init__(inputs)
        k, n = inputs.spec.k, inputs.spec.n
        self._arrived = self.empty(inputs.arriving, k)
        self._results = self.empty(inputs.arriving, n)
        self.output = self.empty(len(inputs.tokens), n)

    def run(self) -> None:
        """Dispatch, multiply, combine."""
        counts, received = self.inputs.counts, self.inputs.received
        dist.all_to_all_single(self._arrived, self.inputs.tokens, received, counts,
                               group=self.group)
        torch.matmul(self._arrived, self.inputs.weight, out=self._results)
        dist.all_to_all_single(self.output, self._results, counts, received, group=self.group)

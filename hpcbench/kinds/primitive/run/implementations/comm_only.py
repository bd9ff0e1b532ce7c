"""Implementation ``comm_only``: the communication of a primitive, of data computed before."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcbench.kinds.primitive.run import inputs as rank_inputs
from hpcbench.kinds.primitive.run.implementations.base import AnyInputs, Implementation
from hpcbench.operations.data import all_gather_tensor, reduce_scatter_tensor


class Columnwise(Implementation[rank_inputs.ColumnwiseInputs]):
    """The all-gather."""

    part = "communicate"

    def __init__(self, inputs: rank_inputs.ColumnwiseInputs) -> None:
        super().__init__(inputs)
        self._sent = inputs.sent
        self.output = self.empty(inputs.spec.m, self._sent.shape[1])

    def run(self) -> None:
        all_gather_tensor(self.output, self._sent, group=self.group)


class _Reducing(Implementation[AnyInputs]):
    """The reduce-scatter of ``sent`` to ``reduced``, or the all-reduce, which is in place."""

    part = "communicate"
    reduced: torch.Tensor
    sent: torch.Tensor
    scatter = False

    def restore(self) -> None:
        if not self.scatter:
            self.reduced.copy_(self.sent)

    def run(self) -> None:
        if self.scatter:
            reduce_scatter_tensor(self.reduced, self.sent, group=self.group)
        else:
            dist.all_reduce(self.reduced, group=self.group)


class Rowwise(_Reducing[rank_inputs.RowwiseInputs]):
    """One reduction of partial sums."""

    def __init__(self, inputs: rank_inputs.RowwiseInputs) -> None:
        super().__init__(inputs)
        self.sent, self.scatter = inputs.sent, inputs.scatter
        rows = inputs.spec.m // self.ranks if inputs.scatter else inputs.spec.m
        self.output = self.reduced = self.empty(rows, inputs.spec.n)


class Mlp(_Reducing[rank_inputs.MlpInputs]):
    """The all-gather of tokens and the reduce-scatter of results, or the all-reduce of these."""

    def __init__(self, inputs: rank_inputs.MlpInputs) -> None:
        super().__init__(inputs)
        self.sent, self.scatter = inputs.sent, inputs.sequence_parallel
        m = inputs.spec.m
        parts = [m, m // self.ranks] if self.scatter else [0, m]
        self.output = self.empty(sum(parts), inputs.spec.k)
        self._gathered, self.reduced = self.output.split(parts)

    def run(self) -> None:
        if self.scatter:
            all_gather_tensor(self._gathered, self.inputs.tokens, group=self.group)
        super().run()


class Gradients(_Reducing[rank_inputs.GradientInputs]):
    """One all-reduce of the gradients of all layers."""

    def __init__(self, inputs: rank_inputs.GradientInputs) -> None:
        super().__init__(inputs)
        self.sent = inputs.sent
        self.output = self.reduced = self.empty(*self.sent.shape)


class Experts(Implementation[rank_inputs.ExpertInputs]):
    """The all_to_all of tokens and that of results."""

    part = "communicate"

    def __init__(self, inputs: rank_inputs.ExpertInputs) -> None:
        super().__init__(inputs)
        k, n, own = inputs.spec.k, inputs.spec.n, len(inputs.tokens)
        self._sent = inputs.sent
        self.output = self.empty(inputs.arriving * k + own * n)
        arrived, combined = self.output.split([inputs.arriving * k, own * n])
        self._arrived, self._combined = arrived.view(-1, k), combined.view(-1, n)

    def run(self) -> None:
        counts, received = self.inputs.counts, self.inputs.received
        dist.all_to_all_single(self._arrived, self.inputs.tokens, received, counts,
                               group=self.group)
        dist.all_to_all_single(self._combined, self._sent, counts, received, group=self.group)

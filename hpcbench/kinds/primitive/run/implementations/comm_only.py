"""Implementation ``comm_only``: the communication of a primitive, of data computed before."""

from __future__ import annotations

import torch.distributed as dist

from hpcbench.kinds.primitive.run.implementations.base import Implementation
from hpcbench.kinds.primitive.run.inputs.dp_allreduce import Gradients as GradientsInputs
from hpcbench.kinds.primitive.run.inputs.ep_all_to_all import Experts as ExpertsInputs
from hpcbench.kinds.primitive.run.inputs.tp_columnwise import Columnwise as ColumnwiseInputs
from hpcbench.kinds.primitive.run.inputs.tp_mlp import Mlp as MlpInputs
from hpcbench.kinds.primitive.run.inputs.tp_rowwise import Rowwise as RowwiseInputs
from hpcbench.operations.torch_calls import all_gather_tensor, reduce_scatter_tensor


class Columnwise(Implementation[ColumnwiseInputs]):
    """The all-gather."""

    part = "communicate"

    def __init__(self, inputs: ColumnwiseInputs) -> None:
        super().__init__(inputs)
        self._sent = inputs.sent
        self.output = self.empty(inputs.spec.m, self._sent.shape[1])

    def run(self) -> None:
        """Gather."""
        all_gather_tensor(self.output, self._sent, group=self.group)


class Rowwise(Implementation[RowwiseInputs]):
    """The reduce-scatter, or the all-reduce, which is in place."""

    part = "communicate"

    def __init__(self, inputs: RowwiseInputs) -> None:
        super().__init__(inputs)
        self._sent = inputs.sent
        rows = inputs.spec.m // self.ranks if inputs.scatter else inputs.spec.m
        self.output = self.empty(rows, inputs.spec.n)

    def restore(self) -> None:
        """Put back what the all-reduce starts from."""
        if not self.inputs.scatter:
            self.output.copy_(self._sent)

    def run(self) -> None:
        """Reduce."""
        if self.inputs.scatter:
            reduce_scatter_tensor(self.output, self._sent, group=self.group)
        else:
            dist.all_reduce(self.output, group=self.group)


class Mlp(Implementation[MlpInputs]):
    """The all-gather of tokens and the reduce-scatter of results, or the all-reduce of these."""

    part = "communicate"

    def __init__(self, inputs: MlpInputs) -> None:
        super().__init__(inputs)
        m = inputs.spec.m
        gathered = m if inputs.sequence_parallel else 0
        reduced = m // self.ranks if inputs.sequence_parallel else m
        self._sent = inputs.sent
        self.output = self.empty(gathered + reduced, inputs.spec.k)
        self._gathered, self._reduced = self.output.split([gathered, reduced])

    def restore(self) -> None:
        """Put back what the all-reduce starts from."""
        if not self.inputs.sequence_parallel:
            self._reduced.copy_(self._sent)

    def run(self) -> None:
        """Gather and reduce."""
        if self.inputs.sequence_parallel:
            all_gather_tensor(self._gathered, self.inputs.tokens, group=self.group)
            reduce_scatter_tensor(self._reduced, self._sent, group=self.group)
        else:
            dist.all_reduce(self._reduced, group=self.group)


class Gradients(Implementation[GradientsInputs]):
    """One all-reduce of the gradients of all layers."""

    part = "communicate"

    def __init__(self, inputs: GradientsInputs) -> None:
        super().__init__(inputs)
        self._sent = inputs.sent
        self.output = self.empty(*self._sent.shape)

    def restore(self) -> None:
        """Put back what the all-reduce starts from."""
        self.output.copy_(self._sent)

    def run(self) -> None:
        """Reduce."""
        dist.all_reduce(self.output, group=self.group)


class Experts(Implementation[ExpertsInputs]):
    """The all_to_all of tokens and that of results."""

    part = "communicate"

    def __init__(self, inputs: ExpertsInputs) -> None:
        super().__init__(inputs)
        k, n, own = inputs.spec.k, inputs.spec.n, len(inputs.tokens)
        self._sent = inputs.sent
        self.output = self.empty(inputs.arriving * k + own * n)
        arrived, combined = self.output.split([inputs.arriving * k, own * n])
        self._arrived, self._combined = arrived.view(-1, k), combined.view(-1, n)

    def run(self) -> None:
        """Send the tokens, and results back."""
        counts, received = self.inputs.counts, self.inputs.received
        dist.all_to_all_single(self._arrived, self.inputs.tokens, received, counts,
                               group=self.group)
        dist.all_to_all_single(self._combined, self._sent, counts, received, group=self.group)

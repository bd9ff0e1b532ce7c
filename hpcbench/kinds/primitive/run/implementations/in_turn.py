"""Implementations ``torch``, ``functional`` and ``compute_only``: one thing after the other.

- ``torch`` has torch.distributed's collectives, each of which fills a buffer.
- ``functional`` has functional collectives, as torch.compile and DTensor see them. Their results
  are tensors of their own, allocated at each call, that must be waited for.
- ``compute_only`` has the products alone, on operands already in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

import torch
import torch.distributed as dist

from hpcbench.kinds.primitive.run import inputs as rank_inputs
from hpcbench.kinds.primitive.run.implementations.base import AnyInputs, Returning
from hpcbench.operations.data import all_gather_tensor, reduce_scatter_tensor

Step = Callable[[torch.Tensor], torch.Tensor]
"""Makes a tensor of another: a collective, or nothing."""


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class InTurn(Returning[AnyInputs]):
    """The collectives of an implementation, made at set-up with the buffers that they fill."""

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        self._functional = None
        if inputs.spec.implementation == "functional":
            self._functional = import_module(f"{__package__}.functional_collectives")
        self.is_alone = inputs.spec.implementation == "compute_only"
        if self.is_alone:
            self.part = "compute"

    def restore(self) -> None:
        """Wipe torch's results; buffers are wiped anyway."""
        if self._functional:
            super().restore()

    def gathering(self, rows: int, columns: int) -> Step:
        """Return the step that brings all ranks' rows together, in rank order."""
        if self.is_alone:
            return _as_it_is
        if functional := self._functional:
            return lambda own: functional.gathered(own, self.group)
        whole = self.empty(rows, columns)

        def gather(own: torch.Tensor) -> torch.Tensor:
            all_gather_tensor(whole, own, group=self.group)
            return whole

        return gather

    def combining(self, rows: int, columns: int, *, scatter: bool) -> Step:
        """Return the step that adds all ranks' partial results, to a rank's rows or to all."""
        if self.is_alone:
            return _as_it_is
        if functional := self._functional:
            return lambda partial: functional.combined(partial, self.group, scatter=scatter)
        own = self.empty(rows // self.ranks, columns) if scatter else None

        def combine(partial: torch.Tensor) -> torch.Tensor:
            if own is None:
                dist.all_reduce(partial, group=self.group)
                return partial
            reduce_scatter_tensor(own, partial, group=self.group)
            return own

        return combine

    def exchanging(self, received: Sequence[int], sent: Sequence[int], columns: int) -> Step:
        """Return the step that sends so many rows to each rank, and receives so many from each."""
        if functional := self._functional:
            return lambda rows: functional.exchanged(rows, received, sent, self.group)
        arrived = self.empty(sum(received), columns)

        def exchange(rows: torch.Tensor) -> torch.Tensor:
            dist.all_to_all_single(arrived, rows, received, sent, group=self.group)
            return arrived

        return exchange


class Columnwise(InTurn[rank_inputs.ColumnwiseInputs]):
    """All-gather before the product, or after it."""

    def __init__(self, inputs: rank_inputs.ColumnwiseInputs) -> None:
        super().__init__(inputs)
        m, columns, first = inputs.spec.m, inputs.weight.shape[1], inputs.gather_first
        self._start = inputs.left if self.is_alone else inputs.rows
        self._gather = self.gathering(m, inputs.spec.k if first else columns)
        self._product = self.empty(m if first else len(self._start), columns)

    def run(self) -> None:
        weight, made = self.inputs.weight, self._product
        if self.inputs.gather_first:
            self.output = torch.matmul(self._gather(self._start), weight, out=made)
        else:
            self.output = self._gather(torch.matmul(self._start, weight, out=made))


class Rowwise(InTurn[rank_inputs.RowwiseInputs]):
    """The product, and its reduce-scatter or all-reduce."""

    def __init__(self, inputs: rank_inputs.RowwiseInputs) -> None:
        super().__init__(inputs)
        m, n = inputs.spec.m, inputs.spec.n
        self._partial = self.empty(m, n)
        self._combine = self.combining(m, n, scatter=inputs.scatter)

    def run(self) -> None:
        self.output = self._combine(
            torch.matmul(self.inputs.columns, self.inputs.weight, out=self._partial))


class Mlp(InTurn[rank_inputs.MlpInputs]):
    """All-gather if tokens are divided, both products, and the reduction."""

    def __init__(self, inputs: rank_inputs.MlpInputs) -> None:
        super().__init__(inputs)
        m, k, divided = inputs.spec.m, inputs.spec.k, inputs.sequence_parallel
        self._start = inputs.left if self.is_alone else inputs.tokens
        self._gather = self.gathering(m, k) if divided else _as_it_is
        self._hidden = self.empty(m, inputs.up.shape[1])
        self._partial = self.empty(m, k)
        self._combine = self.combining(m, k, scatter=divided)

    def run(self) -> None:
        torch.matmul(self._gather(self._start), self.inputs.up, out=self._hidden)
        self.inputs.activate(self._hidden)
        self.output = self._combine(torch.matmul(self._hidden, self.inputs.down, out=self._partial))


class Gradients(InTurn[rank_inputs.GradientInputs]):
    """The gradients of every layer, and one all-reduce of them all."""

    def __init__(self, inputs: rank_inputs.GradientInputs) -> None:
        super().__init__(inputs)
        n, k = inputs.spec.n, inputs.spec.k
        self._partial = self.empty(inputs.layers, n, k)
        self._combine = self.combining(n, k, scatter=False)

    def run(self) -> None:
        for gradients, weight in zip(self.inputs.gradients, self._partial, strict=True):
            torch.matmul(gradients.T, self.inputs.tokens, out=weight)
        self.output = self._combine(self._partial)


class Experts(InTurn[rank_inputs.ExpertInputs]):
    """An all_to_all of tokens, the product, and an all_to_all of results."""

    def __init__(self, inputs: rank_inputs.ExpertInputs) -> None:
        super().__init__(inputs)
        counts, received, n = inputs.counts, inputs.received, inputs.spec.n
        self._dispatch = self.exchanging(received, counts, inputs.spec.k)
        self._made = self.empty(inputs.arriving, n)
        self._combine = self.exchanging(counts, received, n)

    def run(self) -> None:
        arrived = self._dispatch(self.inputs.tokens)
        self.output = self._combine(torch.matmul(arrived, self.inputs.weight, out=self._made))


class ExpertsAlone(InTurn[rank_inputs.ExpertInputs]):
    """The product of one expert, or of all, with the tokens that belong to it."""

    def __init__(self, inputs: rank_inputs.ExpertInputs) -> None:
        super().__init__(inputs)
        self._products = inputs.products
        rows = [len(tokens) for tokens, _ in self._products]
        self.output = self.empty(sum(rows), inputs.spec.n)
        self._results = self.output.split(rows)

    def run(self) -> None:
        for (tokens, weight), result in zip(self._products, self._results, strict=True):
            torch.matmul(tokens, weight, out=result)

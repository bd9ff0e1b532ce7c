"""Implementations ``compiled`` and ``compiled_async_tp``: a primitive as a graph of torch.compile.

The graph is compiled when the case is set up: by one untimed call, which all ranks make, since it
communicates. One thread compiles (torch would keep a pool of processes beside a worker that
measures); generated code is kept where torch keeps it, TORCHINDUCTOR_CACHE_DIR. Graphs compiled for
an earlier case are dropped first, so that no case depends on others or is compiled for several
shapes together; all later calls get the same tensors, which leaves no reason to compile again.

``compiled_async_tp`` is with torch's pass for async tensor parallelism. The pass
(torch._inductor.config._micro_pipeline_tp) replaces an all-gather and the product behind it, or a
product and the reduce-scatter behind it, by the operators of ``symm_mem``. Where it finds nothing
to replace torch reports nothing; the case then fails, since its numbers would be those of
``compiled``. On GPUs only; never run on one so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from hpcbench.errors import CaseError
from hpcbench.kinds.primitive.run import inputs as rank_inputs
from hpcbench.kinds.primitive.run.implementations.base import AnyInputs, Returning
from hpcbench.kinds.primitive.run.implementations.symm_mem import enable

Formula = tuple[Callable[..., torch.Tensor], Sequence[torch.Tensor]]
"""The function to compile, and its operands."""
_OPS: Any = torch.ops._c10d_functional
"""The operators of torch's functional collectives, whose own names changed with torch 2.13."""


class Compiled(Returning[AnyInputs]):
    """The ``formula`` of subclasses, compiled; and the collectives that torch can trace."""

    def __init__(self, inputs: AnyInputs) -> None:
        """Compile. Raises CaseError if torch was to fuse a collective and leaves it as it is."""
        super().__init__(inputs)
        self._group_name = self.group.group_name
        self._left_over: list[str] = []
        options: dict[str, Any] = {"compile_threads": 1}
        if inputs.spec.implementation == "compiled_async_tp":
            enable(self.group)
            self._left_over = ["everything"]
            # A graph with a pass that torch does not know is not taken from its cache of graphs,
            # so `_look` is always called.
            options |= {"_micro_pipeline_tp": True, "post_grad_custom_post_pass": self._look}
        formula, self._operands = self.formula()
        torch.compiler.reset()
        # torch traces no tensors without memory, which a dry run has where the case is large
        self._compiled = torch.compile(
            formula, fullgraph=True, dynamic=False, options=options,
            disable=any(isinstance(operand, FakeTensor) for operand in self._operands))
        self.run()
        if self._left_over:
            raise CaseError("torch.compile did not fuse " + ", ".join(self._left_over))

    def _look(self, graph: torch.fx.Graph) -> None:
        self._left_over = [str(node.target) for node in graph.nodes
                           if "_c10d_functional" in str(node.target)]

    def formula(self) -> Formula:
        """Return the function to compile, in the order of the case, and its operands."""
        raise NotImplementedError

    def run(self) -> None:
        self.output = self._compiled(*self._operands)

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        return _waited(_OPS.all_gather_into_tensor(own, self.ranks, self._group_name))

    def reduced(self, partial: torch.Tensor, *, scatter: bool = False) -> torch.Tensor:
        """Return the sum over all ranks, or this rank's rows of it."""
        if scatter:
            return _waited(_OPS.reduce_scatter_tensor(
                partial, "sum", self.ranks, self._group_name))
        return _waited(self.reduction(partial))

    def reduction(self, partial: torch.Tensor) -> Any:
        """Begin the sum over all ranks; the result must be waited for."""
        return _OPS.all_reduce(partial, "sum", self._group_name)

    def exchanged(
        self, rows: torch.Tensor, received: Sequence[int], sent: Sequence[int],
    ) -> torch.Tensor:
        """Return the rows that all ranks have for this one."""
        return _waited(_OPS.all_to_all_single(rows, received, sent, self._group_name))


def _waited(result: Any) -> torch.Tensor:
    return _OPS.wait_tensor(result)


class Columnwise(Compiled[rank_inputs.ColumnwiseInputs]):
    """All-gather before the product, or after it."""

    def formula(self) -> Formula:
        first = self.inputs.gather_first

        def multiplied(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return self.gathered(rows) @ weight if first else self.gathered(rows @ weight)

        return multiplied, (self.inputs.rows, self.inputs.weight)


class Rowwise(Compiled[rank_inputs.RowwiseInputs]):
    """The product, and its reduce-scatter or all-reduce."""

    def formula(self) -> Formula:
        scatter = self.inputs.scatter

        def multiply_and_combine(columns: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return self.reduced(columns @ weight, scatter=scatter)

        return multiply_and_combine, (self.inputs.columns, self.inputs.weight)


class Mlp(Compiled[rank_inputs.MlpInputs]):
    """All-gather, both products, reduce-scatter; or both products, and the all-reduce."""

    def formula(self) -> Formula:
        activate, divided = self.inputs.activate, self.inputs.sequence_parallel

        def through(tokens: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
            whole = self.gathered(tokens) if divided else tokens
            return self.reduced(activate(whole @ up) @ down, scatter=divided)

        return through, (self.inputs.tokens, self.inputs.up, self.inputs.down)


class Gradients(Compiled[rank_inputs.GradientInputs]):
    """The gradients of every layer, each reduced as soon as it is there."""

    def formula(self) -> Formula:
        def reduced(gradients: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            begun = [self.reduction(own.T @ tokens) for own in gradients.unbind()]
            return torch.stack([_waited(weight) for weight in begun])

        return reduced, (self.inputs.gradients, self.inputs.tokens)


class Experts(Compiled[rank_inputs.ExpertInputs]):
    """An all_to_all of tokens, the product, and an all_to_all of results."""

    def formula(self) -> Formula:
        counts, received = self.inputs.counts, self.inputs.received

        def combined(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            results = self.exchanged(tokens, received, counts) @ weight
            return self.exchanged(results, counts, received)

        return combined, (self.inputs.tokens, self.inputs.weight)

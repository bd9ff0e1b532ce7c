"""Implementation ``compiled``: each primitive as one graph of torch.compile.

The graph is compiled when the case is set up: by one untimed call, which all ranks make, since it
communicates. One thread compiles (torch would keep a pool of processes beside a worker that
measures); generated code is kept where torch keeps it, TORCHINDUCTOR_CACHE_DIR. What was compiled
for an earlier case is dropped first, so that no case depends on others or is compiled for several
shapes at once; all later calls get the same tensors, which leaves no reason to compile again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpcbench.kinds.primitive.run import inputs as given
from hpcbench.kinds.primitive.run.implementations.base import AnyInputs, Returning

Formula = tuple[Callable[..., torch.Tensor], Sequence[torch.Tensor]]
"""What is compiled, and its operands."""
_OPS: Any = torch.ops._c10d_functional
"""What torch's functional collectives consist of; their own names changed with torch 2.13."""


class Compiled(Returning[AnyInputs]):
    """What subclasses return as ``formula``, compiled with ``options``."""

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        self.calls = Calls(self.group, self.ranks)
        formula, self._operands = self.formula()
        torch.compiler.reset()
        self._compiled = torch.compile(
            formula, fullgraph=True, dynamic=False, options=self.options())
        self.run()

    def formula(self) -> Formula:
        """Return what to compile; it uses ``calls``."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Return options of torch._inductor.config for this graph."""
        return {"compile_threads": 1}

    def run(self) -> None:
        """Call the compiled graph."""
        self.output = self._compiled(*self._operands)


class Columnwise(Compiled[given.Columnwise]):
    """All-gather before the product, or after it."""

    def formula(self) -> Formula:
        """Return it in the order of the case."""
        calls, inputs = self.calls, self.inputs

        def gather_first(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return calls.gathered(rows) @ weight

        def multiply_first(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return calls.gathered(rows @ weight)

        chosen = gather_first if inputs.gather_first else multiply_first
        return chosen, (inputs.rows, inputs.weight)


class Rowwise(Compiled[given.Rowwise]):
    """The product, and its reduce-scatter or all-reduce."""

    def formula(self) -> Formula:
        """Return it in the order of the case."""
        calls, inputs = self.calls, self.inputs

        combined = calls.scattered if inputs.scatter else calls.reduced

        def multiply_and_combine(columns: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return combined(columns @ weight)

        return multiply_and_combine, (inputs.columns, inputs.weight)


class Mlp(Compiled[given.Mlp]):
    """All-gather, both products, reduce-scatter; or both products, and the all-reduce."""

    def formula(self) -> Formula:
        """Return it in the order of the case."""
        calls, inputs = self.calls, self.inputs
        activate = inputs.activate

        def scattered(tokens: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
            return calls.scattered(activate(calls.gathered(tokens) @ up) @ down)

        def reduced(tokens: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
            return calls.reduced(activate(tokens @ up) @ down)

        chosen = scattered if inputs.sequence_parallel else reduced
        return chosen, (inputs.tokens, inputs.up, inputs.down)


class Gradients(Compiled[given.Gradients]):
    """The gradients of every layer, each reduced as soon as it is there."""

    def formula(self) -> Formula:
        """Return the products and their reductions."""
        calls = self.calls

        def reduced(gradients: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            begun = [calls.reduction(own.T @ tokens) for own in gradients.unbind()]
            return torch.stack([_OPS.wait_tensor(weight) for weight in begun])

        return reduced, (self.inputs.gradients, self.inputs.tokens)


class Experts(Compiled[given.Experts]):
    """An all_to_all of tokens, the product, and an all_to_all of results."""

    def formula(self) -> Formula:
        """Return dispatch, product and combine."""
        calls, inputs = self.calls, self.inputs
        counts, received = inputs.counts, inputs.received

        def combined(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            results = calls.exchanged(tokens, received, counts) @ weight
            return calls.exchanged(results, counts, received)

        return combined, (inputs.tokens, inputs.weight)


class Calls:
    """Functional collectives of one group, written so that torch.compile can trace them."""

    def __init__(self, group: Any, ranks: int) -> None:
        self._name = group.group_name
        self._ranks = ranks

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        """Return the rows of all ranks."""
        whole = _OPS.all_gather_into_tensor(own, self._ranks, self._name)
        return _tensor(_OPS.wait_tensor(whole))

    def scattered(self, partial: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of the sum over all ranks."""
        own = _OPS.reduce_scatter_tensor(partial, "sum", self._ranks, self._name)
        return _tensor(_OPS.wait_tensor(own))

    def reduction(self, partial: torch.Tensor) -> torch.Tensor:
        """Begin the sum over all ranks; the result must be waited for."""
        return _tensor(_OPS.all_reduce(partial, "sum", self._name))

    def reduced(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""
        return _tensor(_OPS.wait_tensor(self.reduction(partial)))

    def exchanged(
        self, rows: torch.Tensor, received: Sequence[int], sent: Sequence[int],
    ) -> torch.Tensor:
        """Return the rows that all ranks have for this one."""
        arrived = _OPS.all_to_all_single(rows, received, sent, self._name)
        return _tensor(_OPS.wait_tensor(arrived))


def _tensor(result: Any) -> torch.Tensor:
    """Tell the type of what an operator of torch.ops returns."""
    tensor: torch.Tensor = result
    return tensor

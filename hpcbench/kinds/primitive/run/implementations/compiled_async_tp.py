"""Implementation ``compiled_async_tp``: torch.compile with its pass for async tensor parallelism.

The pass (torch._inductor.config._micro_pipeline_tp) replaces an all-gather and the product behind
it, or a product and the reduce-scatter behind it, by the operators of ``symm_mem``. Where it finds
nothing to replace torch says nothing; the case then fails, since its numbers would be those of
``compiled``. On GPUs only; never run on one so far.
"""

from __future__ import annotations

from typing import Any

import torch

from hpcbench.errors import CaseError
from hpcbench.kinds.primitive.run import inputs as given
from hpcbench.kinds.primitive.run.implementations import compiled
from hpcbench.kinds.primitive.run.implementations.base import AnyInputs
from hpcbench.kinds.primitive.run.implementations.symm_mem import enable


class Pipelined(compiled.Compiled[AnyInputs]):
    """A compiled graph whose collectives are all fused with a product."""

    def __init__(self, inputs: AnyInputs) -> None:
        """Compile. Raises CaseError if torch leaves a collective as it is."""
        enable(inputs.place.group)
        self._left_over: list[str] = ["everything"]
        super().__init__(inputs)
        if self._left_over:
            raise CaseError("torch.compile did not fuse " + ", ".join(self._left_over))

    def options(self) -> dict[str, Any]:
        """Return the pass, and one after it that looks at what it has done.

        A graph with a pass that torch does not know is not taken from its cache of graphs, so the
        look is always taken.
        """
        return {**super().options(), "_micro_pipeline_tp": True,
                "post_grad_custom_post_pass": self._look}

    def _look(self, graph: torch.fx.Graph) -> None:
        self._left_over = [str(node.target) for node in graph.nodes
                           if "_c10d_functional" in str(node.target)]


class Columnwise(Pipelined[given.Columnwise], compiled.Columnwise):
    """All-gather and product."""


class Rowwise(Pipelined[given.Rowwise], compiled.Rowwise):
    """Product and reduce-scatter."""


class Mlp(Pipelined[given.Mlp], compiled.Mlp):
    """Both, around the activation."""

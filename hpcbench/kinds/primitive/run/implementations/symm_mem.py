"""Implementations ``symm_mem``, torch's fused operators over symmetric memory, and its fallback.

Ranks read each other's memory (NVLink, peer-to-peer): while one block is multiplied, the next is
copied. torch.distributed._symmetric_memory holds the operators and the workspaces that they use;
the backend's group only names the ranks. On GPUs only; never run on one so far.

``symm_mem_fallback`` is what torch has instead, without symmetric memory: collectives of the
backend and products, one after the other. It is an implementation of its own so that no result of
it can pass for one of ``symm_mem``."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.distributed import _symmetric_memory

from hpcbench.kinds.primitive.run import inputs as rank_inputs
from hpcbench.kinds.primitive.run.implementations.base import AnyInputs, Returning

_OPS: Any = torch.ops.symm_mem


def enable(group: Any) -> None:
    """Let torch use symmetric memory in a group; all its ranks call this.

    torch 2.13 calls this deprecated, but its pass for async tensor parallelism still asks for it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        _symmetric_memory.enable_symm_mem_for_group(group.group_name)


class Fused(Returning[AnyInputs]):
    """The operators, fused or not, and a first call.

    The first call, untimed, has all ranks make their workspaces."""

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        if inputs.spec.implementation == "symm_mem":
            enable(self.group)
            self._gather, self._scatter = (
                _OPS.fused_all_gather_matmul, _OPS.fused_matmul_reduce_scatter)
        else:
            self._gather, self._scatter = (
                _symmetric_memory._fused_all_gather_matmul_fallback,
                _symmetric_memory._fused_matmul_reduce_scatter_fallback)
        self.run()

    def gathered_product(self, own: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the product of all ranks' rows with ``weight``."""
        _, products = self._gather(own, [weight], 0, self.group.group_name, return_A=False)
        return products[0]

    def scattered_product(self, left: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of the sum of all ranks' products."""
        return self._scatter(left, weight, "sum", 0, self.group.group_name)


class Columnwise(Fused[rank_inputs.ColumnwiseInputs]):
    """All-gather and product."""

    def run(self) -> None:
        self.output = self.gathered_product(self.inputs.rows, self.inputs.weight)


class Rowwise(Fused[rank_inputs.RowwiseInputs]):
    """Product and reduce-scatter."""

    def run(self) -> None:
        self.output = self.scattered_product(self.inputs.columns, self.inputs.weight)


class Mlp(Fused[rank_inputs.MlpInputs]):
    """All-gather and product; the activation; product and reduce-scatter."""

    def run(self) -> None:
        inner = self.gathered_product(self.inputs.tokens, self.inputs.up)
        self.output = self.scattered_product(self.inputs.activate(inner), self.inputs.down)

"""Implementation ``symm_mem``: torch's fused operators over symmetric memory, on GPUs only.

Ranks read each other's memory (NVLink, peer-to-peer): while one block is multiplied, the next is
copied. torch.distributed._symmetric_memory holds the operators and the workspaces that they use;
the backend's group only names the ranks. Never run on a GPU so far.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.distributed import _symmetric_memory

from hpcbench.kinds.primitive.run.implementations.base import AnyInputs
from hpcbench.kinds.primitive.run.implementations.returned import Returning
from hpcbench.kinds.primitive.run.inputs.tp_columnwise import Columnwise as ColumnwiseInputs
from hpcbench.kinds.primitive.run.inputs.tp_mlp import Mlp as MlpInputs
from hpcbench.kinds.primitive.run.inputs.tp_rowwise import Rowwise as RowwiseInputs

_OPS: Any = torch.ops.symm_mem


def enable(group: Any) -> None:
    """Let torch use symmetric memory in a group; all its ranks call this.

    torch 2.13 calls this deprecated, but its pass for async tensor parallelism still asks for it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        _symmetric_memory.enable_symm_mem_for_group(group.group_name)


class Fused(Returning[AnyInputs]):
    """What the fused operators have in common: the group's name, and a first call.

    The first call, untimed, has all ranks make their workspaces.
    """

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        self.prepare_group()
        self.run()

    def prepare_group(self) -> None:
        """Make symmetric memory usable in the group."""
        enable(self.group)

    def gathered_product(self, own: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the product of all ranks' rows with ``weight``."""
        _, products = _OPS.fused_all_gather_matmul(
            own, [weight], 0, self.group.group_name, return_A=False)
        product: torch.Tensor = products[0]
        return product

    def scattered_product(self, left: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of the sum of all ranks' products."""
        rows: torch.Tensor = _OPS.fused_matmul_reduce_scatter(
            left, weight, "sum", 0, self.group.group_name)
        return rows


class Columnwise(Fused[ColumnwiseInputs]):
    """All-gather and product, fused."""

    def run(self) -> None:
        """Gather and multiply."""
        self.output = self.gathered_product(self.inputs.rows, self.inputs.weight)


class Rowwise(Fused[RowwiseInputs]):
    """Product and reduce-scatter, fused."""

    def run(self) -> None:
        """Multiply and reduce."""
        self.output = self.scattered_product(self.inputs.columns, self.inputs.weight)


class Mlp(Fused[MlpInputs]):
    """All-gather and product, fused; the activation; product and reduce-scatter, fused."""

    def run(self) -> None:
        """Gather, multiply, activate, multiply, reduce."""
        inner = self.gathered_product(self.inputs.tokens, self.inputs.up)
        self.output = self.scattered_product(self.inputs.activate(inner), self.inputs.down)

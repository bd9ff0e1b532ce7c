"""Implementation ``symm_mem_fallback``: what torch has instead of its fused operators.

The same functions of torch.distributed._symmetric_memory, without symmetric memory: collectives
of the backend and products, one after the other. It is an implementation of its own so that no
result of it can pass for one of ``symm_mem``.
"""

from __future__ import annotations

import torch
from torch.distributed._symmetric_memory import (
    _fused_all_gather_matmul_fallback,
    _fused_matmul_reduce_scatter_fallback,
)

from hpcbench.kinds.primitive.run.implementations import symm_mem
from hpcbench.kinds.primitive.run.implementations.base import AnyInputs
from hpcbench.kinds.primitive.run.inputs.tp_columnwise import Columnwise as ColumnwiseInputs
from hpcbench.kinds.primitive.run.inputs.tp_mlp import Mlp as MlpInputs
from hpcbench.kinds.primitive.run.inputs.tp_rowwise import Rowwise as RowwiseInputs


class Unfused(symm_mem.Fused[AnyInputs]):
    """torch's fallbacks in the place of the fused operators."""

    def prepare_group(self) -> None:
        """Any group will do."""

    def gathered_product(self, own: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the product of all ranks' rows with ``weight``."""
        _, products = _fused_all_gather_matmul_fallback(
            own, [weight], 0, self.group.group_name, return_A=False)
        product: torch.Tensor = products[0]
        return product

    def scattered_product(self, left: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of the sum of all ranks' products."""
        rows: torch.Tensor = _fused_matmul_reduce_scatter_fallback(
            left, weight, "sum", 0, self.group.group_name)
        return rows


class Columnwise(Unfused[ColumnwiseInputs], symm_mem.Columnwise):
    """All-gather, then the product."""


class Rowwise(Unfused[RowwiseInputs], symm_mem.Rowwise):
    """The product, then its reduce-scatter."""


class Mlp(Unfused[MlpInputs], symm_mem.Mlp):
    """All-gather, both products, reduce-scatter."""

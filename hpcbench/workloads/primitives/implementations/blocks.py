"""Products of blocks of rows that lie apart, written to where their results belong."""

from __future__ import annotations

import torch


def multiply_blocks(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """Set ``out[b]`` to ``left[b] @ right``: (blocks, rows, k) by (k, n) to (blocks, rows, n).

    Blocks that lie one behind the other are one matrix. Others go to a batched product, which
    takes strided memory: one kernel on a GPU, one product a block on a CPU.
    """
    if left.is_contiguous() and out.is_contiguous():
        torch.mm(left.flatten(0, 1), right, out=out.flatten(0, 1))
    else:
        torch.bmm(left, right.expand(left.shape[0], -1, -1), out=out)

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


def multiply_others(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, own: int,
) -> None:
    """Do as `multiply_blocks`, for all blocks but ``own``: those before it, and those after it."""
    for others in _others(own):
        if len(left[others]):
            multiply_blocks(left[others], right, out[others])


def add_others(blocks: torch.Tensor, total: torch.Tensor, own: int) -> None:
    """Add all blocks but ``own`` to ``total``: (blocks, rows, n) to (rows, n)."""
    for others in _others(own):
        for block in blocks[others]:
            total.add_(block)


def _others(own: int) -> tuple[slice, slice]:
    return slice(own), slice(own + 1, None)

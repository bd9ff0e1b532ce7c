"""Torch's functional collectives, which return tensors of their own that must be waited for.

They are a private module of torch, whose names change: only what calls them loads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from hpcbench.operations.data import renamed

_all_gather = renamed(functional, "all_gather_single", "all_gather_tensor")
_reduce_scatter = renamed(functional, "reduce_scatter_single", "reduce_scatter_tensor")


def gathered(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    return functional.wait_tensor(_all_gather(own, 0, group))


def combined(partial: torch.Tensor, group: dist.ProcessGroup, *, scatter: bool) -> torch.Tensor:
    """Return the sum of all ranks' partial results: this rank's rows of it, or all."""
    return functional.wait_tensor(
        _reduce_scatter(partial, "sum", 0, group) if scatter else
        functional.all_reduce(partial, "sum", group))


def exchanged(
    rows: torch.Tensor, received: Sequence[int], sent: Sequence[int], group: dist.ProcessGroup,
) -> torch.Tensor:
    """Return the rows that arrive: so many from each rank, where so many go to each."""
    return functional.wait_tensor(
        functional.all_to_all_single(rows, list(received), list(sent), group))

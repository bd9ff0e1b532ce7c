"""Collectives on one tensor by the names that this torch has: 2.13 renamed two of them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import torch.distributed._functional_collectives as functional

all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
functional_all_gather: Any = (
    getattr(functional, "all_gather_single", None) or functional.all_gather_tensor)
functional_reduce_scatter: Any = (
    getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor)

"""torch.distributed's calls on whole tensors that torch 2.13 renamed, deprecating the old names."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

all_gather_tensor: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_tensor: Any = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)

"""torch's calls on whole tensors that torch 2.13 renamed, deprecating the old names."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def renamed(module: Any, name: str, old_name: str) -> Any:
    """Return what a module of torch has under its new name, or, in an older torch, its old one."""
    return getattr(module, name, None) or getattr(module, old_name)


all_gather_tensor = renamed(dist, "all_gather_single", "all_gather_into_tensor")
reduce_scatter_tensor = renamed(dist, "reduce_scatter_single", "reduce_scatter_tensor")

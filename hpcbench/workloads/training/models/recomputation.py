"""Activation checkpointing: what a block's forward computes is computed again in backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from hpcbench.plan.training.models import is_recomputed, keeps_products

Rerun = Callable[..., Any]
"""Called with a function and its arguments, it calls the function, and again in backward."""
_ATEN: Any = torch.ops.aten
PRODUCTS = tuple(
    getattr(_ATEN, name).default for name in (
        "mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable")
    if hasattr(_ATEN, name))
"""The operators that products of matrices and attention become, whichever kernel torch chooses."""


def rerun_of(checkpointing: str, block: int) -> Rerun | None:
    """Return how a block, by its number, is run; None if it keeps all of its activations.

    It is to stand inside of the block, so that what strategies hook to the block itself, such as
    gathering its weights, is not done again by it.
    """
    if not is_recomputed(checkpointing, block):
        return None
    rerun = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    if not keeps_products(checkpointing):
        return rerun
    return partial(rerun, context_fn=partial(create_selective_checkpoint_contexts, list(PRODUCTS)))

"""Activation checkpointing: what a block's forward computes is computed again in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

Forward = Callable[..., Any]


def recomputing(forward: Forward) -> Forward:
    """Return a block's forward that keeps its arguments only, as far as gradients are asked for.

    It is to stand inside of the block, so that what strategies hook to the block itself, such as
    gathering its weights, is not done again by it.
    """
    def recomputed(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False,
                          **named)

    return recomputed

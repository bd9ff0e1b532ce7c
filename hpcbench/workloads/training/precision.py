"""Mixed precision over fp32 weights: what a dtype means for a step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from hpcbench.workloads.collectives.operation import DTYPES

INITIAL_SCALE = 2.0**10
"""By which fp16 losses are multiplied at first. torch's 2^16 would overflow in the first steps of
some models, and a step that is skipped is no step; this is a power of two, so it rounds nothing."""


def is_mixed(dtype: str) -> bool:
    """Return whether the arithmetic is of another dtype than the weights, which are fp32."""
    return dtype != "fp32"


def autocast(dtype: str, device: torch.device) -> AbstractContextManager[object]:
    """Return torch's context in which products are of the dtype."""
    if not is_mixed(dtype):
        return nullcontext()
    context: AbstractContextManager[object] = torch.autocast(device.type, DTYPES[dtype])
    return context


def loss_scaler(dtype: str, device: torch.device) -> torch.amp.GradScaler:
    """Return what keeps small fp16 gradients from vanishing; for other dtypes it does nothing."""
    return torch.amp.GradScaler(device.type, init_scale=INITIAL_SCALE, enabled=dtype == "fp16")

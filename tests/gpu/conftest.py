"""What the tests of GPUs share: where there is none, each is skipped with the reason."""

from __future__ import annotations

import pytest
import torch


def why_no_gpu() -> str:
    """Return why torch sees no GPU of CUDA, or nothing."""
    if torch.cuda.is_available():
        return ""
    return (f"torch {torch.__version__} has no CUDA" if torch.version.cuda is None else
            f"torch {torch.__version__} sees no GPU")


@pytest.fixture(autouse=True)
def gpus() -> int:
    """Return how many GPUs there are; skip where there is none."""
    if why := why_no_gpu():
        pytest.skip(f"no GPU: {why}")
    return torch.cuda.device_count()

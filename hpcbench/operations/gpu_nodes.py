"""Which GPUs this machine has, by the device nodes of their drivers: no library is loaded, so none
can hang or crash, and it is known before torch is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_HIDDEN = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs (CUDA programming guide; ROCm obeys it)."""


def nvidia_gpus(root: Path = Path("/")) -> int:
    return len([*root.glob("dev/nvidia[0-9]*")])


def has_gpu(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Return whether a GPU of NVIDIA or AMD is there, and not hidden."""
    return environ.get("CUDA_VISIBLE_DEVICES") not in _HIDDEN and (
        nvidia_gpus(root) > 0 or (root / "dev/kfd").exists())

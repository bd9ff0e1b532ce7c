"""The ``hardware`` section of a run: what the config says, else what was detected, else null.

Nothing here is guessed: peaks, interconnects and prices that nobody gave stay null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def described_hardware(
    configured: Mapping[str, Any], facts: Mapping[str, Any], total_memory_bytes: int,
) -> dict[str, Any]:
    """Return the section with device_type, num_devices and memory_per_device_gb filled in.

    The number of CPU devices of a node is 1: all its cores and its whole memory.
    """
    cuda = facts["cuda"]
    detected: dict[str, Any] = {
        "device_type": "cpu", "num_devices": 1, "memory_per_device_gb": total_memory_bytes / 1e9}
    if cuda["available"]:
        detected = {"device_type": "cuda", "num_devices": len(cuda["names"]),
                    "memory_per_device_gb": min(cuda["memory_bytes"]) / 1e9}
    if configured.get("device_type") not in (None, detected["device_type"]):
        detected = {}  # what was detected is another device
    return {name: detected.get(name) if value is None else value
            for name, value in configured.items()}

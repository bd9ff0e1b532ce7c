"""What a sweep declares of the links between devices, in words: it stands beside bandwidths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def declared_links(config: Mapping[str, Any]) -> str:
    """Return ``declared: interconnect nvlink, nvlink 450 GB/s``, or nothing where none is.

    ``config`` is that of a plan.
    """
    parts = ", ".join(_parts(config.get("hardware", {})))
    return f"declared: {parts}" if parts else ""


def _parts(hardware: Mapping[str, Any]) -> Iterator[str]:
    if name := hardware.get("interconnect"):
        yield f"interconnect {name}"
    for link, peak in hardware.get("link_peaks", {}).items():
        yield f"{link} {peak:g} GB/s"
    if rate := hardware.get("network_bandwidth_gbps"):
        yield f"network {rate:g} Gbit/s a node"

"""What a rank ran with: versions, machine, affinity, and an allow-list of variables.

Nothing outside the allow-list is ever recorded, and names that look like secrets never are.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

_RECORDED = re.compile(
    r"(NCCL|UCC|UCX|GLOO|TORCH_NCCL|TORCH_DISTRIBUTED|OMP|MKL|KMP|FI|OMPI_MCA|PRTE_MCA|MPICH)_\w+"
    r"|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING)|NVIDIA_VISIBLE_DEVICES"
    r"|SLURM_JOB_(ID|NAME|NODELIST|NUM_NODES|PARTITION)|SLURM_(NTASKS|RESTART_COUNT)"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


def recorded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that explain a result and cannot hold a secret."""
    return {name: value for name, value in sorted(environ.items())
            if _RECORDED.fullmatch(name) and not _SECRET.search(name)}


def node_identity() -> str:
    """Return what is the same for all ranks that share one machine's clock and memory."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    boot = boot_id.read_text().strip() if boot_id.exists() else ""
    return f"{socket.gethostname()}/{boot}"


def machine(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return plain JSON values that describe this rank's machine and process."""
    return {
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "kernel": platform.release(),
        "cpu": _cpu_name(),
        "logical_cpus": psutil.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": list(os.getloadavg()),
        "clock_resolution_ns": clock_resolution_ns(),
        "clock": "CLOCK_MONOTONIC",
        "variables": recorded_variables(environ),
    }


def clock_resolution_ns(reads: int = 1000) -> int:
    """Return the smallest step between two different readings of the clock, in ns."""
    stamps = [time.perf_counter_ns() for _ in range(reads)]
    steps = [b - a for a, b in zip(stamps, stamps[1:], strict=False) if b > a]
    return min(steps, default=0)


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.machine()

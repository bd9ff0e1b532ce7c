"""How the GPUs of a node are joined, as ``nvidia-smi topo -m`` shows it, from NVML.

All GPUs that NVML shows are asked, also those that CUDA_VISIBLE_DEVICES hides from this rank.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbench.backends.gpus import asked, bus_id
from hpcbench.measure.kernel_files import KernelFiles

_LEVELS = {"INTERNAL": "PSB", "SINGLE": "PIX", "MULTIPLE": "PXB", "HOSTBRIDGE": "PHB",
           "NODE": "NODE", "SYSTEM": "SYS"}
"""Ends of NVML_TOPOLOGY_*, the common ancestor of two GPUs, and the words of nvidia-smi."""
_SELF = "X"
_COMPLETED = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED."""


@dataclass(frozen=True, slots=True)
class _Links:
    """How many NVLinks of a GPU that are up end at which PCI address, and at switches."""

    to_gpus: Counter[str]
    to_switches: int


def gpu_topology(nvml: Any, root: Path = Path("/")) -> dict[str, Any] | None:
    """Return plain JSON values of all GPUs of the node, None without NVML or GPUs.

    Keys: ``uuids``, ``pci``, ``cpus`` and ``numa_nodes`` (of the kernel, below ``root``), a value
    for each GPU; ``links``, a list for each GPU: NV and the number of NVLinks, or what PCIe path
    there is, or None where NVML does not tell; ``fabrics``, which GPUs of several nodes share where
    they are in one NVLink domain.
    """
    if nvml is None:
        return None
    gpus = [gpu for number in range(asked(nvml, "nvmlDeviceGetCount") or 0)
            if (gpu := asked(nvml, "nvmlDeviceGetHandleByIndex", number)) is not None]
    if not gpus:
        return None
    pci = [_address(asked(nvml, "nvmlDeviceGetPciInfo", gpu)) for gpu in gpus]
    links = [_links(nvml, gpu) for gpu in gpus]
    files = KernelFiles(root)
    return {
        "uuids": [asked(nvml, "nvmlDeviceGetUUID", gpu) for gpu in gpus],
        "pci": pci,
        "cpus": [_of_kernel(files.line, one, "local_cpulist") for one in pci],
        "numa_nodes": [_numa_node(_of_kernel(files.number, one, "numa_node")) for one in pci],
        "links": [[_SELF if here == there else
                   _nvlinks(links[here], links[there], pci[there])
                   or _path(nvml, gpus[here], gpus[there])
                   for there in range(len(gpus))] for here in range(len(gpus))],
        "fabrics": [_fabric(nvml, gpu) for gpu in gpus],
    }


def _links(nvml: Any, gpu: Any) -> _Links:
    to_gpus: Counter[str] = Counter()
    to_switches = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if not asked(nvml, "nvmlDeviceGetNvLinkState", gpu, link):
            continue
        kind = asked(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link)
        if kind is not None and kind == getattr(nvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", None):
            to_switches += 1
        elif (remote := _address(asked(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", gpu, link))):
            to_gpus[remote] += 1
    return _Links(to_gpus, to_switches)


def _nvlinks(here: _Links, there: _Links, address: str | None) -> str | None:
    """Return how many NVLinks join two GPUs: their own, or through switches those of the poorer."""
    direct = here.to_gpus[address] if address else 0
    count = direct or min(here.to_switches, there.to_switches)
    return f"NV{count}" if count else None


def _path(nvml: Any, here: Any, there: Any) -> str | None:
    level = asked(nvml, "nvmlDeviceGetTopologyCommonAncestor", here, there)
    levels = {getattr(nvml, f"NVML_TOPOLOGY_{name}", None): word
              for name, word in _LEVELS.items()}
    return None if level is None else levels.get(level)


class _FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t of nvml.h; that of pynvml 12.560 has another size."""

    _fields_ = (("version", ctypes.c_uint), ("cluster", ctypes.c_ubyte * 16),
                ("status", ctypes.c_uint), ("clique", ctypes.c_uint32), ("state", ctypes.c_ubyte),
                ("health", ctypes.c_uint32))


def _fabric(nvml: Any, gpu: Any) -> str | None:
    """Return cluster and clique of the NVLink domain, None where the GPU is in none."""
    info = _FabricInfo(version=ctypes.sizeof(_FabricInfo) | 2 << 24)
    if asked(nvml, "nvmlDeviceGetGpuFabricInfoV", gpu, ctypes.byref(info)) is None:
        return None
    cluster = bytes(info.cluster)
    return f"{cluster.hex()}/{info.clique}" if info.state == _COMPLETED and any(cluster) else None


def _address(info: Any) -> str | None:
    """Return a PCI address as the kernel writes it: NVML's domain has eight digits."""
    if info is None:
        return None
    domain, _, rest = bus_id(info).lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else None


def _of_kernel(read: Callable[[str], Any], address: str | None, name: str) -> Any:
    return read(f"sys/bus/pci/devices/{address}/{name}") if address else None


def _numa_node(number: int | None) -> int | None:
    """Return a NUMA node; the kernel writes -1 where a device belongs to none."""
    return number if number is not None and number >= 0 else None

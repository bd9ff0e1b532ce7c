"""What one machine has, gathered in a process of its own that imports torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import psutil
import torch
import torch.distributed as dist

from hpcbench.backends.apple_gpu import mps_facts
from hpcbench.backends.availability import known_uuid, visible_devices
from hpcbench.backends.gpu_topology import gpu_topology
from hpcbench.backends.gpus import gpu_details, opened_nvml
from hpcbench.backends.kernels import no_code_reason
from hpcbench.backends.tools import tool_facts
from hpcbench.backends.ucc import ucc_facts
from hpcbench.measure.libraries import loaded_libraries

_LOOPBACK = "127.0.0.1"


def gather_facts(tools: Iterable[str] = ()) -> dict[str, Any]:
    """Return plain JSON values: what torch was built with, devices, versions, memory in bytes.

    Keys: ``built`` {nccl, gloo, mpi, ucc: bool}; ``gloo_without_avg`` (gloo's error for avg, or
    None); ``gloo_without_reduce_scatter`` (its error for lists of tensors, or None); ``ucc``
    (`backends.ucc.ucc_facts`); ``cuda`` {available, names, uuids, memory_bytes, capabilities,
    details, no_code, visible, peers, reason} (``capabilities``: [major, minor] of each GPU;
    ``details``: `backends.gpus.gpu_details`; ``no_code``: why torch cannot use a GPU, or None;
    ``visible``: `backends.availability.visible_devices`; ``peers``: by GPU the numbers of those
    whose memory it can read); ``mps`` (`backends.apple_gpu.mps_facts`);
    ``gpu_topology`` (`backends.gpu_topology.gpu_topology`); ``host_memory_bytes``; ``versions``;
    ``libraries`` (`measure.libraries.loaded_libraries`, with what ucc loads in its child);
    ``tools`` (`backends.tools.tool_facts` of ``tools``).
    """
    ucc = ucc_facts()  # first: it forks, and gloo below starts threads
    return {
        "built": {
            "gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(),
            "mpi": dist.is_mpi_available(), "ucc": dist.is_ucc_available(),
        },
        **_gloo_lacks(),
        "ucc": ucc,
        "cuda": _cuda(),
        "mps": mps_facts(),
        "gpu_topology": _gpu_topology(),
        "host_memory_bytes": psutil.virtual_memory().available,
        "versions": {**_versions(), **ucc["versions"]},
        "libraries": {**ucc["libraries"], **loaded_libraries()},
        "tools": tool_facts(tools),
    }


def _cuda() -> dict[str, Any]:
    visible = visible_devices(os.environ, rocm=torch.version.hip is not None)
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        reason = "no GPU is visible" if built else f"torch {torch.__version__} is a CPU build"
        return {"available": False, "names": [], "uuids": [], "memory_bytes": [],
                "capabilities": [], "details": [], "no_code": [], "visible": visible, "peers": [],
                "reason": reason}
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    uuids = [known_uuid(str(getattr(device, "uuid", ""))) for device in devices]
    with opened_nvml() as nvml:
        details = gpu_details(nvml, uuids)
    return {
        "available": True, "reason": None,
        "names": [device.name for device in devices],
        "uuids": uuids,
        "memory_bytes": [device.total_memory for device in devices],
        "capabilities": [[device.major, device.minor] for device in devices],
        "details": details,
        "no_code": [no_code_reason((device.major, device.minor), torch.cuda.get_arch_list(),
                                   torch.__version__) for device in devices],
        "visible": visible,
        "peers": [[peer for peer in range(len(devices)) if peer != gpu
                   and torch.cuda.can_device_access_peer(gpu, peer)]
                  for gpu in range(len(devices))],
    }


def _gpu_topology() -> dict[str, Any] | None:
    with opened_nvml() as nvml:
        return gpu_topology(nvml)


def _gloo_lacks() -> dict[str, str | None]:
    """Return what gloo of this torch says to calls that came after torch 2.4, None if it can."""
    calls: dict[str, Callable[[], object]] = {
        "gloo_without_avg": lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.AVG),
        "gloo_without_reduce_scatter": lambda: dist.reduce_scatter(
            torch.empty(1), [torch.ones(1)]),
    }
    if not dist.is_gloo_available():
        return dict.fromkeys(calls, "it was built without gloo")
    os.environ["GLOO_SOCKET_IFNAME"] = _loopback()  # this process asks and ends
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return {name: _refusal(call) for name, call in calls.items()}
    finally:
        dist.destroy_process_group()


def _loopback() -> str:
    """Return the interface that reaches this machine only: lo on Linux, lo0 on macOS."""
    return next((name for name, entries in psutil.net_if_addrs().items()
                 if any(entry.address == _LOOPBACK for entry in entries)), "lo")


def _refusal(call: Callable[[], object]) -> str | None:
    try:
        call()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def _versions() -> dict[str, str]:
    versions = {"torch": torch.__version__, "numpy": importlib.metadata.version("numpy")}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.version.hip:
        versions["hip"] = torch.version.hip
    with opened_nvml() as nvml:
        if nvml:
            versions["nvidia_driver"] = str(nvml.nvmlSystemGetDriverVersion())
    if dist.is_nccl_available() and torch.cuda.is_available():
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return versions


if __name__ == "__main__":
    print(json.dumps(gather_facts(sys.argv[1:])))

"""The facts of one machine, gathered in a process of its own that imports torch."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import psutil
import torch
import torch.distributed as dist

from hpcbench.backends import child
from hpcbench.backends.availability import known_uuid, no_code_reason, tool_facts, visible_devices
from hpcbench.backends.devices import cache_bytes
from hpcbench.backends.gpus import (
    amd_refusals,
    amdsmi_is_installed,
    gpu_details,
    gpu_topology,
    nvml_refusals,
    nvml_value,
    opened_nvml,
    visible_uuids,
)
from hpcbench.backends.groups import cuda_task, ucc_facts, ucc_loss_reason, ucc_task
from hpcbench.measurement.environment import loaded_libraries
from hpcbench.operations.gpu_nodes import nvidia_gpus
from hpcbench.trace.schema import UNKNOWN_VERSION


def mps_facts() -> dict[str, Any]:
    """Return ``reason`` (why torch cannot use Apple's GPU, or None), ``name``, ``memory_bytes``
    (the recommended limit of shared memory) and ``without_bf16`` (torch's error, or None)."""
    if reason := _reason():
        return {"reason": reason, "name": None, "memory_bytes": 0, "without_bf16": reason}
    name = getattr(torch.backends.mps, "get_name", None)  # since torch 2.9
    return {"reason": None, "name": name() if name else None,
            "memory_bytes": int(torch.mps.recommended_max_memory()),
            "without_bf16": _refusal_of_bf16()}


def _reason() -> str | None:
    if not torch.backends.mps.is_built():
        return f"torch {torch.__version__} was built without it"
    if not torch.backends.mps.is_available():
        return "torch finds no GPU of Apple's here, or this macOS is too old for it"
    return None


def _refusal_of_bf16() -> str | None:
    """Try it: whether there is bf16, and autocast to it, depends on the system and on torch."""
    operand = torch.ones((2, 2), device="mps")
    try:
        (operand.bfloat16() @ operand.bfloat16()).sum().item()
        with torch.autocast("mps", torch.bfloat16):
            dtype = (operand @ operand).dtype
    except (RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    usable = dtype is torch.bfloat16
    return None if usable else f"autocast of torch {torch.__version__} computes in {dtype}"


_LOOPBACK = "127.0.0.1"
_DRIVER = "see whether nvidia-smi or rocm-smi answers; then update the driver, or load it again"
_CHILDREN = {
    "cuda": ("CUDA", "no case runs on a GPU", _DRIVER),
    "nvml": ("NVML", "no telemetry of GPUs, and facts of GPUs are incomplete", _DRIVER),
    "amdsmi": ("amdsmi", "no telemetry of GPUs", _DRIVER),
    "ucc": ("UCC", "its cases are skipped", "try another build of UCC and UCX"),
    "ucc on cuda": ("UCC GPU-memory", "it is used on the CPU only",
                    "try a build of UCC and UCX for this CUDA"),
}
"""By child: what it calls, the loss if it ends early, and the remedy."""
_SHARE_OF_OTHERS = 0.3
"""The other children's share of the time of CUDA's child, which starts the driver."""
_QUIET_OF_A_GPU_S = 0.25
"""Added for each GPU: calls of all ranks of a node take turns in the driver."""
_VERSIONS = {"cuda": ("nccl",), "nvml": ("nvidia_driver",), "ucc": ("torch_ucc", "ucc", "ucx")}
"""Child -> the versions that it reports."""


def gather_facts(tools: Iterable[str] = (), limit_s: float = child.LIMIT_S) -> dict[str, Any]:
    """Return plain JSON values: what torch was built with, devices, versions, memory in bytes.

    Calls that may crash or hang in a driver or library run in forked children, before gloo starts
    threads here; this process touches no CUDA. CUDA's child has ``limit_s``, the others 0.3 of it;
    those that read GPUs are given up when they are quiet (`Child.answers`). CUDA's child keeps the
    driver's GPUs started until the others are done.

    Keys: ``built`` {nccl, gloo, mpi, ucc: bool}; ``gloo_without_avg`` and
    ``gloo_without_reduce_scatter`` (gloo's error, or None); ``ucc`` (`backends.groups.ucc_facts`);
    ``cuda`` {available, names, uuids, memory_bytes, capabilities, multiprocessors, cache_bytes,
    details (`gpu_details`), no_code (why torch cannot use a GPU, or None), visible
    (`visible_devices`), peers (by GPU those with readable memory), reason, refused (`nvml_refusals`
    or `amd_refusals`)}; ``mps`` (`mps_facts`); ``gpu_topology``; ``host_memory_bytes``;
    ``versions``; ``libraries`` (`loaded_libraries`, with those of ucc's child); ``tools``
    (`tool_facts` of ``tools``); ``lost`` (by child: how it ended early, the loss, the remedy)."""
    brief_s = _SHARE_OF_OTHERS * limit_s
    with child.kept_child(_cuda_task(), limit_s) as cuda_answers:
        first = {**child.run_in_children({"ucc": ucc_task()}, brief_s), "cuda": cuda_answers()}
        cuda = _cuda(first["cuda"])
        ucc = ucc_facts(first["ucc"])
        has_nvml = importlib.util.find_spec("pynvml") is not None
        has_amdsmi = torch.version.hip is not None and amdsmi_is_installed()
        then = child.run_in_children({
            "nvml": functools.partial(_nvml_answers, cuda["uuids"]) if has_nvml else None,
            "amdsmi": functools.partial(_amd_answers, cuda["uuids"]) if has_amdsmi else None,
            "ucc on cuda": cuda_task if cuda["available"] and not ucc["reason"] else None},
            brief_s, dict.fromkeys(("nvml", "amdsmi"), _quiet_s(cuda)))
    nvml = then["nvml"].values if then["nvml"] else {}
    values = {**nvml, **(then["amdsmi"].values if then["amdsmi"] else {})}
    cuda |= {name: values.get(name, [None] * len(cuda["uuids"])) for name in ("details", "refused")}
    if on_cuda := then["ucc on cuda"]:
        ucc["without_cuda"] = (ucc_loss_reason(on_cuda.lost) if on_cuda.lost
                               else on_cuda.values["without_cuda"])
    return {
        "built": {
            "gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(),
            "mpi": dist.is_mpi_available(), "ucc": dist.is_ucc_available(),
        },
        **_gloo_lacks(),
        "ucc": ucc,
        "cuda": cuda,
        "mps": mps_facts(),
        "gpu_topology": nvml.get("gpu_topology"),
        "host_memory_bytes": psutil.virtual_memory().available,
        "versions": {**_unknown_versions(first | then), **_versions(cuda),
                     **nvml.get("versions", {}), **ucc["versions"]},
        "libraries": {**ucc["libraries"], **loaded_libraries()},
        "tools": tool_facts(tools),
        "lost": _costs(first | then),
    }


def _quiet_s(cuda: Mapping[str, Any]) -> float:
    """Return after how long without an answer a library that reads GPUs hangs: one that CUDA has
    not started yet takes longer."""
    gpus = max(len(cuda["uuids"]), nvidia_gpus())
    return child.QUIET_S + (_QUIET_OF_A_GPU_S * gpus if cuda["available"] else child.gpus_start_s())


def _costs(answers: Mapping[str, child.Answers | None]) -> dict[str, str]:
    """Return a line for each child that crashed or hung: its end, the loss, a remedy."""
    return {name: f"the {who} probe {found.lost}: {cost}; {remedy}"
            for name, (who, cost, remedy) in _CHILDREN.items()
            if (found := answers.get(name)) is not None and found.lost}


def _unknown_versions(answers: Mapping[str, child.Answers | None]) -> dict[str, str]:
    """Return the versions that children lost: they make no difference between ranks."""
    return {version: UNKNOWN_VERSION for name, versions in _VERSIONS.items()
            if (found := answers.get(name)) is not None and found.lost for version in versions}


def _cuda_task() -> child.ChildTask | None:
    """Return the task of CUDA's child; None where this torch can have no GPU."""
    built = torch.version.cuda or torch.version.hip
    return (lambda: _cuda_answers().items()) if built else None


def _cuda(answers: child.Answers | None) -> dict[str, Any]:
    """Return the child's answers, or with ``reason`` why there is no GPU."""
    none: dict[str, Any] = {
        "available": False, "names": [], "uuids": [], "memory_bytes": [], "capabilities": [],
        "multiprocessors": [], "cache_bytes": [],
        "no_code": [], "peers": [],
        "visible": visible_devices(os.environ, rocm=torch.version.hip is not None)}
    if answers is None:
        return {**none, "reason": f"torch {torch.__version__} is a CPU build"}
    if answers.lost:
        return {**none, "reason": f"the CUDA probe {answers.lost}"}
    return {**none, "reason": None, **answers.values}


def _cuda_answers() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {"reason": "no GPU is visible"}
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {
        "available": True,
        "names": [device.name for device in devices],
        "uuids": visible_uuids([known_uuid(str(getattr(device, "uuid", ""))) for device in devices],
                               os.environ.get("CUDA_VISIBLE_DEVICES")),
        "memory_bytes": [device.total_memory for device in devices],
        "capabilities": [[device.major, device.minor] for device in devices],
        "multiprocessors": [device.multi_processor_count for device in devices],
        "cache_bytes": [cache_bytes(torch.device("cuda", gpu)) for gpu in range(len(devices))],
        "no_code": [no_code_reason((device.major, device.minor), torch.cuda.get_arch_list(),
                                   torch.__version__) for device in devices],
        "peers": [[peer for peer in range(len(devices)) if peer != gpu
                   and torch.cuda.can_device_access_peer(gpu, peer)]
                  for gpu in range(len(devices))],
    }


def _nvml_answers(uuids: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Answer in the order of importance; the columns that telemetry will read come last."""
    with opened_nvml() as nvml:
        if nvml is None:
            return
        driver = nvml_value(nvml, "nvmlSystemGetDriverVersion")
        yield "versions", {} if driver is None else {"nvidia_driver": driver}
        yield from _of_each("details", lambda uuid: gpu_details(nvml, [uuid])[0], uuids)
        yield "gpu_topology", gpu_topology(nvml)
        yield from _of_each("refused", functools.partial(nvml_refusals, nvml), uuids)


def _amd_answers(uuids: Sequence[str]) -> Iterator[tuple[str, Any]]:
    yield from _of_each("refused", amd_refusals, uuids)


def _of_each(
    name: str, ask: Callable[[str], Any], uuids: Sequence[str],
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the answers for the GPUs so far, after each: who yields does not hang."""
    facts: list[Any] = [None] * len(uuids)
    for number, uuid in enumerate(uuids):
        facts[number] = ask(uuid) if uuid else None
        yield name, facts


def _gloo_lacks() -> dict[str, str | None]:
    """Return this gloo's errors for calls newer than torch 2.4, None where it has them."""
    calls: dict[str, Callable[[], object]] = {
        "gloo_without_avg": lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.AVG),
        "gloo_without_reduce_scatter": lambda: dist.reduce_scatter(
            torch.empty(1), [torch.ones(1)]),
    }
    if not dist.is_gloo_available():
        return dict.fromkeys(calls, "it was built without gloo")
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = _loopback()
    try:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            return {name: _refusal(call) for name, call in calls.items()}
        finally:
            dist.destroy_process_group()
    finally:  # an inline worker asks in the process that measures
        del os.environ["GLOO_SOCKET_IFNAME"]
        if before is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = before


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


def _versions(cuda: Mapping[str, Any]) -> dict[str, str]:
    versions = {"torch": torch.__version__, "numpy": importlib.metadata.version("numpy")}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.version.hip:
        versions["hip"] = torch.version.hip
    if dist.is_nccl_available() and cuda["available"]:
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return versions


if __name__ == "__main__":
    print(json.dumps(gather_facts(sys.argv[2:], float(sys.argv[1]))))

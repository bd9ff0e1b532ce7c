"""What NVML tells of the visible GPUs: place, clocks, limits and modes, without using them.

NVML may crash or hang with its driver: ask it in a child (`backends.child`), but for the thread of
telemetry, which asks what came through there.

How the GPUs of a node are joined, as ``nvidia-smi topo -m`` shows it, from NVML.

All GPUs that NVML shows are asked, also those that CUDA_VISIBLE_DEVICES hides from this rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbench.measure.process import KernelFiles
from hpcbench.trace.schema import bare_uuid

_THROTTLE_REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal",
                     0x40: "hardware thermal", 0x80: "power brake"}
"""Bits of nvmlClocksEventReason* in nvml.h that slow a GPU down."""


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """NVML's handle of a GPU, or of a part of one (MIG device), then with that of the ``whole``."""

    handle: Any
    whole: Any = None

    @property
    def handles(self) -> tuple[Any, ...]:
        """Return whom to ask, in turn: NVML refuses most queries of a part."""
        return (self.handle,) if self.whole is None else (self.handle, self.whole)


@contextlib.contextmanager
def opened_nvml() -> Iterator[Any]:
    """Give pynvml with the driver's library loaded, or None where there is neither or no GPU."""
    try:
        nvml = load_nvml()
    except RuntimeError:
        yield None
        return
    try:
        yield nvml
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def load_nvml() -> Any:
    """Return pynvml with the driver's library loaded. Raises RuntimeError with the reason."""
    if importlib.util.find_spec("pynvml") is None:
        raise RuntimeError("NVML needs pynvml, which is not installed")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise RuntimeError(f"NVML cannot be loaded: {refusal(error)}") from error
    return pynvml


def asked(nvml: Any, name: str, *arguments: Any) -> Any:
    """Return NVML's answer, None where this GPU, driver or pynvml has none.

    A call that the driver's library lacks is an NVMLError, too; one that this pynvml lacks is not.
    """
    try:
        return getattr(nvml, name)(*arguments)
    except UnicodeDecodeError as error:
        return text(error.object)
    except (nvml.NVMLError, AttributeError):
        return None


def text(value: str | bytes) -> str:
    """Return a text of NVML; bytes that are not UTF-8 stand in it as ``\\xff``."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def refusal(error: Exception) -> str:
    """Return what NVML said, or what kind of error it is: a damaged library says it in no UTF-8."""
    try:
        return str(error) or type(error).__name__
    except UnicodeDecodeError:
        return f"{type(error).__name__} {getattr(error, 'value', '')}".rstrip()


def bus_id(info: Any) -> str:
    try:
        return text(info.busId)
    except UnicodeDecodeError as error:
        return text(error.object)


def find_gpu(nvml: Any, uuid: str) -> NvmlGpu:
    """Return the GPU or MIG device of this UUID, with or without prefix. Raises NVMLError."""
    bare = bare_uuid(uuid)
    try:
        return NvmlGpu(nvml.nvmlDeviceGetHandleByUUID(f"GPU-{bare}"))
    except nvml.NVMLError:
        part = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{bare}")
    return NvmlGpu(part, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part))


def visible_uuids(uuids: Sequence[str], chosen: str | None) -> list[str]:
    """Return torch's UUIDs; of a MIG device the one by which CUDA_VISIBLE_DEVICES names it.

    ``chosen`` is the value of that. CUDA shows a process one MIG device at most, and before
    version 12 told the UUID of its GPU.
    """
    first = (chosen or "").partition(",")[0].strip()
    named = first.removeprefix("MIG-")
    if first == named or len(uuids) != 1 or uuids[0].startswith(named):
        return list(uuids)
    return [named]


def gpu_details(nvml: Any, uuids: Sequence[str]) -> list[dict[str, Any] | None]:
    """Return plain JSON values for each GPU, None for one that NVML does not know by its UUID.

    ``uuids`` are torch's, without NVML's prefix. Keys: ``pci``, ``numa_node``, ``max_mhz`` {sm,
    memory}, ``power_limit_w``, ``persistence``, ``compute_mode``, ``ecc``, ``mig``, ``pcie``
    {generation, width}, ``nvlinks`` (how many are up), ``now`` {sm_mhz, memory_mhz, celsius,
    throttled by}. What a GPU does not tell is None. ``part_of`` is the UUID of the GPU that a MIG
    device is a part of, of which all this is then; None of a whole GPU.
    """
    return [_detail(nvml, uuid) for uuid in uuids] if nvml else [None] * len(uuids)


def _detail(nvml: Any, uuid: str) -> dict[str, Any] | None:
    """Ask for each value by itself: what this GPU, driver or pynvml cannot tell is None."""
    if not uuid or (gpu := _found(nvml, uuid)) is None:
        return None

    def tell(what: str, *arguments: Any, read: Callable[[Any], Any] = _same) -> Any:
        answers = (asked(nvml, f"nvmlDeviceGet{what}", handle, *arguments)
                   for handle in gpu.handles)
        answer = next((one for one in answers if one is not None), None)
        return None if answer is None else read(answer)

    clocks = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
    links = [tell("NvLinkState", link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    known_links = [up for up in links if up is not None]
    reasons = (tell(f"CurrentClocks{word}Reasons") for word in ("Event", "Throttle"))
    slowed = next((bits for bits in reasons if bits is not None), None)
    return {
        "pci": tell("PciInfo", read=bus_id),
        "part_of": None if gpu.whole is None else asked(nvml, "nvmlDeviceGetUUID", gpu.whole),
        "numa_node": tell("NumaNodeId"),
        "power_limit_w": tell("EnforcedPowerLimit", read=lambda milliwatts: milliwatts / 1000),
        "persistence": tell("PersistenceMode", read=bool),
        "compute_mode": tell("ComputeMode"),
        "ecc": tell("EccMode", read=lambda modes: bool(modes[0])),
        "mig": tell("MigMode", read=lambda modes: bool(modes[0])),
        "max_mhz": {name: tell("MaxClockInfo", clock) for name, clock in clocks.items()},
        "pcie": {"generation": tell("MaxPcieLinkGeneration"),
                 "width": tell("MaxPcieLinkWidth")},
        "nvlinks": sum(map(bool, known_links)) if known_links else None,
        "now": {
            **{f"{name}_mhz": tell("ClockInfo", clock) for name, clock in clocks.items()},
            "celsius": tell("Temperature", nvml.NVML_TEMPERATURE_GPU),
            "throttled_by": None if slowed is None else [
                word for bit, word in _THROTTLE_REASONS.items() if slowed & bit]},
    }


def _found(nvml: Any, uuid: str) -> NvmlGpu | None:
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        return find_gpu(nvml, uuid)
    return None


def _same(value: Any) -> Any:
    return value


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

"""NVML's facts of a node's GPUs, and readings of one GPU by NVML or amdsmi.

Both may crash or hang with their driver: call them in a child (`backends.child`). In a supervisor
only telemetry's thread does, for columns that the probe's child has tried (`nvml_refusals`,
`amd_refusals`). ``gpu_topology`` (``nvidia-smi topo -m``) covers all GPUs that NVML shows, also
those hidden from this rank. amdsmi has never run here: functions, keys and units are those of torch
2.13 (torch/cuda/__init__.py) and, for energy, its documentation. A missing key or "N/A" costs its
column."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from hpcbench.measurement.process import KernelFiles
from hpcbench.records import dataclass
from hpcbench.trace.schema import bare_uuid

_THROTTLE_REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal",
                     0x40: "hardware thermal", 0x80: "power brake"}
"""Bits of nvmlClocksEventReason* in nvml.h that slow a GPU down."""


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """NVML's handle of a GPU, or of a MIG device and of the ``whole`` GPU it is a part of."""

    handle: Any
    whole: Any = None

    @property
    def handles(self) -> tuple[Any, ...]:
        """Return the handles to query, in turn: NVML refuses most queries of a part."""
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


def nvml_value(nvml: Any, name: str, *arguments: Any) -> Any:
    """Return NVML's answer, None where this GPU, driver or pynvml has none."""
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
    """Return NVML's message, or the type of error: a damaged library's message may not be UTF-8."""
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
    """Return torch's UUIDs, but the MIG device that ``chosen`` (CUDA_VISIBLE_DEVICES) names.

    CUDA shows a process one MIG device at most; before version 12 it reports its GPU's UUID."""
    first = (chosen or "").partition(",")[0].strip()
    named = first.removeprefix("MIG-")
    if first == named or len(uuids) != 1 or uuids[0].startswith(named):
        return list(uuids)
    return [named]


def gpu_details(nvml: Any, uuids: Sequence[str]) -> list[dict[str, Any] | None]:
    """Return plain JSON values for each GPU by torch's UUIDs, None for one that NVML does not know.

    Keys: ``pci``, ``numa_node``, ``max_mhz`` {sm, memory}, ``power_limit_w``, ``persistence``,
    ``compute_mode``, ``ecc``, ``mig``, ``pcie`` {generation, width}, ``nvlinks`` (those up),
    ``now`` {sm_mhz, memory_mhz, celsius, throttled by}; ``part_of``: the UUID of a MIG device's
    GPU, whose values these are. Unknown values are None."""
    return [_detail(nvml, uuid) for uuid in uuids] if nvml else [None] * len(uuids)


def _detail(nvml: Any, uuid: str) -> dict[str, Any] | None:
    """Query each value by itself; None where this GPU, driver or pynvml has none."""
    try:
        gpu = find_gpu(nvml, uuid) if uuid else None
    except (nvml.NVMLError, AttributeError):
        gpu = None
    if gpu is None:
        return None

    def value(what: str, *arguments: Any, read: Callable[[Any], Any] | None = None) -> Any:
        answers = (nvml_value(nvml, f"nvmlDeviceGet{what}", handle, *arguments)
                   for handle in gpu.handles)
        answer = next((one for one in answers if one is not None), None)
        return answer if answer is None or read is None else read(answer)

    clocks = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
    links = [value("NvLinkState", link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    known_links = [up for up in links if up is not None]
    reasons = (value(f"CurrentClocks{word}Reasons") for word in ("Event", "Throttle"))
    slowed = next((bits for bits in reasons if bits is not None), None)
    return {
        "pci": value("PciInfo", read=bus_id),
        "part_of": None if gpu.whole is None else nvml_value(nvml, "nvmlDeviceGetUUID", gpu.whole),
        "numa_node": value("NumaNodeId"),
        "power_limit_w": value("EnforcedPowerLimit", read=lambda milliwatts: milliwatts / 1000),
        "persistence": value("PersistenceMode", read=bool),
        "compute_mode": value("ComputeMode"),
        "ecc": value("EccMode", read=lambda modes: bool(modes[0])),
        "mig": value("MigMode", read=lambda modes: bool(modes[0])),
        "max_mhz": {name: value("MaxClockInfo", clock) for name, clock in clocks.items()},
        "pcie": {"generation": value("MaxPcieLinkGeneration"),
                 "width": value("MaxPcieLinkWidth")},
        "nvlinks": sum(map(bool, known_links)) if known_links else None,
        "now": {
            **{f"{name}_mhz": value("ClockInfo", clock) for name, clock in clocks.items()},
            "celsius": value("Temperature", nvml.NVML_TEMPERATURE_GPU),
            "throttled_by": None if slowed is None else [
                word for bit, word in _THROTTLE_REASONS.items() if slowed & bit]},
    }


_LEVELS = {"INTERNAL": "PSB", "SINGLE": "PIX", "MULTIPLE": "PXB", "HOSTBRIDGE": "PHB",
           "NODE": "NODE", "SYSTEM": "SYS"}
"""Ends of NVML_TOPOLOGY_*, the common ancestor of two GPUs, and the words of nvidia-smi."""
_SELF = "X"
_COMPLETED = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED."""


def gpu_topology(nvml: Any, root: Path = Path("/")) -> dict[str, Any] | None:
    """Return plain JSON values of all GPUs of the node, None without NVML or GPUs.

    Keys: ``uuids``, ``pci``, ``cpus``, ``numa_nodes`` (the kernel's, below ``root``): a value per
    GPU; ``links``: a list per GPU of NV and the number of NVLinks, or the PCIe path, or None;
    ``fabrics``: equal for GPUs in one NVLink domain."""
    if nvml is None:
        return None
    gpus = [gpu for number in range(nvml_value(nvml, "nvmlDeviceGetCount") or 0)
            if (gpu := nvml_value(nvml, "nvmlDeviceGetHandleByIndex", number)) is not None]
    if not gpus:
        return None
    pci = [_address(nvml_value(nvml, "nvmlDeviceGetPciInfo", gpu)) for gpu in gpus]
    links = [_links(nvml, gpu) for gpu in gpus]
    files = KernelFiles(root)
    return {
        "uuids": [nvml_value(nvml, "nvmlDeviceGetUUID", gpu) for gpu in gpus],
        "pci": pci,
        "cpus": [_of_kernel(files.line, one, "local_cpulist") for one in pci],
        "numa_nodes": [_numa_node(_of_kernel(files.number, one, "numa_node")) for one in pci],
        "links": [[_SELF if here == there else
                   _nvlinks(links[here], links[there], pci[there])
                   or _path(nvml, gpus[here], gpus[there])
                   for there in range(len(gpus))] for here in range(len(gpus))],
        "fabrics": [_fabric(nvml, gpu) for gpu in gpus],
    }


def _links(nvml: Any, gpu: Any) -> tuple[Counter[str], int]:
    """Return how many NVLinks of a GPU that are up end at each PCI address, and at switches."""
    to_gpus: Counter[str] = Counter()
    to_switches = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if not nvml_value(nvml, "nvmlDeviceGetNvLinkState", gpu, link):
            continue
        kind = nvml_value(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link)
        if kind is not None and kind == getattr(nvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", None):
            to_switches += 1
        elif (remote := _address(nvml_value(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", gpu, link))):
            to_gpus[remote] += 1
    return to_gpus, to_switches


def _nvlinks(
    here: tuple[Counter[str], int], there: tuple[Counter[str], int], address: str | None,
) -> str | None:
    """Return how many NVLinks join two GPUs: direct ones, else the fewer of those to switches."""
    count = (here[0][address] if address else 0) or min(here[1], there[1])
    return f"NV{count}" if count else None


def _path(nvml: Any, here: Any, there: Any) -> str | None:
    level = nvml_value(nvml, "nvmlDeviceGetTopologyCommonAncestor", here, there)
    levels = {getattr(nvml, f"NVML_TOPOLOGY_{name}", None): label
              for name, label in _LEVELS.items()}
    return None if level is None else levels.get(level)


class _FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t of nvml.h; that of pynvml 12.560 has another size."""

    _fields_ = (("version", ctypes.c_uint), ("cluster", ctypes.c_ubyte * 16),
                ("status", ctypes.c_uint), ("clique", ctypes.c_uint32), ("state", ctypes.c_ubyte),
                ("health", ctypes.c_uint32))


def _fabric(nvml: Any, gpu: Any) -> str | None:
    """Return cluster and clique of the NVLink domain, None where the GPU is in none."""
    info = _FabricInfo(version=ctypes.sizeof(_FabricInfo) | 2 << 24)
    if nvml_value(nvml, "nvmlDeviceGetGpuFabricInfoV", gpu, ctypes.byref(info)) is None:
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


_KIB = 1024
_ALL_LINKS = 0xFFFFFFFF
"""The scope of a field for all links together (nvml.h)."""
_UNIONS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of nvmlValue_t by nvmlValueType_t (nvml.h)."""
NvmlCall = Callable[[Any, Any], int]
"""(NVML, GPU) -> the value of a column."""


def _nvml_field(name: str, scale: int = 1, scope: int = 0) -> NvmlCall:
    def call(nvml: Any, gpu: Any) -> int:
        (value,) = nvml.nvmlDeviceGetFieldValues(gpu, [(getattr(nvml, name), scope)])
        if value.nvmlReturn:
            raise nvml.NVMLError(value.nvmlReturn)
        return int(getattr(value.value, _UNIONS[value.valueType])) * scale
    return call


def _reasons(nvml: Any, gpu: Any) -> int:
    """Ask by the name of today, or of older drivers and pynvml."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except (nvml.NVMLError, AttributeError):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def _ecc(kind: str) -> NvmlCall:
    return lambda nvml, gpu: int(nvml.nvmlDeviceGetTotalEccErrors(
        gpu, getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), nvml.NVML_VOLATILE_ECC))


NVML_CALLS: Mapping[str, NvmlCall] = {
    "power_mw": lambda nvml, gpu: int(nvml.nvmlDeviceGetPowerUsage(gpu)),
    "energy_mj": lambda nvml, gpu: int(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)),
    "sm_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
    "memory_mhz": lambda nvml, gpu: int(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
    "celsius": lambda nvml, gpu: int(
        nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
    "throttle_reasons": _reasons,
    "gpu_percent": lambda nvml, gpu: int(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
    "memory_percent": lambda nvml, gpu: int(nvml.nvmlDeviceGetUtilizationRates(gpu).memory),
    "memory_used_bytes": lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used),
    "nvlink_sent_bytes": _nvml_field("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", _KIB, _ALL_LINKS),
    "nvlink_received_bytes": _nvml_field("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", _KIB, _ALL_LINKS),
    "pcie_sent_bytes": _nvml_field("NVML_FI_DEV_PCIE_COUNT_TX_BYTES"),
    "pcie_received_bytes": _nvml_field("NVML_FI_DEV_PCIE_COUNT_RX_BYTES"),
    "ecc_corrected": _ecc("CORRECTED"),
    "ecc_uncorrected": _ecc("UNCORRECTED"),
}
"""Column -> the call for it. PCIe rates of older GPUs are not read: each takes 20 ms."""
XID = "xid"
NVML_COLUMNS = (*NVML_CALLS, XID)
_ALSO_OF_THE_WHOLE = frozenset({"power_mw", "sm_mhz", "memory_mhz", "celsius", "throttle_reasons"})
"""Columns that a MIG device shares with its GPU. Not counters and use: other MIG devices have a
part in them, and sums over ranks would count them several times."""


@dataclass(frozen=True, slots=True)
class NvmlRefusals:
    """Findings of the probe's child: why NVML must not be called at all, and refused columns."""

    lost: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


class GpuReadings:
    """The columns of one GPU, or of a MIG device. Raises NVMLError if NVML does not know it."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._gpu = find_gpu(nvml, uuid)
        self._events: Any = None
        self._xid = 0
        whole = self._gpu.whole
        self.name = uuid if whole is None else (
            f"{uuid} of {nvml_value(nvml, 'nvmlDeviceGetUUID', whole)}")

    def read(self, column: str) -> int:
        """Return the value of a column. Raises one of `refusing`."""
        if column == XID:
            return self._last_xid(self._gpu.handles[-1])
        call = NVML_CALLS[column]
        if self._gpu.whole is None or column not in _ALSO_OF_THE_WHOLE:
            return call(self._nvml, self._gpu.handle)
        try:
            return call(self._nvml, self._gpu.handle)
        except self._nvml.NVMLError:
            return call(self._nvml, self._gpu.whole)

    def _last_xid(self, gpu: Any) -> int:
        """Return the last XID of this GPU since the first reading."""
        nvml = self._nvml
        if self._events is None:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events
        try:
            self._xid = int(nvml.nvmlEventSetWait_v2(self._events, 0).eventData)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) != nvml.NVML_ERROR_TIMEOUT:
                raise
        return self._xid


def nvml_refusing(nvml: Any) -> tuple[type[Exception], ...]:
    """Return the errors of a call that this GPU, driver or pynvml does not have."""
    return (nvml.NVMLError, AttributeError, TypeError, ValueError, IndexError)


def nvml_refusals(nvml: Any, uuid: str) -> dict[str, str]:
    """Read each column once; return the refused ones and why. May crash or hang."""
    try:
        readings = GpuReadings(nvml, uuid)
    except nvml_refusing(nvml) as error:
        return {column: f"NVML does not know GPU {uuid}: {refusal(error)}"
                for column in NVML_COLUMNS}
    return _refused(NVML_COLUMNS, readings.read, nvml_refusing(nvml), refusal)


def _refused(
    columns: Iterable[str], read: Callable[[str], int], refusing: tuple[type[Exception], ...],
    explain: Callable[[Exception], str],
) -> dict[str, str]:
    refused = {}
    for column in columns:
        try:
            read(column)
        except refusing as error:
            refused[column] = explain(error)
    return refused


_MIB = 2**20
AmdCall = Callable[[Any, Any], int]
"""(amdsmi, GPU) -> the value of a column."""


def _power_mw(amdsmi: Any, gpu: Any) -> int:
    power = amdsmi.amdsmi_get_power_info(gpu)  # in W; which key is filled depends on the GPU
    known = [power.get(name) for name in ("average_socket_power", "current_socket_power")]
    return next(int(1000 * watts) for watts in known if isinstance(watts, (int, float)))


def _energy_mj(amdsmi: Any, gpu: Any) -> int:
    count = amdsmi.amdsmi_get_energy_count(gpu)  # the resolution is in microjoules
    return int(count["energy_accumulator"] * count["counter_resolution"] / 1000)


def _mhz(domain: str) -> AmdCall:
    def call(amdsmi: Any, gpu: Any) -> int:
        clock = amdsmi.amdsmi_get_clock_info(gpu, getattr(amdsmi.AmdSmiClkType, domain))
        return int(clock["clk"] if "clk" in clock else clock["cur_clk"])  # until ROCm 6.2
    return call


AMD_CALLS: Mapping[str, AmdCall] = {
    "power_mw": _power_mw,
    "energy_mj": _energy_mj,
    "sm_mhz": _mhz("GFX"),
    "memory_mhz": _mhz("MEM"),
    "celsius": lambda amdsmi, gpu: int(amdsmi.amdsmi_get_temp_metric(
        gpu, amdsmi.AmdSmiTemperatureType.JUNCTION, amdsmi.AmdSmiTemperatureMetric.CURRENT)),
    "gpu_percent": lambda amdsmi, gpu: int(amdsmi.amdsmi_get_gpu_activity(gpu)["gfx_activity"]),
    "memory_percent": lambda amdsmi, gpu: int(
        amdsmi.amdsmi_get_gpu_activity(gpu)["umc_activity"]),
    "memory_used_bytes": lambda amdsmi, gpu: _MIB * int(
        amdsmi.amdsmi_get_gpu_vram_usage(gpu)["vram_used"]),
}
"""Column -> the call for it; the other columns are NVML's."""
_LIBRARY = (AttributeError, TypeError, ValueError, KeyError, StopIteration)
"""Errors here by another version of amdsmi, or by "N/A" in place of a number."""


def amd_serial_of(uuid: str) -> str | None:
    """Return the serial number (hexadecimal) in torch's UUID for ROCm, or None.

    HIP's UUID has 16 bytes, the digits as characters; torch writes them as hexadecimal again."""
    try:
        text = bytes.fromhex(uuid.replace("-", "")).decode("ascii").lower()
        return f"{int(text, 16):x}"
    except (ValueError, UnicodeDecodeError):
        return None


def amdsmi_is_installed() -> bool:
    """Return whether there is a package amdsmi."""
    return importlib.util.find_spec("amdsmi") is not None


def opened_amd_gpu(uuid: str) -> tuple[Any, Any]:
    """Return amdsmi and its handle of the GPU, found by serial number. May crash or hang. Raises
    RuntimeError."""
    try:
        amdsmi: Any = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:  # its library, or where ROCm is
        raise RuntimeError(f"amdsmi cannot be loaded: {error}") from error
    serial = amd_serial_of(uuid)
    try:
        amdsmi.amdsmi_init()
        gpus = [gpu for gpu in amdsmi.amdsmi_get_processor_handles() if serial == (
            f"{int(amdsmi.amdsmi_get_gpu_asic_info(gpu)['asic_serial'], 16):x}")]
    except amd_refusing(amdsmi) as error:
        raise RuntimeError(f"amdsmi: {type(error).__name__}: {error}") from error
    if len(gpus) != 1:
        raise RuntimeError(f"amdsmi knows {len(gpus)} GPUs of the serial number {serial}")
    return amdsmi, gpus[0]


def amd_refusing(amdsmi: Any) -> tuple[type[Exception], ...]:
    """Return the errors of a call that this GPU or this amdsmi does not have."""
    return (amdsmi.AmdSmiException, *_LIBRARY)


def amd_refusals(uuid: str) -> dict[str, str]:
    """Read each column once; return the refused ones. May crash or hang. {} if the GPU is not
    found."""
    try:
        amdsmi, gpu = opened_amd_gpu(uuid)
    except RuntimeError:
        return {}
    return _refused(AMD_CALLS, lambda column: AMD_CALLS[column](amdsmi, gpu),
                    amd_refusing(amdsmi), amd_refusal)


def amd_refusal(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

"""What NVML tells of a GPU again and again: the columns of telemetry's table ``gpu``.

The probe's child tries each of them once (`refusals`): what is refused there is not asked for in a
supervisor, and nothing is where the child died.

What amdsmi tells of a GPU of AMD again and again. It has never run: there was no such GPU.

The probe's child tries each call once (`refusals`), as of NVML (`backends.gpu_readings`).

Functions, keys and units are those that torch 2.13 uses (torch/cuda/__init__.py), and of energy
those of amdsmi's documentation. A key that another version lacks, or "N/A", costs its column.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcbench.backends.gpus import asked, find_gpu, refusal

_KIB = 1024
_ALL_LINKS = 0xFFFFFFFF
"""The scope of a field for all links together (nvml.h)."""
_UNIONS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of nvmlValue_t by nvmlValueType_t (nvml.h)."""
NvmlCall = Callable[[Any, Any], int]
"""Of NVML and a GPU: the value of a column."""


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
_ALSO_OF_THE_WHOLE = frozenset({"power_mw", "sm_mhz", "memory_mhz", "celsius", "throttle_reasons"})
"""What a MIG device shares with its GPU, and what may be told of that for it.

Not what counts up, or is in use: other MIG devices have their part in it, and sums over ranks would
count it several times.
"""


@dataclass(frozen=True, slots=True)
class NvmlRefusals:
    """What the probe's child found: why NVML must not be asked at all, and refused columns."""

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
            f"{uuid} of {asked(nvml, 'nvmlDeviceGetUUID', whole)}")

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
    """Return what a call raises that this GPU, driver or pynvml does not have."""
    return (nvml.NVMLError, AttributeError, TypeError, ValueError, IndexError)


def nvml_refusals(nvml: Any, uuid: str) -> dict[str, str]:
    """Ask a GPU for each column once; return why those are refused that are. May crash or hang."""
    found: dict[str, str] = {}
    try:
        readings = GpuReadings(nvml, uuid)
    except nvml_refusing(nvml) as error:
        return {column: f"NVML does not know GPU {uuid}: {refusal(error)}"
                for column in (*NVML_CALLS, XID)}
    for column in (*NVML_CALLS, XID):
        try:
            readings.read(column)
        except nvml_refusing(nvml) as error:
            found[column] = refusal(error)
    return found


_MIB = 2**20
AmdCall = Callable[[Any, Any], int]
"""Of amdsmi and a GPU: the value of a column."""


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
"""What another version of amdsmi, or "N/A" in place of a number, raises here."""


def amd_serial_of(uuid: str) -> str | None:
    """Return the serial number, as hexadecimal digits, in a UUID of torch for ROCm; None if none.

    HIP's UUID has 16 bytes, the digits of the serial number as characters; torch writes these bytes
    as hexadecimal digits again.
    """
    try:
        text = bytes.fromhex(uuid.replace("-", "")).decode("ascii").lower()
        return f"{int(text, 16):x}"
    except (ValueError, UnicodeDecodeError):
        return None


def amdsmi_is_installed() -> bool:
    """Return whether there is a package amdsmi."""
    return importlib.util.find_spec("amdsmi") is not None


def opened_amd_gpu(uuid: str) -> tuple[Any, Any]:
    """Return amdsmi and its handle of the GPU, found by its serial number.

    May crash or hang. Raises RuntimeError with the reason.
    """
    try:
        amdsmi: Any = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:  # its library, or where ROCm is
        raise RuntimeError(f"amdsmi cannot be loaded: {error}") from error
    serial = amd_serial_of(uuid)
    try:
        amdsmi.amdsmi_init()
        known = [gpu for gpu in amdsmi.amdsmi_get_processor_handles() if serial == (
            f"{int(amdsmi.amdsmi_get_gpu_asic_info(gpu)['asic_serial'], 16):x}")]
    except amd_refusing(amdsmi) as error:
        raise RuntimeError(f"amdsmi: {type(error).__name__}: {error}") from error
    if len(known) != 1:
        raise RuntimeError(f"amdsmi knows {len(known)} GPUs of the serial number {serial}")
    return amdsmi, known[0]


def amd_refusing(amdsmi: Any) -> tuple[type[Exception], ...]:
    """Return what a call raises that this GPU or this amdsmi does not have."""
    return (amdsmi.AmdSmiException, *_LIBRARY)


def amd_refusals(uuid: str) -> dict[str, str]:
    """Ask a GPU for each column once; return why those are refused that are. May crash or hang.

    Of a GPU that cannot be found it is nothing: who asks for it later finds the same reason.
    """
    found: dict[str, str] = {}
    try:
        amdsmi, gpu = opened_amd_gpu(uuid)
    except RuntimeError:
        return found
    for column, call in AMD_CALLS.items():
        try:
            call(amdsmi, gpu)
        except amd_refusing(amdsmi) as error:
            found[column] = f"{type(error).__name__}: {error}"
    return found

"""What NVML tells of a GPU again and again: the columns of telemetry's table ``gpu``.

The probe's child tries each of them once (`refusals`): what is refused there is not asked for in a
supervisor, and nothing is where the child died.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcbench.backends.gpus import asked, find_gpu, refusal

_KIB = 1024
_ALL_LINKS = 0xFFFFFFFF
"""The scope of a field for all links together (nvml.h)."""
_UNIONS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of nvmlValue_t by nvmlValueType_t (nvml.h)."""
Call = Callable[[Any, Any], int]
"""Of NVML and a GPU: the value of a column."""


def _field(name: str, scale: int = 1, scope: int = 0) -> Call:
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


def _ecc(kind: str) -> Call:
    return lambda nvml, gpu: int(nvml.nvmlDeviceGetTotalEccErrors(
        gpu, getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), nvml.NVML_VOLATILE_ECC))


CALLS: Mapping[str, Call] = {
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
    "nvlink_sent_bytes": _field("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", _KIB, _ALL_LINKS),
    "nvlink_received_bytes": _field("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", _KIB, _ALL_LINKS),
    "pcie_sent_bytes": _field("NVML_FI_DEV_PCIE_COUNT_TX_BYTES"),
    "pcie_received_bytes": _field("NVML_FI_DEV_PCIE_COUNT_RX_BYTES"),
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
class Tried:
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
        call = CALLS[column]
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


def refusing(nvml: Any) -> tuple[type[Exception], ...]:
    """Return what a call raises that this GPU, driver or pynvml does not have."""
    return (nvml.NVMLError, AttributeError, TypeError, ValueError, IndexError)


def refusals(nvml: Any, uuid: str) -> dict[str, str]:
    """Ask a GPU for each column once; return why those are refused that are. May crash or hang."""
    found: dict[str, str] = {}
    try:
        readings = GpuReadings(nvml, uuid)
    except refusing(nvml) as error:
        return {column: f"NVML does not know GPU {uuid}: {refusal(error)}"
                for column in (*CALLS, XID)}
    for column in (*CALLS, XID):
        try:
            readings.read(column)
        except refusing(nvml) as error:
            found[column] = refusal(error)
    return found

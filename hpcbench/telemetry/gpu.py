"""What NVML tells of the rank's GPU: a call that hangs or is refused costs its column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcbench.telemetry.source import Source, UnreadableError, Values

_KIB = 1024
_ALL_LINKS = 0xFFFFFFFF
"""The scope of a field for all links together (nvml.h)."""
Call = Callable[[Any, Any], int]
"""Of NVML and a GPU: the value of a column."""


def _field(name: str, scale: int = 1, scope: int = 0) -> Call:
    def call(nvml: Any, gpu: Any) -> int:
        (value,) = nvml.nvmlDeviceGetFieldValues(gpu, [(getattr(nvml, name), scope)])
        if value.nvmlReturn:
            raise UnreadableError(f"{name}: NVML error {value.nvmlReturn}")
        return int(value.value.ullVal) * scale
    return call


def _reasons(nvml: Any, gpu: Any) -> int:
    """Ask by the name of today, or of older drivers and pynvml."""
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return int((ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(gpu))


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


class GpuSource(Source):
    """One GPU, by its UUID. ``load`` gives NVML, initialised, or says why it cannot.

    NVML is loaded by the first reading, in the thread that reads, because that may hang as well.
    """

    table = "gpu"

    def __init__(self, uuid: str, load: Callable[[], Any]) -> None:
        super().__init__()
        self.devices = [uuid]
        self._load = load
        self._nvml: Any = None
        self._gpu: Any = None
        self._events: Any = None
        self._xid = 0

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        """Yield what the GPU tells; a column that it refuses once is not asked for again."""
        if self._gpu is None:
            at("")
            self._open()
        values: dict[str, int] = {}
        for column, call in {**CALLS, XID: self._last_xid}.items():
            if column in self.missing:
                continue
            at(column)
            try:
                values[column] = call(self._nvml, self._gpu)
            except (self._nvml.NVMLError, AttributeError, UnreadableError, TypeError) as error:
                self.missing.setdefault(column, _said(error))
        if not values:
            raise UnreadableError("NVML tells nothing of this GPU")
        yield 0, values

    def drop(self, column: str, why: str) -> bool:
        """Ask for a column no more."""
        self.missing[column] = why
        return bool(column)

    def _open(self) -> None:
        nvml = self._load()
        try:
            gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{self.devices[0].removeprefix('GPU-')}")
        except nvml.NVMLError as error:
            raise UnreadableError(f"NVML does not know GPU {self.devices[0]}: {error}") from error
        self._nvml, self._gpu = nvml, gpu

    def _last_xid(self, nvml: Any, gpu: Any) -> int:
        """Return the last XID of this GPU since the first reading."""
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


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__

"""What amdsmi tells of the rank's GPU of AMD. It has never run: there was no such GPU.

Functions, keys and units are those that torch 2.13 uses (torch/cuda/__init__.py), and of energy
those of amdsmi's documentation. A key that another version lacks, or "N/A", costs its column.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcbench.telemetry.source import Source, UnreadableError, Values
from hpcbench.trace.telemetry import TABLES

_MIB = 2**20
Call = Callable[[Any, Any], int]
"""Of amdsmi and a GPU: the value of a column."""


def _power_mw(amdsmi: Any, gpu: Any) -> int:
    power = amdsmi.amdsmi_get_power_info(gpu)  # in W; which key is filled depends on the GPU
    known = [power.get(name) for name in ("average_socket_power", "current_socket_power")]
    return next(int(1000 * watts) for watts in known if isinstance(watts, (int, float)))


def _energy_mj(amdsmi: Any, gpu: Any) -> int:
    count = amdsmi.amdsmi_get_energy_count(gpu)  # the resolution is in microjoules
    return int(count["energy_accumulator"] * count["counter_resolution"] / 1000)


def _mhz(domain: str) -> Call:
    def call(amdsmi: Any, gpu: Any) -> int:
        clock = amdsmi.amdsmi_get_clock_info(gpu, getattr(amdsmi.AmdSmiClkType, domain))
        return int(clock["clk"] if "clk" in clock else clock["cur_clk"])  # until ROCm 6.2
    return call


CALLS: Mapping[str, Call] = {
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
_NOT_READ = "not read of AMD's GPUs"
_LIBRARY = (AttributeError, TypeError, ValueError, KeyError, StopIteration)
"""What another version of amdsmi, or "N/A" in place of a number, raises here."""


def serial_of(uuid: str) -> str | None:
    """Return the serial number, as hexadecimal digits, in a UUID of torch for ROCm; None if none.

    HIP's UUID has 16 bytes, the digits of the serial number as characters; torch writes these bytes
    as hexadecimal digits again.
    """
    try:
        text = bytes.fromhex(uuid.replace("-", "")).decode("ascii").lower()
        return f"{int(text, 16):x}"
    except (ValueError, UnicodeDecodeError):
        return None


class AmdGpuSource(Source):
    """One GPU, by the UUID that torch has of it. amdsmi is loaded in the thread that reads."""

    table = "gpu"

    def __init__(self, uuid: str) -> None:
        """Raises UnreadableError where amdsmi is not installed."""
        super().__init__()
        if importlib.util.find_spec("amdsmi") is None:
            raise UnreadableError("a GPU of AMD needs the Python package amdsmi (of ROCm), which "
                                  "is not installed")
        self.devices = [uuid]
        self.missing = {name: _NOT_READ for name in TABLES["gpu"].names if name not in CALLS}
        self._amdsmi: Any = None
        self._gpu: Any = None

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        """Yield what the GPU tells; a column that it refuses once is not asked for again."""
        if self._gpu is None:
            at("")
            self._open()
        values: dict[str, int] = {}
        for column, call in CALLS.items():
            if column in self.missing:
                continue
            at(column)
            try:
                values[column] = call(self._amdsmi, self._gpu)
            except (self._amdsmi.AmdSmiException, *_LIBRARY) as error:
                self.missing.setdefault(column, f"{type(error).__name__}: {error}")
        if not values:
            raise UnreadableError("amdsmi tells nothing of this GPU")
        yield 0, values

    def drop(self, column: str, why: str) -> bool:
        """Ask for a column no more."""
        self.missing[column] = why
        return bool(column)

    def _open(self) -> None:
        """Find the GPU by its serial number. Raises UnreadableError."""
        try:
            amdsmi: Any = importlib.import_module("amdsmi")
        except (ImportError, OSError, KeyError) as error:  # its library, or where ROCm is
            raise UnreadableError(f"amdsmi cannot be loaded: {error}") from error
        serial = serial_of(self.devices[0])
        try:
            amdsmi.amdsmi_init()
            known = [gpu for gpu in amdsmi.amdsmi_get_processor_handles() if serial == (
                f"{int(amdsmi.amdsmi_get_gpu_asic_info(gpu)['asic_serial'], 16):x}")]
        except (amdsmi.AmdSmiException, *_LIBRARY) as error:
            raise UnreadableError(f"amdsmi: {type(error).__name__}: {error}") from error
        if len(known) != 1:
            raise UnreadableError(f"amdsmi knows {len(known)} GPUs of the serial number {serial}")
        self._amdsmi, self._gpu = amdsmi, known[0]

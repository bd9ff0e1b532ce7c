"""What amdsmi tells of a GPU of AMD again and again. It has never run: there was no such GPU.

The probe's child tries each call once (`refusals`), as of NVML (`backends.gpu_readings`).

Functions, keys and units are those that torch 2.13 uses (torch/cuda/__init__.py), and of energy
those of amdsmi's documentation. A key that another version lacks, or "N/A", costs its column.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

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


def is_installed() -> bool:
    """Return whether there is a package amdsmi."""
    return importlib.util.find_spec("amdsmi") is not None


def opened_gpu(uuid: str) -> tuple[Any, Any]:
    """Return amdsmi and its handle of the GPU, found by its serial number.

    May crash or hang. Raises RuntimeError with the reason.
    """
    try:
        amdsmi: Any = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:  # its library, or where ROCm is
        raise RuntimeError(f"amdsmi cannot be loaded: {error}") from error
    serial = serial_of(uuid)
    try:
        amdsmi.amdsmi_init()
        known = [gpu for gpu in amdsmi.amdsmi_get_processor_handles() if serial == (
            f"{int(amdsmi.amdsmi_get_gpu_asic_info(gpu)['asic_serial'], 16):x}")]
    except refusing(amdsmi) as error:
        raise RuntimeError(f"amdsmi: {type(error).__name__}: {error}") from error
    if len(known) != 1:
        raise RuntimeError(f"amdsmi knows {len(known)} GPUs of the serial number {serial}")
    return amdsmi, known[0]


def refusing(amdsmi: Any) -> tuple[type[Exception], ...]:
    """Return what a call raises that this GPU or this amdsmi does not have."""
    return (amdsmi.AmdSmiException, *_LIBRARY)


def refusals(uuid: str) -> dict[str, str]:
    """Ask a GPU for each column once; return why those are refused that are. May crash or hang.

    Of a GPU that cannot be found it is nothing: who asks for it later finds the same reason.
    """
    found: dict[str, str] = {}
    try:
        amdsmi, gpu = opened_gpu(uuid)
    except RuntimeError:
        return found
    for column, call in CALLS.items():
        try:
            call(amdsmi, gpu)
        except refusing(amdsmi) as error:
            found[column] = f"{type(error).__name__}: {error}"
    return found

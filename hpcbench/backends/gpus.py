"""What NVML tells of the visible GPUs: place, clocks, limits and modes, without using them."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_THROTTLE_REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal",
                     0x40: "hardware thermal", 0x80: "power brake"}
"""Bits of nvmlClocksEventReason* in nvml.h that slow a GPU down."""


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
        nvml.nvmlShutdown()


def load_nvml() -> Any:
    """Return pynvml with the driver's library loaded. Raises RuntimeError with the reason."""
    if importlib.util.find_spec("pynvml") is None:
        raise RuntimeError("NVML needs pynvml, which is not installed")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise RuntimeError(f"NVML cannot be loaded: {error}") from error
    return pynvml


def gpu_details(nvml: Any, uuids: Sequence[str]) -> list[dict[str, Any] | None]:
    """Return plain JSON values for each GPU, None for one that NVML does not know by its UUID.

    ``uuids`` are torch's, without NVML's prefix. Keys: ``pci``, ``numa_node``, ``max_mhz`` {sm,
    memory}, ``power_limit_w``, ``persistence``, ``compute_mode``, ``ecc``, ``mig``, ``pcie``
    {generation, width}, ``nvlinks`` (how many are up), ``now`` {sm_mhz, memory_mhz, celsius,
    throttled by}. What a GPU does not tell is None.
    """
    return [_detail(nvml, uuid) for uuid in uuids] if nvml else [None] * len(uuids)


def _detail(nvml: Any, uuid: str) -> dict[str, Any] | None:
    """Ask for each value by itself: what this GPU, driver or pynvml cannot tell is None."""
    def tell(what: str, *arguments: Any, read: Callable[[Any], Any] = _same) -> Any:
        try:
            return read(getattr(nvml, f"nvmlDeviceGet{what}")(*arguments))
        except (nvml.NVMLError, AttributeError, UnicodeDecodeError):  # pynvml decodes
            return None

    gpu = tell("HandleByUUID", f"GPU-{uuid.removeprefix('GPU-')}")
    if gpu is None or not uuid:
        return None
    clocks = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
    links = [tell("NvLinkState", gpu, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
    known_links = [up for up in links if up is not None]
    return {
        "pci": tell("PciInfo", gpu, read=lambda info: _text(info.busId)),
        "numa_node": tell("NumaNodeId", gpu),
        "power_limit_w": tell("EnforcedPowerLimit", gpu, read=lambda milliwatts: milliwatts / 1000),
        "persistence": tell("PersistenceMode", gpu, read=bool),
        "compute_mode": tell("ComputeMode", gpu),
        "ecc": tell("EccMode", gpu, read=lambda modes: bool(modes[0])),
        "mig": tell("MigMode", gpu, read=lambda modes: bool(modes[0])),
        "max_mhz": {name: tell("MaxClockInfo", gpu, clock) for name, clock in clocks.items()},
        "pcie": {"generation": tell("MaxPcieLinkGeneration", gpu),
                 "width": tell("MaxPcieLinkWidth", gpu)},
        "nvlinks": sum(map(bool, known_links)) if known_links else None,
        "now": {
            **{f"{name}_mhz": tell("ClockInfo", gpu, clock) for name, clock in clocks.items()},
            "celsius": tell("Temperature", gpu, nvml.NVML_TEMPERATURE_GPU),
            "throttled_by": tell("CurrentClocksThrottleReasons", gpu, read=lambda reasons: [
                word for bit, word in _THROTTLE_REASONS.items() if reasons & bit])},
    }


def _same(value: Any) -> Any:
    return value


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value

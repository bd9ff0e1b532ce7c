"""What NVML tells of the visible GPUs: place, clocks, limits and modes, without using them."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_THROTTLE_REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal",
                     0x40: "hardware thermal", 0x80: "power brake"}
"""Bits of nvmlClocksEventReason* in nvml.h that slow a GPU down."""


@contextlib.contextmanager
def opened_nvml() -> Iterator[Any]:
    """Give pynvml with the driver's library loaded, or None where there is neither or no GPU."""
    if importlib.util.find_spec("pynvml") is None:
        yield None
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def gpu_details(nvml: Any, uuids: Sequence[str]) -> list[dict[str, Any] | None]:
    """Return plain JSON values for each GPU, None for one that NVML does not know by its UUID.

    ``uuids`` are torch's, without NVML's prefix. Keys: ``pci``, ``numa_node``, ``max_mhz`` {sm,
    memory}, ``power_limit_w``, ``persistence``, ``compute_mode``, ``ecc``, ``mig``, ``pcie``
    {generation, width}, ``nvlinks`` (how many are up), ``now`` {sm_mhz, memory_mhz, celsius,
    throttled by}. What a GPU does not tell is None.
    """
    return [_detail(nvml, uuid) for uuid in uuids] if nvml else [None] * len(uuids)


def _detail(nvml: Any, uuid: str) -> dict[str, Any] | None:
    gpu = _query(nvml, lambda: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}"))
    if gpu is None or not uuid:
        return None
    queries: Mapping[str, Callable[[], Any]] = {
        "pci": lambda: _text(nvml.nvmlDeviceGetPciInfo(gpu).busId),
        "numa_node": lambda: nvml.nvmlDeviceGetNumaNodeId(gpu),
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
        "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(gpu)),
        "compute_mode": lambda: nvml.nvmlDeviceGetComputeMode(gpu),
        "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
    }
    return {
        **{name: _query(nvml, query) for name, query in queries.items()},
        "max_mhz": {
            "sm": _query(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            "memory": _query(
                nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM))},
        "pcie": {
            "generation": _query(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
            "width": _query(nvml, lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))},
        "nvlinks": _nvlinks(nvml, gpu),
        "now": _now(nvml, gpu),
    }


def _now(nvml: Any, gpu: Any) -> dict[str, Any]:
    reasons = _query(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))
    return {
        "sm_mhz": _query(nvml, lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
        "memory_mhz": _query(nvml, lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),
        "celsius": _query(
            nvml, lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
        "throttled_by": None if reasons is None else [
            word for bit, word in _THROTTLE_REASONS.items() if reasons & bit],
    }


def _nvlinks(nvml: Any, gpu: Any) -> int | None:
    """Return how many NVLinks are up, None where the GPU has none or does not say."""
    def state(link: int) -> Any:
        return _query(nvml, lambda: nvml.nvmlDeviceGetNvLinkState(gpu, link))

    known = [up for up in map(state, range(nvml.NVML_NVLINK_MAX_LINKS)) if up is not None]
    return sum(map(bool, known)) if known else None


def _query(nvml: Any, query: Callable[[], Any]) -> Any:
    """Return the answer, None where this GPU, driver or pynvml cannot give it."""
    try:
        return query()
    except (nvml.NVMLError, AttributeError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

"""Which sources a rank reads: all that it can, but those that are off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbench.backends.gpu_readings import Tried
from hpcbench.backends.gpus import load_nvml
from hpcbench.config.schema import Telemetry
from hpcbench.measure.portable import own_cores
from hpcbench.telemetry.amd import AmdGpuSource
from hpcbench.telemetry.gpu import GpuSource
from hpcbench.telemetry.node import CpuSource, EnergySource, FrequencySource, NetworkSource
from hpcbench.telemetry.process import ProcessSource
from hpcbench.telemetry.sampler import Sampler
from hpcbench.telemetry.source import Source, UnreadableError
from hpcbench.trace.telemetry import BY_NODE, TABLES


@dataclass(frozen=True, slots=True)
class Seams:
    """Where the machine is read: the root of /proc and /sys, and what gives NVML."""

    root: Path = Path("/")
    nvml: Callable[[], Any] = load_nvml


def open_sampler(
    wanted: Telemetry, *, local_rank: int, gpu_uuid: str | None, rocm: bool = False,
    tried: Tried | None = None, seams: Seams | None = None,
) -> Sampler:
    """Return the sampler of a rank; ``gpu_uuid`` is that of its GPU, None if it has none.

    ``rocm``: the GPU is one of AMD, which NVML does not know. ``tried`` is what came of asking NVML
    or amdsmi for this GPU in a process that may crash.
    """
    seams = seams or Seams()
    openers: Mapping[str, Callable[[], Source]] = {
        "process": lambda: ProcessSource(seams.root),
        "cpu": lambda: CpuSource(seams.root),
        "frequency": lambda: FrequencySource(seams.root, own_cores()),
        "energy": lambda: EnergySource(seams.root),
        "network": lambda: NetworkSource(seams.root),
        "gpu": lambda: (_amd_gpu(gpu_uuid, tried or Tried()) if rocm else
                        _gpu(gpu_uuid, tried or Tried(), seams.nvml))}
    found: dict[str, Source] = {}
    missing: dict[str, str] = {}
    for table, opener in openers.items():
        if TABLES[table].by == BY_NODE and local_rank:
            continue
        if {table, "all"} & {*wanted.without}:
            missing[table] = "not wanted (telemetry.without)"
            continue
        try:
            found[table] = opener()
        except (UnreadableError, OSError) as error:
            missing[table] = str(error)
    gpus = [found.pop("gpu")] if "gpu" in found else []
    return Sampler([[*found.values()], gpus], wanted.rate_hz, missing)


def _amd_gpu(uuid: str | None, tried: Tried) -> Source:
    if uuid is None:
        raise UnreadableError("torch gives the GPU no UUID")
    if tried.lost:
        raise UnreadableError(tried.lost)
    return AmdGpuSource(uuid, tried.refused)


def _gpu(uuid: str | None, tried: Tried, load: Callable[[], Any]) -> Source:
    if uuid is None:
        raise UnreadableError("this rank has no NVIDIA GPU")
    if tried.lost:  # what crashed or hung in the probe would take the supervisor along
        raise UnreadableError(tried.lost)

    def loaded() -> Any:
        try:
            return load()
        except RuntimeError as error:
            raise UnreadableError(str(error)) from error

    return GpuSource(uuid, loaded, tried.refused)

"""What NVML tells of the rank's GPU: a call that hangs or is refused costs its column.

What amdsmi tells of the rank's GPU of AMD. It has never run: there was no such GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcbench.backends.gpu_readings import (
    AMD_CALLS,
    NVML_CALLS,
    XID,
    GpuReadings,
    amd_refusing,
    amdsmi_is_installed,
    nvml_refusing,
    opened_amd_gpu,
)
from hpcbench.backends.gpus import refusal
from hpcbench.telemetry.sources import Source, UnreadableError, Values
from hpcbench.trace.telemetry import TABLES


class GpuSource(Source):
    """One GPU, by its UUID. ``load`` gives NVML, initialised, or says why it cannot.

    NVML is loaded by the first reading, in the thread that reads, because that may hang as well.
    Columns that are ``refused`` already are not asked for.
    """

    table = "gpu"

    def __init__(
        self, uuid: str, load: Callable[[], Any], refused: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.devices = [uuid]
        self.missing = dict(refused or {})
        self._load = load
        self._refusing: tuple[type[Exception], ...] = ()
        self._readings: GpuReadings | None = None

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        """Yield what the GPU tells; a column that it refuses once is not asked for again."""
        if self._readings is None:
            at("")
            self._readings = self._opened()
        values: dict[str, int] = {}
        for column in (*NVML_CALLS, XID):
            if column in self.missing:
                continue
            at(column)
            try:
                values[column] = self._readings.read(column)
            except self._refusing as error:
                self.missing.setdefault(column, refusal(error))
        if not values:
            raise UnreadableError("NVML tells nothing of this GPU")
        yield 0, values

    def drop(self, column: str, why: str) -> bool:
        """Ask for a column no more."""
        self.missing[column] = why
        return bool(column)

    def _opened(self) -> GpuReadings:
        nvml, (uuid,) = self._load(), self.devices
        self._refusing = nvml_refusing(nvml)
        try:
            readings = GpuReadings(nvml, uuid)
        except self._refusing as error:
            raise UnreadableError(f"NVML does not know GPU {uuid}: {refusal(error)}") from error
        self.devices = [readings.name]
        return readings


_NOT_READ = "not read of AMD's GPUs"


class AmdGpuSource(Source):
    """One GPU, by the UUID that torch has of it. amdsmi is loaded in the thread that reads."""

    table = "gpu"

    def __init__(self, uuid: str, refused: Mapping[str, str] | None = None) -> None:
        """Columns that are ``refused`` already are not asked for.

        Raises UnreadableError where amdsmi is not installed.
        """
        super().__init__()
        if not amdsmi_is_installed():
            raise UnreadableError("a GPU of AMD needs the Python package amdsmi (of ROCm), which "
                                  "is not installed")
        self.devices = [uuid]
        self.missing = {**{name: _NOT_READ for name in TABLES["gpu"].names
                           if name not in AMD_CALLS},
                        **(refused or {})}
        self._amdsmi: Any = None
        self._gpu: Any = None

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        """Yield what the GPU tells; a column that it refuses once is not asked for again."""
        if self._gpu is None:
            at("")
            try:
                self._amdsmi, self._gpu = opened_amd_gpu(self.devices[0])
            except RuntimeError as error:
                raise UnreadableError(str(error)) from error
        values: dict[str, int] = {}
        for column, call in AMD_CALLS.items():
            if column in self.missing:
                continue
            at(column)
            try:
                values[column] = call(self._amdsmi, self._gpu)
            except amd_refusing(self._amdsmi) as error:
                self.missing.setdefault(column, f"{type(error).__name__}: {error}")
        if not values:
            raise UnreadableError("amdsmi tells nothing of this GPU")
        yield 0, values

    def drop(self, column: str, why: str) -> bool:
        """Ask for a column no more."""
        self.missing[column] = why
        return bool(column)

"""What NVML tells of the rank's GPU: a call that hangs or is refused costs its column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcbench.backends.gpu_readings import CALLS, XID, GpuReadings, refusing
from hpcbench.backends.gpus import refusal
from hpcbench.telemetry.source import Source, UnreadableError, Values


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
        for column in (*CALLS, XID):
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
        self._refusing = refusing(nvml)
        try:
            readings = GpuReadings(nvml, uuid)
        except self._refusing as error:
            raise UnreadableError(f"NVML does not know GPU {uuid}: {refusal(error)}") from error
        self.devices = [readings.name]
        return readings

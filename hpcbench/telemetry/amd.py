"""What amdsmi tells of the rank's GPU of AMD. It has never run: there was no such GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcbench.backends.amd_readings import CALLS, is_installed, opened_gpu, refusing
from hpcbench.telemetry.source import Source, UnreadableError, Values
from hpcbench.trace.telemetry import TABLES

_NOT_READ = "not read of AMD's GPUs"


class AmdGpuSource(Source):
    """One GPU, by the UUID that torch has of it. amdsmi is loaded in the thread that reads."""

    table = "gpu"

    def __init__(self, uuid: str, refused: Mapping[str, str] | None = None) -> None:
        """Columns that are ``refused`` already are not asked for.

        Raises UnreadableError where amdsmi is not installed.
        """
        super().__init__()
        if not is_installed():
            raise UnreadableError("a GPU of AMD needs the Python package amdsmi (of ROCm), which "
                                  "is not installed")
        self.devices = [uuid]
        self.missing = {**{name: _NOT_READ for name in TABLES["gpu"].names if name not in CALLS},
                        **(refused or {})}
        self._amdsmi: Any = None
        self._gpu: Any = None

    def read(self, at: Callable[[str], None]) -> Iterator[tuple[int, Values]]:
        """Yield what the GPU tells; a column that it refuses once is not asked for again."""
        if self._gpu is None:
            at("")
            try:
                self._amdsmi, self._gpu = opened_gpu(self.devices[0])
            except RuntimeError as error:
                raise UnreadableError(str(error)) from error
        values: dict[str, int] = {}
        for column, call in CALLS.items():
            if column in self.missing:
                continue
            at(column)
            try:
                values[column] = call(self._amdsmi, self._gpu)
            except refusing(self._amdsmi) as error:
                self.missing.setdefault(column, f"{type(error).__name__}: {error}")
        if not values:
            raise UnreadableError("amdsmi tells nothing of this GPU")
        yield 0, values

    def drop(self, column: str, why: str) -> bool:
        """Ask for a column no more."""
        self.missing[column] = why
        return bool(column)

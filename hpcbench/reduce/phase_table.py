"""Phases of training steps in ``results.h5``: one packed column, and where each case lies in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.trace.columns import GrowingColumn, read_lines, write_text

VALUES, POSITIONS = "phases/ns", "cases/phases"
Values = npt.NDArray[np.int64]
NOWHERE: Mapping[str, Any] = {"names": [], "offset": 0}


class PhaseTable:
    """The column while it is written; nothing of it is in the file of a run without phases."""

    def __init__(self, file: h5py.File, chunk_rows: int) -> None:
        """Write into ``file``, packed in chunks of ``chunk_rows`` values."""
        self._file = file
        self._chunk_rows = chunk_rows
        self._column: GrowingColumn | None = None
        self._positions: dict[str, dict[str, Any]] = {}

    def add(
        self, case_id: str, phases: Mapping[str, Values]
    ) -> Iterator[tuple[GrowingColumn, Values]]:
        """Yield what is to be taken in, in this order, of a case's (rank, sample) durations."""
        if not phases:
            return
        column = self._column = self._column or GrowingColumn(
            self._file, VALUES, "ns", chunk_rows=self._chunk_rows)
        self._positions[case_id] = {"names": [*phases], "offset": column.rows}
        yield from ((column, values.ravel()) for values in phases.values())

    def finish(self, case_ids: Iterable[str]) -> None:
        """Write what is left, and the positions of the cases in their order."""
        if self._column is not None:
            self._column.finish()
            write_text(self._file, POSITIONS, [
                json.dumps(self._positions.get(case_id)) for case_id in case_ids])


def read_positions(file: h5py.File, case_ids: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return where the phases of each case lie; nothing of runs without any."""
    if VALUES not in file:
        return {}
    lines = zip(case_ids, read_lines(file, POSITIONS), strict=True)
    return {case_id: json.loads(line) or NOWHERE for case_id, line in lines}


def read_phases(
    file: h5py.File, position: Mapping[str, Any], shape: tuple[int, int]
) -> dict[str, Values]:
    """Return each phase of a case, (rank, sample)."""
    size = shape[0] * shape[1]
    firsts = range(position["offset"], position["offset"] + len(position["names"]) * size, size)
    return {name: file[VALUES][first:first + size].reshape(shape)
            for name, first in zip(position["names"], firsts, strict=True)}

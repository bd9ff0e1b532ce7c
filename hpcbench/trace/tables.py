"""The tables ``/cases`` (a row per record, all of it but its samples) and ``/clock``."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.texts import from_json
from hpcbench.trace.clock import ClockModel, SyncRecord
from hpcbench.trace.columns import (
    lines_of,
    text_column,
    texts_of,
    write_column,
    write_json,
)
from hpcbench.trace.datasets import Datasets
from hpcbench.trace.schema import Record
from hpcbench.trace.source import SINCE_2, phase_names
from hpcbench.units import grouped

_TEXT_FIELDS = ("case_id", "status", "mode", "device", "stop_reason")
_INTEGER_FIELDS = ("pass_index", "launch", "attempt", "blamed_rank", "begin_ns", "end_ns",
                   "n_wrong", "position", "communicator_ns")
_RANGE = ("sample_offset", "sample_count")

_CLOCK_FLOATS = frozenset({"slope", "bound_ns", "slope_bound", "residual_ns", "check_error_ns",
                           "check_bound_ns"})
_ALL_FIELDS = frozenset((*_TEXT_FIELDS, *_INTEGER_FIELDS, *_RANGE))

Known = dict[tuple[str, str, str, bytes], Any]
"""What was made of columns, by what it is, and their name, their length and stored bytes."""


def write_cases(file: h5py.File, records: Sequence[Record]) -> None:
    """Write the table of these records, whose samples follow one another in ``/samples``."""
    for name in _TEXT_FIELDS:
        write_column(file, f"cases/{name}", text_column(getattr(item, name) for item in records))
    for name in _INTEGER_FIELDS:
        values = np.array([getattr(item, name) for item in records], dtype=np.int64)
        write_column(file, f"cases/{name}", values)
    counts = np.array([len(item.samples) for item in records], dtype=np.int64)
    write_column(file, "cases/sample_offset", np.cumsum(counts) - counts)
    write_column(file, "cases/sample_count", counts)
    write_json(file, "cases/detail", (
        {"reason": item.reason, "detail": item.detail, **phase_names(item)} for item in records))


@dataclass(frozen=True, slots=True)
class CaseTable:
    """The table as read, by columns, and the rows of each case.

    Ranks that recorded the same share it: as a rule a table has only its times for itself.
    """

    texts: Mapping[str, Sequence[str]]
    integers: Mapping[str, npt.NDArray[np.int64]]
    details: Sequence[Mapping[str, Any]]
    rows_of: Mapping[str, Sequence[int]]

    def rows(self, case_ids: Collection[str] | None) -> list[int]:
        """Return the rows of these cases (None: of all) in the order they were written."""
        if case_ids is None:
            return [*range(len(self.details))]
        return sorted(row for case_id in case_ids for row in self.rows_of.get(case_id, ()))

    def sample_ranges(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Return where the samples of each row lie: the first one, and how many."""
        return [*zip(*self._integers(_RANGE, rows), strict=True)]

    def phase_ranges(self, rows: Sequence[int]) -> list[tuple[int, int, list[str]]]:
        """Return where the phases of each row lie: the first value, of how many samples, names."""
        names = [detail.get("phases", []) for detail in self.details]
        counts = self.integers["sample_count"]
        sizes = counts * np.array([*map(len, names)], dtype=np.int64)
        offsets = np.cumsum(sizes) - sizes
        return [(int(offsets[row]), int(counts[row]), names[row]) for row in rows]

    def values(self, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield each row's values by the names of the record's fields, but samples and phases."""
        columns: list[Sequence[Any]] = [
            [column[row] for row in rows] for column in self.texts.values()]
        integers = [name for name in self.integers if name not in _RANGE]
        columns += self._integers(integers, rows)
        names = (*self.texts, *integers)
        for row, values in zip(rows, zip(*columns, strict=True), strict=True):
            detail = self.details[row]
            yield {**dict(zip(names, values, strict=True)),
                   "reason": detail["reason"], "detail": detail["detail"]}

    def _integers(self, names: Iterable[str], rows: Sequence[int]) -> list[list[int]]:
        at = np.array(rows, dtype=np.intp)
        return [self.integers[name][at].tolist() for name in names]


def read_cases(datasets: Datasets, known: Known) -> CaseTable:
    """Read the table; what ``known`` holds already is not made anew.

    Raises KeyError, TypeError or ValueError if it is none.
    """
    def made(make: Callable[[npt.NDArray[Any]], Any], name: str) -> Any:
        stored = datasets.stored(f"cases/{name}")
        key = (make.__name__, name, *stored)
        if key not in known:
            known[key] = make(datasets.column(f"cases/{name}"))
        return known[key]

    held = frozenset(name.removeprefix("cases/") for name in datasets.names) | (
        _ALL_FIELDS - SINCE_2)
    table = CaseTable(
        texts={name: made(texts_of, name) for name in _TEXT_FIELDS if name in held},
        integers={name: made(_integers, name) for name in (*_INTEGER_FIELDS, *_RANGE)
                  if name in held},
        details=made(_details, "detail"), rows_of=made(_rows_of, "case_id"))
    lengths = {*map(len, table.texts.values()), *map(len, table.integers.values())}
    if lengths != {len(table.details)}:
        raise ValueError("the columns of /cases differ in length")
    if any((table.integers[name] < 0).any() for name in _RANGE):
        raise ValueError("samples that lie nowhere")
    return table


def _integers(column: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return column.astype(np.int64, casting="safe")


def _details(column: npt.NDArray[Any]) -> list[Mapping[str, Any]]:
    lines = lines_of(column)
    values = {line: dict(from_json(line)) for line in set(lines)}
    return [values[line] for line in lines]


def _rows_of(column: npt.NDArray[Any]) -> Mapping[str, Sequence[int]]:
    return grouped((case_id, row) for row, case_id in enumerate(texts_of(column)))


def write_clocks(file: h5py.File, rows: Sequence[tuple[int, SyncRecord]]) -> None:
    """Write ``/clock``, a row for each (rank, synchronisation), for tools that read no notes.

    Columns: rank, identity, n_clocks, local_ns and realtime_ns; the fields of the model; error and
    bound of the check, NaN where there was none.
    """
    records = [record for _, record in rows]
    columns = {"rank": [rank for rank, _ in rows],
               **{name: [getattr(record, name) for record in records]
                  for name in ("n_clocks", "local_ns", "realtime_ns")},
               **{item.name: [getattr(record.model, item.name) for record in records]
                  for item in fields(ClockModel)},
               **{f"check_{name}": [getattr(record.check, name, math.nan) for record in records]
                  for name in ("error_ns", "bound_ns")}}
    write_column(file, "clock/identity", text_column(record.identity for record in records))
    for name, values in columns.items():
        dtype = np.float64 if name in _CLOCK_FLOATS else np.int64
        write_column(file, f"clock/{name}", np.array(values, dtype=dtype))

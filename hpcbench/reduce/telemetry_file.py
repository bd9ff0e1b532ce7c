"""The group ``/telemetry`` of results.h5: readings of all ranks, on the global clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import h5py
import numpy as np

from hpcbench.reduce.clocks import RankClocks
from hpcbench.reduce.courses import Course
from hpcbench.reduce.usage import RankTold
from hpcbench.trace import telemetry
from hpcbench.trace.clock import to_global
from hpcbench.trace.columns import GrowingColumn, read_column, read_lines, write_json
from hpcbench.trace.described import LINES, PURE, Contents, Described
from hpcbench.trace.source import TraceSource, told_of
from hpcbench.trace.telemetry import GROUP, KEYS, NOT_READ, TABLES, Rows
from hpcbench.trace.typed import from_text

_CHUNK_ROWS = 4096
_OWN = ("rank", "attempt")
_SOURCES = f"{GROUP}/sources"
CONTENTS: Contents = {
    **telemetry.contents({
        "rank": Described("rank that read it", PURE),
        "attempt": Described("attempt at the run, from 0; each has a global clock of its own",
                             PURE)}, "the global clock; -1 if the rank's is not known"),
    _SOURCES: Described("a line for each rank and attempt: rate_hz, devices of each table in the "
                        "order of their numbers, and missing: why a table or TABLE.COLUMN was not "
                        "read", LINES)}


class TelemetryWriter:
    """Writes the readings of one rank after another."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._columns: dict[str, GrowingColumn] = {}
        self.told: list[RankTold] = []

    def add(
        self, source: TraceSource, tables: Mapping[str, Rows], attempt: int, clocks: RankClocks,
    ) -> None:
        """Append what one rank read in one attempt."""
        if (told := told_of(source)) is not None:
            self.told.append(RankTold(source.header.rank, attempt, **asdict(told)))
        for table, rows in tables.items():
            self._append(table, rows, {
                "rank": source.header.rank, "attempt": attempt,
                "time_ns": _global_ns(rows[:, 0], source.header.rank, clocks)})

    def _append(self, table: str, rows: Rows, own: Mapping[str, int | Rows]) -> None:
        columns = {name: rows[:, at] for at, name in enumerate((*KEYS, *TABLES[table].names))}
        for name, values in {**columns, **own}.items():
            path = f"{GROUP}/{table}/{name}"
            if path not in self._columns:
                self._columns[path] = GrowingColumn(self._file, path, chunk_rows=_CHUNK_ROWS)
            self._columns[path].add(
                np.ascontiguousarray(np.broadcast_to(values, len(rows)), dtype=np.int64))

    def finish(self) -> None:
        """Write what is left, and what each rank told."""
        for column in self._columns.values():
            column.finish()
        if self.told:
            write_json(self._file, _SOURCES, map(asdict, self.told))


def _global_ns(local_ns: Rows, rank: int, clocks: RankClocks) -> Rows:
    history = clocks.known.get(clocks.ids[rank])
    if clocks.n_clocks == 1:
        return local_ns
    return np.full_like(local_ns, NOT_READ) if history is None else to_global(
        history.models, local_ns)


def read_told(file: h5py.File) -> tuple[RankTold, ...]:
    """Return what ranks told, nothing of a file without."""
    lines: Sequence[str] = read_lines(file, _SOURCES) if _SOURCES in file else ()
    return tuple(from_text(RankTold, line) for line in lines)


def courses(
    file: h5py.File, told: Sequence[RankTold], table: str, column: str,
) -> Iterator[Course]:
    """Yield a column of the newest attempt by rank and device; nothing where it was not read."""
    at = f"{GROUP}/{table}"
    if at not in file:
        return
    data = {name: read_column(file, f"{at}/{name}")
            for name in (*_OWN, *KEYS, column)}
    newest = data["attempt"].max()
    chosen = np.flatnonzero((data["attempt"] == newest) & (data[column] != NOT_READ)
                            & (data["time_ns"] != NOT_READ))
    chosen = chosen[np.lexsort((data["device"][chosen], data["rank"][chosen]))]
    data = {name: values[chosen] for name, values in data.items()}
    ranks = data["rank"]
    for one in told:
        if one.attempt != newest:
            continue
        of_rank = slice(*np.searchsorted(ranks, [one.rank, one.rank + 1]))
        devices = data["device"][of_rank]
        for number, device in enumerate(one.devices.get(table, ())):
            first, end = of_rank.start + np.searchsorted(devices, [number, number + 1])
            if first < end:
                yield Course(one.rank, device, data["time_ns"][first:end], data[column][first:end])

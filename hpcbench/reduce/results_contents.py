"""The group ``/telemetry`` of results.h5: readings of all ranks, on the global clock.

What each group, dataset, attribute and number of results.h5 is (docs/results-file.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

import h5py
import numpy as np

from hpcbench.reduce.case_columns import COLUMNS, KindColumns
from hpcbench.reduce.fold import RankClocks
from hpcbench.reduce.results import Course, RankTold
from hpcbench.reduce.stack import Use
from hpcbench.reduce.topology import CONTENTS as TOPOLOGY
from hpcbench.trace import telemetry
from hpcbench.trace.clock import to_global
from hpcbench.trace.columns import (
    LINES,
    PURE,
    ROOT,
    Contents,
    Described,
    GrowingColumn,
    read_column,
    read_lines,
    write_json,
)
from hpcbench.trace.contents import CLOCKS, STAMPS
from hpcbench.trace.schema import from_text
from hpcbench.trace.source import TraceSource, told_of
from hpcbench.trace.telemetry import GROUP, KEYS, NOT_READ, TABLES, Rows

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


MEANING: Mapping[Use, str] = {
    Use.COUNTED: "in the statistics, without a flag of this kind",
    Use.COUNTED_RAMP: "in the statistics, as the number of iterations was given; before the steady "
                      "state",
    Use.COUNTED_SURPLUS: "in the statistics, as the number of iterations was given; more than the "
                         "shortest pass has",
    Use.WARMUP: "not in the statistics: a warm-up",
    Use.SINGLE: "not in the statistics: one call for its check",
    Use.RAMP: "not in the statistics: before the steady state",
    Use.SURPLUS: "not in the statistics: more than the shortest pass has",
    Use.CASE_NOT_OK: "not in the statistics: the case has none",
}
VALUES = tuple(f"{int(use)} {use.name.lower()}: {text}" for use, text in MEANING.items())
ATTRIBUTES: Mapping[str, str] = {
    "format": "hpcbench-results",
    "schema_version": "version of the layout of this file",
    "run_id": "id of the run",
    "plan_hash": "hash of the plan",
    "name": "name of the run, from the sweep file",
    "world_size": "number of ranks of the job",
    "faults": "faults that were injected on purpose; absent without any",
}
_CASES: Contents = {
    "cases": Described(
        "a row for each planned case, in the plan's order; where a case has no such value a text "
        "is empty, a whole number is -1 and any other number is NaN"),
    "cases/detail": Described(
        "a line for each row: reason, device, library (algorithm, protocol, channels, transport), "
        "memory by rank, detail: what ranks recorded beside their samples, and trace_missing: true "
        "if it failed only because a rank's trace is not there", LINES),
    "cases/timing": Described(
        "a line for each row: what is known of its timing beyond the columns, such as "
        "launch_medians_s, pass_medians_s and steps; null if it was not timed", LINES),
    "cases/usage": Described(
        "a line for each row: what it used of the machine; null where nothing was read around it; "
        "absent where nothing was to be read", LINES),
    "cases/phases": Described(
        "a line for each row: names of its phases and offset of the first value in /phases/ns; "
        "null if it has none", LINES),
}
_CONTENTS: Contents = {
    ROOT: Described("reduced results of one run; see docs/results-file.md"),
    "run": Described("one line: what identifies the run, versions, nodes and environment", LINES),
    "plan": Described("one line: the plan with the resolved configuration", LINES),
    "findings": Described("a line for each finding: code, scope and message; see docs/checks.md",
                          LINES),
    "canary": Described(
        "one line: the small case that was measured again and again; null without it", LINES),
    "clocks": Described("one line: how clocks were compared; null if nothing was recorded", LINES),
    **_CASES,
    "samples": Described("a row for each rank and sample; rank by rank within a case"),
    "samples/case": Described("row of the case in /cases", PURE),
    "samples/rank": Described("the rank", PURE),
    "samples/launch": Described("the launch, from 0", PURE),
    "samples/pass_index": Described("the pass within its launch, from 0", PURE),
    "samples/iteration": Described("number of the sample in its case on this rank, from 0", PURE),
    "samples/use": Described(
        "whether the sample is in the statistics, and if not why", PURE, values=VALUES),
    **STAMPS,
    "phases": Described(
        "phases of samples, such as those of a training step; absent where no case has any"),
    "phases/ns": Described(
        "of each case with phases one phase after another, each with a value for each of its "
        "samples, in their order: its duration, or of 'arrival N' the time from the step's begin "
        "to the last gradient of bucket N", "ns"),
    **CLOCKS,
    **TOPOLOGY,
    **CONTENTS,
    "derived": Described("what each kind computes from statistics and stamps"),
}


def contents(of_kinds: KindColumns, derived: Iterable[str]) -> Contents:
    """Return what is in a file with these columns, and with derived records of these kinds."""
    columns = {f"cases/{column.name}": Described(column.text, column.units)
               for column in (*COLUMNS, *of_kinds.columns)}
    records = {f"derived/{kind}": Described(
        f"a line for each case of kind {kind}, in the plan's order: its record in SI units; null "
        "without one. Attributes: record (type), fields (digest of its form), version (of the "
        "formulas)", LINES) for kind in derived}
    return {**_CONTENTS, **columns, **records}

"""The sealed trace of one rank: HDF5 in columns, one row per record and one per sample, since a
group a case would cost 1 kB and 0.5 ms. `CONTENTS` describes each part, in the file itself, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import STATUSES
from hpcbench.records import dataclass
from hpcbench.texts import from_json, printable
from hpcbench.trace import columns as stored
from hpcbench.trace import container, schema, source
from hpcbench.trace.clock import ClockModel, SyncRecord
from hpcbench.trace.columns import LINES, PURE, ROOT, TEXT, Contents, Described, Rows
from hpcbench.trace.journal import read_journal
from hpcbench.units import grouped

MEANING: Mapping[schema.Flag, str] = {
    schema.Flag.WARMUP: "a warm-up; in no statistic",
    schema.Flag.CHECKED: "the result was compared with what must come out, outside the time",
    schema.Flag.LATE_START: "the rank was not ready at the agreed start (mode isolated); it counts",
    schema.Flag.SINGLE: "one call for its check among samples of several calls; in no statistic",
    schema.Flag.SETTLED:
        f"{schema.SETTLING_CALLS} unrecorded calls stand between a check and the sample",
}
BITS = tuple(f"{int(flag)} {(flag.name or '').lower()}: {text}" for flag, text in MEANING.items())
STAMPS: Contents = {
    "samples/start_ns": Described("begin of the sample on the rank's own monotonic clock", "ns"),
    "samples/end_ns": Described("end of the sample on the same clock", "ns"),
    "samples/enqueue_ns": Described(
        "time that the host took to issue the work to the device; -1 on a CPU", "ns"),
    "samples/device_ns": Described(
        "time between two events of the device around the work; -1 on a CPU", "ns"),
    "samples/flags": Described(
        "bits that are set for the sample, added up; 0 of none", PURE, bits=BITS),
}
"""The stamps in the table of samples, in traces and in results."""
SEALED: Contents = {container.SEAL: Described(
    "format, schema version, number of all bytes but these 512, CRC-32 of the lines before and of "
    "those bytes", TEXT)}
CLOCKS: Contents = {
    "clock": Described("a row for each rank and synchronisation of its clock with rank 0's"),
    "clock/rank": Described("the rank", PURE),
    "clock/identity": Described("which clock it reads: boot id and time namespace", TEXT),
    "clock/n_clocks": Described("number of different clocks in the job", PURE),
    "clock/local_ns": Described("when this row was recorded, on the rank's monotonic clock", "ns"),
    "clock/realtime_ns": Described("the same moment as time since 1970", "ns"),
    "clock/t_ref_ns": Described("local time of the last point of the fit", "ns"),
    "clock/slope": Described("local time gained per local time; 1e-6 is 1 ppm fast", "ns/ns"),
    "clock/offset_ns": Described("local minus global time at t_ref_ns", "ns"),
    "clock/bound_ns": Described("largest possible error of the offset at t_ref_ns", "ns"),
    "clock/slope_bound": Described("largest possible error of the slope", "ns/ns"),
    "clock/residual_ns": Described("median distance of the used points from the line", "ns"),
    "clock/parent": Described(
        "rank whose clock it was compared with; -1 of the global clock", PURE),
    "clock/n_used": Described("points of the fit", PURE),
    "clock/n_rejected": Described("points left out, with a wider bound than the median", PURE),
    "clock/check_error_ns": Described(
        "error that a check after the fit measured; NaN without a check", "ns"),
    "clock/check_bound_ns": Described(
        "largest possible error of the check; NaN without a check", "ns"),
}
ATTRIBUTES: Mapping[str, str] = {
    "format": "hpcbench-trace",
    "schema_version": "version of the layout of this file",
    "run_id": "id of the run, the same on all ranks",
    "plan_hash": "hash of the plan, the same on all ranks",
    "rank": "rank in the job, from 0",
    "world_size": "number of ranks of the job",
    "local_rank": "rank on its node, from 0",
    "hostname": "name of the node",
    "node": "what identifies the machine: ranks of one machine have the same",
    "pid": "process id of the supervisor",
    "recovered": "whether the rank never came to its end, or a part of its journal was lost",
}
CONTENTS: Contents = {
    ROOT: Described("what one rank recorded in one attempt at a run; see docs/results-file.md"),
    **SEALED,
    "header": Described("one line: who wrote the trace, as in the attributes, with versions of "
                        "libraries and the environment", LINES),
    "environment": Described(
        "one line: the environment of the header alone; see docs/telemetry.md", LINES),
    "plan": Described("one line: the plan, in the trace of rank 0 only", LINES),
    "notes": Described("a line for each event between the cases: kind and data", LINES),
    "damage": Described("a line for each part of the journal that could not be read", LINES),
    "cases": Described("a row for each record: a case in a pass of a launch"),
    "cases/case_id": Described("id of the case, as in the plan", TEXT),
    "cases/status": Described(f"how it ended: {', '.join(STATUSES)}", TEXT),
    "cases/mode": Described("timing mode: isolated, pipelined or barrier_start", TEXT),
    "cases/device": Described("where it ran: cpu, cuda:0; empty if it did not run", TEXT),
    "cases/stop_reason": Described(
        f"why it took no further sample: {', '.join(schema.STOP_REASONS)}; empty if it did not "
        "run", TEXT),
    "cases/pass_index": Described("the pass, from 0", PURE),
    "cases/launch": Described("the launch, from 0", PURE),
    "cases/attempt": Described("the attempt at the run, from 0", PURE),
    "cases/blamed_rank": Described("rank that a failure is put down to; -1 of none", PURE),
    "cases/begin_ns": Described("begin of the record on the rank's monotonic clock", "ns"),
    "cases/end_ns": Described("end of the record on the same clock", "ns"),
    "cases/n_wrong": Described(
        "wrong elements on this rank in the checked samples; -1 if none was checked", "elements"),
    "cases/position": Described(
        "cases that these workers had run before it in this pass; -1 if it did not run", PURE),
    "cases/communicator_ns": Described(
        "time to open the group under test; -1 where an earlier case had opened it", "ns"),
    "cases/sample_offset": Described("first row of its samples in /samples", "rows"),
    "cases/sample_count": Described("number of its rows in /samples", "rows"),
    "cases/detail": Described(
        "a line for each row: reason of a status other than ok, detail (first wrong element, "
        "stderr, stacks, memory), and phases, the names of its phases if it has any", LINES),
    "samples": Described("a row for each sample, in the order of /cases"),
    "samples/case": Described("row of the record in /cases", PURE),
    "samples/iteration": Described("number of the sample within its record, from 0", PURE),
    **STAMPS,
    "phases": Described(
        "phases of samples, such as those of a training step; absent where no record has any"),
    "phases/ns": Described(
        "of each record with phases, in the order of /cases, one phase after another, each with a "
        "value for each sample: its duration, or of 'arrival N' the time from the step's begin to "
        "the last gradient of bucket N", "ns"),
    **CLOCKS,
    **stored.contents({}, "the rank's own monotonic clock"),
}


_TEXT_FIELDS = ("case_id", "status", "mode", "device", "stop_reason")
_INTEGER_FIELDS = ("pass_index", "launch", "attempt", "blamed_rank", "begin_ns", "end_ns",
                   "n_wrong", "position", "communicator_ns")
_RANGE = ("sample_offset", "sample_count")

_CLOCK_FLOATS = frozenset({"slope", "bound_ns", "slope_bound", "residual_ns", "check_error_ns",
                           "check_bound_ns"})

Known = dict[tuple[str, str, str, bytes], Any]
"""Values made of columns, by their maker, and the column's name, length and stored bytes."""


def write_cases(file: h5py.File, records: Sequence[schema.Record]) -> None:
    for name in _TEXT_FIELDS:
        texts = stored.text_column(getattr(item, name) for item in records)
        stored.write_column(file, f"cases/{name}", texts)
    for name in _INTEGER_FIELDS:
        values = np.array([getattr(item, name) for item in records], dtype=np.int64)
        stored.write_column(file, f"cases/{name}", values)
    counts = np.array([len(item.samples) for item in records], dtype=np.int64)
    stored.write_column(file, "cases/sample_offset", np.cumsum(counts) - counts)
    stored.write_column(file, "cases/sample_count", counts)
    stored.write_json(file, "cases/detail", (
        {"reason": item.reason, "detail": item.detail, **source.phase_names(item)}
        for item in records))


@dataclass(frozen=True, slots=True)
class CaseTable:
    """The table as read, by columns, and the rows of each case; ranks share equal columns."""

    texts: Mapping[str, Sequence[str]]
    integers: Mapping[str, npt.NDArray[np.int64]]
    details: Sequence[Mapping[str, Any]]
    rows_of: Mapping[str, Sequence[int]]

    def rows(self, case_ids: Collection[str] | None) -> list[int]:
        if case_ids is None:
            return [*range(len(self.details))]
        return sorted(row for case_id in case_ids for row in self.rows_of.get(case_id, ()))

    def sample_ranges(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        return [*zip(*self._integers(_RANGE, rows), strict=True)]

    def phase_ranges(self, rows: Sequence[int]) -> list[tuple[int, int, list[str]]]:
        """Return (first value, samples, names) of each row."""
        names = [detail.get("phases", []) for detail in self.details]
        counts = self.integers["sample_count"]
        sizes = counts * np.array([*map(len, names)], dtype=np.int64)
        offsets = np.cumsum(sizes) - sizes
        return [(int(offsets[row]), int(counts[row]), names[row]) for row in rows]

    def values(self, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
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


def read_cases(file: h5py.File, known: Known) -> CaseTable:
    """Read the table, with columns in ``known`` shared. Raises KeyError, TypeError or
    ValueError."""
    def made(make: Callable[[npt.NDArray[Any]], Any], name: str) -> Any:
        key = (make.__name__, name, *stored.stored_bytes(file, f"cases/{name}"))
        if key not in known:
            known[key] = make(stored.read_column(file, f"cases/{name}"))
        return known[key]

    table = CaseTable(
        texts={name: made(stored.texts_of, name) for name in _TEXT_FIELDS},
        integers={name: made(_integers, name) for name in (*_INTEGER_FIELDS, *_RANGE)},
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
    lines = stored.lines_of(column)
    values = {line: dict(from_json(line)) for line in set(lines)}
    return [values[line] for line in lines]


def _rows_of(column: npt.NDArray[Any]) -> Mapping[str, Sequence[int]]:
    return grouped((case_id, row) for row, case_id in enumerate(stored.texts_of(column)))


def write_clocks(file: h5py.File, rows: Sequence[tuple[int, SyncRecord]]) -> None:
    """Write ``/clock``, a row for each (rank, synchronisation); check columns are NaN without a
    check."""
    records = [record for _, record in rows]
    columns = {"rank": [rank for rank, _ in rows],
               **{name: [getattr(record, name) for record in records]
                  for name in ("n_clocks", "local_ns", "realtime_ns")},
               **{item.name: [getattr(record.model, item.name) for record in records]
                  for item in fields(ClockModel)},
               **{f"check_{name}": [getattr(record.check, name, math.nan) for record in records]
                  for name in ("error_ns", "bound_ns")}}
    identities = stored.text_column(record.identity for record in records)
    stored.write_column(file, "clock/identity", identities)
    for name, values in columns.items():
        dtype = np.float64 if name in _CLOCK_FLOATS else np.int64
        stored.write_column(file, f"clock/{name}", np.array(values, dtype=dtype))


FORMAT = "hpcbench-trace"
_PHASES = "phases/ns"
_IDENTITY = ("run_id", "plan_hash", "rank", "world_size", "local_rank", "hostname", "node", "pid",
             "schema_version")


def trace_path(traces: Path, rank: int) -> Path:
    return traces / f"rank{rank:05d}.h5"


def seal(journal_path: Path, trace_path: Path) -> None:
    """Write a journal, whole or recovered, as a sealed trace; the journal stays. Raises
    UnreadableTrace without a header, FileError if the disk does not take it."""
    journal = read_journal(journal_path)
    records = list(journal.records())
    with container.new_container(trace_path, FORMAT, schema.SCHEMA_VERSION) as file:
        _write_identity(file, journal.header, recovered=source.was_cut_short(journal))
        if journal.plan is not None:
            stored.write_lines(file, "plan", [source.plan_to_text(journal.plan)])
        stored.write_json(file, "notes", map(asdict, journal.notes))
        stored.write_json(file, "damage", map(asdict, journal.damage))
        write_cases(file, records)
        _write_samples(file, records)
        if phases := [values for record in records for values in record.phases.values()]:
            stored.write_column(file, _PHASES, np.concatenate(phases))
        stored.write_tables(file, journal.telemetry())
        rank = journal.header.rank
        write_clocks(file, [(rank, record) for record in source.sync_records(journal)])
        stored.describe(file, CONTENTS, ATTRIBUTES)


def _write_identity(file: h5py.File, header: schema.Header, *, recovered: bool) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["recovered"] = recovered
    for name in _IDENTITY:
        value = getattr(header, name)
        file.attrs[name] = printable(value) if isinstance(value, str) else value  # HDF5: no NUL
    stored.write_json(file, "header", [source.header_to_json(header)])
    stored.write_json(file, "environment", [header.environment])


def _write_samples(file: h5py.File, records: Sequence[schema.Record]) -> None:
    counts = [len(item.samples) for item in records]
    iterations = [np.arange(count, dtype=np.int64) for count in counts]
    columns = {"case": np.repeat(np.arange(len(records), dtype=np.int64), counts),
               "iteration": np.concatenate([np.empty(0, np.int64), *iterations]),
               **{name: np.concatenate([np.empty(0, np.int64), *(
                   getattr(item.samples, name) for item in records)])
                  for name in schema.SAMPLE_COLUMNS}}
    for name, values in columns.items():
        stored.write_column(file, f"samples/{name}", values)


@dataclass(frozen=True, slots=True)
class SealedTrace(source.TraceSource):
    """A sealed trace after it was verified."""

    table: CaseTable
    sealed: ClassVar[bool] = True

    @property
    def case_ids(self) -> frozenset[str]:
        return frozenset(self.table.rows_of)

    def sample_counts(self) -> Mapping[str, int]:
        counts = self.table.integers["sample_count"]
        return {case_id: int(counts[rows].sum()) for case_id, rows in self.table.rows_of.items()}

    def records(
        self, case_ids: Collection[str] | None = None, *, samples: bool = True,
    ) -> Iterator[schema.Record]:
        rows = self.table.rows(case_ids)
        stamps = [schema.no_samples() for _ in rows]
        phases: list[schema.Phases] = [{} for _ in rows]
        if samples and rows:
            with container.open_container(self.path) as file, container.expected_content(self.path):
                stamps = [*_read_stamps(file, self.table.sample_ranges(rows))]
                phases = [*_read_phases(file, self.table.phase_ranges(rows))]
        with container.expected_content(self.path):
            records = [
                source.checked_record(schema.Record(**values, samples=of_samples, phases=of_phases))
                for values, of_samples, of_phases in zip(
                    self.table.values(rows), stamps, phases, strict=True)]
        yield from records

    def telemetry(self) -> Mapping[str, Rows]:
        with container.open_container(self.path) as file, container.expected_content(self.path):
            return stored.read_tables(file)


def open_trace(path: Path, known: Known | None = None) -> SealedTrace:
    """Check a sealed trace from end to end and return its reader. The same ``known`` for all ranks
    of a run shares their equal columns. Raises UnreadableTrace for a bad file."""
    container.verify(path, FORMAT, schema.SCHEMA_VERSION)
    with container.open_container(path) as file, container.expected_content(path):
        return SealedTrace(
            path=path,
            header=source.header_from_json(from_json(stored.read_text(file, "header")), path),
            plan=source.plan_from_text(stored.read_text(file, "plan"), path)
            if "plan" in file else None,
            notes=tuple(
                source.Note(**from_json(line)) for line in stored.read_lines(file, "notes")),
            damage=tuple(
                source.Damage(**from_json(line)) for line in stored.read_lines(file, "damage")),
            table=read_cases(file, {} if known is None else known))


def _read_stamps(
    file: h5py.File, ranges: Iterable[tuple[int, int]],
) -> Iterator[schema.SampleColumns]:
    for first, last, parts in _runs(ranges):
        columns = [stored.read_rows(file, f"samples/{name}", first, last - first)
                   for name in schema.SAMPLE_COLUMNS]
        for offset, count in parts:  # copies: a view would keep all of the run in memory
            yield schema.SampleColumns(*(
                column[offset - first:offset - first + count].copy() for column in columns))


def _read_phases(
    file: h5py.File, wanted: Iterable[tuple[int, int, list[str]]],
) -> Iterator[schema.Phases]:
    for first, count, names in wanted:
        if names:
            block = stored.read_rows(file, _PHASES, first, len(names) * count)
            yield dict(zip(names, block.reshape(len(names), count), strict=True))
        else:
            yield {}


def _runs(wanted: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Group (offset, count) pairs that follow one another into (first, last, pairs)."""
    runs: list[list[tuple[int, int]]] = []
    for offset, count in wanted:
        if runs and offset == sum(runs[-1][-1]):
            runs[-1].append((offset, count))
        else:
            runs.append([(offset, count)])
    for run in runs:
        yield run[0][0], sum(run[-1]), run

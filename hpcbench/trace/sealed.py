"""The sealed trace of one rank: HDF5 in columns, one row per record and one per sample.

Layout (schema version 2; every dataset of a quantity has an attribute ``unit``)
  attributes    format, schema_version, run_id, plan_hash, rank, world_size, local_rank, hostname,
                node, pid, recovered (the rank never came to its end, or a part was lost)
  /header       JSON: all of the header, with versions and environment
  /environment  JSON: the environment alone, for people with h5dump
  /plan         JSON: the plan (rank 0 only)
  /notes        JSON lines: kind, data
  /damage       JSON lines: what of the journal could not be read
  /cases        one row per record; detail: one JSON line per record (reason, detail)
  /samples      one row per sample, in the order of /cases
  /clock        this rank's clock models, one row per synchronisation (measure.clock.ClockModel)
  /clock_checks comparisons with rank 0's clock after them (measure.clock.ClockCheck)

Columns and not a group per case: a group costs about 1 kB and 0.5 ms per case.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.measure.clock import ClockCheck, ClockModel
from hpcbench.plan.case import Plan
from hpcbench.trace.clock_tables import write_clock_tables
from hpcbench.trace.columns import (
    CHUNK_ROWS,
    GrowingColumn,
    read_lines,
    read_text,
    text_column,
    texts_of,
    write_column,
    write_text,
)
from hpcbench.trace.container import expected_content, new_container, open_container, verify
from hpcbench.trace.journal import read_journal
from hpcbench.trace.schema import (
    SAMPLE_COLUMNS,
    SAMPLE_COLUMNS_1,
    SCHEMA_VERSION,
    Header,
    Record,
    no_samples,
    samples_of_version,
)
from hpcbench.trace.source import (
    Damage,
    Note,
    header_from_json,
    header_to_json,
    plan_from_text,
    plan_to_text,
    record_from_json,
    was_cut_short,
)

FORMAT = "hpcbench-trace"
_IDENTITY = ("run_id", "plan_hash", "rank", "world_size", "local_rank", "hostname", "node", "pid",
             "schema_version")
_TEXT_FIELDS_1 = ("case_id", "status", "mode", "device")
_TEXT_FIELDS = (*_TEXT_FIELDS_1, "stop_reason")
_INTEGER_FIELDS_1 = {"pass_index": "", "launch": "", "attempt": "", "blamed_rank": "",
                     "begin_ns": "ns", "end_ns": "ns", "n_wrong": "elements"}
_INTEGER_FIELDS = {**_INTEGER_FIELDS_1, "position": "", "communicator_ns": "ns"}
_SAMPLE_UNITS = {"start_ns": "ns", "end_ns": "ns", "enqueue_ns": "ns", "device_ns": "ns",
                 "flags": ""}


def trace_path(traces: Path, rank: int) -> Path:
    """Return where a rank's sealed trace lies in the folder of traces."""
    return traces / f"rank{rank:05d}.h5"


def seal(journal_path: Path, trace_path: Path) -> None:
    """Write a journal, whole or recovered, as a sealed trace; the journal stays.

    Raises UnreadableTrace if the journal has no header, FileError if the disk does not take it.
    """
    journal = read_journal(journal_path)
    records = list(journal.records())
    with new_container(trace_path, FORMAT, SCHEMA_VERSION) as file:
        _write_identity(file, journal.header, recovered=was_cut_short(journal))
        if journal.plan is not None:
            write_text(file, "plan", [plan_to_text(journal.plan)])
        write_text(file, "notes", [json.dumps(asdict(note)) for note in journal.notes])
        write_text(file, "damage", [json.dumps(asdict(item)) for item in journal.damage])
        _write_cases(file, records)
        _write_samples(file, records)
        _write_clocks(file, journal.header.rank, journal.notes)


def _write_identity(file: h5py.File, header: Header, *, recovered: bool) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["recovered"] = recovered
    for name in _IDENTITY:
        file.attrs[name] = getattr(header, name)
    write_text(file, "header", [json.dumps(header_to_json(header))])
    write_text(file, "environment", [json.dumps(header.environment)])


def _write_cases(file: h5py.File, records: Sequence[Record]) -> None:
    for name in _TEXT_FIELDS:
        write_column(file, f"cases/{name}", text_column(getattr(item, name) for item in records))
    for name, unit in _INTEGER_FIELDS.items():
        values = np.array([getattr(item, name) for item in records], dtype=np.int64)
        write_column(file, f"cases/{name}", values, unit)
    counts = np.array([len(item.samples) for item in records], dtype=np.int64)
    write_column(file, "cases/sample_offset", np.cumsum(counts) - counts, "rows")
    write_column(file, "cases/sample_count", counts, "rows")
    lines = [json.dumps({"reason": item.reason, "detail": item.detail}) for item in records]
    write_text(file, "cases/detail", lines)


def _write_samples(file: h5py.File, records: Sequence[Record]) -> None:
    counts = [len(item.samples) for item in records]
    iterations = [np.arange(count, dtype=np.int64) for count in counts]
    rows = np.concatenate([no_samples(), *(item.samples for item in records)])
    columns = {"case": np.repeat(np.arange(len(records), dtype=np.int64), counts),
               "iteration": np.concatenate([np.empty(0, np.int64), *iterations]),
               **{name: rows[:, index] for index, name in enumerate(SAMPLE_COLUMNS)}}
    for name, values in columns.items():
        unit = _SAMPLE_UNITS.get(name, "")
        column = GrowingColumn(file, f"samples/{name}", unit, chunk_rows=CHUNK_ROWS)
        column.append(values)
        column.finish()


def _write_clocks(file: h5py.File, rank: int, notes: Sequence[Note]) -> None:
    models = [(rank, ClockModel.from_json(note.data)) for note in notes if note.kind == "clock"]
    checks = [(rank, ClockCheck.from_json(note.data)) for note in notes
              if note.kind == "clock_check"]
    write_clock_tables(file, models, checks)


@dataclass(frozen=True, slots=True)
class SealedTrace:
    """A sealed trace that was found whole; a `TraceSource`."""

    path: Path
    header: Header
    plan: Plan | None
    notes: tuple[Note, ...]
    damage: tuple[Damage, ...]
    case_ids: frozenset[str]
    sealed: bool = True

    def records(
        self, case_ids: Collection[str] | None = None, *, samples: bool = True
    ) -> Iterator[Record]:
        """Yield the records of these cases in the order they were written."""
        with open_container(self.path) as file, expected_content(self.path):
            found = list(_read_records(file, case_ids, samples=samples))
        yield from found


def open_trace(path: Path) -> SealedTrace:
    """Check a sealed trace from end to end and return its reader.

    Raises UnreadableTrace, with the code of the check, for a truncated, changed, foreign or
    future file.
    """
    verify(path, FORMAT, SCHEMA_VERSION)
    with open_container(path) as file, expected_content(path):
        return SealedTrace(
            path=path,
            header=header_from_json(json.loads(read_text(file, "header")), path),
            plan=plan_from_text(read_text(file, "plan"), path) if "plan" in file else None,
            notes=tuple(Note(**json.loads(line)) for line in read_lines(file, "notes")),
            damage=tuple(Damage(**json.loads(line)) for line in read_lines(file, "damage")),
            case_ids=frozenset(texts_of(file["cases/case_id"])),
        )


def _read_records(
    file: h5py.File, case_ids: Collection[str] | None, *, samples: bool
) -> Iterator[Record]:
    version = int(file.attrs["schema_version"])
    texts = _TEXT_FIELDS if version > 1 else _TEXT_FIELDS_1
    integers = _INTEGER_FIELDS if version > 1 else _INTEGER_FIELDS_1
    ids = texts_of(file["cases/case_id"])
    rows = [row for row, case_id in enumerate(ids) if case_ids is None or case_id in case_ids]
    if not rows:
        return
    columns: dict[str, list[Any]] = {
        name: texts_of(file[f"cases/{name}"]) for name in texts}
    for name in (*integers, "sample_offset", "sample_count"):
        columns[name] = file[f"cases/{name}"][:].tolist()
    details = read_lines(file, "cases/detail")
    wanted = [(columns["sample_offset"][row], columns["sample_count"][row]) for row in rows]
    names = SAMPLE_COLUMNS if version > 1 else SAMPLE_COLUMNS_1
    stamps = _read_stamps(file, names, wanted) if samples else [no_samples() for _ in rows]
    for row, stamp in zip(rows, stamps, strict=True):
        values: Mapping[str, Any] = {name: column[row] for name, column in columns.items()}
        yield record_from_json({**values, **json.loads(details[row])},
                               samples_of_version(stamp, version if samples else 2))


def _read_stamps(
    file: h5py.File, names: Sequence[str], wanted: Sequence[tuple[int, int]]
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows at each (offset, count); neighbours are read together, once."""
    columns = [file[f"samples/{name}"] for name in names]
    for first, last, parts in _runs(wanted):
        block = np.empty((len(columns), last - first), dtype=np.int64)
        for row, column in enumerate(columns):
            column.read_direct(block[row], np.s_[first:last])
        for offset, count in parts:
            yield block[:, offset - first:offset - first + count].T


def _runs(
    wanted: Iterable[tuple[int, int]],
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Group (offset, count) pairs that follow one another into (first, last, pairs)."""
    run: list[tuple[int, int]] = []
    for offset, count in wanted:
        if run and offset != run[-1][0] + run[-1][1]:
            yield run[0][0], run[-1][0] + run[-1][1], run
            run = []
        run.append((offset, count))
    if run:
        yield run[0][0], run[-1][0] + run[-1][1], run

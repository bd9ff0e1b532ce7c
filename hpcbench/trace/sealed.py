"""The sealed trace of one rank: HDF5 in columns, one row per record and one per sample.

Layout (schema version 2; `trace.contents` describes each part, in the file itself, too)
  attributes    format, schema_version, run_id, plan_hash, rank, world_size, local_rank, hostname,
                node, pid, recovered: whether the rank never came to its end, or a part was lost
  /header, /environment  JSON: all of the header; its environment alone, for people with h5dump
  /plan         JSON: the plan (rank 0 only)
  /notes, /damage        JSON lines: kind and data; what of the journal could not be read
  /cases        one row per record; detail: one JSON line per record (reason, detail, and phases:
                the names of its phases, if it has any)
  /samples      one row per sample, in the order of /cases
  /phases       ns: for each record with phases, in the order of /cases, one phase after another,
                each with a value for each of its samples; not there where no record has phases
  /telemetry    what the supervisor read of the machine, a group a table (trace.telemetry);
                not there where nothing was read
  /clock        what this rank's clock was, one row per synchronisation (trace.clock.SyncRecord)
Behind the image stands where the chunks of all datasets lie (trace.positions).

Columns and not a group per case: a group costs about 1 kB and 0.5 ms per case.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np

from hpcbench.texts import from_json, printable
from hpcbench.trace.arena import Empty, new_array
from hpcbench.trace.chunks import ChunkMemory, StoredColumn
from hpcbench.trace.columns import (
    write_column,
    write_json,
    write_lines,
)
from hpcbench.trace.container import (
    HEAD_BYTES,
    expected_content,
    new_container,
    open_container,
    verify,
)
from hpcbench.trace.contents import ATTRIBUTES, CONTENTS
from hpcbench.trace.datasets import Datasets, Hdf5Datasets, PlacedDatasets, lines
from hpcbench.trace.described import describe
from hpcbench.trace.files import open_regular
from hpcbench.trace.journal import read_journal
from hpcbench.trace.positions import behind_image, read_positions
from hpcbench.trace.schema import (
    NO_DEVICE_TIME,
    SAMPLE_COLUMNS,
    SAMPLE_COLUMNS_1,
    SCHEMA_VERSION,
    Header,
    Phases,
    Record,
    SampleColumns,
    no_samples,
)
from hpcbench.trace.source import (
    Damage,
    Note,
    TraceSource,
    checked_record,
    header_from_json,
    header_to_json,
    plan_from_text,
    plan_to_text,
    sync_records,
    was_cut_short,
)
from hpcbench.trace.tables import CaseTable, Known, read_cases, write_cases, write_clocks
from hpcbench.trace.telemetry import GROUP as TELEMETRY
from hpcbench.trace.telemetry import Rows, read_tables, write_tables

FORMAT = "hpcbench-trace"
_PHASES = "phases/ns"
_COLUMNS = (*(f"samples/{name}" for name in SAMPLE_COLUMNS), _PHASES)
_IDENTITY = ("run_id", "plan_hash", "rank", "world_size", "local_rank", "hostname", "node", "pid",
             "schema_version")


def trace_path(traces: Path, rank: int) -> Path:
    """Return where a rank's sealed trace lies in the folder of traces."""
    return traces / f"rank{rank:05d}.h5"


def seal(journal_path: Path, trace_path: Path) -> None:
    """Write a journal, whole or recovered, as a sealed trace; the journal stays.

    Raises UnreadableTrace if the journal has no header, FileError if the disk does not take it.
    """
    journal = read_journal(journal_path)
    records = list(journal.records())
    with new_container(trace_path, FORMAT, SCHEMA_VERSION, behind_image) as file:
        _write_identity(file, journal.header, recovered=was_cut_short(journal))
        if journal.plan is not None:
            write_lines(file, "plan", [plan_to_text(journal.plan)])
        write_json(file, "notes", map(asdict, journal.notes))
        write_json(file, "damage", map(asdict, journal.damage))
        write_cases(file, records)
        _write_samples(file, records)
        if phases := [values for record in records for values in record.phases.values()]:
            write_column(file, _PHASES, np.concatenate(phases))
        write_tables(file, journal.telemetry())
        write_clocks(file, [(journal.header.rank, record) for record in sync_records(journal)])
        describe(file, CONTENTS, ATTRIBUTES)


def _write_identity(file: h5py.File, header: Header, *, recovered: bool) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["recovered"] = recovered
    for name in _IDENTITY:
        value = getattr(header, name)
        file.attrs[name] = printable(value) if isinstance(value, str) else value  # HDF5: no NUL
    write_json(file, "header", [header_to_json(header)])
    write_json(file, "environment", [header.environment])


def _write_samples(file: h5py.File, records: Sequence[Record]) -> None:
    counts = [len(item.samples) for item in records]
    iterations = [np.arange(count, dtype=np.int64) for count in counts]
    columns = {"case": np.repeat(np.arange(len(records), dtype=np.int64), counts),
               "iteration": np.concatenate([np.empty(0, np.int64), *iterations]),
               **{name: np.concatenate([np.empty(0, np.int64), *(
                   getattr(item.samples, name) for item in records)]) for name in SAMPLE_COLUMNS}}
    for name, values in columns.items():
        write_column(file, f"samples/{name}", values)


@dataclass(frozen=True, slots=True)
class SealedTrace(TraceSource):
    """A sealed trace after it was verified.

    ``held`` are its columns of stamps and phases, and ``columns`` where the chunks of each lie, if
    that is known. ``chunks`` are shared with other traces.
    """

    table: CaseTable
    held: frozenset[str]
    columns: Mapping[str, StoredColumn] | None
    chunks: ChunkMemory
    has_telemetry: bool
    sealed: ClassVar[bool] = True

    @property
    def case_ids(self) -> frozenset[str]:
        """Return the ids of all cases with a record."""
        return frozenset(self.table.rows_of)

    def sample_counts(self) -> Mapping[str, int]:
        """Return how many samples each case has, over all its records."""
        counts = self.table.integers["sample_count"]
        return {case_id: int(counts[rows].sum()) for case_id, rows in self.table.rows_of.items()}

    def records(
        self, case_ids: Collection[str] | None = None, *, samples: bool = True,
        empty: Empty = new_array,
    ) -> Iterator[Record]:
        """Yield the records of these cases in the order they were written."""
        rows = self.table.rows(case_ids)
        stamps = [no_samples() for _ in rows]
        phases: list[Phases] = [{} for _ in rows]
        if samples and rows:
            with _datasets(self.path, self.columns, self.chunks) as datasets:
                stamps = [*_read_stamps(datasets, self, rows, empty)]
                if _PHASES in self.held:
                    phases = [*_read_phases(datasets, self.table.phase_ranges(rows), empty)]
        with expected_content(self.path):
            records = [
                checked_record(Record(**values, samples=of_samples, phases=of_phases))
                for values, of_samples, of_phases in zip(
                    self.table.values(rows), stamps, phases, strict=True)]
        yield from records

    def telemetry(self) -> Mapping[str, Rows]:
        """Return the readings of each table."""
        if not self.has_telemetry:
            return {}
        with open_container(self.path) as file, expected_content(self.path):
            return read_tables(file)


def open_trace(
    path: Path, known: Known | None = None, chunks: ChunkMemory | None = None,
) -> SealedTrace:
    """Check a sealed trace from end to end and return its reader.

    Give the same ``known``, at first an empty one, and the same ``chunks`` for all ranks of a run:
    what they have in common is then held once. Raises UnreadableTrace, with the code of the check,
    for a truncated, changed, foreign or future file.
    """
    verify(path, FORMAT, SCHEMA_VERSION)
    chunks = ChunkMemory() if chunks is None else chunks
    with open_regular(path) as raw, expected_content(path):
        positions = read_positions(raw, HEAD_BYTES)
    with _datasets(path, positions, chunks) as datasets:
        names = datasets.names
        held = frozenset(name for name in _COLUMNS if name in names)
        return SealedTrace(
            path=path,
            header=header_from_json(from_json("\n".join(lines(datasets, "header"))), path),
            plan=plan_from_text("\n".join(lines(datasets, "plan")), path)
            if "plan" in names else None,
            notes=tuple(Note(**from_json(line)) for line in lines(datasets, "notes")),
            damage=tuple(Damage(**from_json(line)) for line in lines(datasets, "damage")),
            table=read_cases(datasets, {} if known is None else known),
            held=held, columns=positions and {name: positions[name] for name in held},
            has_telemetry=any(name.startswith(f"{TELEMETRY}/") for name in names), chunks=chunks)


@contextlib.contextmanager
def _datasets(
    path: Path, positions: Mapping[str, StoredColumn] | None, chunks: ChunkMemory,
) -> Iterator[Datasets]:
    """Yield the datasets of a trace; what is wrong with them raises UnreadableTrace."""
    if positions is None:
        with open_container(path) as file, expected_content(path):
            yield Hdf5Datasets.of(file)
    else:
        with open_regular(path) as descriptor, expected_content(path):
            yield PlacedDatasets(descriptor, positions, chunks)


def _read_stamps(
    datasets: Datasets, trace: SealedTrace, rows: Sequence[int], empty: Empty,
) -> Iterator[SampleColumns]:
    """Yield the samples of these records; neighbours are read together, once."""
    for first, last, parts in _runs(trace.table.sample_ranges(rows)):
        columns = [
            datasets.read(f"samples/{name}", first, last - first, empty)
            if f"samples/{name}" in trace.held or name in SAMPLE_COLUMNS_1  # else it is version 1
            else np.broadcast_to(np.int64(NO_DEVICE_TIME), last - first)
            for name in SAMPLE_COLUMNS]
        at = [slice(offset - first, offset - first + count) for offset, count in parts]
        yield from map(SampleColumns, *(trace.chunks.cut(column, at) for column in columns))


def _read_phases(
    datasets: Datasets, wanted: Iterable[tuple[int, int, list[str]]], empty: Empty
) -> Iterator[Phases]:
    """Yield the phases at each (offset, samples, names)."""
    for first, count, names in wanted:
        if not names:
            yield {}
            continue
        block = datasets.read(_PHASES, first, len(names) * count, empty)
        yield dict(zip(names, block.reshape(len(names), count), strict=True))


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

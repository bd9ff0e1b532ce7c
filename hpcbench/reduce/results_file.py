"""What results files of older versions say in other words.

The rows of a case in ``/samples`` of the results: as values, or packed as they are stored.

``results.h5``: written case by case, read case by case, in the container of the traces.

`reduce.results_contents` describes each part (schema version 2), in the file itself, too. A row of
/cases is a planned case, in the plan's order. Rows of /samples are rank by rank within a case.
Version 1 had neither launch, enqueue_ns, timing, fold, confidence intervals, canary nor clocks; its
attribute ``fold`` was the same for all cases. Older files of version 2 lack ``use``, /derived,
/phases, most columns of /cases and the descriptions.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.config.section import fault_texts
from hpcbench.errors import FileError, command_line
from hpcbench.plan.case import Case
from hpcbench.reduce.case_columns import (
    BLOCK,
    COLUMNS,
    TIMES,
    KindColumns,
    kind_columns,
    plain,
    row_of,
)
from hpcbench.reduce.records import StoredObservations, with_records, write_records
from hpcbench.reduce.results import (
    SCHEMA_VERSION,
    Canary,
    CaseResult,
    CaseSamples,
    Clocks,
    Course,
    Finding,
    Results,
    RunInfo,
    Statistics,
    Timing,
    Usage,
)
from hpcbench.reduce.results_contents import (
    ATTRIBUTES,
    TelemetryWriter,
    contents,
    courses,
    read_told,
)
from hpcbench.reduce.stack import Use
from hpcbench.reduce.topology import read_topology, write_topology
from hpcbench.texts import from_json
from hpcbench.trace import columns
from hpcbench.trace.chunks import Packer
from hpcbench.trace.clock import SyncRecord
from hpcbench.trace.columns import (
    GrowingColumn,
    PackedRows,
    describe,
    read_lines,
    read_text,
    write_json,
    write_lines,
)
from hpcbench.trace.container import expected_content, new_container, open_container, verify
from hpcbench.trace.schema import (
    NO_DEVICE_TIME,
    SAMPLE_COLUMNS,
    SAMPLE_COLUMNS_1,
    Read,
    from_text,
    to_values,
)
from hpcbench.trace.sealed import write_clocks
from hpcbench.trace.source import plan_from_text, plan_to_text

_OLDER_MISSING = "HB112: no trace of rank "
"""How each problem begins of a case that lacks a trace, in files without ``trace_missing``."""


def as_older(cases: Sequence[CaseResult], findings: Sequence[Finding]) -> Iterator[CaseResult]:
    """Yield the cases with ``trace_missing`` as findings say it, where the file does not."""
    problems: dict[str, list[str]] = {}
    for finding in findings:
        if finding.scope == "case":
            whose, _, text = finding.message.partition("): ")
            problems.setdefault(whose, []).append(f"{finding.code}: {text}")
    for item in cases:
        found = problems.get(f"case {item.case.label} ({item.case.case_id}", ())
        is_missing = item.status == "failed" and found and all(
            text.startswith(_OLDER_MISSING) for text in found)
        yield replace(item, trace_missing=True) if is_missing else item


KEY_COLUMNS = ("rank", "launch", "pass_index", "iteration")
"""What tells the samples of a case apart: most cases of a run have the same arrays of them."""
SAMPLE_ROW_COLUMNS = ("case", *KEY_COLUMNS, "use", *SAMPLE_COLUMNS)
CHUNK_ROWS = 16384
"""Samples are read a whole case, all ranks, at a time."""
_MOST_CHUNK_ROWS = 65536
Values = npt.NDArray[np.int64]


def chunk_rows(case_rows: int) -> int:
    """Return the length of chunks of which whole ones make a case, or whole cases make one.

    ``case_rows`` is how many rows most cases have, 0 if that is not known.
    """
    if case_rows > CHUNK_ROWS:
        return math.ceil(case_rows / math.ceil(case_rows / _MOST_CHUNK_ROWS))
    return CHUNK_ROWS // case_rows * case_rows if case_rows else CHUNK_ROWS


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The rows of one case by the names of COLUMNS, rank by rank, and those of its phases.

    ``shape`` is (ranks, samples of each).
    """

    shape: tuple[int, int]
    columns: Mapping[str, Values | PackedRows]
    phases: Mapping[str, Values | PackedRows]


class RowMaker:
    """Makes the rows of cases; columns that are mostly equal from case to case are made once."""

    def __init__(self) -> None:
        self._key_columns = lru_cache(maxsize=1)(_key_columns)

    def rows(self, case: Case, samples: CaseSamples) -> SampleRows:
        """Return the rows of a case. Raises ValueError where their ``use`` is not known."""
        if samples.use is None:
            raise ValueError(f"case {case.case_id}: which samples count is not known")
        ranks, each = samples.start_ns.shape
        columns = {
            "case": np.broadcast_to(np.int64(case.index), ranks * each),
            **self._key_columns(
                samples.ranks, samples.launch.tobytes(), samples.pass_index.tobytes()),
            "use": np.tile(samples.use, ranks),
            **{name: _flat(getattr(samples, name)) for name in SAMPLE_COLUMNS}}
        return SampleRows((ranks, each), columns, {
            name: values.ravel() for name, values in samples.phases.items()})


def _flat(values: Values) -> Values:
    """Return the rows of all ranks one after another; one value for all is not copied."""
    return np.broadcast_to(values[0, 0], values.size) if (
        values.strides == (0, 0) and values.size) else values.ravel()


def _key_columns(ranks: Sequence[int], launch: bytes, pass_index: bytes) -> dict[str, Values]:
    """Return the columns that identify a sample of a case."""
    launches, passes = (np.frombuffer(column, dtype=np.int64) for column in (launch, pass_index))
    return {"rank": np.repeat(ranks, passes.size), "launch": np.tile(launches, len(ranks)),
            "pass_index": np.tile(passes, len(ranks)),
            "iteration": np.tile(np.arange(passes.size), len(ranks))}


class RowPacker:
    """Packs rows of cases into chunks of so many rows."""

    def __init__(self, rows_of_chunk: int) -> None:
        self._rows_of_chunk = rows_of_chunk
        self._packers = {name: Packer() for name in SAMPLE_ROW_COLUMNS}
        self._phase_packer = Packer()
        self._key_columns: dict[str, tuple[Values | PackedRows, PackedRows]] = {}

    def packed(self, rows: SampleRows) -> SampleRows | None:
        """Return the same rows packed; None where they do not fill whole chunks."""
        if math.prod(rows.shape) % self._rows_of_chunk:
            return None
        return SampleRows(rows.shape, {
            name: self._column(name, values) for name, values in rows.columns.items()}, {
            name: self._packed(self._phase_packer, values)
            for name, values in rows.phases.items()})

    def _column(self, name: str, values: Values | PackedRows) -> PackedRows:
        """Return a column packed; one of KEY_COLUMNS is not packed again if it comes again.

        Others never come again, and would be kept in memory beside the next case's.
        """
        known = self._key_columns.get(name)
        if known is not None and known[0] is values:
            return known[1]
        packed = self._packed(self._packers[name], values)
        if name in KEY_COLUMNS:
            self._key_columns[name] = values, packed
        return packed

    def _packed(self, packer: Packer, values: Values | PackedRows) -> PackedRows:
        if isinstance(values, PackedRows):
            return values
        chunks = [*map(packer.pack, values.reshape(-1, self._rows_of_chunk))]
        return PackedRows(values.size, chunks)


def add_rows(columns: Iterable[tuple[GrowingColumn, Values | PackedRows]]) -> None:
    """Append rows to each of the columns."""
    for column, rows in columns:
        if isinstance(rows, PackedRows):
            column.add_packed(rows)
        else:
            column.add(rows)


FORMAT = "hpcbench-results"
FILE_NAME = "results.h5"
_PHASES, _POSITIONS = "phases/ns", "cases/phases"
_DETAILS = ("reason", "device", "detail", "library", "memory")
_TIMES = tuple(column.name for column in TIMES)
_USE, _USAGE = "samples/use", "cases/usage"
_BLOCK = tuple(column.name for column in BLOCK)
_NO_BLOCK = (-1, 0, 0)
_TYPES = {int: np.int64, float: np.float64}


class ResultsWriter:
    """An unfinished results file: samples case by case, then everything else at once."""

    def __init__(self, file: h5py.File, rows_of_chunk: int) -> None:
        """Use `new_results` instead."""
        self._file = file
        self._rows_of_chunk = rows_of_chunk
        self._blocks: dict[str, tuple[int, int, int]] = {}
        self._columns = {
            name: GrowingColumn(file, f"samples/{name}", chunk_rows=rows_of_chunk)
            for name in SAMPLE_ROW_COLUMNS}
        file[_USE].attrs["names"] = [use.name.lower() for use in Use]
        self._maker = RowMaker()
        self._phases: GrowingColumn | None = None  # runs without phases have no column
        self._positions: dict[str, Mapping[str, Any]] = {}
        self.telemetry = TelemetryWriter(file)

    def add_samples(self, case: Case, samples: CaseSamples) -> None:
        """Append the samples of one case. Raises ValueError where their ``use`` is not known."""
        self.add_rows(case, self._maker.rows(case, samples))

    def add_rows(self, case: Case, rows: SampleRows) -> None:
        """Append the rows of one case."""
        self._blocks[case.case_id] = (self._columns["case"].rows, *rows.shape)
        add_rows((self._columns[name], values) for name, values in rows.columns.items())
        if rows.phases:
            column = self._phases = self._phases or GrowingColumn(
                self._file, _PHASES, chunk_rows=self._rows_of_chunk)
            self._positions[case.case_id] = {"names": [*rows.phases], "offset": column.rows}
            add_rows((column, values) for values in rows.phases.values())

    def finish(self, results: Results, syncs: Sequence[tuple[int, SyncRecord]] = ()) -> None:
        """Write everything but the samples; ``syncs`` pairs ranks and synchronisations."""
        for column in self._columns.values():
            column.finish()
        if self._phases is not None:
            self._phases.finish()
            write_json(self._file, _POSITIONS, (
                self._positions.get(item.case.case_id) for item in results.cases))
        self.telemetry.finish()
        file, run = self._file, results.run
        file.attrs.update({
            "format": FORMAT, "schema_version": SCHEMA_VERSION, "run_id": run.run_id,
            "plan_hash": run.plan_hash, "name": run.name, "world_size": run.world_size,
            **({"faults": "; ".join(run.faults)} if run.faults else {})})
        write_json(file, "run", [asdict(run)])
        write_lines(file, "plan", [plan_to_text(results.plan)])
        write_json(file, "findings", map(asdict, results.findings))
        for name, item in (("canary", results.canary), ("clocks", results.clocks)):
            write_json(file, name, [item and asdict(item)])
        write_topology(file, results.topology)
        write_clocks(file, syncs)
        of_kinds = kind_columns(results)
        self._write_cases(results, of_kinds)
        write_records(file, results)
        describe(file, contents(of_kinds, results.derived), ATTRIBUTES)

    def _write_cases(self, results: Results, of_kinds: KindColumns) -> None:
        cases = results.cases
        rows = [row_of(item, self._blocks.get(item.case.case_id, _NO_BLOCK))
                | of_kinds.values.get(item.case.case_id, {}) for item in cases]
        for column in (*COLUMNS, *of_kinds.columns):
            values = [plain(column, row.get(column.name)) for row in rows]
            columns.write_column(
                self._file, f"cases/{column.name}", columns.text_column(values)
                if column.type is str else np.array(values, dtype=_TYPES[column.type]))
        write_json(self._file, "cases/detail", (
            {name: getattr(item, name) for name in _DETAILS}
            | ({"trace_missing": True} if item.trace_missing else {}) for item in cases))
        write_json(self._file, "cases/timing", (
            item.timing and to_values(item.timing) for item in cases))
        if results.told:
            write_json(self._file, _USAGE, (item.usage and asdict(item.usage) for item in cases))
        if of_kinds.missing:
            self._file["cases"].attrs["without_columns"] = [
                f"{kind}: {reason}" for kind, reason in of_kinds.missing.items()]


@contextlib.contextmanager
def new_results(path: Path, rows_of_chunk: int = CHUNK_ROWS) -> Iterator[ResultsWriter]:
    """Yield a writer; ``path`` appears, whole, when the block ends well.

    `sample_rows.chunk_rows` tells chunks that begin where cases do. Raises FileError if the disk
    does not take it.
    """
    with new_container(path, FORMAT, SCHEMA_VERSION) as file:
        yield ResultsWriter(file, rows_of_chunk)


class ResultsFile:
    """An open results file: ``results``, and the samples of one case at a time."""

    def __init__(self, file: h5py.File, results: Results) -> None:
        """Use `open_results` instead."""
        self.results = results
        self._file = file
        self._version = int(file.attrs["schema_version"])
        blocks = zip(*(file[f"cases/{name}"][:].tolist() for name in _BLOCK), strict=True)
        self._blocks = {item.case.case_id: block
                        for item, block in zip(results.cases, blocks, strict=True)}
        self._positions = {} if _PHASES not in file else {
            item.case.case_id: json.loads(line) for item, line in zip(
                results.cases, read_lines(file, _POSITIONS), strict=True)}

    def samples(self, case_id: str) -> CaseSamples | None:
        """Return the stacked samples of a case, or None if none were recorded."""
        offset, *shape = self._blocks.get(case_id, _NO_BLOCK)
        if offset < 0:
            return None
        rows = slice(offset, offset + math.prod(shape))
        names = ("launch", *SAMPLE_COLUMNS) if self._version > 1 else SAMPLE_COLUMNS_1
        table = {"launch": np.zeros(shape, np.int64),
                 "enqueue_ns": np.full(shape, NO_DEVICE_TIME, np.int64),
                 **{name: self._file[f"samples/{name}"][rows].reshape(shape)
                    for name in ("rank", "pass_index", *names)}}
        return CaseSamples(
            ranks=tuple(table["rank"][:, 0].tolist()), launch=table["launch"][0],
            pass_index=table["pass_index"][0],
            phases=self._phases(self._positions.get(case_id), shape),
            use=self._file[_USE][offset:offset + shape[1]] if _USE in self._file else None,
            **{name: table[name] for name in SAMPLE_COLUMNS})

    def courses(self, table: str, column: str) -> Sequence[Course]:
        """Return a column of telemetry over time, by rank and device; nothing if not read."""
        return [*courses(self._file, self.results.told, table, column)]

    def _phases(
        self, position: Mapping[str, Any] | None, shape: Sequence[int],
    ) -> dict[str, npt.NDArray[np.int64]]:
        """Return each phase of a case, (rank, sample); nothing of a case without phases."""
        if position is None:
            return {}
        first, size = position["offset"], math.prod(shape)
        return {name: self._file[_PHASES][first + at * size:first + (at + 1) * size].reshape(shape)
                for at, name in enumerate(position["names"])}


def _no_results(path: Path, file_path: Path) -> str:
    """Return that there are no results, and where they may come from."""
    folder = file_path.parent
    if file_path.name == FILE_NAME and (folder / "traces").is_dir():
        return (f"{file_path}: no such file; {command_line('reduce', folder)} makes it from the "
                "traces there")
    if path.is_dir():
        return f"{file_path}: no such file; give the folder of a run, such as results/latest"
    return f"{path}: no such file or folder; give results.h5 of a run, or its folder"


@contextlib.contextmanager
def open_results(path: Path) -> Iterator[ResultsFile]:
    """Yield a results file, given it or its folder, after checking that it is whole.

    Raises FileError if there is none, UnreadableTrace for a damaged, foreign or future one.
    """
    file_path = path / FILE_NAME if path.is_dir() else path
    if not file_path.exists():
        raise FileError(_no_results(path, file_path))
    verify(file_path, FORMAT, SCHEMA_VERSION)
    with open_container(file_path) as file:
        with expected_content(file_path):
            results = ResultsFile(file, _read_results(file, file_path))
            results.results = with_records(
                results.results, file, StoredObservations(
                    results.samples, results.results.topology))
        yield results


def _read_results(file: h5py.File, path: Path) -> Results:
    plan = plan_from_text(read_text(file, "plan"), path)
    run = from_text(RunInfo, read_text(file, "run"))
    if not run.faults:  # older files name them in the plan alone
        run = replace(run, faults=fault_texts(plan.config.get("fault", ())))
    old = int(file.attrs["schema_version"]) == 1
    names = [name for name in ("n", "n_wrong", "blamed_rank", *_TIMES, "ci_reliable")
             if f"cases/{name}" in file]  # older files have no intervals, or no launches
    table: dict[str, list[Any]] = {name: file[f"cases/{name}"][:].tolist() for name in names}
    table["status"] = columns.texts_of(columns.read_column(file, "cases/status"))
    table["timing"] = [None] * len(plan.cases) if old else [
        _known(Timing, line) for line in read_lines(file, "cases/timing")]
    table["usage"] = [_known(Usage, line) for line in read_lines(file, _USAGE)] if (
        _USAGE in file) else [None] * len(plan.cases)
    rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    details = map(from_json, read_lines(file, "cases/detail"))
    cases = [_case_result(case, row, detail)
             for case, row, detail in zip(plan.cases, rows, details, strict=True)]
    findings = [from_text(Finding, line) for line in read_lines(file, "findings")]
    canary = None if old else _known(Canary, read_text(file, "canary"))
    clocks = None if old else _known(Clocks, read_text(file, "clocks"))
    return Results(run, plan, tuple(as_older(cases, findings)), tuple(findings), canary, clocks,
                   told=read_told(file), topology=read_topology(file),
                   schema_version=int(file.attrs["schema_version"]))


def _known(kind: type[Read], line: str) -> Read | None:
    """Return what a line holds, None where it holds null."""
    return None if line == "null" else from_text(kind, line)


def _case_result(case: Case, row: Mapping[str, Any], detail: Mapping[str, Any]) -> CaseResult:
    """Return a case from its row of columns; ``detail`` has other fields of it."""
    times: dict[str, Any] = {name: None if math.isnan(row[name]) else row[name]
                             for name in _TIMES if name in row}
    return CaseResult(
        case=case, status=row["status"], timing=row["timing"], usage=row["usage"],
        blamed_rank=None if row["blamed_rank"] < 0 else row["blamed_rank"],
        n_wrong=None if row["n_wrong"] < 0 else row["n_wrong"],
        statistics=Statistics(n=row["n"], ci_reliable=bool(row.get("ci_reliable")), **times)
        if row["n"] else None, **detail)

"""``results.h5``: written case by case, read case by case, in the container of the traces.

A row of /cases is a planned case, in the plan's order. Rows of /samples are rank by rank in a case.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.errors import FileError, UsageError, command_line, job_command_line
from hpcbench.plan.case import STATUSES, Case
from hpcbench.reduce import kind_facts
from hpcbench.reduce import results as records
from hpcbench.reduce.fold import RankClocks
from hpcbench.reduce.metric import KindColumns
from hpcbench.reduce.records import Observations, with_records, write_records
from hpcbench.reduce.stack import Use
from hpcbench.reduce.topology import CONTENTS as TOPOLOGY
from hpcbench.reduce.topology import Topology
from hpcbench.texts import from_json
from hpcbench.trace import columns as stored
from hpcbench.trace import container, schema
from hpcbench.trace import source as trace_source
from hpcbench.trace.clock import ClockModel, SyncRecord, to_global
from hpcbench.trace.columns import (
    GROUP,
    KEYS,
    LINES,
    NOT_READ,
    PURE,
    ROOT,
    Contents,
    Described,
    Rows,
)
from hpcbench.trace.sealed import CLOCKS, SEALED, STAMPS, write_clocks
from hpcbench.units import digits, grouped

_OWN = ("rank", "attempt")
_SOURCES = f"{GROUP}/sources"
CONTENTS: Contents = {
    **stored.contents({
        "rank": Described("rank that read it", PURE),
        "attempt": Described("attempt at the run, from 0; each has a global clock of its own",
                             PURE)}, "the global clock; -1 if the rank's is not known"),
    _SOURCES: Described("a line for each rank and attempt: rate_hz, devices of each table in the "
                        "order of their numbers, and missing: why a table or TABLE.COLUMN was not "
                        "read", LINES)}


class TelemetryWriter:
    """Writes the telemetry of one rank after another."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._columns: dict[str, stored.GrowingColumn] = {}
        self.reports: list[records.RankTelemetry] = []

    def add(
        self, source: trace_source.TraceSource, tables: Mapping[str, Rows], attempt: int,
        clocks: RankClocks,
    ) -> None:
        if (report := trace_source.telemetry_report(source)) is not None:
            self.reports.append(
                records.RankTelemetry(source.header.rank, attempt, **asdict(report)))
        for table, rows in tables.items():
            self._append(table, rows, {
                "rank": source.header.rank, "attempt": attempt,
                "time_ns": _global_ns(rows[:, 0], source.header.rank, clocks)})

    def _append(self, table: str, rows: Rows, own: Mapping[str, int | Rows]) -> None:
        columns = {name: rows[:, at] for at, name in enumerate(
            (*KEYS, *stored.TABLES[table].names))}
        for name, values in {**columns, **own}.items():
            path = f"{GROUP}/{table}/{name}"
            if path not in self._columns:
                self._columns[path] = stored.GrowingColumn(self._file, path)
            self._columns[path].add(
                np.ascontiguousarray(np.broadcast_to(values, len(rows)), dtype=np.int64))

    def finish(self) -> None:
        for column in self._columns.values():
            column.finish()
        if self.reports:
            stored.write_json(self._file, _SOURCES, map(asdict, self.reports))


def _global_ns(local_ns: Rows, rank: int, clocks: RankClocks) -> Rows:
    history = clocks.known.get(clocks.ids[rank])
    if clocks.n_clocks == 1:
        return local_ns
    return np.full_like(local_ns, NOT_READ) if history is None else to_global(
        history.models, local_ns)


def time_series(
    file: h5py.File, reports: Sequence[records.RankTelemetry], table: str, column: str,
) -> Iterator[records.TimeSeries]:
    at = f"{GROUP}/{table}"
    if at not in file:
        return
    data = {name: stored.read_column(file, f"{at}/{name}")
            for name in (*_OWN, *KEYS, column)}
    newest = data["attempt"].max()
    chosen = np.flatnonzero((data["attempt"] == newest) & (data[column] != NOT_READ)
                            & (data["time_ns"] != NOT_READ))
    chosen = chosen[np.lexsort((data["device"][chosen], data["rank"][chosen]))]
    data = {name: values[chosen] for name, values in data.items()}
    ranks = data["rank"]
    for report in reports:
        if report.attempt != newest:
            continue
        of_rank = slice(*np.searchsorted(ranks, [report.rank, report.rank + 1]))
        devices = data["device"][of_rank]
        for number, device in enumerate(report.devices.get(table, ())):
            first, end = of_rank.start + np.searchsorted(devices, [number, number + 1])
            if first < end:
                yield records.TimeSeries(
                    report.rank, device, data["time_ns"][first:end], data[column][first:end])


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
        "is empty, a whole number is -1 and any other number is NaN. derived: kind, version and "
        "form of computed columns"),
    "cases/detail": Described(
        "a line for each row: reason, device, library (algorithm, protocol, channels, transport), "
        "memory by rank, detail: what ranks recorded with their samples, and trace_missing: true "
        "if only a rank's trace is not there", LINES),
    "cases/timing": Described(
        "a line for each row: further timing, such as launch_medians_s, pass_medians_s and steps; "
        "null if it was not timed", LINES),
    "cases/usage": Described(
        "a line for each row: what it used of the machine; null where nothing was "
        "read around it", LINES),
    "cases/phases": Described(
        "a line for each row: names of its phases and offset of the first value in /phases/ns; "
        "null if it has none", LINES),
}
_CONTENTS: Contents = {
    ROOT: Described("reduced results of one run; see docs/results-file.md"),
    **SEALED,
    "run": Described("one line: what identifies the run, versions, nodes and environment", LINES),
    "plan": Described("one line: the plan with the resolved configuration", LINES),
    "findings": Described("a line for each finding: code, scope, message, share; docs/checks.md",
                          LINES),
    "canary": Described(
        "one line: the canary and its runs; null without it", LINES),
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
        "case by case, phase by phase, a value for each sample: its duration, or of 'arrival N' "
        "the time from the step's begin to the last gradient of bucket N", "ns"),
    **CLOCKS,
    **TOPOLOGY,
    **CONTENTS,
}


def contents(of_kinds: KindColumns) -> Contents:
    return {**_CONTENTS, **{
        f"cases/{column.name}": Described(column.text, column.units)
        for column in (*kind_facts.COLUMNS, *of_kinds.columns, *of_kinds.documents)}}


SAMPLE_ROW_COLUMNS = (
    "case", "rank", "launch", "pass_index", "iteration", "use", *schema.SAMPLE_COLUMNS)


def _rows_of(
    case: Case, samples: records.CaseSamples,
) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Yield each of SAMPLE_ROW_COLUMNS with the rows of a case. Raises ValueError without
    ``use``."""
    if samples.use is None:
        raise ValueError(f"case {case.case_id}: which samples count is not known")
    ranks, each = samples.start_ns.shape
    yield "case", np.full(ranks * each, case.index)
    yield "rank", np.repeat(samples.ranks, each)
    for name, values in (("launch", samples.launch), ("pass_index", samples.pass_index),
                         ("iteration", np.arange(each)), ("use", samples.use)):
        yield name, np.tile(values, ranks)
    for name in schema.SAMPLE_COLUMNS:
        yield name, getattr(samples, name).ravel()


FORMAT = "hpcbench-results"
FILE_NAME = "results.h5"
_PHASES, _POSITIONS = "phases/ns", "cases/phases"
_DETAILS = ("reason", "device", "detail", "library", "memory")
_TIMES = tuple(column.name for column in kind_facts.TIMES)
_USE, _USAGE = "samples/use", "cases/usage"
_GREATEST = 2**63 - 1
_ALWAYS = tuple(name for name, kind in get_type_hints(records.Statistics).items() if kind is float)
"""The times that a case with samples always has."""
_BLOCK = tuple(column.name for column in kind_facts.BLOCK)
_NO_BLOCK = (-1, 0, 0)
_TYPES = {int: np.int64, float: np.float64}


class ResultsWriter:
    """An unfinished results file: samples case by case, then everything else."""

    def __init__(self, file: h5py.File) -> None:
        """Use `new_results` instead."""
        self._file = file
        self._blocks: dict[str, tuple[int, int, int]] = {}
        self._columns = {name: stored.GrowingColumn(file, f"samples/{name}", stored.RANGES)
                         for name in SAMPLE_ROW_COLUMNS}
        file[_USE].attrs["names"] = [use.name.lower() for use in Use]
        self._phases: stored.GrowingColumn | None = None  # runs without phases have no column
        self._positions: dict[str, Mapping[str, Any]] = {}
        self.telemetry = TelemetryWriter(file)

    def add_samples(self, case: Case, samples: records.CaseSamples) -> None:
        self._blocks[case.case_id] = (self._columns["case"].rows, *samples.start_ns.shape)
        for name, values in _rows_of(case, samples):
            self._columns[name].add(values)
        if samples.phases:
            column = self._phases = self._phases or stored.GrowingColumn(
                self._file, _PHASES, stored.RANGES)
            self._positions[case.case_id] = {"names": [*samples.phases], "offset": column.rows}
            for values in samples.phases.values():
                column.add(values.ravel())

    def finish(
        self, results: records.Results, syncs: Sequence[tuple[int, SyncRecord]] = (),
    ) -> None:
        for column in self._columns.values():
            column.finish()
        if self._phases is not None:
            self._phases.finish()
            stored.write_json(self._file, _POSITIONS, (
                self._positions.get(item.case.case_id) for item in results.cases))
        self.telemetry.finish()
        file, run = self._file, results.run
        file.attrs.update({
            "format": FORMAT, "schema_version": records.SCHEMA_VERSION, "run_id": run.run_id,
            "plan_hash": run.plan_hash, "name": run.name, "world_size": run.world_size,
            **({"faults": "; ".join(run.faults)} if run.faults else {})})
        stored.write_json(file, "run", [{
            name: value for name, value in asdict(run).items() if value or name != "imported"}])
        stored.write_lines(file, "plan", [trace_source.plan_to_text(results.plan)])
        stored.write_json(file, "findings", (one.stored() for one in results.findings))
        for name, item in (("canary", results.canary), ("clocks", results.clocks)):
            stored.write_json(file, name, [item and asdict(item)])
        stored.write_json(file, "topology", [asdict(results.topology)])
        write_clocks(file, syncs)
        of_kinds = results.kind_columns
        self._write_cases(results, of_kinds)
        write_records(file, results)
        stored.describe(file, contents(of_kinds), ATTRIBUTES)

    def _write_cases(self, results: records.Results, of_kinds: KindColumns) -> None:
        cases = results.cases
        block = [column.name for column in kind_facts.BLOCK]
        rows = [{**kind_facts.row_of(item), **of_kinds.values.get(case_id, {}),
                 **dict(zip(block, self._blocks.get(case_id, _NO_BLOCK), strict=True))}
                for item in cases for case_id in [item.case.case_id]]
        for column in (*kind_facts.COLUMNS, *of_kinds.columns):
            values = [column.plain(row.get(column.name)) for row in rows]
            stored.write_column(
                self._file, f"cases/{column.name}", stored.text_column(values)
                if column.type is str else np.array(values, dtype=_TYPES[column.type]))
            if column.apart:
                self._file[f"cases/{column.name}"].attrs["apart"] = 1
        stored.write_json(self._file, "cases/detail", (
            {name: getattr(item, name) for name in _DETAILS}
            | ({"trace_missing": True} if item.trace_missing else {}) for item in cases))
        stored.write_json(self._file, "cases/timing", (
            item.timing and _timing_values(item.timing) for item in cases))
        if results.telemetry:
            stored.write_json(self._file, _USAGE, (
                item.usage and asdict(item.usage) for item in cases))
        if of_kinds.missing:
            self._file["cases"].attrs["without_columns"] = [
                f"{kind}: {reason}" for kind, reason in of_kinds.missing.items()]


def _timing_values(timing: records.Timing) -> dict[str, Any]:
    """Return the fields of a timing; those of late arrivals only where there are some."""
    values = schema.to_values(timing)
    return values if timing.arrivals else {
        name: value for name, value in values.items() if name != "arrivals"}


@contextlib.contextmanager
def new_results(path: Path) -> Iterator[ResultsWriter]:
    """Yield a writer; ``path`` appears, whole, when the block ends well, else FileError."""
    with container.new_container(path, FORMAT, records.SCHEMA_VERSION) as file:
        yield ResultsWriter(file)


class ResultsFile:
    """An open results file: ``results``, and the samples of one case at a time."""

    def __init__(self, file: h5py.File, results: records.Results) -> None:
        """Use `open_results` instead."""
        self.results = results
        self._file = file
        self._as_expected = partial(container.expected_content, Path(file.filename))
        blocks = zip(*(file[f"cases/{name}"][:].tolist() for name in _BLOCK), strict=True)
        self._blocks = {item.case.case_id: block
                        for item, block in zip(results.cases, blocks, strict=True)}
        self._positions = {} if _PHASES not in file else {
            item.case.case_id: json.loads(line) for item, line in zip(
                results.cases, stored.read_lines(file, _POSITIONS), strict=True)}

    def check_blocks(self) -> None:
        """Raise ValueError for a case whose samples or phases are not in the file."""
        used = self._file[_USE].shape[0]
        rows = {self._file[f"samples/{name}"].shape[0]
                for name in ("rank", "launch", "pass_index", *schema.SAMPLE_COLUMNS)}
        for case_id, (offset, ranks, iterations) in self._blocks.items():
            if min(offset, ranks, iterations) < 0 and (offset, ranks, iterations) != _NO_BLOCK or (
                    offset + ranks * iterations > min(rows) or offset + iterations > used):
                raise ValueError(f"samples of case {case_id} that are not there")
        for case_id, position in self._positions.items():
            size = math.prod(self._blocks[case_id][1:])
            if position is not None and not (0 <= position["offset"] <= (
                    self._file[_PHASES].shape[0] - size * len(position["names"]))):
                raise ValueError(f"phases of case {case_id} that are not there")

    def samples(self, case_id: str) -> records.CaseSamples | None:
        """Return the stacked samples of a case, or None if none were recorded."""
        offset, *shape = self._blocks.get(case_id, _NO_BLOCK)
        if offset < 0:
            return None
        rows = slice(offset, offset + math.prod(shape))
        with self._as_expected():
            table = {name: self._file[f"samples/{name}"][rows].reshape(shape)
                     for name in ("rank", "launch", "pass_index", *schema.SAMPLE_COLUMNS)}
            return records.CaseSamples(
                ranks=tuple(table["rank"][:, 0].tolist()), launch=table["launch"][0],
                pass_index=table["pass_index"][0],
                phases=self._phases(self._positions.get(case_id), shape),
                use=self._file[_USE][offset:offset + shape[1]],
                **{name: table[name] for name in schema.SAMPLE_COLUMNS})

    def time_series(self, table: str, column: str) -> Sequence[records.TimeSeries]:
        with self._as_expected():
            return [*time_series(self._file, self.results.telemetry, table, column)]

    def clock_models(self) -> Mapping[int, Sequence[ClockModel]]:
        """Return the lines from each rank's clock to the global one, in order of time."""
        with self._as_expected():
            columns = {item.name: self._file[f"clock/{item.name}"][:].tolist()
                       for item in fields(ClockModel)}
            models = (ClockModel(**dict(zip(columns, row, strict=True)))
                      for row in zip(*columns.values(), strict=True))
            by_rank = grouped(zip(self._file["clock/rank"][:].tolist(), models, strict=True))
            return {rank: sorted(found, key=lambda model: model.t_ref_ns)
                    for rank, found in by_rank.items()}

    def _phases(
        self, position: Mapping[str, Any] | None, shape: Sequence[int],
    ) -> dict[str, npt.NDArray[np.int64]]:
        if position is None:
            return {}
        first, size = position["offset"], math.prod(shape)
        return {name: self._file[_PHASES][first + at * size:first + (at + 1) * size].reshape(shape)
                for at, name in enumerate(position["names"])}


def _no_results(path: Path, file_path: Path) -> str:
    folder = file_path.parent
    if file_path.name == FILE_NAME and (folder / "traces").is_dir():
        again = job_command_line(container.planned_ranks(folder) or "N", "run", "--resume", folder)
        return (f"{file_path}: no such file; {command_line('reduce', folder)} makes it from the "
                f"traces there, {again} ends a run that did not")
    if path.is_dir():
        run = next(iter(sorted(folder.glob(f"*/{FILE_NAME}"))), Path("results/latest/x")).parent
        return f"{file_path}: no such file; give the folder of a run, such as {run}"
    return f"{path}: no such file or folder; give results.h5 of a run, or its folder"


def without_latest(paths: Sequence[Path]) -> list[Path]:
    """Return files and folders without those that lead through ``latest``, the link to the newest
    run, to another of them: the pattern ``results/*`` finds both."""
    named = {_real(path) for path in paths if not _by_latest(path)}
    return [path for path in paths if not _by_latest(path) or _real(path) not in named]


def each_once(paths: Sequence[Path]) -> list[Path]:
    """Return `without_latest` of the paths. Raises UsageError for a file that is still given twice:
    a launch that counts twice would seem to be two that agree."""
    kept, seen = without_latest(paths), dict[str, Path]()
    for path in kept:
        if (first := seen.setdefault(_real(path), path)) is not path:
            same = "" if path == first else f": {first} is the same file"
            raise UsageError(f"{path} is given twice{same}; a launch counts once")
    return kept


def refuse_copies(paths: Sequence[str | Path], run_ids: Sequence[str]) -> None:
    """Raise UsageError where two of the files in ``paths`` are of one run."""
    seen: dict[str, str | Path] = {}
    for path, run_id in zip(paths, run_ids, strict=True):
        if run_id and (first := seen.setdefault(run_id, path)) is not path:
            raise UsageError(f"{path} is run {run_id} again, as {first} is; a launch counts once")


def _by_latest(path: Path) -> bool:
    return any(one.name == container.LATEST and one.is_symlink() for one in (path, *path.parents))


def _real(path: Path) -> str:
    return os.path.realpath(file_of(path))


def file_of(path: Path) -> Path:
    """Return the results file that a file, or the folder of a run, stands for."""
    return path / FILE_NAME if path.is_dir() else path


@contextlib.contextmanager
def open_results(path: Path) -> Iterator[ResultsFile]:
    """Yield a results file, given it or its folder, after checking it. Raises FileError if there is
    none, UnreadableTrace for a damaged, foreign or other-version file."""
    file_path = file_of(path)
    if not file_path.exists():
        raise FileError(_no_results(path, file_path))
    container.verify(file_path, FORMAT, records.SCHEMA_VERSION, "; if another benchmark wrote it: "
                     + command_line("import", file_path, "-o", "imported.h5"))
    with container.open_container(file_path) as file:
        with container.expected_content(file_path):
            results = ResultsFile(file, _read_results(file, file_path))
            _check_range(results.results)
            results.check_blocks()
            results.results = with_records(
                results.results, file, Observations(
                    results.results.topology, results.samples))
        yield results


@contextlib.contextmanager
def open_again(path: Path, results: records.Results) -> Iterator[ResultsFile]:
    """Yield a results file that was checked and read before, and has not changed since then."""
    with container.open_container(path) as file:
        with container.expected_content(path):
            opened = ResultsFile(file, results)
        yield opened


def _read_results(file: h5py.File, path: Path) -> records.Results:
    if _USE not in file:
        raise trace_source.UnreadableTrace(
            "HB104", f"{path}: an early file of version {records.SCHEMA_VERSION} without /{_USE}: "
            "use the hpcbench that wrote it, or reduce its traces again")
    plan = trace_source.plan_from_text(stored.read_text(file, "plan"), path)
    table: dict[str, list[Any]] = {name: file[f"cases/{name}"][:].tolist() for name in (
        "n", "n_wrong", "blamed_rank", *_TIMES, "ci_reliable")}
    table["status"] = stored.texts_of(stored.read_column(file, "cases/status"))
    read_lines = stored.read_lines
    table["timing"] = [_known(records.Timing, line) for line in read_lines(file, "cases/timing")]
    table["usage"] = [_known(records.Usage, line) for line in read_lines(file, _USAGE)] if (
        _USAGE in file) else [None] * len(plan.cases)
    rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    details = map(from_json, stored.read_lines(file, "cases/detail"))
    cases = [_case_result(case, row, detail)
             for case, row, detail in zip(plan.cases, rows, details, strict=True)]
    findings = [schema.from_text(records.Finding, line) for line in read_lines(file, "findings")]
    lines: Sequence[str] = stored.read_lines(file, _SOURCES) if _SOURCES in file else ()
    telemetry = tuple(schema.from_text(records.RankTelemetry, line) for line in lines)
    return records.Results(
        schema.from_text(records.RunInfo, stored.read_text(file, "run")), plan, tuple(cases),
        tuple(findings), _known(records.Canary, stored.read_text(file, "canary")),
        _known(records.Clocks, stored.read_text(file, "clocks")),
        telemetry=telemetry,
        topology=schema.from_text(Topology, stored.read_text(file, "topology")))


def _check_range(results: records.Results) -> None:
    """Raise ValueError for a number or word that no run can have: a check sum proves that a file is
    as it was written, not what was written."""
    run, size = results.run, results.plan.world_size
    ranks = run.ranks_present
    if run.world_size != size or len({*ranks}) != len(ranks) or not all(
            0 <= rank < size for rank in ranks):
        raise ValueError(f"ranks that are not among those of the plan, 0 to {size - 1}")
    for item in results.cases:
        where = f"case {item.case.case_id}"
        if item.status not in STATUSES:
            raise ValueError(f"{where}: status {item.status!r}, not {', '.join(STATUSES)}")
        if item.blamed_rank is not None and item.blamed_rank >= size:
            raise ValueError(f"{where}: blames rank {item.blamed_rank} of {size}")
        if item.timing is not None and item.timing.fold not in records.EVERY_FOLD:
            raise ValueError(f"{where}: fold {item.timing.fold!r}, not "
                             f"{', '.join(records.EVERY_FOLD)}")
        schema.check_types(item, without=("case", "statistics", "timing", "usage"))
        for part in (item.statistics, item.timing, item.usage):
            _check_numbers(part, where)
    _check_numbers(results.canary, "canary")
    _check_numbers(results.clocks, "clocks")
    _check_numbers(results.findings, "findings")


def _check_numbers(part: Any, where: str) -> None:
    """Raise ValueError for a number below it that is not finite or fits no column, and for a time
    of samples below 0."""
    if is_dataclass(part):
        for name in part.__dataclass_fields__:
            _check_numbers(getattr(part, name), f"{where}: {name}")
    elif isinstance(part, tuple):
        for value in part:
            _check_numbers(value, where)
    elif isinstance(part, float) and not math.isfinite(part) or (
            isinstance(part, int) and abs(part) > _GREATEST):
        raise ValueError(f"{where} is {digits(part, 3)}")
    if isinstance(part, records.Statistics):
        if part.n < 1:
            raise ValueError(f"{where}: n is {part.n}")
        for name in _TIMES:
            value = getattr(part, name)
            if name in _ALWAYS and value is None or value is not None and value < 0:
                raise ValueError(f"{where}: {name} is {value}")


def _known(kind: type[schema.Read], line: str) -> schema.Read | None:
    return None if line == "null" else schema.from_text(kind, line)


def _case_result(
    case: Case, row: Mapping[str, Any], detail: Mapping[str, Any],
) -> records.CaseResult:
    times: dict[str, Any] = {
        name: None if math.isnan(row[name]) else row[name] for name in _TIMES}
    return records.CaseResult(
        case=case, status=row["status"], timing=row["timing"], usage=row["usage"],
        blamed_rank=None if row["blamed_rank"] < 0 else row["blamed_rank"],
        n_wrong=None if row["n_wrong"] < 0 else row["n_wrong"],
        statistics=records.Statistics(n=row["n"], ci_reliable=bool(row["ci_reliable"]), **times)
        if row["n"] else None, **detail)

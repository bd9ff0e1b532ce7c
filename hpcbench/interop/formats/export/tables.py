"""Tables of cases for pandas, spreadsheets and SQL: a row a case, a column a variable; and lines
that one expression reads, figures of merit and SuperBench's summary.

The columns of tables are those of ``/cases`` in results.h5, behind what identifies the run."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hpcbench.errors import UsageError, how_to_install
from hpcbench.interop.formats.export.cases import (
    Exported,
    ExportedCase,
    ExportedRun,
    ExportRequest,
    chosen_metrics,
    joined,
    not_measured,
    plain_number,
)
from hpcbench.reduce.kind_facts import CASE_COLUMNS, CaseColumn, row_of
from hpcbench.texts import as_field, to_json

_ENDS = "ci_low_s", "ci_high_s"  # those of an unreliable interval are not exported
_LIBRARIES = ("torch", "mpi", "nccl")
OF_RUN: Mapping[str, type] = MappingProxyType({
    "run_id": str, "run": str, "started_at": str, "job_ranks": int, "nodes": int,
    "first_node": str, "hosts": str, "hpcbench": str, **dict.fromkeys(_LIBRARIES, str),
    "imported": str})
"""Columns of the run, and their types; ``hosts`` are separated by spaces, ``imported`` names the
program that printed the numbers."""


def as_csv(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return a CSV; a value that a case lacks is empty."""
    columns, rows = _table(runs)
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: as_field(value) if isinstance(value, str) else value
                      for name, value in row.items()} for row in rows)
    return Exported(out.getvalue().encode() if rows else b"")


def as_parquet(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return the same table in Parquet, with types; a value that a case lacks is null.

    Raises UsageError without pyarrow."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(f"parquet needs pyarrow, which cannot be imported: {error}; "
                         f"{how_to_install('parquet')}, or export csv") from error
    columns, rows = _table(runs)
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
    table = arrow.table({
        name: arrow.array([row.get(name) for row in rows], types[kind])
        for name, kind in columns.items()})
    out = arrow.BufferOutputStream()
    parquet.write_table(table, out)
    return Exported(out.getvalue().to_pybytes() if rows else b"")


def _table(runs: Sequence[ExportedRun]) -> tuple[dict[str, type], list[dict[str, Any]]]:
    """Return the columns with their types, and the rows; absent values are left out or None."""
    of_kinds = {column.name: column for run in runs for column in run.columns}
    columns = {**OF_RUN, **{column.name: column.type for column in CASE_COLUMNS},
               **{name: column.type for name, column in of_kinds.items()}, "reason": str}
    every = (*CASE_COLUMNS, *of_kinds.values())
    return columns, [_row(run, case, every) for run in runs for case in run.cases]


def _row(
    run: ExportedRun, case: ExportedCase, columns: Sequence[CaseColumn],
) -> dict[str, Any]:
    info = run.results.run
    values = row_of(case.item) | dict(case.columns)
    if not values["ci_reliable"]:
        values |= dict.fromkeys(_ENDS)
    row = {column.name: column.read(column.plain(values.get(column.name))) for column in columns}
    return {"run_id": info.run_id, "run": info.name, "started_at": info.started_at,
            "job_ranks": info.world_size, "nodes": len(info.nodes),
            "first_node": info.nodes[0] if info.nodes else None,
            "hosts": " ".join(info.nodes) or None, "hpcbench": info.hpcbench_version,
            **{name: info.versions.get(name) for name in _LIBRARIES},
            "imported": " and ".join(info.imported) or None, **row,
            "reason": case.item.reason or None}


BENCHMARK = "hpcbench"


def as_fom(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return ``NAME: VALUE UNIT`` a line, no number with an exponent; first how cases ended."""
    run = runs[0]
    ended = Counter(case.item.status for case in run.cases)
    lines = [f"{BENCHMARK}.{status}: {ended[status]} cases"
             for status in ("ok", "wrong", "failed", "timeout")]
    values = [f"{case.slug}.{one.name}: {plain_number(one.value)} {one.unit}"
              for case in run.measured for one in chosen_metrics(case, request)]
    return Exported(joined([*lines, *values]),
                    (*not_measured(run),))


def as_superbench(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return results-summary.jsonl: an object for each node, with all numbers of its run."""
    lines, notes = [], []
    for run in runs:
        numbers = dict(_numbers(run, request))
        nodes = run.results.run.nodes or ("unknown",)
        lines += [to_json({"node": node, **numbers}, allow_nan=False) for node in nodes if numbers]
        if len(nodes) > 1:
            notes.append(f"run {run.results.run.run_id}: its {len(nodes)} nodes have the same "
                         "numbers, those of the job")
    return Exported(joined(lines),
                    tuple(one for run in runs for one in not_measured(run)), tuple(notes))


def _numbers(run: ExportedRun, request: ExportRequest) -> Iterator[tuple[str, float]]:
    """Yield ``hpcbench/CASE_METRIC:0`` and its number, and return codes, 1 for bad cases."""
    bad = [case for case in run.cases if case.is_bad]
    if bad or run.measured:
        yield f"{BENCHMARK}/return_code:0", int(bool(bad))
    for case in bad:
        yield f"{BENCHMARK}/{case.slug}_return_code:0", 1
    for case in run.measured:
        for metric in chosen_metrics(case, request):
            yield f"{BENCHMARK}/{case.slug}_{metric.name}:0", metric.value

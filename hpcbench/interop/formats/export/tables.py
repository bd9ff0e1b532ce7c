"""Tables of cases for pandas, spreadsheets and SQL: a row a case, a column a variable; lines
that one expression reads, figures of merit and SuperBench's summary; and files of histories:
Bencher, github-action-benchmark and Apache Otava.

The columns of tables are those of ``/cases`` in results.h5, behind what identifies the run."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, TypeVar

from hpcbench.errors import UsageError, how_to_install
from hpcbench.interop.formats.export import cases
from hpcbench.reduce.kind_facts import CASE_COLUMNS, CaseColumn, row_of
from hpcbench.texts import as_field, to_json
from hpcbench.units import moment, plural

_ENDS = "ci_low_s", "ci_high_s"  # those of an unreliable interval are not exported
_LIBRARIES = ("torch", "mpi", "nccl")
OF_RUN: Mapping[str, type] = MappingProxyType({
    "run_id": str, "run": str, "started_at": str, "job_ranks": int, "nodes": int,
    "first_node": str, "hosts": str, "hpcbench": str, **dict.fromkeys(_LIBRARIES, str),
    "imported": str, "exit_code": int, "faults": str})
"""Columns of the run, and their types; ``hosts`` are separated by spaces, ``imported`` names the
program that printed the numbers, ``exit_code`` is 1 of wrong or failed cases, 3 of a part,
``faults`` were injected."""


def as_csv(runs: Sequence[cases.ExportedRun], request: cases.ExportRequest) -> cases.Exported:
    """Return a CSV; a value that a case lacks is empty."""
    columns, rows = _table(runs)
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: as_field(value) if isinstance(value, str) else value
                      for name, value in row.items()} for row in rows)
    return cases.Exported(out.getvalue().encode() if rows else b"")


def as_parquet(runs: Sequence[cases.ExportedRun], request: cases.ExportRequest) -> cases.Exported:
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
    return cases.Exported(out.getvalue().to_pybytes() if rows else b"")


def _table(runs: Sequence[cases.ExportedRun]) -> tuple[dict[str, type], list[dict[str, Any]]]:
    """Return the columns with their types, and the rows; absent values are left out or None."""
    of_kinds = {column.name: column for run in runs for column in run.columns}
    columns = {**OF_RUN, **{column.name: column.type for column in CASE_COLUMNS},
               **{name: column.type for name, column in of_kinds.items()}, "reason": str}
    every = (*CASE_COLUMNS, *of_kinds.values())
    return columns, [{**of_run, **_of_case(case, every)} for run in runs
                     for of_run in [_of_run(run)] for case in run.cases]


def _of_case(case: cases.ExportedCase, columns: Sequence[CaseColumn]) -> dict[str, Any]:
    values = row_of(case.item) | dict(case.columns)
    if not values["ci_reliable"]:
        values |= dict.fromkeys(_ENDS)
    row = {column.name: column.read(column.plain(values.get(column.name))) for column in columns}
    return {**row, "reason": case.item.reason or None}


def _of_run(run: cases.ExportedRun) -> dict[str, Any]:
    info = run.results.run
    return {"run_id": info.run_id, "run": info.name, "started_at": info.started_at,
            "job_ranks": info.world_size, "nodes": len(info.nodes),
            "first_node": info.nodes[0] if info.nodes else None,
            "hosts": " ".join(info.nodes) or None, "hpcbench": info.hpcbench_version,
            **{name: info.versions.get(name) for name in _LIBRARIES},
            "imported": " and ".join(info.imported) or None, "exit_code": run.code,
            "faults": "; ".join(info.faults) or None}


BENCHMARK = "hpcbench"


def as_fom(runs: Sequence[cases.ExportedRun], request: cases.ExportRequest) -> cases.Exported:
    """Return ``NAME: VALUE UNIT`` a line, no number with an exponent; first how cases ended."""
    run = runs[0]
    ended = Counter(case.item.status for case in run.cases)
    lines = [f"{BENCHMARK}.exit_code: {run.code} code"]
    lines += [f"{BENCHMARK}.{status}: {ended[status]} cases"
              for status in ("ok", "wrong", "failed", "timeout")]
    if faults := run.results.run.faults:
        lines.append(f"{BENCHMARK}.injected: {len(faults)} faults")
    values = [f"{case.slug}.{one.name}: {cases.plain_number(one.value)} {one.unit}"
              for case in run.measured for one in cases.chosen_metrics(case, request)]
    return cases.Exported(cases.joined([*lines, *values]),
                          (*cases.not_measured(run),))


def as_superbench(runs: Sequence[cases.ExportedRun],
                  request: cases.ExportRequest) -> cases.Exported:
    """Return results-summary.jsonl: an object for each node, with all numbers of its run."""
    lines, notes = [], []
    for run in runs:
        numbers = dict(_numbers(run, request))
        nodes = run.results.run.nodes or ("unknown",)
        lines += [to_json({"node": node, **numbers}, allow_nan=False) for node in nodes if numbers]
        if len(nodes) > 1:
            notes.append(f"run {run.results.run.run_id}: its {len(nodes)} nodes have the same "
                         "numbers, those of the job")
    return cases.Exported(cases.joined(lines),
                          tuple(one for run in runs for one in cases.not_measured(run)),
                          tuple(notes))


def _numbers(run: cases.ExportedRun, request: cases.ExportRequest) -> Iterator[tuple[str, float]]:
    """Yield ``hpcbench/CASE_METRIC:0`` and its number, and return codes: that of the run, and 1 for
    bad cases."""
    bad = [case for case in run.cases if case.is_bad]
    if bad or run.measured:
        yield f"{BENCHMARK}/return_code:0", run.code
    if faults := run.results.run.faults:
        yield f"{BENCHMARK}/injected_faults:0", len(faults)
    for case in bad:
        yield f"{BENCHMARK}/{case.slug}_return_code:0", 1
    for case in run.measured:
        for metric in cases.chosen_metrics(case, request):
            yield f"{BENCHMARK}/{case.slug}_{metric.name}:0", metric.value


MOST_NAME = 1024
"""Characters of a name in Bencher."""
Content = TypeVar("Content")
_OTAVA_HEAD = ("time", "commit")
"""Columns before the metrics; the run's id stands for the commit."""


def as_bencher(runs: Sequence[cases.ExportedRun], request: cases.ExportRequest) -> cases.Exported:
    """Return the Bencher Metric Format: the time as ``latency`` in ns, rates by their names.

    Of several runs each line is the body of a new report for Bencher's interface, by time: the
    format itself holds one run without its time."""
    documents = [(run, _bencher_metrics(run, request)) for run in runs]
    if len(runs) == 1:
        return _json(documents[0][1], runs[0])
    lines, left_out = [], list[str]()
    for run, document, began_s in _dated(
            sorted(documents, key=lambda one: one[0].results.run.started_at), left_out):
        lasted_s = run.results.lasted_s or 0.0
        lines.append(to_json({
            "branch": "main", "testbed": run.results.run.name, "start_time": _utc(began_s),
            "end_time": _utc(began_s + lasted_s), "settings": {"adapter": "json"},
            "results": [to_json(document, allow_nan=False)]}, allow_nan=False))
    return cases.Exported(cases.joined(lines),
                          tuple(one for run in runs for one in cases.not_measured(run)),
                          tuple(left_out))


def _dated(
    runs: Iterable[tuple[cases.ExportedRun, Content]], notes: list[str],
) -> Iterator[tuple[cases.ExportedRun, Content, float]]:
    """Yield the runs with the moment when each began; note those without it, or without numbers,
    and those with injected faults, which are no part of a history."""
    for run, content in runs:
        began_s = moment(run.results.run.started_at)
        why = run.results.run.injected or ("no start time" if began_s is None else
                                           "" if content else "no number")
        if why:
            notes.append(f"left out: run {run.results.run.run_id}: {why}")
        elif began_s is not None:
            yield run, content, began_s


def _bencher_metrics(
    run: cases.ExportedRun, request: cases.ExportRequest,
) -> dict[str, dict[str, dict[str, float]]]:
    return {_bencher_name(case): dict(_measure(one) for one in metrics)
            for case in run.measured if (metrics := cases.chosen_metrics(case, request))}


def _utc(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _bencher_name(case: cases.ExportedCase) -> str:
    if len(case.name) <= MOST_NAME:
        return case.name
    ending = f" {case.item.case.case_id}"
    return case.name[:MOST_NAME - len(ending)] + ending


def _measure(metric: cases.CaseMetric) -> tuple[str, dict[str, float]]:
    scale = 1e3 if metric.name == cases.TIME else 1.0
    ends = {"lower_value": metric.low, "upper_value": metric.high}
    return "latency" if metric.name == cases.TIME else metric.name, {
        "value": metric.value * scale,
        **{name: end * scale for name, end in ends.items() if end is not None}}


def as_github_benchmark(runs: Sequence[cases.ExportedRun],
                        request: cases.ExportRequest) -> cases.Exported:
    """Return the list of a custom tool of github-action-benchmark; without a choice, of times. Of
    several runs it is the file with the data of all, for its ``external-data-json-path``.

    Raises UsageError for metrics of both directions: a file holds one."""
    chosen = cases.ExportRequest(request.metrics or (cases.TIME,))
    entries = {id(run): [(case, one) for case in run.measured
                         for one in cases.chosen_metrics(case, chosen)] for run in runs}
    every = [one for of_run in entries.values() for _, one in of_run]
    directions = {one.more_is_better for one in every}
    if len(directions) > 1:
        raise UsageError("github-benchmark: a file holds one direction; export time "
                         "(customSmallerIsBetter) and rates (customBiggerIsBetter) apart, by "
                         "--metric")
    several = len({one.name for one in every}) > 1
    lists = [(run, [_entry(case, one, several, run.results.run.injected)
                    for case, one in entries[id(run)]]) for run in runs]
    tool = "customBiggerIsBetter" if directions == {True} else "customSmallerIsBetter"
    if len(runs) > 1:
        return _data_of_runs(lists, tool)
    exported = _json(lists[0][1], runs[0])
    return replace(exported, notes=(f"for tool: {tool}",) if every else ())


def _data_of_runs(
    lists: Sequence[tuple[cases.ExportedRun, list[dict[str, Any]]]], tool: str,
) -> cases.Exported:
    """Return what the action keeps of all runs, by time in ms; the run's id stands for the commit.
    """
    points: list[dict[str, Any]] = []
    notes = [f"for tool: {tool}"]
    person = {"name": "hpcbench", "username": "hpcbench"}
    for run, benches, began_s in _dated(lists, notes):
        info = run.results.run
        points.append({
            "commit": {"id": as_field(info.run_id), "message": as_field(info.name), "url": "",
                       "timestamp": _utc(began_s), "author": person, "committer": person},
            "date": round(began_s * 1000), "tool": tool, "benches": benches})
    points.sort(key=lambda point: point["date"])
    content = to_json({"lastUpdate": points[-1]["date"], "repoUrl": "",
                       "entries": {"hpcbench": points}}, indent=1, allow_nan=False) + "\n" if (
        points) else ""
    return cases.Exported(content.encode(),
                          tuple(one for run, _ in lists for one in cases.not_measured(run)),
                          tuple(notes))


def _entry(
    case: cases.ExportedCase, metric: cases.CaseMetric, several: bool, injected: str,
) -> dict[str, Any]:
    """Return one entry; a slash in a name makes a group, so the only one follows the kind."""
    name = f"{case.item.case.kind}/{case.name.replace('/', ':')}{f' {metric.name}' * several}"
    entry = {"name": name, "unit": metric.unit, "value": metric.value, "extra": "; ".join(
        filter(None, (f"case {case.item.case.case_id}", injected)))}
    if metric.low is not None and metric.high is not None:
        entry["range"] = f"{metric.low:.6g} to {metric.high:.6g}"
    return entry


def _json(document: Any, run: cases.ExportedRun) -> cases.Exported:
    content = to_json(document, indent=1, allow_nan=False) + "\n" if document else ""
    return cases.Exported(content.encode(), (*cases.not_measured(run),))


def as_otava(runs: Sequence[cases.ExportedRun], request: cases.ExportRequest) -> cases.Exported:
    """Return a CSV with a row for each run, in order of time, and a column for each metric that all
    of them have: one empty cell ends Otava's analysis of all columns, and a NaN hides any change.
    """
    ordered = sorted(runs, key=lambda run: run.results.run.started_at)
    of_runs = [(run, dict(_otava_values(run, request))) for run in ordered]
    rows = [(run, values) for run, values in of_runs if values and not run.results.run.faults]
    counts = Counter(name for _, values in rows for name in values)
    names = [name for name, count in counts.items() if count == len(rows)]
    gaps = [name for name, count in counts.items() if count < len(rows)]
    out = io.StringIO()
    writer = csv.DictWriter(out, [*_OTAVA_HEAD, *names], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for run, values in rows:
        info = run.results.run
        head = (as_field(_otava_time(info.started_at)), as_field(info.run_id))
        writer.writerow({**dict(zip(_OTAVA_HEAD, head, strict=True)), **values})
    notes = [f"left out: run {run.results.run.run_id}: {run.results.run.injected or 'no number'}"
             for run, values in of_runs if not values or run.results.run.faults]
    if gaps:
        notes.append(f"left out: {plural(len(gaps), 'column')} without a value in every run: "
                     + ", ".join(gaps))
    return cases.Exported(out.getvalue().encode() if names else b"",
                          tuple(one for run in ordered for one in cases.not_measured(run)),
                          (*notes,))


def _otava_values(run: cases.ExportedRun,
                  request: cases.ExportRequest) -> Iterator[tuple[str, float]]:
    for case in run.measured:
        for metric in cases.chosen_metrics(case, request):
            if math.isfinite(metric.value):
                yield f"{case.slug}.{metric.name}", metric.value


def _otava_time(started_at: str) -> str:
    """Return ``2026.01.31 3:00:00 +0100``; without a time zone it is of UTC."""
    try:
        at = datetime.strptime(started_at, "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        at_s = moment(started_at)
        if at_s is None:
            return started_at
        at = datetime.fromtimestamp(at_s, timezone.utc)
    return f"{at:%Y.%m.%d} {at.hour}:{at:%M:%S %z}"

"""Files of histories of benchmarks: Bencher, github-action-benchmark and Apache Otava."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from hpcbench.errors import UsageError
from hpcbench.interop.formats.export.cases import (
    TIME,
    CaseMetric,
    Exported,
    ExportedCase,
    ExportedRun,
    ExportRequest,
    chosen_metrics,
    joined,
    not_measured,
)
from hpcbench.texts import as_field, to_json
from hpcbench.units import moment, plural

MOST_NAME = 1024
"""Characters of a name in Bencher."""
_OTAVA_HEAD = ("time", "commit")
"""Columns before the metrics; the run's id stands for the commit."""


def as_bencher(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return the Bencher Metric Format: the time as ``latency`` in ns, rates by their names.

    Of several runs each line is the body of a new report for Bencher's interface, by time: the
    format itself holds one run without its time."""
    documents = [(run, _bencher_metrics(run, request)) for run in runs]
    if len(runs) == 1:
        return _json(documents[0][1], runs[0])
    lines, left_out = [], list[str]()
    for run, document in sorted(documents, key=lambda one: one[0].results.run.started_at):
        began_s = moment(run.results.run.started_at)
        if began_s is None or not document:
            left_out.append(f"left out: run {run.results.run.run_id}: "
                            f"{'no number' if began_s is not None else 'no start time'}")
            continue
        lasted_s = run.results.lasted_s or 0.0
        lines.append(to_json({
            "branch": "main", "testbed": run.results.run.name, "start_time": _utc(began_s),
            "end_time": _utc(began_s + lasted_s), "settings": {"adapter": "json"},
            "results": [to_json(document, allow_nan=False)]}, allow_nan=False))
    return Exported(joined(lines), tuple(one for run in runs for one in not_measured(run)),
                    tuple(left_out))


def _bencher_metrics(
    run: ExportedRun, request: ExportRequest,
) -> dict[str, dict[str, dict[str, float]]]:
    return {_bencher_name(case): dict(_measure(one) for one in metrics)
            for case in run.measured if (metrics := chosen_metrics(case, request))}


def _utc(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _bencher_name(case: ExportedCase) -> str:
    if len(case.name) <= MOST_NAME:
        return case.name
    ending = f" {case.item.case.case_id}"
    return case.name[:MOST_NAME - len(ending)] + ending


def _measure(metric: CaseMetric) -> tuple[str, dict[str, float]]:
    scale = 1e3 if metric.name == TIME else 1.0
    ends = {"lower_value": metric.low, "upper_value": metric.high}
    return "latency" if metric.name == TIME else metric.name, {
        "value": metric.value * scale,
        **{name: end * scale for name, end in ends.items() if end is not None}}


def as_github_benchmark(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return the list of a custom tool of github-action-benchmark; without a choice, of times. Of
    several runs it is the file with the data of all, for its ``external-data-json-path``.

    Raises UsageError for metrics of both directions: a file holds one."""
    chosen = ExportRequest(request.metrics or (TIME,))
    entries = {id(run): [(case, one) for case in run.measured
                         for one in chosen_metrics(case, chosen)] for run in runs}
    every = [one for of_run in entries.values() for _, one in of_run]
    directions = {one.more_is_better for one in every}
    if len(directions) > 1:
        raise UsageError("github-benchmark: a file holds one direction; export time "
                         "(customSmallerIsBetter) and rates (customBiggerIsBetter) apart, by "
                         "--metric")
    several = len({one.name for one in every}) > 1
    lists = [(run, [_entry(case, one, several) for case, one in entries[id(run)]]) for run in runs]
    tool = "customBiggerIsBetter" if directions == {True} else "customSmallerIsBetter"
    if len(runs) > 1:
        return _data_of_runs(lists, tool)
    exported = _json(lists[0][1], runs[0])
    return Exported(exported.content, exported.left_out, (f"for tool: {tool}",)) if every else (
        exported)


def _data_of_runs(
    lists: Sequence[tuple[ExportedRun, list[dict[str, Any]]]], tool: str,
) -> Exported:
    """Return what the action keeps of all runs, by time in ms; the run's id stands for the commit.
    """
    points: list[dict[str, Any]] = []
    notes = [f"for tool: {tool}"]
    for run, benches in lists:
        info = run.results.run
        began_s = moment(info.started_at)
        if began_s is None or not benches:
            notes.append(f"left out: run {info.run_id}: "
                         f"{'no number' if began_s is not None else 'no start time'}")
            continue
        person = {"name": "hpcbench", "username": "hpcbench"}
        points.append({
            "commit": {"id": as_field(info.run_id), "message": as_field(info.name), "url": "",
                       "timestamp": _utc(began_s), "author": person, "committer": person},
            "date": round(began_s * 1000), "tool": tool, "benches": benches})
    points.sort(key=lambda point: point["date"])
    content = to_json({"lastUpdate": points[-1]["date"], "repoUrl": "",
                       "entries": {"hpcbench": points}}, indent=1, allow_nan=False) + "\n" if (
        points) else ""
    return Exported(content.encode(), tuple(one for run, _ in lists for one in not_measured(run)),
                    tuple(notes))


def _entry(case: ExportedCase, metric: CaseMetric, several: bool) -> dict[str, Any]:
    """Return one entry; a slash in a name makes a group, so the only one follows the kind."""
    name = f"{case.item.case.kind}/{case.name.replace('/', ':')}{f' {metric.name}' * several}"
    entry = {"name": name, "unit": metric.unit, "value": metric.value,
             "extra": f"case {case.item.case.case_id}"}
    if metric.low is not None and metric.high is not None:
        entry["range"] = f"{metric.low:.6g} to {metric.high:.6g}"
    return entry


def _json(document: Any, run: ExportedRun) -> Exported:
    content = to_json(document, indent=1, allow_nan=False) + "\n" if document else ""
    return Exported(content.encode(), (*not_measured(run),))


def as_otava(runs: Sequence[ExportedRun], request: ExportRequest) -> Exported:
    """Return a CSV with a row for each run, in order of time, and a column for each metric that all
    of them have: one empty cell ends Otava's analysis of all columns, and a NaN hides any change.
    """
    ordered = sorted(runs, key=lambda run: run.results.run.started_at)
    of_runs = [(run, dict(_otava_values(run, request))) for run in ordered]
    rows = [(run, values) for run, values in of_runs if values]
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
    notes = [f"left out: run {run.results.run.run_id}: no number"
             for run, values in of_runs if not values]
    if gaps:
        notes.append(f"left out: {plural(len(gaps), 'column')} without a value in every run: "
                     + ", ".join(gaps))
    return Exported(out.getvalue().encode() if names else b"",
                    tuple(one for run in ordered for one in not_measured(run)), (*notes,))


def _otava_values(run: ExportedRun, request: ExportRequest) -> Iterator[tuple[str, float]]:
    for case in run.measured:
        for metric in chosen_metrics(case, request):
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

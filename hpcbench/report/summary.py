"""The files beside results.h5: plots, and summary.json and summary.csv (docs/method.md).

Both summaries hold one row per planned case. Neither holds the environment, stacks or standard
error of a run: those stay in results.h5."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, fields
from operator import methodcaller
from pathlib import Path
from typing import Any

from hpcbench.answers.answer import Run
from hpcbench.answers.check import check_own_limits, code_of
from hpcbench.answers.topics import TopicResult
from hpcbench.answers.verdict import verdict_of
from hpcbench.errors import HpcbenchError, command_line
from hpcbench.kinds.registry import kinds
from hpcbench.plan.case import STATUSES, Plan
from hpcbench.reduce.comparison import FALSE_ALARMS, comparison_counts
from hpcbench.reduce.kind_facts import (
    COUNTS,
    OF_CASE,
    OF_RESULT,
    OF_TIMING,
    TIMES,
    metrics_of,
    row_of,
)
from hpcbench.reduce.records import comparisons
from hpcbench.reduce.results import (
    FOLDS,
    CaseResult,
    LateArrivals,
    Results,
    Usage,
    fold_text,
)
from hpcbench.reduce.results_file import FILE_NAME, open_again
from hpcbench.reduce.timing import CI_LEVEL
from hpcbench.report.charts import charts_of
from hpcbench.report.document import NOT_DRAWN, Drawn
from hpcbench.report.report_file import FORMATS, NAME, write_report
from hpcbench.report.terminal import print_document
from hpcbench.texts import Verbosity, as_field, to_json, valid
from hpcbench.trace.container import whole_file
from hpcbench.units import in_summary_units, plural
from hpcbench.views.chart import in_fields
from hpcbench.views.columns import late_start
from hpcbench.views.metric_tables import fields_of, metric_row
from hpcbench.views.presenter import presenter_of
from hpcbench.views.table import INTERVAL_TITLE, device_memory_how, env_text, fold_of

SCHEMA_VERSION = 2
ORDER = (
    "case_id", "index", "block", "kind", "collective", "backend", "device", "world_size", "mode",
    "env", "dtype", "op", "root", "in_place", "requested_bytes", "size_bytes", "count", "split",
    "groups", "warmup", "iterations", "validate", "status", "reason", "blamed_rank", "n_wrong", "n",
    "min_s", "p5_s", "p25_s", "median_s", "p75_s", "p95_s", "p99_s", "max_s", "busbw_factor",
    "algbw_gb_per_s", "busbw_gb_per_s", "fold", "ci_level")
"""The fields of schema version 1 come first, with those of collectives. A list is a list in JSON,
and text separated by spaces in CSV, with - for null; entries that are sentences, by semicolons."""


def _at(*steps: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what follows attributes and functions from a case's result on; None where one has
    none."""
    def value(of: Any) -> Any:
        for step in steps:
            of = None if of is None else getattr(of, step) if isinstance(step, str) else step(of)
        return of

    return value


_BEYOND: Mapping[str, Callable[[CaseResult], Any]] = {
    "index": _at("case", "index"), "reason": _at("reason"), "n": _at("statistics", "n"),
    "env": _at("case", env_text), "fold": lambda item: fold_of(item) if item.statistics else None,
    "ci_level": lambda _: CI_LEVEL,
    "min_iterations": lambda item: (
        item.case.iterations if item.case.is_fixed else item.case.min_iterations),
    "device_memory": device_memory_how,
    **{name: _at("timing", name) for name in ("launch_medians_s", "pass_medians_s")},
    **{name: _at("library", methodcaller("get", name))
       for name in ("algorithm", "protocol", "channels", "transport")},
    **{f"unflagged_{name}": _at("timing", "unflagged", name)
       for name in ("min_s", "p5_s", "p25_s", "p75_s", "p95_s", "p99_s", "max_s")},
    **{f"late_start_{name}": _at(late_start, field) for name, field in (
        ("rank", "rank"), ("s", "apart_s"), ("low_s", "low_s"), ("high_s", "high_s"))},
    "mode_medians_s": _at("timing", lambda timing: [
        mode.median_s for mode in timing.modes] or None),
    "mode_shares": _at("timing", lambda timing: [mode.share for mode in timing.modes] or None)}
"""Fields of all cases that no columns of /cases are, or that differ from them."""
_INTERVAL = ("ci_level", "ci_reliable", "ci_unit", "ci_rank")
_OF_USAGE: Mapping[str, Callable[[CaseResult], Any]] = {
    f"usage_{one.name}" if one.name in ("passes", "window_s") else one.name: _at("usage", one.name)
    for one in fields(Usage) if one.name != "spans_ns"}
"""Fields of runs with telemetry: each case's use of the machine."""
_OF_ARRIVALS: Mapping[str, Callable[[CaseResult], Any]] = {
    "arrival": _at("case", "arrival", "text"),
    **{one.name: _at("timing", "arrivals", one.name) for one in fields(LateArrivals)}}
"""Fields of runs in which ranks enter late on purpose."""
_COMMON = (*fields_of((*OF_CASE, *OF_RESULT, *COUNTS, *TIMES, *OF_TIMING)), *_BEYOND, "faults")

_MISSING = "not_measured"
"""The section with the reasons why others are null."""
Work = Callable[[], object]
Beside = Callable[[Work], AbstractContextManager[Callable[[], str | None]]]
"""Starts work, and gives the call that waits for its end: None, or how it was lost."""


@contextmanager
def _afterwards(work: Work) -> Iterator[Callable[[], None]]:
    """Give the call that does the work in this process."""
    def do() -> None:
        work()

    yield do


def write_reports(
    results: Results, folder: Path, advice: Sequence[TopicResult],
    verbosity: Verbosity | None = None, shown: str = "", beside: Beside | None = None,
) -> list[Path]:
    """Write the summaries and, unless `output` refuses, plots and report; return their paths.

    Both read their samples from ``folder/results.h5``; where no case is ok there are no plots.
    ``advice`` are the answers. The report calls the run ``shown``, or its folder; it is written
    ``beside`` the plots, or after them. Raises FileError if a file cannot be written; with a
    ``verbosity`` each is announced, and what plots or report raise is a line of complaint."""
    written = write_summary(results, folder, advice)
    output = results.plan.config.get("output", {})
    target, drawn = folder / f"{NAME}{FORMATS['html']}", NOT_DRAWN
    if output.get("plots", True):
        with _optional("plots", folder, verbosity):
            drawn = _drawn(results, folder, advice, verbosity)

    def report() -> None:
        with open_again(folder / FILE_NAME, results) as file:
            write_report([Run(shown or valid(str(folder)), results, file)], "html", target, drawn)

    has_report = output.get("report", True)
    start = beside if beside and has_report and drawn.charts else _afterwards
    with start(report) as finish:
        with _optional("plots", folder, verbosity):
            written += _plotted(drawn, results, folder)
        if has_report:
            with _optional("report", folder, verbosity):
                if verbosity:
                    verbosity.announce(f"writing {target}")
                if lost := finish():
                    (verbosity or Verbosity.NORMAL).complain(
                        f"note: {target} is written again: its process {lost}")
                    report()
                written.append(target)
    return written


@contextmanager
def _optional(what: str, folder: Path, verbosity: Verbosity | None) -> Iterator[None]:
    """Let an optional part fail with a complaint; raise its error without ``verbosity``."""
    try:
        yield
    except Exception as error:
        if verbosity is None:
            raise
        expected = isinstance(error, (HpcbenchError, OSError))
        why = str(error) if expected else f"{type(error).__name__}: {error}"
        verbosity.complain(f"note: no {what}: {why}; once this is mended: "
                           f"{command_line('reduce', folder)}")


def _drawn(
    results: Results, folder: Path, advice: Sequence[TopicResult],
    verbosity: Verbosity | None,
) -> Drawn:
    """Return the charts with their figures, if there are any: importing matplotlib alone takes half
    a second."""
    with open_again(folder / FILE_NAME, results) as file:
        charts = charts_of(results, file, advice)
    if not charts:
        return NOT_DRAWN
    if verbosity:
        verbosity.announce(f"drawing {plural(len(charts), 'plot')} in {folder / 'plots'}")
    from hpcbench.report.plots import bare

    return Drawn(charts, {id(chart): bare(in_fields(chart)) for chart in charts})


def _plotted(drawn: Drawn, results: Results, folder: Path) -> list[Path]:
    if not drawn.charts:
        return []
    from hpcbench.report.plots import plot_charts

    return plot_charts(drawn.charts, results, folder / "plots", figures=drawn.figures)


def field_names(of_run: Collection[str]) -> tuple[str, ...]:
    """Return ORDER and the other fields that all cases have, then those of each kind in the order
    of the kinds.

    ``of_run`` are the kinds of the run's cases; some kinds have fields in their summaries only."""
    own = (name for kind, spec in kinds().items() if spec.in_every_summary or kind in of_run
           for name in (*presenter_of(kind).fields, *fields_of(metrics_of(kind))))
    return tuple(dict.fromkeys((*ORDER, *_COMMON, *own)))


def _names(results: Results) -> tuple[str, ...]:
    """Return `field_names` of a run, and what the run has beside them."""
    return tuple(dict.fromkeys((
        *field_names(results.plan.kinds), *_beyond(results),
        *fields_of(results.kind_columns.columns))))


def _beyond(results: Results) -> dict[str, Callable[[CaseResult], Any]]:
    return {**_BEYOND, **(_OF_USAGE if results.telemetry else {}),
            **(_OF_ARRIVALS if results.plan.has_late_ranks else {})}


def print_summary(results: Results, advice: Sequence[TopicResult]) -> None:
    """Print the content of summary.json."""
    print_document(summary_document(results, case_rows(results), advice))


def write_summary(
    results: Results, folder: Path, advice: Sequence[TopicResult] = (),
) -> list[Path]:
    """Write both files into ``folder`` and return their paths. Raises FileError."""
    names, rows = _names(results), case_rows(results)
    json_path, csv_path = folder / "summary.json", folder / "summary.csv"
    document = summary_document(results, rows, advice)
    with whole_file(json_path) as part:
        text = to_json(document, indent=2, allow_nan=False, ensure_ascii=False)
        part.write_text(text + "\n", encoding="utf-8")
    with whole_file(csv_path) as part, part.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _csv_cell(row[name]) for name in names} for row in rows)
    return [json_path, csv_path]


def _csv_cell(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        texts = ["-" if item is None else str(item) for item in value]
        value = ("; " if any(" " in text for text in texts) else " ").join(texts)
    return value if value is None or isinstance(value, (int, float)) else as_field(str(value))


def case_rows(results: Results) -> list[dict[str, Any]]:
    """Return a row for each case: field -> value; None where it has no such value."""
    names, beyond, columns = _names(results), _beyond(results), results.kind_columns
    metrics = {kind: metrics_of(kind) for kind in results.plan.kinds if kind not in columns.missing}
    stored = {one.name: one for one in columns.columns}
    rows = []
    for item in results.cases:
        case, record = item.case, results.record_of(item)
        row = {**dict.fromkeys(names), **in_summary_units(row_of(item)),
               **{name: of(item) for name, of in beyond.items()},
               "faults": list(results.run.faults)}
        if item.statistics is None or item.statistics.ci_low_s is None:
            row |= dict.fromkeys(_INTERVAL)
        of_case = columns.values.get(case.case_id, {})
        row |= in_summary_units({name: stored[name].read(value)
                                 for name, value in of_case.items()})
        row |= metric_row(metrics.get(case.kind, ()), item, record)
        row |= presenter_of(case.kind).row(item, record)
        rows.append({name: row[name] for name in names})
    return rows


def summary_document(
    results: Results, rows: list[dict[str, Any]], advice: Sequence[TopicResult] = (),
) -> dict[str, Any]:
    """Return summary.json's content."""
    run = results.run
    counts = Counter(item.status for item in results.cases)
    measure = results.plan.config.get("measure", {})
    return {
        "schema": "hpcbench.summary", "schema_version": SCHEMA_VERSION,
        "name": run.name, "world_size": run.world_size, "timestamp": run.started_at or None,
        "faults": list(run.faults),
        "run_id": run.run_id, "plan_hash": run.plan_hash, "nodes": list(run.nodes),
        "ranks_present": list(run.ranks_present), "hpcbench_version": run.hpcbench_version,
        "versions": dict(run.versions), "environment_hash": run.environment_hash,
        "definitions": {
            "time": "median over the timed samples of the fold, seconds", "folds": _folds(results),
            "interval": INTERVAL_TITLE,
            "gb": "1e9 bytes", "details": "docs/method.md",
        },
        "repeats": {"passes": results.plan.passes, "launches": results.plan.launches,
                    **{name: measure.get(name) for name in ("order", "seed")}},
        "clocks": results.clocks and asdict(results.clocks),
        "canary": results.canary and asdict(results.canary),
        "comparisons": {"false_alarms": FALSE_ALARMS,
                        **comparison_counts(comparisons(results))},
        **({"telemetry": [asdict(one) for one in results.telemetry]} if results.telemetry else {}),
        "config": _config(rows, results.plan),
        "notes": list(results.plan.config.get("notes", ())),
        "totals": {"planned": len(results.plan.cases), **{s: counts[s] for s in STATUSES}},
        "answers": {one.topic.name: [asdict(answer) for answer in one.record.answers]
                    for one in advice},
        "verdict": asdict(verdict_of(results)), "check": _check(results),
        "results": _sections(results, rows),
        "cases": rows,
        "findings": [finding.stored() for finding in results.findings],
    }


def _folds(results: Results) -> dict[str, str]:
    """Return the meaning of each fold: those of runs, and those of imported results."""
    return {**FOLDS, **{item.timing.fold: fold_text(item.timing.fold) for item in results.cases
                        if item.timing}}


def _check(results: Results) -> dict[str, Any] | None:
    """Return whether the limits of the sweep hold, with the code that `check` ends with."""
    checked = check_own_limits(results)
    return None if checked is None else {"code": code_of(checked), **asdict(checked)}


def _config(rows: list[dict[str, Any]], plan: Plan) -> dict[str, Any]:
    """Return the settings of all rows that ran; a list where the sweep varies one."""
    rows = [row for row in rows if row["status"] not in ("skipped", "not_run")] or rows
    is_fixed = {case.case_id: case.is_fixed for case in plan.cases}
    return {
        "warmup_iters": _one_or_all(row["warmup"] for row in rows),
        "benchmark_iters": _one_or_all(
            row["iterations"] if is_fixed[row["case_id"]] else "auto" for row in rows),
        "device": _one_or_all(row["device"].split(":")[0] for row in rows),
        "mode": _one_or_all(row["mode"] for row in rows),
        "interconnect": plan.config.get("hardware", {}).get("interconnect"),
    }


def _one_or_all(values: Iterable[int | str]) -> Any:
    unique = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    return unique[0] if len(unique) == 1 else unique


def _sections(results: Results, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sections of all kinds by name, also of kinds without cases.

    Rows of several kinds under one name stand behind one another."""
    sections: dict[str, Any] = {}
    for kind in kinds():
        own = [(row, item) for row, item in zip(rows, results.cases, strict=True)
               if item.case.kind == kind]
        by_name = presenter_of(kind).sections(
            [row for row, _ in own], [item for _, item in own], results.derived.get(kind, {}))
        sections |= {name: [*sections[name], *rows] if isinstance(sections.get(name), list)
                     and isinstance(rows, list) else rows for name, rows in by_name.items()}
    if missing := sections.get(_MISSING):
        sections[_MISSING] = {name: why for name, why in missing.items() if not sections.get(name)}
    return sections

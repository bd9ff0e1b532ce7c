"""Prints plans and results; the same text on a terminal (in colour) and in a log.

With --quiet there is only the result on standard output; failures and findings go to standard
error. With --verbose lists are whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from rich.text import Text

from hpcbench.analysis.thresholds import held
from hpcbench.errors import command_line
from hpcbench.kinds.registry import presenter_of
from hpcbench.plan.case import Plan
from hpcbench.reduce.results import Results
from hpcbench.report import results_lines as lines
from hpcbench.report.check_lines import reason_lines
from hpcbench.report.definition_lines import definition_lines, how_lines
from hpcbench.report.detail_lines import detail_lines
from hpcbench.report.plan_lines import case_tables, plan_header, plan_total, skip_lines
from hpcbench.report.table_lines import table_lines, tone_line
from hpcbench.report.tables import tables_of
from hpcbench.report.terminal import print_lines
from hpcbench.texts import say
from hpcbench.units import plural
from hpcbench.verbosity import Verbosity
from hpcbench.views.ending import ending_lines
from hpcbench.views.said_once import said_once, shared_of
from hpcbench.views.telemetry import telemetry_line
from hpcbench.views.topics import Told


def print_plan(plan: Plan, verbosity: Verbosity = Verbosity.NORMAL) -> None:
    """Print cases, order, skips and the estimate of a plan; quietly their numbers in one line."""
    if verbosity.is_quiet:
        print_lines([plan_total(plan)])
        return
    print_lines(chain(plan_header(plan), case_tables(plan),
                      skip_lines(plan, full=verbosity.is_verbose)))


def report_run(
    results: Results, folder: Path, told: Sequence[Told], verbosity: Verbosity, *,
    explain: bool = False,
) -> None:
    """Print what came of a run, and what is told of it; quietly the path of its folder."""
    if verbosity.is_quiet:
        _print_failures(results)
        say(folder)
    else:
        print_results(results, folder, verbosity, told=told, explain=explain)


def print_results(
    results: Results, folder: Path, verbosity: Verbosity = Verbosity.NORMAL, *,
    told: Sequence[Told] = (), explain: bool = False,
) -> None:
    """Print a run's tables, what was not ok and why, and in a few lines its end.

    Quietly only the tables, without their notes. ``explain``: also what the columns mean.
    """
    tables, full = list(tables_of(results)), verbosity.is_verbose
    if verbosity.is_quiet:
        bare = (replace(table, lead=(), notes=()) for table in tables)
        print_lines(chain.from_iterable(map(table_lines, bare)))
        _print_failures(results)
        return
    shared = shared_of(tables)
    print_lines(chain(
        lines.run_lines(results), map(Text, how_lines(results, shared)),
        map(Text, definition_lines(results)) if explain else [_way_to_definitions(folder)],
        lines.title_lines(results),
        chain.from_iterable(map(table_lines, said_once(tables, shared))), _problem_lines(results),
        detail_lines(results) if full else (), lines.outcome_lines(results, full=full),
        lines.finding_lines(results, full=full), [Text()],
        map(tone_line, ending_lines(results, told)), _telemetry_lines(results),
        _limit_lines(results),
        lines.closing_lines(results, folder)))


def _telemetry_lines(results: Results) -> Iterator[Text]:
    """Yield what could not be read of the machine, in one line."""
    if text := telemetry_line(results):
        yield Text(text, style="dim")


def _limit_lines(results: Results) -> Iterator[Text]:
    """Yield each limit of the sweep that does not hold, or that they all do."""
    checked = held(results)
    if checked is None:
        return
    yield from (Text(line, style="bold red") for line in reason_lines(checked))
    if not checked.reasons:
        yield Text(f"limits: {plural(checked.n_limits, 'limit')} of the sweep hold")


def _way_to_definitions(folder: Path) -> Text:
    way = command_line("show", folder, "--explain")
    return Text(f"what the columns mean: {way} (docs/method.md)", style="dim")


def _print_failures(results: Results) -> None:
    """Print on standard error what was not ok, and what the checks refuse.

    Skips are told only where nothing was ok: then they are why a run fails.
    """
    statuses = lines.FAILED if any(item.status == "ok" for item in results.cases) else lines.NOT_OK
    bad = tuple(finding for finding in results.findings if finding.scope != "note")
    print_lines(chain(
        lines.fault_lines(results), lines.outcome_lines(results, statuses),
        lines.finding_lines(replace(results, findings=bad)), _violations(results)), sys.stderr)


def _violations(results: Results) -> Iterator[Text]:
    checked = held(results)
    if checked is not None:
        yield from map(Text, reason_lines(checked))


def print_profiles(profile_lines: Sequence[str]) -> None:
    """Print what came of the profiled samples."""
    if profile_lines:
        print_lines([Text(""), *map(Text, profile_lines)])


def _problem_lines(results: Results) -> Iterator[Text]:
    """Yield what is wrong with kinds of plug-ins."""
    for kind in lines.items_by_kind(results.cases):
        if problem := presenter_of(kind).problem:
            yield Text(f"kind {kind}: {problem}", style="yellow")
    for kind, reason in results.missing_kinds.items():
        yield Text(f"kind {kind} {reason}; its rows lack what the kind derives (docs/plugins.md)",
                   style="yellow")

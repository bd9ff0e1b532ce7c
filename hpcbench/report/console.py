"""Prints results, profiles and suites: in colour on a terminal, the same text in a log.

With --quiet there is only the result on standard output; failures and findings go to standard
error. With --verbose lists are whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from rich.text import Text

from hpcbench.answers.check import check_own_limits
from hpcbench.answers.topics import TopicResult, summary_lines
from hpcbench.answers.winners import winners_among, with_fastest
from hpcbench.errors import job_command_line
from hpcbench.reduce.results import Results
from hpcbench.reduce.suite_file import FINDINGS, MEMBER_STATUSES, MISSED, OK, Member, Suite
from hpcbench.report import results_lines
from hpcbench.report.answer_lines import reason_lines
from hpcbench.report.plan_lines import note_lines
from hpcbench.report.terminal import Sentence, print_lines, tone_line
from hpcbench.texts import Verbosity, from_json, say
from hpcbench.units import plural
from hpcbench.views.columns import any_profile, arrival_tables, missing_passes_text, telemetry_line
from hpcbench.views.presenter import presenter_of
from hpcbench.views.table import Column, Group, Line, Row, Show, Table


def report_run(
    results: Results, folder: Path, advice: Sequence[TopicResult], verbosity: Verbosity, *,
    explain: bool = False,
) -> None:
    """Print a run's results and answers; quietly its failures and the path of its folder."""
    if verbosity.is_quiet:
        _print_failures(results)
        say(folder)
    else:
        print_results(results, folder, verbosity, advice=advice, explain=explain)


def print_results(
    results: Results, folder: Path, verbosity: Verbosity = Verbosity.NORMAL, *,
    advice: Sequence[TopicResult] = (), explain: bool = False,
) -> None:
    """Print a run's counts, tables, failures and summary; in detail every column and sample count.

    Quietly only the tables and failures. ``explain``: also the meaning of the columns."""
    full, results = verbosity.is_verbose, results_lines.with_commands(results, folder)
    tables_of = (results_lines.tables_of if full or explain else results_lines.brief_tables_of)
    tables = [*tables_of(results), *arrival_tables(results)]
    if verbosity.is_quiet:
        bare = (replace(table, lead=(), notes=()) for table in tables)
        print_lines(bare)
        _print_failures(results)
        return
    winners = winners_among(one.record for one in advice)
    tables = [with_fastest(table, winners) for table in tables]
    definitions = [*results_lines.definition_lines(results)]
    title = results.plan.config.get("title")
    print_lines(chain(
        [Sentence(results_lines.header_line(results), 2, "bold")],
        (Sentence(line, 4) for line in results_lines.count_lines(results)),
        results_lines.run_lines(results) if full else chain(
            results_lines.fault_lines(results), note_lines(results.plan)),
        map(Sentence, results_lines.how_lines(results)) if full or explain else (),
        (Sentence(line, 4) for line in chain(
            definitions, results_lines.column_lines(tables, definitions))) if explain else (),
        [Text(), Sentence(title, style="bold")] if title else [],
        tables, _problem_lines(results),
        results_lines.detail_lines(results) if full else (),
        results_lines.outcome_lines(
            results, results_lines.NOT_OK if full else results_lines.FAILED, full=full),
        results_lines.finding_lines(results if full else _refusing(results), full=full),
        _summary(results, advice, full=full), [Text()],
        results_lines.closing_lines(results, folder)), whole=full or explain)


def print_corrections(results: Results, said: Mapping[str, str]) -> None:
    """Name each case that does not end as it was ``said`` while cases ran, by its id."""
    for item in results.cases:
        if (before := said.get(item.case.case_id, item.status)) != item.status:
            say(f"corrected: {item.case.label}: {item.status}, not {before}: {item.reason}")


def _refusing(results: Results) -> Results:
    """Return the results with only the findings that are errors."""
    return replace(results, findings=tuple(
        finding for finding in results.findings if finding.scope != "note"))


def _summary(
    results: Results, advice: Sequence[TopicResult], *, full: bool,
) -> Iterator[Text]:
    """Yield the summary; ``full``: without the warnings, which are among the findings above it."""
    telemetry = telemetry_line(results)
    limits = (tone_line(replace(line, topic="limits"))
              for line in results_lines.limit_lines(results))
    shown = [*(tone_line(line) for line in summary_lines(results, advice)
               if not (full and (line.topic or "").startswith("warning["))),
             *(Text(line.plain, line.style) for line in limits),  # whole, for who searches a log
             *([tone_line(Line(telemetry, "quiet", "telemetry"))] if telemetry else ())]
    if shown:
        yield from (Text(), Text("summary", style="bold"), *shown)


def _print_failures(results: Results) -> None:
    """Print on standard error faults, cases that are not ok, errors, and limits that are not met.

    Skips are shown only where nothing was ok: then they are why a run fails."""
    some_ok = any(item.status == "ok" for item in results.cases)
    statuses = results_lines.FAILED if some_ok else results_lines.NOT_OK
    checked = check_own_limits(results)
    print_lines(chain(
        results_lines.fault_lines(results), results_lines.outcome_lines(results, statuses),
        results_lines.finding_lines(_refusing(results)),
        map(Text, reason_lines(checked) if checked else ())), sys.stderr)


def print_profiles(profile_lines: Sequence[str]) -> None:
    if profile_lines:
        print_lines([Text(), *map(Sentence, profile_lines)])


def _problem_lines(results: Results) -> Iterator[Text]:
    for kind in results_lines.items_by_kind(results.cases):
        if problem := presenter_of(kind).problem:
            yield Sentence(f"kind {kind}: {problem}", style="yellow")
    for kind, reason in results.lacking_kinds.items():
        yield Sentence(f"kind {kind} {reason}; its rows lack what the kind derives "
                       "(docs/plugins.md)", style="yellow")


CAPTURED = Path("profile") / "profile.json"
"""The lines on recorded traces, in the results folder: {schema_version, lines}."""
MOST_LINES = 12


def print_profile(results: Results, folder: Path) -> None:
    """Print the findings of a profiled run, at most a screen of them."""
    shown, run = list(_shown(results)), results.run
    lines = [line for line in shown if isinstance(line, Line)]
    tables = [table for table in shown if isinstance(table, Table)]
    target = results.plan.config.get("profiling", {}).get("target") or "all cases"
    head = Sentence(f"{run.name}  run {run.run_id}  profile of {target} on "
                    f"{plural(run.world_size, 'rank')}", style="bold")
    passes = missing_passes_text(results)
    cut = [Sentence(f"incomplete: {passes}", style="yellow")] if passes else []
    print_lines(chain(
        [head], cut, results_lines.fault_lines(results), map(tone_line, lines), tables,
        results_lines.outcome_lines(results), _captured_lines(folder), [Text()],
        results_lines.closing_lines(results, folder)))


def _shown(results: Results) -> Iterator[Line | Table]:
    for kind, items in results_lines.items_by_kind(results.cases).items():
        presenter = presenter_of(kind)
        shown = None if kind in results.missing_kinds else presenter.profile(
            items, results.derived.get(kind, {}))
        yield from any_profile(items) if shown is None else shown


def _captured_lines(folder: Path) -> Iterator[Text]:
    try:
        captured = from_json((folder / CAPTURED).read_bytes())["lines"]
        lines = [str(line) for line in captured[:MOST_LINES]]
    except FileNotFoundError:
        return
    except (OSError, ValueError, LookupError, TypeError) as error:
        lines = [f"{folder / CAPTURED} cannot be read ({type(error).__name__}: {error})"]
    yield Text()
    yield from map(Sentence, lines)


_COUNTED = ("ok", "skipped", "wrong", "failed", "timeout", "not_run")
_COLUMNS = (
    Column("file", "sweep file"), Column("status", "status"),
    *(Column(name, name.replace("_", " "), Show.COUNT) for name in _COUNTED),
    Column("duration", "time", Show.DURATION), Column("folder", "folder"))
_LOOKS = {OK: "ok", FINDINGS: "failed", MISSED: "failed"}
"""Status of a member -> status of a case whose colour it has; others look like a skip."""


def print_member(members: Sequence[Member], index: int) -> None:
    member = members[index]
    print_lines([Text(), Text(f"== {index + 1} of {len(members)}: {member.file} ({member.name}) ==",
                              style="bold")])


def print_error(message: str) -> None:
    print_lines((Text(line, style="red") for line in f"hpcbench: {message}".split("\n")),
                sys.stderr)


def print_outcome(member: Member) -> None:
    """Print on standard error the member that left the lines before, and its status."""
    text = f"{member.folder}: {member.status}: {MEMBER_STATUSES[member.status]}"
    print_lines([Text(f"hpcbench: {text}")], sys.stderr)


def print_suite(
    suite: Suite, folder: Path, verbosity: Verbosity = Verbosity.NORMAL,
) -> None:
    """Print a row for each member, why some have no results, and the folder; quietly only rows."""
    table = suite_table(suite, folder)
    if verbosity.is_quiet:
        print_lines([replace(table, notes=())])
        return
    print_lines([table, Text(),
                 Text(f"in {folder}: suite.json, and a results folder for each member")],
                whole=verbosity.is_verbose)


def suite_table(suite: Suite, folder: Path) -> Table:
    rows = tuple(_row(member) for member in suite.members)
    notes = [f"{member.folder}: {reason}" for member in suite.members for reason in member.reasons]
    if suite.stopped_by:
        again = job_command_line(suite.world_size, "suite", "--resume", folder)
        notes.append(f"stopped by {suite.stopped_by}: {again} goes on")
    notes += [f"{member.folder}: faults were injected: {'; '.join(faults)}"
              for member in suite.members if (faults := (member.summary or {}).get("faults"))]
    unusual = dict.fromkeys(member.status for member in suite.members if member.status != OK)
    notes += [f"{status}: {MEMBER_STATUSES[status]}" for status in unusual]
    return Table("suite", _COLUMNS, (Group("", rows),),
                 notes=tuple(Line(note, "quiet") for note in notes))


def _row(member: Member) -> Row:
    counts = member.counts or {}
    return Row((member.file, member.status, *(counts.get(name) for name in _COUNTED),
                member.duration_s, member.folder), _LOOKS.get(member.status, "skipped"))

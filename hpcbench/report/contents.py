"""What a report of one run contains, in the order in which a person asks.

First the verdict, why, and what to do next; then the results of each kind, the answers, the course
of the run, what did not run, the environment, and how all of it was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hpcbench.analysis.answer import CLEAR, Answer, Asked, Run
from hpcbench.reduce.environments import flattened
from hpcbench.reduce.results import Finding, Results
from hpcbench.report.charts import charts_of, origin_text
from hpcbench.report.comparison_section import differences_section
from hpcbench.report.definition_lines import definition_lines, how_lines
from hpcbench.report.detail_lines import detail_tables
from hpcbench.report.results_lines import (
    FAILED,
    LEFT_OUT,
    evidence_of,
    items_by_kind,
)
from hpcbench.report.tables import tables_of, tables_of_kind
from hpcbench.report.verdict_section import verdict_section
from hpcbench.texts import from_json
from hpcbench.units import grouped, plural
from hpcbench.views.chart import Chart
from hpcbench.views.document import Document, Item, Section
from hpcbench.views.rules import by_rule
from hpcbench.views.said_once import said_once, shared_of
from hpcbench.views.table import Column, Group, Line, Row, Show, Table
from hpcbench.views.telemetry import telemetry_tables
from hpcbench.views.topics import TOPICS, Told, told_of

_OUTCOMES = (
    Column("cases", "cases", Show.COUNT), Column("status", "status"),
    Column("rank", "rank to blame", Show.COUNT, optional=True), Column("reason", "reason"),
    Column("which", "which"), Column("evidence", "what a worker left behind", optional=True))
_FINDINGS = (
    Column("code", "code", meaning="explained in docs/checks.md"),
    Column("scope", "of", meaning="run: not to be trusted as one run; rank: a trace was left out; "
           "case: it was rejected or contradicts another; note: nothing was left out"),
    Column("message", "what was found, and what to do"))
_FACTS = (Column("key", "fact"), Column("value", "value"))
_LABELS, _EVIDENCE_LINES, _PHRASES, _LONGEST = 3, 12, 4, 300


def document_of(runs: Sequence[Run], *, full: bool = True) -> Document:
    """Return the report of a run, or of several: what differs, then each, the first one first.

    Not ``full``, as where room is scarce, it has of what differs only what weighs most.
    """
    if len(runs) == 1:
        run, = runs
        return Document(_name(run), _when(run), _with_data(sections_of(run, asked=Asked())),
                        origin_text(run.results))
    parts = [Section(f"run-{number}", f"{_name(run)}: {run.path}",
                     (Line(_when(run), "quiet"), Line(origin_text(run.results), "quiet")),
                     _with_data(_renamed(sections_of(run), f"run-{number}-")))
             for number, run in enumerate(runs, 1)]
    first = (differences_section(runs, full=full), *_answers(runs, Asked()))
    return Document(f"{len(runs)} runs", ", ".join(run.path for run in runs),
                    _with_data([*first, *parts]))


def sections_of(run: Run, asked: Asked | None = None) -> Iterator[Section]:
    """Yield the sections of one run; its answers only if something was ``asked``."""
    results, told = run.results, told_of(run)
    of_answers = {chart.title for one in told for chart in one.topic.charts(one.record)}
    charts = [chart for chart in charts_of(results, run.samples, told)
              if chart.title not in of_answers]
    yield verdict_section(run, told)
    yield from _kinds(results, charts)
    if asked is not None:
        yield from _answers([run], asked, told if asked == Asked() else ())
    yield Section("course", "The course of the run", tuple(_course(results, charts)),
                  short="Course")
    yield Section("outcomes", "What was skipped or failed", tuple(_outcomes(results)),
                  short="Not ok")
    yield Section("findings", "Findings", tuple(_findings(results.findings)))
    yield Section("environment", "Environment", tuple(_environment(results)))
    yield Section("method", "How it was measured", tuple(map(Line, _method(results))),
                  short="Method")


def _name(run: Run) -> str:
    return str(run.results.plan.config.get("title") or run.results.run.name)


def _when(run: Run) -> str:
    info = run.results.run
    return (f"run {info.run_id}, {info.started_at or 'start time unknown'}, "
            f"{plural(info.world_size, 'rank')} on {plural(len(info.nodes), 'node')}")


def _with_data(sections: Iterable[Section]) -> tuple[Section, ...]:
    return tuple(section for section in sections if section.items or section.parts)


def _renamed(sections: Iterable[Section], prefix: str) -> Iterator[Section]:
    for section in sections:
        yield replace(section, key=f"{prefix}{section.key}",
                      parts=tuple(_renamed(section.parts, prefix)))


def _answers(runs: Sequence[Run], asked: Asked, told: Sequence[Told] = ()) -> Iterator[Section]:
    """Yield a section a topic that has an answer: its sentences, tables and charts.

    What is ``told`` of these runs already is not found out again.
    """
    known = {one.topic.name: one.record for one in told}
    for topic in TOPICS:
        record = known.get(topic.name) or topic.analysis(runs, asked)
        if record.answers:
            commands = dict.fromkeys(answer.command for answer in record.answers if answer.command)
            yield Section(f"answer-{topic.name}", topic.question.capitalize(), (
                *(line for answer in record.answers for line in _answer_lines(answer)),
                *(Line(command, "quiet") for command in commands),
                *topic.tables(record), *topic.charts(record)), short=topic.name.capitalize())


def _answer_lines(answer: Answer) -> Iterator[Line]:
    yield Line(answer.sentence, "title" if answer.certainty == CLEAR else "plain")
    if answer.evidence:
        more = len(answer.evidence) - _PHRASES
        yield Line(f"from: {'; '.join(answer.evidence[:_PHRASES])}"
                   + (f"; and {more} more" if more > 0 else ""), "quiet")


def _kinds(results: Results, charts: Sequence[Chart]) -> Iterator[Section]:
    """Yield the tables of each kind, block by block, and its charts."""
    for kind, items in items_by_kind(results.cases).items():
        tables = [table for table in tables_of_kind(results, kind) if table.columns]
        shown = [*said_once(tables, shared_of(list(tables_of(results))))]
        ids = {item.case.case_id for item in items}
        of_kind = [chart for chart in charts if chart.case_ids and set(chart.case_ids) <= ids
                   and not _is_course(chart)]
        yield Section(f"kind-{kind}", kind.capitalize(), (*shown, *of_kind))


def _is_course(chart: Chart) -> bool:
    return chart.file_stem == "rank_iteration" or chart.file_stem.startswith("timeline_")


def _course(results: Results, charts: Sequence[Chart]) -> Iterator[Item]:
    """Yield the charts and tables of the run as a whole: over time, by rank, of the machine."""
    yield from (chart for chart in charts if not chart.case_ids or _is_course(chart))
    yield from detail_tables(results)
    yield from telemetry_tables(results)


def _outcomes(results: Results) -> Iterator[Item]:
    """Yield a row for all cases that were left out by one rule, or failed for one reason."""
    rows = [*_failures(results), *_left_out(results)]
    if rows:
        yield Table("cases that are not ok, by reason", _OUTCOMES, (Group("", tuple(rows)),))


def _failures(results: Results) -> Iterator[Row]:
    groups = grouped(((item.status, item.reason, item.blamed_rank), item)
                     for item in results.cases if item.status in FAILED
                     and item.status not in LEFT_OUT)
    for (status, reason, rank), same in groups.items():
        yield Row((len(same), status, rank, reason, _which([item.case.label for item in same]),
                   "\n".join(evidence_of(same[0], _EVIDENCE_LINES)) or None), status)


def _left_out(results: Results) -> Iterator[Row]:
    for status in LEFT_OUT:
        rules = by_rule(((item.reason, item) for item in results.cases if item.status == status),
                        lambda item: item.case)
        for rule, same in rules.items():
            yield Row((len(same), status, None, rule, _which([item.case.label for item in same]),
                       None), status)


def _which(labels: Sequence[str]) -> str:
    more = len(labels) - _LABELS
    return "; ".join(labels[:_LABELS]) + (f"; and {more} more" if more > 0 else "")


def _findings(findings: Sequence[Finding]) -> Iterator[Item]:
    if findings:
        yield Table("what the checks found", _FINDINGS, (Group("", tuple(
            Row((one.code, one.scope, one.message),
                "ok" if one.scope == "note" else "wrong") for one in findings)),))


def _environment(results: Results) -> Iterator[Item]:
    """Yield what the first rank ran with; what differs between ranks is a finding (HB142)."""
    facts = list(flattened(results.run.environment))
    if facts:
        groups = grouped((key.partition(".")[0] if "." in key else "", Row((key, _plain(value))))
                         for key, value in facts)
        yield Table(f"rank {results.run.ranks_present[0]} ran with", _FACTS, tuple(
            Group(name, tuple(rows)) for name, rows in groups.items()))


def _plain(value: str) -> str:
    """Return JSON text as people write it: a text without quotes, and not of any length."""
    text = str(from_json(value)) if value.startswith('"') else value
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST - 4]} ..."


def _method(results: Results) -> Iterator[str]:
    yield from how_lines(results, shared_of(list(tables_of(results))))
    yield from _whole(definition_lines(results))
    yield (f"measured by hpcbench {results.run.hpcbench_version}; docs/method.md explains every "
           "term")


def _whole(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines with those that go on with them, which a console shows indented."""
    parts: list[str] = []
    for line in lines:
        if parts and not line.startswith("  "):
            yield " ".join(parts).rstrip(";")
            parts = []
        parts.append(line.strip())
    if parts:
        yield " ".join(parts).rstrip(";")

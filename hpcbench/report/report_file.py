"""The report of one run or of several, written as HTML, PDF (by WeasyPrint) or Markdown.

The first screen answers in this order: is it good, what is best, what is wrong, what to do next.
Then come the results of each kind, the answers, the run over time, what did not run, the
environment and the method. A report of several runs begins with their differences."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from pathlib import Path

from hpcbench import __version__
from hpcbench.answers.answer import CANNOT_TELL, CLEAR, Answer, Run, TopicOptions, by_subject
from hpcbench.answers.compare import (
    INCONCLUSIVE,
    SMALLEST,
    Compared,
    compare_sides,
)
from hpcbench.answers.compare_tables import (
    comparison_chart,
    comparison_table,
    difference_table,
    needed_line,
    totals_line,
    unmatched_table,
)
from hpcbench.answers.topics import (
    TopicResult,
    best_lines,
    problem_lines,
    topic_results,
    topics,
    verdict_line,
)
from hpcbench.answers.winners import Winners, winners_among, with_fastest
from hpcbench.config.axes import RETRIED
from hpcbench.errors import FileError, UsageError, command_line, how_to_install, job_command_line
from hpcbench.plan.case import Case
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import FILE_NAME
from hpcbench.reduce.run_checks import flattened
from hpcbench.reduce.suite_file import is_suite, read_suite
from hpcbench.report.answer_lines import opened
from hpcbench.report.charts import charts_of, finished, origin_text
from hpcbench.report.document import (
    NOT_DRAWN,
    Card,
    Cards,
    Drawn,
    Item,
    ReportDocument,
    ReportSection,
    markdown_text,
)
from hpcbench.report.page import html_text
from hpcbench.report.plan_lines import by_rule
from hpcbench.report.results_lines import (
    FAILED,
    LEFT_OUT,
    definition_lines,
    evidence_of,
    header_line,
    how_lines,
    items_by_kind,
    limit_lines,
    short_reason,
    skip_rules,
    start_up_tables,
    tables_of_kind,
    with_commands,
)
from hpcbench.texts import Lines, from_json, printable
from hpcbench.trace.container import whole_file
from hpcbench.units import grouped, plural, with_sizes
from hpcbench.views.chart import Chart, in_fields
from hpcbench.views.columns import arrival_tables, telemetry_tables
from hpcbench.views.table import Column, Group, Line, Row, Show, Table

PDF_LIBRARIES = "Pango 1.44 and HarfBuzz (Debian: libpango-1.0-0 libpangoft2-1.0-0 " \
                "libharfbuzz-subset0)"


def pdf_bytes(document: ReportDocument) -> bytes:
    """Return the document as PDF. Raises UsageError where WeasyPrint or a library is missing."""
    try:
        import weasyprint
    except ImportError as error:
        raise UsageError(f"--format pdf needs WeasyPrint: {how_to_install('pdf')}") from error
    except OSError as error:
        raise UsageError(f"--format pdf: WeasyPrint cannot load a library of the system "
                         f"({str(error).splitlines()[0]}); install {PDF_LIBRARIES}") from error
    text = html_text(document, __version__, scripted=False)
    return bytes(weasyprint.HTML(string=text).write_pdf())


_NEXT = ("next: for undecided cases run each side with the launches needed (key launches of the "
         "sweep file) and compare again")


def differences_section(runs: Sequence[Run], *, full: bool) -> ReportSection:
    """Return each other run beside the first, ``full`` with all cases, or that nothing matches."""
    try:
        compared = compare_sides([run.path for run in runs], SMALLEST)
        items = tuple(in_fields(item, with_sizes) for item in _items(compared, runs, full=full))
    except UsageError as error:
        items = (Line(str(error), "warning"),)
    return ReportSection("differences", "Differences", items)


def _items(compared: Compared, runs: Sequence[Run], *, full: bool) -> Iterator[Item]:
    for doubt in compared.doubts:
        yield Line(doubt, "warning")
    for pair in compared.comparisons:
        yield Line(f"{pair.second} against {pair.first}: {totals_line(pair)}", "title")
        if needed := needed_line(pair):
            yield Line(needed)
        yield comparison_table(pair, full=full)
        if (unmatched := unmatched_table(pair, full=full)) is not None:
            yield unmatched
        if (chart := comparison_chart(pair)) is not None:
            yield from finished([chart], [run.results for run in runs])
    if any(case.more_launches for one in compared.comparisons for case in one.having(INCONCLUSIVE)):
        yield Line(_NEXT, "quiet")
    if (table := difference_table(compared.differences, compared.sides, full=full)) is not None:
        yield table


_MOST_COMMANDS = 3


def _first_sections(run: Run, advice: Sequence[TopicResult]) -> Iterator[ReportSection]:
    """Yield whether the run is good, what is best, what is wrong and what to do next."""
    results = run.results
    faults = results.run.injected
    yield ReportSection("verdict", "Verdict", (
        verdict_line(results), *([Line(faults, "warning")] if faults else []), _cards(results),
        Line(header_line(results), "quiet")))
    yield ReportSection("best", "Best settings", tuple(best_lines(results, advice)))
    findings = Table("findings of the checks", _FINDINGS, (Group("", tuple(
        Row((one.code, "warning" if one.scope == "note" else one.scope, with_sizes(one.message)),
            "ok" if one.scope == "note" else "wrong")
        for one in with_commands(results, run.path).findings)),))
    yield ReportSection("findings", "Findings", (
        *(Line(f"Kind {kind} {reason}; its rows lack what the kind derives.", "warning")
          for kind, reason in results.lacking_kinds.items()),
        *problem_lines(results, advice, warnings=False), *limit_lines(results),
        *([findings] if results.findings else [])))
    yield ReportSection("next", "Next", tuple(_next(run, advice)))


def _cards(results: Results) -> Cards:
    """Return how many cases were measured, wrong, failed and skipped, and why."""
    counts = Counter(item.status for item in results.cases)
    total = len(results.cases)
    bad = [Card(str(counts[status]), status.replace("_", " "), next(
        item.reason for item in results.cases if item.status == status), "warning")
        for status in FAILED if counts[status]] or [Card("0", "wrong or failed")]
    reasons = [f"{len(cases)} x {short_reason(rule)}"
               for rule, cases in skip_rules(results).items()]
    skipped = [Card(str(counts["skipped"]), "skipped", ", ".join(reasons))] if reasons else []
    return Cards((Card(str(counts["ok"]), f"of {plural(total, 'case')} measured"), *bad, *skipped))


def _next(run: Run, advice: Sequence[TopicResult]) -> Iterator[Line]:
    results, path = run.results, run.path
    commands = {answer.command: one.topic.name for one in advice for answer in one.record.answers
                if answer.certainty == CLEAR and answer.command}
    yield from (Line(how, topic=f"numbers of {topic}")
                for how, topic in list(commands.items())[:_MOST_COMMANDS])
    again = job_command_line(results.run.world_size, "run", "--resume", path)
    counts = Counter(item.status for item in results.cases)
    if left := counts["not_run"]:
        yield Line(again, topic=f"run the {plural(left, 'case')} that did not run")
    bad = [status for status in RETRIED if status in FAILED and counts[status]]
    if bad:
        n_bad = sum(counts[status] for status in bad)
        yield Line(f"{again} --retry {','.join(bad)}", topic=f"run {plural(n_bad, 'case')} again")
    if any(item.timing is not None for item in results.cases):
        yield Line(command_line("show", path, "-v"), topic="all details")
        yield Line(command_line("compare", "OLD", path), topic="compare with an earlier run")


_OUTCOMES = (
    Column("cases", "cases", Show.COUNT), Column("status", "status"),
    Column("rank", "rank to blame", Show.COUNT, optional=True), Column("reason", "reason"),
    Column("which", "which"), Column("evidence", "output of a worker", optional=True))
_FINDINGS = (
    Column("code", "code", meaning="explained in docs/checks.md"),
    Column("scope", "of", meaning="run: not to be trusted as one run; rank: a trace was left out; "
           "case: it was rejected or contradicts another; warning: nothing was left out"),
    Column("message", "finding and remedy"))
_FACTS = (Column("key", "fact"), Column("value", "value"))
_LABELS, _EVIDENCE_LINES, _PHRASES, _LONGEST = 3, 12, 4, 300


def document_of(
    runs: Sequence[Run], charts: Sequence[Chart] = (), *, full: bool = True,
) -> ReportDocument:
    """Return the report of a run, or of several: differences (``full``: all), then each run.

    ``charts`` are those of the one run, if they were made before."""
    if len(runs) == 1:
        run, = runs
        return ReportDocument(_title(run), _when(run), _with_data(sections_of(run, charts)),
                              origin_text(run.results))
    parts = [ReportSection(f"run-{number}", f"{_name(run)}: {run.path}",
                     (Line(_when(run), "quiet"), Line(origin_text(run.results), "quiet")),
                     _with_data(_renamed(sections_of(run, among=runs), f"run-{number}-")))
             for number, run in enumerate(runs, 1)]
    first = (differences_section(runs, full=full), *_answers(runs))
    return ReportDocument(f"{len(runs)} runs", ", ".join(run.path for run in runs),
                    _with_data([*first, *parts]))


def sections_of(
    run: Run, charts: Sequence[Chart] = (), among: Sequence[Run] = (),
) -> Iterator[ReportSection]:
    """Yield the sections of a run, which may have its ``charts``; ``among`` are the runs whose
    charts share colours of names: the answers are of all of them."""
    results, advice = run.results, topic_results(run)
    of_answers = {chart.title for one in advice for chart in one.topic.charts(one.record)}
    charts = [chart for chart in charts or charts_of(
        results, run.samples, advice, among=[one.results for one in among])
        if chart.title not in of_answers]
    yield from _first_sections(run, advice)
    yield from _kinds(results, charts, winners_among(one.record for one in advice))
    if not among:
        yield from _answers([run], advice)
    yield ReportSection("course", "The run over time", tuple(_course(results, charts)))
    bad = (*_failures(results), *_left_out(results))
    yield ReportSection("outcomes", "Skipped and failed cases", (
        Table("cases that are not ok, by reason", _OUTCOMES, (Group("", bad),)),) if bad else ())
    yield ReportSection("environment", "Environment", tuple(_environment(results)))
    yield ReportSection("method", "How it was measured", tuple(map(Line, _method(results))))


def _name(run: Run) -> str:
    return str(run.results.plan.config.get("title") or run.results.run.name)


def _title(run: Run) -> str:
    """Return the name of the sweep with host and date, as far as they are known."""
    info = run.results.run
    more = f" and {len(info.nodes) - 1} more" if len(info.nodes) > 1 else ""
    where = f" on {info.nodes[0]}{more}" if info.nodes else ""
    return ", ".join(filter(None, (f"{_name(run)}{where}", info.started_at.partition("T")[0])))


def _when(run: Run) -> str:
    info = run.results.run
    return (f"run {info.run_id}, {info.started_at or 'start time unknown'}, "
            f"{plural(info.world_size, 'rank')} on {plural(len(info.nodes), 'node')}")


def _with_data(sections: Iterable[ReportSection]) -> tuple[ReportSection, ...]:
    return tuple(section for section in sections if section.items or section.parts)


def _renamed(sections: Iterable[ReportSection], prefix: str) -> Iterator[ReportSection]:
    for section in sections:
        yield replace(section, key=f"{prefix}{section.key}",
                      parts=tuple(_renamed(section.parts, prefix)))


def _answers(runs: Sequence[Run], advice: Sequence[TopicResult] = ()) -> Iterator[ReportSection]:
    """Yield a section a topic that has an answer, one of ``advice`` or computed here.

    Topics that can tell nothing, of no data, and have nothing to show share a line."""
    records, without = {one.topic.name: one.record for one in advice}, list[str]()
    several = [run.results for run in runs]
    for topic in topics():
        record = records.get(topic.name) or topic.analysis(runs, TopicOptions())
        shown: tuple[Item, ...] = (*(in_fields(table, with_sizes)
                                     for table in topic.tables(record)),
                                   *finished(topic.charts(record), several))
        if not shown and all(one.certainty == CANNOT_TELL and not one.evidence
                             for one in record.answers):
            without += [topic.question] if record.answers else []
        else:
            commands = dict.fromkeys(answer.command for answer in record.answers if answer.command)
            yield ReportSection(f"answer-{topic.name}", topic.question.capitalize(), (
                *(line for subject, answers in by_subject(record.answers)
                  for line in (*([Line(f"{subject}:")] if subject else []),
                               *chain.from_iterable(map(_answer_lines, answers)))),
                *(Line(command, "quiet") for command in commands), *shown))
    if without:
        how = command_line("advise", *(run.path for run in runs))
        yield ReportSection("no-data", "Topics without data", (
            Line(f"{'; '.join(without)} ({how} says what each needs)"),))


def _answer_lines(answer: Answer) -> Iterator[Line]:
    yield Line(with_sizes(answer.text), "title" if answer.certainty == CLEAR else "plain")
    if answer.evidence:
        more = len(answer.evidence) - _PHRASES
        yield Line(with_sizes(f"from: {'; '.join(answer.evidence[:_PHRASES])}")
                   + (f"; and {more} more" if more > 0 else ""), "quiet")


def _kinds(
    results: Results, charts: Sequence[Chart], winners: Winners,
) -> Iterator[ReportSection]:
    for kind, items in items_by_kind(results.cases).items():
        tables = [with_fastest(table, winners) for table in tables_of_kind(results, kind)
                  if table.columns]
        ids = {item.case.case_id for item in items}
        of_kind = [chart for chart in charts if chart.case_ids and set(chart.case_ids) <= ids
                   and not _is_course(chart)]
        yield ReportSection(f"kind-{kind}", kind.capitalize(), (*tables, *of_kind))


def _is_course(chart: Chart) -> bool:
    return chart.file_stem == "rank_iteration" or chart.file_stem.startswith("timeline_")


def _course(results: Results, charts: Sequence[Chart]) -> Iterator[Item]:
    """Yield the charts and tables of the run as a whole: over time, by rank, of the machine."""
    yield from (chart for chart in charts if not chart.case_ids or _is_course(chart))
    yield from arrival_tables(results)
    yield from start_up_tables(results)
    yield from telemetry_tables(results)


def _failures(results: Results) -> Iterator[Row]:
    groups = grouped(((item.status, item.reason, item.blamed_rank), item)
                     for item in results.cases if item.status in FAILED
                     and item.status not in LEFT_OUT)
    for (status, reason, rank), cases in groups.items():
        yield Row((len(cases), status, rank, reason, _which([item.case for item in cases]),
                   Lines.of(evidence_of(cases[0], _EVIDENCE_LINES)) or None), status)


def _left_out(results: Results) -> Iterator[Row]:
    for status in LEFT_OUT:
        rules = by_rule((one.reason, one.case) for one in results.cases if one.status == status)
        for rule, cases in rules.items():
            yield Row((len(cases), status, None, rule, _which(cases), None), status)


def _which(cases: Sequence[Case]) -> str:
    more = len(cases) - _LABELS
    return "; ".join(with_sizes(case.label) for case in cases[:_LABELS]) + (
        f"; and {more} more" if more > 0 else "")


def _environment(results: Results) -> Iterator[Item]:
    """Yield the environment of the first rank; differences of others are a finding (HB142)."""
    facts = list(flattened(results.run.environment))
    if facts:
        groups = grouped((key.partition(".")[0] if "." in key else "",
                          Row((key, _plain_value(value))))
                         for key, value in facts)
        yield Table(f"rank {results.run.ranks_present[0]} ran with", _FACTS, tuple(
            Group(name, tuple(rows)) for name, rows in groups.items()))


def _plain_value(value: str) -> str:
    """Return JSON text as people write it: a text without quotes, at most _LONGEST characters."""
    text = str(from_json(value)) if value.startswith('"') else value
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST - 4]} ..."


def _method(results: Results) -> Iterator[str]:
    yield from how_lines(results)
    yield from _whole(definition_lines(results))
    yield (f"measured by hpcbench {results.run.hpcbench_version}; docs/method.md explains every "
           "term")


def _whole(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines joined with their continuations, which a console shows indented."""
    parts: list[str] = []
    for line in lines:
        if parts and not line.startswith("  "):
            yield " ".join(parts).rstrip(";")
            parts = []
        parts.append(line.strip())
    if parts:
        yield " ".join(parts).rstrip(";")


FORMATS = {"html": ".html", "pdf": ".pdf", "md": ".md"}
"""Format -> ending of its files."""
NAME, LATEST = "report", Path("results/latest")


def open_runs(paths: Sequence[Path]) -> AbstractContextManager[list[Run]]:
    """Return a context of the runs of results files, folders, and folders of suites (`opened`)."""
    return opened(list(_members(paths)))


def runs_below(folder: Path) -> list[Path]:
    """Return the runs in a folder, or the folder itself if it is one. Raises FileError."""
    if (folder / FILE_NAME).exists() or is_suite(folder):
        return [folder]
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder; give the one that holds runs, such as results")
    runs = sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}")
                  if not path.parent.is_symlink())
    if not runs:
        raise FileError(f"{folder}: no folder in it has a {FILE_NAME}; hpcbench reduce RUN makes "
                        "one of a run's traces")
    return runs


def chosen_format(image_format: str | None, output: Path | None) -> str:
    """Return the format that is requested, by name or by the ending of a file. Raises UsageError.
    """
    image_format = "md" if image_format == "markdown" else image_format
    ending = output.suffix if output is not None else ""
    by_ending = next((name for name, end in FORMATS.items() if end == ending), None)
    if image_format is None:
        if ending and by_ending is None:
            raise UsageError(f"-o {output}: a report ends in {', '.join(FORMATS.values())}")
        return by_ending or "html"
    if image_format not in FORMATS:
        raise UsageError(f"--format {image_format}: allowed are {', '.join(FORMATS)}")
    if ending and ending != FORMATS[image_format]:
        raise UsageError(f"-o {output}: a report of format {image_format} ends in "
                         f"{FORMATS[image_format]}")
    return image_format


def output_path(paths: Sequence[Path], output: Path | None, chosen: str) -> Path:
    """Return where a report goes: ``output``, or beside one run's results, or the working folder.
    """
    if output is not None:
        return output
    beside = paths[0] if paths[0].is_dir() else paths[0].parent
    return (beside if len(paths) == 1 else Path()) / f"{NAME}{FORMATS[chosen]}"


def write_report(
    runs: Sequence[Run], chosen: str, target: Path, drawn: Drawn = NOT_DRAWN,
) -> Path:
    """Write the report in this format; the file is absent or whole. Raises FileError, UsageError.

    The page of one run takes what was ``drawn`` before."""
    linked = [f"plots/{path.name}" for path in (target.parent / "plots").glob("*.png")
              if len(runs) == 1]
    return write_document(document_of(runs, drawn.charts, full=chosen != "md"), chosen, target,
                          linked, drawn, ids_of(runs))


def ids_of(runs: Sequence[Run]) -> str:
    return ",".join(run.results.run.run_id for run in runs)


_MARK = b"<!-- made by hpcbench, unchanged: "


def _marked(page: bytes, ids: str) -> bytes:
    """Return a page with a digest of it and of the runs that it is of: so nobody has changed it
    since. Ids are a results file's, so any text."""
    digest = hashlib.sha256(ids.encode("utf-8", "surrogatepass") + page).hexdigest()
    return page + _MARK + f"{digest} -->\n".encode()


def is_made_of(path: Path, ids: str | None = None) -> bool:
    """Return whether a file is the page that `write_report` made of these runs, unchanged; or, of
    None, of any."""
    content = path.read_bytes() if path.is_file() else b""
    page, mark, _ = content.rpartition(_MARK)
    return bool(mark) and (ids is None or _marked(page, ids) == content)


def write_document(
    document: ReportDocument, chosen: str, target: Path, linked: Sequence[str] = (),
    drawn: Drawn = NOT_DRAWN, ids: str = "",
) -> Path:
    """Write any document in this format; ``linked`` are the figures that Markdown finds, ``ids``
    those of the runs, of which a page has a mark (`is_made_of`)."""
    if chosen == "md":
        content = printable(markdown_text(document, linked)).encode()
    elif chosen == "pdf":
        content = pdf_bytes(document)
    else:
        content = _marked(printable(html_text(document, __version__, drawn.figures)).encode(), ids)
    with whole_file(target, make_folder=True) as part:
        part.write_bytes(content)
    return target


def _members(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if is_suite(path):
            yield from (path / member.folder for member in read_suite(path).members
                        if (path / member.folder / FILE_NAME).exists())
        else:
            yield path

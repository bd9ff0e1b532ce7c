"""The first section of a report: what ran, how it ended, how one knows, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rich.text import Text

from hpcbench.analysis.answer import CLEAR, Run
from hpcbench.analysis.thresholds import held
from hpcbench.config.names import RETRIED
from hpcbench.errors import command_line, job_command_line
from hpcbench.plan.case import STATUSES
from hpcbench.reduce.results import SCHEMA_VERSION, Results
from hpcbench.report.check_lines import reason_lines
from hpcbench.report.results_lines import FAILED, run_lines
from hpcbench.units import plural
from hpcbench.views.document import Section
from hpcbench.views.ending import ending_lines
from hpcbench.views.faults import injected_text
from hpcbench.views.table import Line
from hpcbench.views.topics import Told

RESUMED = "HB150"
_MOST_COMMANDS, _MOST_NOTES = 3, 2


def verdict_section(run: Run, told: Sequence[Told]) -> Section:
    """Return what was run, how it ended, what is best and suspicious, and what to do next."""
    results = run.results
    return Section("verdict", "Verdict", (
        *_first(results), *map(Line, islice(_plain(run_lines(results)), 1, None)),
        _totals(results),
    ), tuple(part for part in (
        Section("why", "Why", (*ending_lines(results, told), *_notes(results), *_limits(results))),
        Section("next", "Next", tuple(_next(run, told))),
    ) if part.items))


def _first(results: Results) -> Iterator[Line]:
    """Yield what a reader must know before any number."""
    if not any(item.status == "ok" for item in results.cases):
        yield Line("No case is ok, so there are no times in this report.", "warning")
    if results.schema_version < SCHEMA_VERSION:
        yield Line(f"The file is of schema version {results.schema_version}, this is "
                   f"{SCHEMA_VERSION}: it lacks what later versions record.", "warning")
    if any(one.code == RESUMED for one in results.findings):
        yield Line("The run was resumed: cases of different attempts are compared with care.",
                   "warning")
    missing = results.run.world_size - len(results.run.ranks_present)
    if missing:
        yield Line(f"The run is incomplete: {plural(missing, 'trace')} of "
                   f"{plural(results.run.world_size, 'rank')} is missing.", "warning")
    if not_run := sum(item.status == "not_run" for item in results.cases):
        yield Line(f"The run is incomplete: {plural(not_run, 'case')} did not run.", "warning")
    if text := injected_text(results.run):
        yield Line(text, "warning")
    bad = [one for one in results.findings if one.scope != "note"]
    if bad:
        yield Line(f"{plural(len(bad), 'finding')} speak against these results; the first: "
                   f"{bad[0].message}", "warning")
    for kind, reason in results.missing_kinds.items():
        yield Line(f"Kind {kind} {reason}; its rows lack what the kind derives.", "warning")


def _totals(results: Results) -> Line:
    counts = Counter(item.status for item in results.cases)
    sums = " + ".join(f"{counts[status]} {status}" for status in STATUSES)
    return Line(f"planned {len(results.plan.cases)} = {sums}", "title")


def _notes(results: Results) -> Iterator[Line]:
    """Yield what checks say of the circumstances, which no number shows: a busy machine, say."""
    notes = [one for one in results.findings if one.scope == "note" and one.code != RESUMED]
    yield from (Line(f"{one.code}: {one.message}", "warning") for one in notes[:_MOST_NOTES])
    if len(notes) > _MOST_NOTES:
        yield Line(f"{plural(len(notes) - _MOST_NOTES, 'more note')}: see Findings", "quiet")


def _limits(results: Results) -> Iterator[Line]:
    """Yield each limit of the sweep that does not hold, or that they all do."""
    checked = held(results)
    if checked is not None and checked.reasons:
        yield from (Line(line, "warning") for line in reason_lines(checked))
    elif checked is not None:
        yield Line(f"{plural(checked.n_limits, 'limit')} of the sweep hold")


def _next(run: Run, told: Sequence[Told]) -> Iterator[Line]:
    """Yield what a reader can do with these results, by command."""
    results, path = run.results, run.path
    commands = {answer.command: one.topic.name for one in told for answer in one.record.answers
                if answer.certainty == CLEAR and answer.command}
    yield from (Line(f"The numbers behind {topic}: {how}")
                for how, topic in list(commands.items())[:_MOST_COMMANDS])
    yield from (Line(f"{what}: {how}") for what, how in _going_on(results, path))
    if any(item.timing is not None for item in results.cases):
        yield Line(f"All samples, ranks and the start-up: {command_line('show', path, '-v')}")
        yield Line(f"Beside an earlier run, launch by launch: "
                   f"{command_line('compare', 'EARLIER', path)}")


def _going_on(results: Results, path: str) -> Iterator[tuple[str, str]]:
    """Yield how many cases can be run, or run again, and the command that does it."""
    again = job_command_line(results.run.world_size, "run", "--resume", path)
    counts = Counter(item.status for item in results.cases)
    if left := counts["not_run"]:
        yield f"{plural(left, 'case')} did not run, and can", again
    bad = [status for status in RETRIED if status in FAILED and counts[status]]
    if bad:
        n_bad = sum(counts[status] for status in bad)
        yield f"{plural(n_bad, 'case')} can be run again", f"{again} --retry {','.join(bad)}"


def _plain(lines: Iterable[Text]) -> Iterator[str]:
    return (line.plain for line in lines if line.plain)

"""The output of `advise`, `compare` and `check`: answers, comparisons, and one line a reason."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.text import Text

from hpcbench.answers import recommend
from hpcbench.answers.answer import (
    CANNOT_TELL,
    CLEAR,
    Answer,
    Proof,
    Run,
    Topic,
    TopicOptions,
    by_subject,
)
from hpcbench.answers.check import CANNOT_TELL as UNDECIDED
from hpcbench.answers.check import CheckResult
from hpcbench.answers.compare import (
    Compared,
    SideComparison,
    scope_of,
)
from hpcbench.answers.compare_tables import (
    comparison_table,
    difference_table,
    launches_line,
    needed_line,
    totals_line,
    unmatched_table,
)
from hpcbench.answers.topics import TopicResult, case_names, topic_results
from hpcbench.answers.verdict import doubts_of
from hpcbench.config.axes import unknown_name
from hpcbench.errors import UsageError
from hpcbench.operations.traffic import read_traffic
from hpcbench.plain import Plain
from hpcbench.records import dataclass
from hpcbench.reduce.results_file import ResultsFile, each_once, open_results, refuse_copies
from hpcbench.registry import TopicSpec, offered
from hpcbench.report.terminal import Sentence, print_document, print_lines
from hpcbench.texts import Verbosity, error_document, masked, say, say_all, valid
from hpcbench.units import grouped, plural, with_sizes
from hpcbench.views.labels import short_labels, shortened
from hpcbench.views.table import Table

ADVISE_SCHEMA = "hpcbench.advise"
FOLDER = "FOLDER"
_STYLES = {CLEAR: "green", CANNOT_TELL: "yellow"}


def topic_options(price: float | None, samples: int, traffic: Path | None) -> TopicOptions:
    """Return the options of topics, with the recorded communication of a file.

    Raises FileError for another file."""
    return TopicOptions(price, samples, None if traffic is None else read_traffic(traffic))


@dataclass(frozen=True, slots=True)
class Advice:
    """The results of topics on runs, and which of these are not to be quoted."""

    topics: tuple[TopicResult, ...]
    doubts: tuple[str, ...]


def advice(
    paths: Sequence[Path], only: Sequence[str], options: TopicOptions, *, prove: bool = False,
) -> Advice:
    """Return the answers of topics on results files. Raises UsageError for an unknown topic.

    Topics about recorded calls are among them where those are given; ``prove``: only those whose
    best alternative a sweep can prove, and the named ones."""
    by_name = {topic.name: topic for topic in _topics(options)}
    wanted = [*only, *(name for name, topic in by_name.items() if prove and topic.proof)]
    if prove and len(wanted) == len(only):
        raise UsageError("--prove: no topic that proves its answer is installed")
    for name in wanted:
        if name in offered(TopicSpec) and name not in by_name:
            raise UsageError(f"--only {name}: asks about recorded calls; give --traffic FILE")
        if name not in by_name:
            raise UsageError(f"--only {unknown_name(name, by_name)}")
    topics = [topic for name, topic in by_name.items() if not wanted or name in wanted]
    with opened(paths) as runs:
        names = case_names([run.results for run in runs])
        return Advice(
            tuple(TopicResult(topic, topic.analysis(runs, options), names) for topic in topics),
            tuple(doubts_of((run.path, run.results) for run in runs)))


def _topics(options: TopicOptions) -> list[Topic]:
    """Return the topics that concern these options, those about recorded calls first.

    Raises UsageError for recorded calls that none asks about."""
    specs = list(offered(TopicSpec).values())
    recorded = [spec for spec in specs if spec.is_recorded and options.traffic is not None]
    if options.traffic is not None and not recorded:
        raise UsageError("--traffic: no topic about recorded calls is installed")
    return [*(spec.load() for spec in recorded), recommend.TOPIC,
            *(spec.load() for spec in specs if not spec.is_recorded)]


def proof(options: TopicOptions, results: Advice) -> Proof:
    """Return the sweep that proves the best alternative of a topic, one of ``results``.

    Raises UsageError if none is measured that may be faster."""
    assert options.traffic is not None  # the topic is for those who give one
    return next(one.topic.proof(options.traffic, one.record)
                for one in results.topics if one.topic.proof)


@contextmanager
def opened(paths: Sequence[Path]) -> Iterator[list[Run]]:
    """Yield the runs of results files. Raises FileError; UsageError for one that is given twice."""
    with ExitStack() as stack:
        runs = [Run(valid(str(path)), file.results, file) for path in each_once(paths)
                for file in (stack.enter_context(open_results(path)),)]
        refuse_copies([run.path for run in runs], [run.results.run.run_id for run in runs])
        yield runs


def topic_results_in(folder: Path) -> tuple[TopicResult, ...]:
    """Return the answers at the end of a run that lies in a folder, and in its summary."""
    with open_results(folder) as file:
        return topic_results_of_file(file)


def topic_results_of_file(file: ResultsFile) -> tuple[TopicResult, ...]:
    """Return those of an open results file; commands call it FOLDER, wherever it lies."""
    return topic_results(Run(FOLDER, file.results, file))


def print_advice(results: Advice, verbosity: Verbosity) -> None:
    """Print doubts, answers and tables of each topic; quietly only sentences, in detail evidence,
    too."""
    print_doubts(results.doubts, verbosity)
    if verbosity.is_quiet:
        print_lines(Text(f"{one.topic.name}: {answer.text}") for one in results.topics
                    for answer in one.record.answers)
        return
    for result in results.topics:
        print_lines(_topic_lines(result, full=verbosity.is_verbose), whole=verbosity.is_verbose)


def print_advice_json(results: Advice, paths: Sequence[Path]) -> None:
    print_document({"schema": ADVISE_SCHEMA, "schema_version": 1,
                    "files": [str(path) for path in each_once(paths)],
                    "doubts": [*results.doubts],
                    "topics": {one.topic.name: plain_record(one.record)
                               for one in results.topics}})


def print_doubts(doubts: Iterable[str], verbosity: Verbosity) -> None:
    """Print which runs are not to be quoted; quietly on standard error."""
    print_lines((Sentence(doubt, 2, "bold red") for doubt in doubts),
                sys.stderr if verbosity.is_quiet else None)


def plain_record(record: Any) -> Any:
    """Return a record of any type as plain JSON values."""
    try:
        return Plain(type(record)).write(record)
    except TypeError:  # another package's may have fields of any type
        from pydantic import TypeAdapter

        return TypeAdapter(type(record)).dump_python(record, mode="json")


def _topic_lines(result: TopicResult, *, full: bool) -> Iterator[Text | Table]:
    yield Text()
    yield Sentence(f"{result.topic.name}: {result.topic.question}", style="bold")
    names = {} if full else result.names
    for subject, answers in by_subject(result.record.answers):
        if subject:
            yield Sentence(f"  {shortened(subject, names)}:", 4)
        for answer in answers:
            yield from answer_lines(
                replace(answer, sentence=shortened(answer.sentence, names)), full=full,
                indent=4 if subject else 2)
    commands = dict.fromkeys(answer.command for answer in result.record.answers if answer.command)
    for command in commands:
        if not command.endswith(f"--only {result.topic.name}"):  # that prints the same again
            yield Text(f"  {command}", style="dim")
    yield from (table if full else _with_names(table, names)
                for table in result.topic.tables(result.record))


def _with_names(table: Table, names: Mapping[str, str]) -> Table:
    """Return a table with cases named in short, in its first column and its headings."""
    return replace(table, groups=tuple(replace(
        group, title=with_sizes(group.title), rows=tuple(
            replace(row, cells=(names.get(str(row.cells[0]), row.cells[0]), *row.cells[1:]))
            for row in group.rows)) for group in table.groups))


def _short_table(one: SideComparison) -> Table:
    """Return the table of a comparison, with short names of the cases."""
    names = short_labels((case.label for case in one.cases), {case.name for case in one.cases})
    return _with_names(comparison_table(one),
                       {label: with_sizes(name) for label, name in names.items()})


def answer_lines(answer: Answer, *, full: bool = False, indent: int = 2) -> Iterator[Text]:
    yield Sentence(f"{'':{indent}}{answer.text}", indent + 2,
                   _STYLES.get(answer.certainty, ""))
    if full:
        yield from (Sentence(f"{'':{indent + 4}}{phrase}", indent + 6, "dim")
                    for phrase in answer.evidence)


COMPARE_SCHEMA = "hpcbench.compare"
IMAGES = (".png", ".svg", ".pdf")


def check_plot_name(path: Path) -> None:
    """Raise UsageError for a name of a figure that does not end as one of IMAGES."""
    if path.suffix not in IMAGES:
        raise UsageError(f"--plot {path}: the name must end with {', '.join(IMAGES)}")


def print_comparisons(answer: Compared, verbosity: Verbosity) -> None:
    """Print doubts, a table for each side, other differences, and the totals; quietly only these.
    """
    print_doubts(answer.doubts, verbosity)
    if verbosity.is_quiet:
        print_lines(Text(f"{one.second}: {totals_line(one)}") for one in answer.comparisons)
        return
    print_lines(_comparison_lines(answer, full=verbosity.is_verbose), whole=verbosity.is_verbose)


def print_comparisons_json(answer: Compared) -> None:
    print_document({"schema": COMPARE_SCHEMA, "schema_version": 1, **plain_record(answer)})


def _comparison_lines(answer: Compared, *, full: bool) -> Iterator[Text | Table]:
    for text in dict.fromkeys(filter(None, map(needed_line, answer.comparisons))):
        yield Sentence(text, 2)
    for comparison in answer.comparisons:
        if not comparison.cases and not full:
            continue  # such as a backend that this machine lacks: the total states it
        yield comparison_table(comparison, full=True) if full else _short_table(comparison)
        left_out = unmatched_table(comparison, full=full)
        if left_out:
            yield left_out
    other = difference_table(answer.differences, answer.sides, full=full)
    if other:
        yield other
    yield Text()
    if line := launches_line(case for one in answer.comparisons for case in one.cases):
        yield Sentence(line)
    scopes = (scope_of(one.cases) for one in answer.comparisons)
    for scope in dict.fromkeys(filter(None, scopes)):
        yield Sentence(f"{scope}: equal jobs may differ as much; run both in turn at other times "
                       "and compare A1,A2,... B1,B2,...", 2)
    for comparison in answer.comparisons:
        yield Sentence(f"{comparison.second}: {totals_line(comparison)}", 2, "bold")


PREFIX = "HPCBENCH_CHECK"
CHECK_SCHEMA = "hpcbench.check"


_NAMED = 3


def reason_lines(checked: CheckResult, *, full: bool = False) -> Iterator[str]:
    """Yield a line for each reason, ``full`` also for each value that holds; else one for many
    cases undecided for the same."""
    groups = grouped((
        (one.sentence, one.file) if one.outcome == UNDECIDED and not full else one, one)
        for one in (*checked.reasons, *(checked.held if full else ())))
    for alike in groups.values():
        where = f" in {alike[0].file}" if alike[0].file else ""
        if len(alike) > _NAMED:
            yield (f"{PREFIX} {UNDECIDED.upper()} {plural(len(alike), 'case')}{where}: "
                   f"{alike[0].sentence}")
            continue
        for reason in alike:
            rank = f" [rank {reason.rank}]" if reason.rank is not None else ""
            yield f"{PREFIX} {reason.outcome.upper()} {reason.what}{rank}{where}: {reason.sentence}"


def print_checked(checked: CheckResult, *, quiet: bool, full: bool) -> None:
    """Print `reason_lines`, then the outcome; quietly the outcome alone. Doubts are on stderr."""
    for doubt in checked.doubts:
        say(f"warning: {doubt}", sys.stderr)
    if not quiet:
        for line in reason_lines(checked, full=full):
            say(line)
    limits = f"{plural(checked.n_limits, 'limit')}, " if checked.n_limits else ""
    reasons = f", {plural(len(checked.reasons), 'reason')}" if checked.reasons else ""
    say(f"{PREFIX} RESULT {checked.outcome.upper()}: {limits}"
        f"{plural(checked.n_cases, 'case')}{reasons}")


def print_unreadable(error: Exception, code: int, *, as_json: bool) -> None:
    """Print to stderr why nothing could be checked; the outcome last, as of what was checked.

    ``code`` is the exit code, for the document of JSON."""
    problem = f"{type(error).__name__}: " * (not isinstance(error, UsageError)) + str(error)
    problem = masked(problem, os.environ)
    say(f"{PREFIX} UNREADABLE {problem}", sys.stderr)
    say_all(error_document(problem, code, type(error).__name__) if as_json else
            f"{PREFIX} RESULT UNREADABLE")


def print_checked_json(checked: CheckResult) -> None:
    print_document({"schema": CHECK_SCHEMA, "schema_version": 1, **plain_record(checked)})

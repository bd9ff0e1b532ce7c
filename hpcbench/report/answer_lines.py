"""Answers of topics: computed for open results, printed as lines and tables, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from pydantic import TypeAdapter
from rich.text import Text

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, Answer, Answered, Asked, Run
from hpcbench.analysis.sides import refuse_twice
from hpcbench.config.names import unknown_name
from hpcbench.errors import UsageError
from hpcbench.reduce.results_file import ResultsFile, open_results
from hpcbench.report.table_lines import table_lines
from hpcbench.report.terminal import print_document, print_lines
from hpcbench.texts import valid
from hpcbench.verbosity import Verbosity
from hpcbench.views.topics import TOPICS, Told, told_of

SCHEMA = "hpcbench.advise"
FOLDER = "FOLDER"
_STYLES = {CLEAR: "green", CANNOT_TELL: "yellow"}


def advice(paths: Sequence[Path], only: Sequence[str], asked: Asked) -> list[Told]:
    """Return what the topics say of results files.

    Raises UsageError for an unknown topic, and for a file that is given twice.
    """
    refuse_twice(paths)
    known = {topic.name: topic for topic in TOPICS}
    for name in only:
        if name not in known:
            raise UsageError(f"--only {unknown_name(name, known)}")
    topics = [topic for name, topic in known.items() if not only or name in only]
    with ExitStack() as opened:
        runs = [Run(valid(str(path)), file.results, file) for path in paths
                for file in (opened.enter_context(open_results(path)),)]
        return [Told(topic, topic.analysis(runs, asked)) for topic in topics]


def told_in(folder: Path) -> tuple[Told, ...]:
    """Return what stands at the end of a run that lies in a folder, and in its summary."""
    with open_results(folder) as file:
        return told_by(file)


def told_by(file: ResultsFile) -> tuple[Told, ...]:
    """Return the same of an open results file; commands call it FOLDER, wherever it lies."""
    return told_of(Run(FOLDER, file.results, file))


def print_advice(told: Sequence[Told], verbosity: Verbosity) -> None:
    """Print the answers of each topic and its tables; quietly only the sentences.

    In detail also from which figures each follows.
    """
    if verbosity.is_quiet:
        print_lines(Text(f"{one.topic.name}: {answer.sentence}") for one in told
                    for answer in one.record.answers)
        return
    for one in told:
        print_lines(_topic_lines(one, full=verbosity.is_verbose))


def print_advice_json(told: Sequence[Told], paths: Sequence[Path]) -> None:
    """Print the records as JSON, by topic."""
    print_document({"schema": SCHEMA, "schema_version": 1, "files": [str(path) for path in paths],
                    "topics": {one.topic.name: plain_record(one.record) for one in told}})


def plain_record(record: Answered) -> object:
    """Return a record as plain JSON values."""
    return TypeAdapter(type(record)).dump_python(record, mode="json")


def _topic_lines(one: Told, *, full: bool) -> Iterator[Text]:
    yield Text()
    yield Text(f"{one.topic.name}: {one.topic.question}", style="bold")
    for answer in one.record.answers:
        yield from answer_lines(answer, full=full)
    for table in one.topic.tables(one.record):
        yield from table_lines(table)


def answer_lines(answer: Answer, *, full: bool = False) -> Iterator[Text]:
    """Yield an answer, the command behind it, and in ``full`` its evidence."""
    yield Text(f"  {answer.sentence}", style=_STYLES.get(answer.certainty, ""))
    if full:
        yield from (Text(f"      {phrase}", style="dim") for phrase in answer.evidence)
    if answer.command:
        yield Text(f"      {answer.command}", style="dim")

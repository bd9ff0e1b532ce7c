"""A topic of answers: from the record of an analysis to sentences, tables and charts.

Each topic is a module: its function takes runs and options, and returns a
frozen record of JSON values in SI units that has a tuple ``answers``. Sentences, tables and charts
follow from that record, so that every renderer shows the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol

from hpcbench.answers.verdict import is_busy
from hpcbench.errors import command_line
from hpcbench.operations.traffic import TrafficRecord
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import F, ReadSamples, facts_of
from hpcbench.reduce.results import CaseResult, Results, SampleSource
from hpcbench.statistics.order import Interval
from hpcbench.units import digits, format_seconds, seconds_unit, three_digits
from hpcbench.views.chart import Chart
from hpcbench.views.table import Cell, Column, Group, Range, Row, Table, WithInterval

CLEAR, NONE, CANNOT_TELL = "clear", "none", "cannot tell"
CERTAINTIES = (CLEAR, NONE, CANNOT_TELL)
"""The outcomes of an answer: found; searched for and absent; undecidable from the data."""
CANARY = "canary"
"""The subject of an answer that rests on the canary alone."""
MOST_UNSEEN = 0.2
"""A negative answer that may have missed more than this share is ``cannot tell``."""
EXPLAINS = 0.8
"""The least share of an effect that a cause must explain to be named."""
MOST_NAMED = 5
"""The most cases, or reasons, that are listed."""
MOST_ROWS = 60
"""More rows of a chart could not be read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a topic.

    Attributes:
        certainty: one of CERTAINTIES.
        sentence: ``label: result``, with its number and interval, or what is missing; one line.
        evidence: from which cases and figures it follows, what to do; a phrase each.
        command: the command that shows or repeats it; empty where there is none.
        subject: its subject, such as ``all_reduce 4 MiB`` or ``rank 2``.
        remedy: what to do about it, ``use more passes``; empty where there is nothing."""

    certainty: str
    sentence: str
    evidence: tuple[str, ...] = ()
    command: str = ""
    subject: str = ""
    remedy: str = ""

    @property
    def text(self) -> str:
        """Return the sentence with the remedy."""
        return "; ".join(filter(None, (self.sentence, self.remedy)))


@dataclass(frozen=True, slots=True)
class Run:
    """Results that are analysed: ``path`` is what the user named; ``samples`` are their stamps."""

    path: str
    results: Results
    samples: SampleSource

    def host(self, rank: int) -> str:
        """Return the host of a rank; empty where it is not recorded."""
        return next((one.hostname for one in self.results.topology.ranks if one.rank == rank), "")

    def facts(
        self, item: CaseResult, wanted: type[F], read: ReadSamples = lambda: None,
    ) -> tuple[F, ...]:
        """Return the ``wanted`` facts of a case by its kind; none where that is not installed."""
        return () if item.case.kind in self.results.missing_kinds else facts_of(
            item, self.results.record_of(item), wanted, read)


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Options beside the files; each topic uses those that concern it.

    ``price``: of a device for an hour, in the user's currency, None where none is known.
    ``samples``: training samples to estimate time and cost of. ``traffic``: a job's recorded
    communication, which the runs' isolated calls explain."""

    price: float | None = None
    samples: int = 10_000
    traffic: TrafficRecord | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """A sweep, as a raw mapping, of the best alternative of a topic and the present on ``ranks``.
    """

    topic: str
    name: str
    sweep: Mapping[str, Any]
    ranks: int


class TopicRecord(Protocol):
    """A topic's record has its answers. All other fields are the topic's own."""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Return the answers, the most useful first."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: ``analysis`` makes the record that ``tables`` and ``charts`` show.

    ``is_quiet``: of its answers only findings (CLEAR) stand in a summary. ``proof`` makes the sweep
    that proves the best alternative of a record, or raises UsageError if none may be faster."""

    name: str
    question: str
    analysis: Callable[[Sequence[Run], TopicOptions], TopicRecord]
    tables: Callable[[Any], Iterable[Table]]
    charts: Callable[[Any], Iterable[Chart]]
    is_quiet: bool = False
    proof: Callable[[TrafficRecord, Any], Proof] | None = None


def with_command(
    answers: Iterable[Answer], runs: Sequence[Run], topic: str, *more: str,
    beside: Sequence[str] = (),
) -> tuple[Answer, ...]:
    """Return the answers with the command that repeats their topic, with ``more`` behind it.

    ``beside`` is evidence of all of them."""
    command = command_line("advise", *(run.path for run in runs), "--only", topic, *more)
    return tuple(replace(one, command=command, evidence=(*one.evidence, *beside))
                 for one in cores_first(answers, runs))


def cores_first(answers: Iterable[Answer], runs: Sequence[Run]) -> Iterator[Answer]:
    """Yield the answers; where other processes keep the cores of a run busy, more passes are the
    second remedy."""
    busy = any(is_busy(run.results) for run in runs)
    for answer in answers:
        yield replace(answer, remedy=f"free the cores first, then {answer.remedy}") if (
            busy and answer.remedy and answer.certainty == CANNOT_TELL) else answer


def by_subject(answers: Iterable[Answer]) -> Iterator[tuple[str, list[Answer]]]:
    """Yield neighbouring answers whose sentences begin with one subject, if they are several,
    without it; each other one under ""."""
    def of(answer: Answer) -> str:
        return answer.subject if answer.sentence.startswith(f"{answer.subject}: ") else ""

    for subject, group in groupby(answers, of):
        answers_of_subject = list(group)
        if subject and len(answers_of_subject) > 1:
            yield subject, [replace(one, sentence=one.sentence[len(subject) + 2:])
                            for one in answers_of_subject]
        else:
            yield from (("", [one]) for one in answers_of_subject)


def cannot_tell(
    label: str, why: str, evidence: Iterable[str] = (), subject: str = "", remedy: str = "",
) -> Answer:
    """Return the answer that the data do not decide, with the reason and the remedy."""
    return Answer(CANNOT_TELL, f"{label}: cannot tell ({why})", tuple(evidence), subject=subject,
                  remedy=remedy)


def seconds_text(value: float, low: float, high: float) -> str:
    """Return a time with its interval: ``1.80 ms (CI 1.66 to 1.93)``, in one unit if they can be.
    """
    least, greatest = sorted((low, high))
    if least <= 0 or greatest >= 10 * least:
        return f"{format_seconds(value)} (CI {format_seconds(least)} to {format_seconds(greatest)})"
    scale, _ = seconds_unit(value)
    ends = f"{three_digits(least * scale)} to {three_digits(greatest * scale)}"
    return f"{format_seconds(value)} (CI {ends})"


def percent_text(share: float, low: float, high: float) -> str:
    """Return an increase with its interval: ``12 % (CI 9.1 to 15)``, from 1 on ``2.1x (CI ...)``.
    """
    if share >= 1:
        return f"{digits(1 + share, 2)}x (CI {digits(1 + low, 2)} to {digits(1 + high, 2)})"
    middle, least, greatest = (three_digits(100 * value) for value in (share, low, high))
    return f"{middle} % (CI {least} to {greatest})"


def interval_text(ends: Interval, *, percent: bool = False) -> str:
    """Return ``87.1 % (CI 84 to 90 %)``, or the value alone where it has none."""
    scale, unit = (100.0, " %") if percent else (1.0, "")
    text = f"{three_digits(scale * ends.value)}{unit}"
    if ends.low is None or ends.high is None:
        return text
    low, high = three_digits(scale * ends.low), three_digits(scale * ends.high)
    return f"{text} (CI {low} to {high}{unit})"


def range_of(one: Interval | None) -> Range | None:
    """Return the ends of an interval for a table or a chart; None where there is none."""
    if one is None or one.low is None or one.high is None:
        return None
    return Range(one.low, one.high)


def ends_of(cell: Cell) -> tuple[float, float] | None:
    """Return the ends of the interval of a value that has one."""
    return (cell.low, cell.high) if isinstance(cell, WithInterval) else None


def with_ends(value: float, ends: tuple[float, float] | None) -> Cell:
    """Return a value with its interval, alone without one."""
    return WithInterval(value, *ends) if ends else value


def plain_table(title: str, columns: Sequence[Column], rows: Iterable[Row]) -> Table:
    """Return a table of one group without a title."""
    return Table(title, tuple(columns), (Group("", tuple(rows)),))


def left_out(count: int) -> tuple[str, ...]:
    """Return a chart's note that only MOST_ROWS of so many rows are shown, if they are more."""
    return (f"The first {MOST_ROWS} of {count} are shown.",) if count > MOST_ROWS else ()

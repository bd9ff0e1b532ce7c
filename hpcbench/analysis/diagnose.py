"""Which ranks straggle, by how much, and the time of a call if they were as the others.

A rank is named where a comparison of ranks holds among all those of its report (Holm, at most
`FALSE_ALARMS` of the reports of equal ranks name any; `reduce.comparison`). The delay is that
behind the next rank: all wait for it, and a call would be shorter by at most the delay. The phase
is named as the cause only where it explains `EXPLAINS` of the delay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hpcbench.answers.answer import (
    CANNOT_TELL,
    CLEAR,
    EXPLAINS,
    MOST_NAMED,
    MOST_ROWS,
    NONE,
    Answer,
    Run,
    Topic,
    TopicOptions,
    cannot_tell,
    left_out,
    plain_table,
    range_of,
    seconds_text,
    with_command,
)
from hpcbench.operations.arrival import TOGETHER
from hpcbench.records import dataclass
from hpcbench.reduce.comparison import FALSE_ALARMS, NEEDED, PRECISE, Comparison
from hpcbench.reduce.kind_facts import BEFORE_THE_CALL, Lateness
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics.order import Interval
from hpcbench.units import digits, format_seconds, grouped, in_launches, plural, three_digits
from hpcbench.views.chart import Axis, ChartPoint, Dot, DotChart
from hpcbench.views.table import Column, Row, Show, Table


@dataclass(frozen=True, slots=True)
class RankComparison:
    """One comparison of the ranks of a case; all intervals are of 99 %.

    Attributes:
        path, case_id, label: the results and the case.
        rank, next_rank: the rank that is last, and the one before it.
        host: that of ``rank``; empty where it is not recorded.
        behind_s: the delay of ``rank`` behind ``next_rank``.
        share: ``behind_s`` over ``call_s``.
        call_s: the time of a call, or of a step; ``what_if_s`` is it without ``behind_s``.
        phase: the phase that explains the delay; empty where none does.
        explained: the share of the delay that arises in the phase with most of it.
        is_clear: whether the rank is named.
        faults: what was injected on purpose.
        n_launches: what the comparison is of.
        shortest_wait: the share of the samples in which the rank has the shortest call, as a rank
            has that all wait for; no clock is in it. None where another rank has it more often, or
            for a delay in another phase than before the call."""

    path: str
    case_id: str
    label: str
    rank: int
    next_rank: int
    host: str
    behind_s: Interval
    share: Interval
    call_s: float
    what_if_s: Interval
    phase: str
    explained: float
    is_clear: bool
    faults: tuple[str, ...] = ()
    n_launches: int = 1
    shortest_wait: float | None = None

    @property
    def most_share(self) -> float:
        """Return the greatest delay that the interval leaves open, as a share of a call."""
        return self.share.ends[1]


@dataclass(frozen=True, slots=True)
class NotComparable:
    """A case whose ranks could not be compared, and why."""

    path: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The record of the topic: comparisons of ranks, some of which name one, and cases without."""

    checks: tuple[RankComparison, ...]
    not_comparable: tuple[NotComparable, ...]
    answers: tuple[Answer, ...]


def diagnose(runs: Sequence[Run], options: TopicOptions) -> Diagnosis:
    tested = [one for run in runs for item in run.results.cases for one in _of_case(run, item)]
    checks = tuple(one for one in tested if isinstance(one, RankComparison))
    not_comparable = tuple(one for one in tested if isinstance(one, NotComparable))
    answers = with_command(_answers(checks, not_comparable), runs, "diagnose")
    return Diagnosis(checks, not_comparable, answers)


def _of_case(run: Run, item: CaseResult) -> Iterator[RankComparison | NotComparable]:
    """Yield the comparison of the starts of a case's ranks, then those of its kind."""
    if item.case.world_size == 1 or item.status == "skipped":
        return
    if item.timing is None or item.statistics is None:
        yield NotComparable(run.path, item.case.label,
                            f"a case has no times (status {item.status})")
        return
    start = item.timing.late_start
    first = [Lateness(missing=NEEDED)
             if start is None or start.chance is None else
             Lateness(start, BEFORE_THE_CALL, max(start.apart_s, 0.0))]
    for late in (*(first if item.case.arrival == TOGETHER else ()), *run.facts(item, Lateness)):
        if late.missing or late.comparison is None:
            yield NotComparable(run.path, item.case.label, late.missing)
        elif late.comparison.rank is not None:
            yield _look(run, item, late, late.comparison)


def _look(run: Run, item: CaseResult, late: Lateness, tested: Comparison) -> RankComparison:
    assert item.statistics is not None and item.timing is not None
    assert tested.rank is not None and tested.next_rank is not None
    call_s = item.statistics.median_s * item.timing.calls  # stamps are of whole samples
    behind = Interval(tested.apart_s, tested.low_s, tested.high_s)
    quickest = item.timing.quickest_rank == tested.rank and late.phase == BEFORE_THE_CALL
    explained = min(1.0, late.phase_s / tested.apart_s) if tested.apart_s > 0 else 0.0
    return RankComparison(
        run.path, item.case.case_id, item.case.label, tested.rank, tested.next_rank,
        run.host(tested.rank), behind, behind.map(lambda value: value / call_s), call_s,
        behind.map(lambda value: max(0.0, call_s - value)),
        late.phase if explained >= EXPLAINS else "", explained, tested.is_clear,
        tuple(run.results.run.faults), item.timing.n_launches,
        item.timing.quickest_share if quickest else None)


def _answers(
    checks: Sequence[RankComparison], not_comparable: Sequence[NotComparable],
) -> Iterator[Answer]:
    """Yield the stragglers, most of a call first; or that there are none; then what is unknown."""
    named = grouped(((one.path, one.rank, one.phase), one) for one in checks if one.is_clear)
    for of_rank in sorted(named.values(), key=lambda some: -max(one.share.value for one in some)):
        yield _of_rank(of_rank, checks)
    rest = [one for one in checks if not one.is_clear]
    precise = [one for one in rest if one.most_share <= PRECISE]
    if precise and not named:
        most = max(precise, key=lambda one: one.most_share)
        every = len(checks) + len(not_comparable)
        part = f"{len(precise)} of " * (len(precise) < every)
        yield Answer(
            NONE, f"stragglers: none ({part}{plural(every, 'check')}; delays are at most "
            f"{digits(100 * most.most_share, 2)} % of a call)", (
                f"widest interval: {most.label}, rank {most.rank} is {_times(most.behind_s)} "
                f"behind rank {most.next_rank}",
                "ranks that are late together cannot be separated"))
    yield from _unknown([one for one in rest if one.most_share > PRECISE], not_comparable)
    if not checks and not not_comparable:
        yield cannot_tell("stragglers", "no case ran on two ranks")


def _of_rank(comparisons: Sequence[RankComparison], checks: Sequence[RankComparison]) -> Answer:
    worst = max(comparisons, key=lambda one: one.share.value)
    where = f" on {worst.host}" if worst.host else ""
    cause = (f"in phase {worst.phase}" if worst.phase not in ("", BEFORE_THE_CALL) else
             worst.phase or f"in no single phase (the longest explains {worst.explained:.0%})")
    compared = [one for one in checks if one.path == worst.path]
    sentence = (
        f"stragglers: rank {worst.rank}{where} delays {worst.label} by {_times(worst.behind_s)}, "
        f"{_share(worst)} of the call")
    more = f", and {plural(len(comparisons) - 1, 'more case')}" if len(comparisons) > 1 else ""
    evidence = (
        f"the delay arises {cause}; without it the call takes {_times(worst.what_if_s)} instead of "
        f"{format_seconds(worst.call_s)}",
        *(f"{one.label}: {_times(one.behind_s)} behind rank {one.next_rank}, "
          f"{_share(one)} of a call"
          + (f"; its own call is the shortest in {one.shortest_wait:.0%} of the samples"
             if one.shortest_wait is not None else "") for one in comparisons[:MOST_NAMED]),
        f"significant among {plural(len(compared), 'comparison')}; false alarms in at most "
        f"{FALSE_ALARMS:.0%} of reports",
        *((f"injected faults: {', '.join(worst.faults)}",) if worst.faults else ()),
        f"fix: {_advice(worst)}")
    when = in_launches(worst.n_launches)
    return Answer(CLEAR, f"{sentence}{more} {when}", evidence, subject=f"rank {worst.rank}")


def _advice(rank: RankComparison) -> str:
    place = rank.host or "its host"
    check = (f"see what else runs on {place} between calls" if rank.phase == BEFORE_THE_CALL else
             f"see its share of the work and what else runs on {place}")
    return (f"{check}; with several hosts reorder them, with one bind ranks to other cores, and "
            f"run again: if the delay stays with {place} or core, it is that, else the rank's work")


def _unknown(
    wide: Sequence[RankComparison], not_comparable: Sequence[NotComparable],
) -> Iterator[Answer]:
    reasons = Counter(one.reason for one in not_comparable)
    evidence = [f"{one.label}: {one.reason}" for one in not_comparable[:MOST_NAMED]]
    if wide:
        most = max(wide, key=lambda one: one.most_share)
        more = f"and {plural(len(wide) - 1, 'more check')} " * (len(wide) > 1)
        yield Answer(CANNOT_TELL, f"stragglers: cannot tell in {most.label} {more}(noise hides "
                     f"delays up to {three_digits(100 * most.most_share)} % of its time)",
                     (f"their intervals reach over {100 * PRECISE:.0f} % of a call", *evidence),
                     remedy="use more passes")
    if reasons:
        texts = [f"{reason} ({plural(count, 'check')})" for reason, count in reasons.most_common()]
        yield Answer(CANNOT_TELL, f"stragglers: not enough data: {texts[0]}",
                     (*texts[1:MOST_NAMED], *evidence))


def _times(one: Interval) -> str:
    return seconds_text(one.value, *one.ends)


def _share(one: RankComparison) -> str:
    return f"{three_digits(100 * one.share.value)} %"


def diagnose_tables(record: Diagnosis) -> Iterator[Table]:
    """Yield the ranks that are named, and the time of a call without their delay."""
    named = [one for one in record.checks if one.is_clear]
    if named:
        yield plain_table("ranks that others wait for", (
            Column("case", "case"), Column("rank", "rank", Show.COUNT),
            Column("host", "host", optional=True),
            Column("phase", "phase", meaning="where at least 80 % of the delay arises",
                   optional=True),
            Column("behind", "late by", Show.US, "us", "after the next rank", "less"),
            Column("interval", "99 % interval", Show.US, "us"),
            Column("share", "of a call", Show.PERCENT, "%", better="less"),
            Column("call", "call", Show.US, "us", better="less"),
            Column("what_if", "without", Show.US, "us",
                   "the call if the rank were as the next one", "less"),
        ), (Row((one.label, one.rank, one.host or None, one.phase or None, one.behind_s.value,
                 range_of(one.behind_s), one.share.value, one.call_s, one.what_if_s.value),
                case_id=one.case_id) for one in named))


def diagnose_charts(record: Diagnosis) -> Iterator[DotChart]:
    named = [one for one in record.checks if one.is_clear]
    if named:
        yield DotChart(
            "Ranks that others wait for", "delay behind the next rank, as a share of a call",
            "diagnose_ranks", ("Whisker: 99 % interval.", *left_out(len(named))),
            tuple(dict.fromkeys(one.case_id for one in named[:MOST_ROWS])),
            Axis("delay", Show.PERCENT, "%"), (Column("host", "host"), Column("phase", "phase")),
            tuple(Dot(f"rank {one.rank}: {one.label}",
                      ChartPoint(one.share.value, range_of(one.share)),
                      (one.host or None, one.phase or None)) for one in named[:MOST_ROWS]))


TOPIC = Topic("diagnose", "stragglers", diagnose,
              diagnose_tables, diagnose_charts)

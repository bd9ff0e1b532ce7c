"""What the diagnosis says: a sentence for each rank that is named, and one on all else.

Which ranks straggle, by how much, and what a call would take if they were as the others.

A rank is named where a comparison of ranks holds among all those of its report (Holm, at most
`FALSE_ALARMS` of the reports of equal ranks name any; `reduce.comparison`). The lateness is that
behind the next rank: all wait for so long, and so much a call would be shorter at most. The phase
is named as the cause only where it explains `EXPLAINS` of the lateness.

The diagnosis as a table of the ranks that were compared, and a chart of those that are late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcbench.answers.answer import CANNOT_TELL, CLEAR, NONE, Answer, Run, TopicOptions
from hpcbench.errors import command_line
from hpcbench.reduce.comparison import FALSE_ALARMS, NEEDED, Comparison
from hpcbench.reduce.kind_facts import BEFORE_THE_CALL, Lateness, facts_of
from hpcbench.reduce.results import CaseResult
from hpcbench.units import format_seconds, grouped, plural
from hpcbench.views.chart import Axis, ChartPoint, Dot, DotChart
from hpcbench.views.table import Column, Group, Range, Row, Show, Table

TELLS = 0.1
"""A comparison whose interval reaches over this share of a call cannot say that nobody is late."""
MOST_NAMED = 5
"""Cases, and reasons, that are listed."""


def diagnose_answers(
    looks: Sequence[RankComparison], untold: Sequence[NotComparable], paths: Sequence[str],
) -> Iterator[Answer]:
    """Yield who straggles, most of a call first; or that nobody does; then what nothing tells."""
    command = command_line("advise", *paths, "--only", "diagnose")
    named = grouped(((one.path, one.rank, one.phase), one) for one in looks if one.is_clear)
    for same in sorted(named.values(), key=lambda some: -max(one.share.value for one in some)):
        yield _of_rank(same, looks, command)
    rest = [one for one in looks if not one.is_clear]
    telling = [one for one in rest if one.share.high <= TELLS]
    if telling and not named:
        yield _of_nobody(telling, command)
    yield from _unknown([one for one in rest if one.share.high > TELLS], untold, command)
    if not looks and not untold:
        yield Answer(CANNOT_TELL, "cannot tell whether a rank straggles, because no case ran on "
                     "two ranks", (), command)


def _of_rank(same: Sequence[RankComparison], looks: Sequence[RankComparison],
             command: str) -> Answer:
    worst = max(same, key=lambda one: one.share.value)
    where = f" on {worst.host}" if worst.host else ""
    cause = (f"in phase {worst.phase}" if worst.phase not in ("", BEFORE_THE_CALL) else
             worst.phase or f"in no single phase (the longest explains {worst.explained:.0%})")
    compared = [one for one in looks if one.path == worst.path]
    sentence = (
        f"rank {worst.rank}{where} is late {cause} by {_times(worst.behind_s)}, {_share(worst)} of "
        f"a call of {worst.label}: all wait for it; if it were as rank {worst.next_rank}, a call "
        f"would take {_times(worst.what_if_s)} instead of {format_seconds(worst.call_s)}")
    more = f"; it is named in {plural(len(same), 'case')}" if len(same) > 1 else ""
    evidence = (
        *(f"{one.label}: {_times(one.behind_s)} after rank {one.next_rank}, {_share(one)} of a call"
          + (f"; its own call is the shortest in {one.shortest_wait:.0%} of the samples"
             if one.shortest_wait is not None else "") for one in same[:MOST_NAMED]),
        f"it holds among {plural(len(compared), 'comparison')} of this report; of equal ranks at "
        f"most {FALSE_ALARMS:.0%} of reports name any",
        *((f"faults were injected on purpose: {', '.join(worst.faults)}",) if worst.faults else ()),
        f"to do: {_advice(worst)}")
    return Answer(CLEAR, sentence + more, evidence, command, f"rank {worst.rank}")


def _advice(one: RankComparison) -> str:
    place = one.host or "its host"
    swap = (f"start the run with the hosts in another order: if the lateness stays with {place}, "
            "it is the host, else what this rank has to do")
    if one.phase == BEFORE_THE_CALL:
        return f"look at what else runs on {place} between calls; {swap}"
    return f"look at its share of the work and at what else runs on {place}; {swap}"


def _of_nobody(telling: Sequence[RankComparison], command: str) -> Answer:
    most = max(telling, key=lambda one: one.share.high)
    return Answer(
        NONE, f"no rank is named in {plural(len(telling), 'comparison')}: the 99 % intervals "
        f"exclude that one is later than the next by over {100 * most.share.high:.2g} % of a call",
        (f"the widest: {most.label}, rank {most.rank} is {_times(most.behind_s)} after rank "
         f"{most.next_rank}",
         "ranks that are late together are not told apart"), command)


def _unknown(wide: Sequence[RankComparison], untold: Sequence[NotComparable],
             command: str) -> Iterator[Answer]:
    """Yield in one sentence what could not be compared, or only loosely."""
    reasons = Counter(one.reason for one in untold)
    texts = [f"{reason} ({plural(count, 'time')})" for reason, count in reasons.most_common()]
    if wide:
        most = max(one.share.high for one in wide)
        texts.append(f"intervals reach over {100 * TELLS:.0f} % of a call, to "
                     f"{100 * most:.3g} %: more passes would tell "
                     f"({plural(len(wide), 'comparison')})")
    if texts:
        yield Answer(
            CANNOT_TELL, f"cannot tell in {plural(len(wide) + len(untold), 'look')} at ranks "
            f"whether one straggles, because {'; '.join(texts[:MOST_NAMED])}",
            tuple(f"{one.label}: {one.reason}" for one in untold[:MOST_NAMED]), command)


def _times(one: LatenessEstimate) -> str:
    return (f"{format_seconds(one.value)} (99 % interval {format_seconds(one.low)} to "
            f"{format_seconds(one.high)})")


def _share(one: RankComparison) -> str:
    return f"{100 * one.share.value:.3g} %"


EXPLAINS = 0.8
"""A cause is named from this share of the lateness on."""


@dataclass(frozen=True, slots=True)
class LatenessEstimate:
    """A value; ``low`` to ``high`` is its 99 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RankComparison:
    """What one comparison of the ranks of a case says.

    Attributes:
        path, case_id, label: of which results and case.
        rank, next_rank: the rank that is last, and the one before it.
        host: that of ``rank``; empty where nothing tells it.
        behind_s: how long after the next one.
        share: that over the time of a call, or of a step.
        call_s: this time; ``what_if_s`` is it without ``behind_s``.
        phase: the phase that explains the lateness; empty where none does.
        explained: the share of the lateness that arises in the phase with most of it.
        is_clear: whether the rank is named.
        faults: what was injected on purpose.
        shortest_wait: in which share of the samples the rank has the shortest call, as one has
            that all wait for; no clock is in it. None where another rank has it more often.
    """

    path: str
    case_id: str
    label: str
    rank: int
    next_rank: int
    host: str
    behind_s: LatenessEstimate
    share: LatenessEstimate
    call_s: float
    what_if_s: LatenessEstimate
    phase: str
    explained: float
    is_clear: bool
    faults: tuple[str, ...] = ()
    shortest_wait: float | None = None


@dataclass(frozen=True, slots=True)
class NotComparable:
    """A case whose ranks could not be compared, and why."""

    path: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The record of the topic: looks at ranks, of which some name one, and what could not be told.
    """

    looks: tuple[RankComparison, ...]
    untold: tuple[NotComparable, ...]
    answers: tuple[Answer, ...]


def diagnose(runs: Sequence[Run], asked: TopicOptions) -> Diagnosis:
    """Return which ranks straggle in these runs."""
    found = [one for run in runs for item in run.results.cases for one in _of_case(run, item)]
    looks = tuple(one for one in found if isinstance(one, RankComparison))
    untold = tuple(one for one in found if isinstance(one, NotComparable))
    return Diagnosis(looks, untold,
                     tuple(diagnose_answers(looks, untold, [run.path for run in runs])))


def _of_case(run: Run, item: CaseResult) -> Iterator[RankComparison | NotComparable]:
    """Yield what the start of the ranks of a case says, then what its kind knows more."""
    if item.case.world_size == 1 or item.status == "skipped":
        return
    if item.timing is None or item.statistics is None:
        yield NotComparable(run.path, item.case.label,
                            f"a case has no times (status {item.status})")
        return
    for one in (_start(item.timing.late_start), *_within(run, item)):
        if one.missing or one.comparison is None:
            yield NotComparable(run.path, item.case.label, one.missing)
        elif one.comparison.rank is not None:
            yield _look(run, item, one, one.comparison)


def _start(start: Comparison | None) -> Lateness:
    if start is None or start.chance is None:
        return Lateness(missing=f"{NEEDED}, on one clock, to tell who starts late")
    return Lateness(start, BEFORE_THE_CALL, max(start.apart_s, 0.0))


def _within(run: Run, item: CaseResult) -> tuple[Lateness, ...]:
    if item.case.kind in run.results.missing_kinds:
        return ()
    return facts_of(item, run.results.record_of(item), Lateness)


def _look(run: Run, item: CaseResult, late: Lateness, found: Comparison) -> RankComparison:
    assert item.statistics is not None and item.timing is not None
    assert found.rank is not None and found.next_rank is not None
    call_s = item.statistics.median_s * item.timing.calls  # stamps are of whole samples
    behind = LatenessEstimate(found.apart_s, found.low_s, found.high_s)
    quickest = item.timing.quickest_rank == found.rank and late.phase == BEFORE_THE_CALL
    explained = min(1.0, late.phase_s / found.apart_s) if found.apart_s > 0 else 0.0
    return RankComparison(
        run.path, item.case.case_id, item.case.label, found.rank, found.next_rank,
        _host(run, found.rank), behind,
        LatenessEstimate(*(value / call_s for value in (behind.value, behind.low, behind.high))),
        call_s,
        LatenessEstimate(*(max(0.0, call_s - value)
                           for value in (behind.value, behind.high, behind.low))),
        late.phase if explained >= EXPLAINS else "", explained, found.is_clear,
        tuple(run.results.run.faults), item.timing.quickest_share if quickest else None)


def _host(run: Run, rank: int) -> str:
    return next((one.hostname for one in run.results.topology.ranks if one.rank == rank), "")


MOST_ROWS = 60
"""More rows of a chart could not be read."""
_INTERVAL = "99 % interval"


def diagnose_tables(record: Diagnosis) -> Iterator[Table]:
    """Yield the ranks that are named, and what a call would take without their lateness."""
    named = [one for one in record.looks if one.is_clear]
    if not named:
        return
    columns = (
        Column("case", "case"), Column("rank", "rank", Show.COUNT),
        Column("host", "host", optional=True),
        Column("phase", "phase", meaning="where at least 80 % of the lateness arises",
               optional=True),
        Column("behind", "late by", Show.US, "us", "after the next rank", "less"),
        Column("interval", _INTERVAL, Show.US, "us"),
        Column("share", "of a call", Show.PERCENT, "%", better="less"),
        Column("call", "call", Show.US, "us", better="less"),
        Column("what_if", "without", Show.US, "us", "the call if the rank were as the next one",
               "less"))
    yield Table("ranks that others wait for", columns, (Group("", tuple(
        Row((one.label, one.rank, one.host or None, one.phase or None, one.behind_s.value,
             _range(one.behind_s), one.share.value, one.call_s, one.what_if_s.value),
            case_id=one.case_id) for one in named)),))


def diagnose_charts(record: Diagnosis) -> Iterator[DotChart]:
    """Yield how late the named ranks are, as shares of a call."""
    named = [one for one in record.looks if one.is_clear]
    if not named:
        return
    left = [f"The first {MOST_ROWS} of {len(named)} are shown."] if len(named) > MOST_ROWS else []
    yield DotChart(
        "Ranks that others wait for", "lateness behind the next rank, as a share of a call",
        "diagnose_ranks", (f"Whisker: {_INTERVAL}.", *left),
        tuple(dict.fromkeys(one.case_id for one in named[:MOST_ROWS])),
        Axis("lateness", Show.PERCENT, "%"), (Column("host", "host"), Column("phase", "phase")),
        tuple(Dot(f"rank {one.rank}: {one.label}", ChartPoint(one.share.value, _range(one.share)),
                  (one.host or None, one.phase or None)) for one in named[:MOST_ROWS]))


def _range(one: LatenessEstimate) -> Range:
    return Range(one.low, one.high)

"""How much ranks wait for the slowest rank, whether the exchange varies, and what is slow.

`diagnose` names late ranks; this topic gives the share of the waiting that they explain, and
whether a slow rank computes slowly, has a slow link, or has more to do than others. Ranks with the
same work are compared with one another; if all ranks with one share of the work take longer than
those with another, that is uneven partitioning, not slow ranks. A link is suspected where a rank's
exchange takes longer although neither it nor another is late. Differences count from `LEAST` of the
median on, and where they hold among all comparisons (Holm)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.diagnose import RankComparison, diagnose
from hpcbench.answers.answer import (
    CANNOT_TELL,
    CLEAR,
    EXPLAINS,
    MOST_NAMED,
    MOST_ROWS,
    MOST_UNSEEN,
    NONE,
    Answer,
    Run,
    Topic,
    TopicOptions,
    cannot_tell,
    plain_table,
    seconds_text,
    with_command,
)
from hpcbench.records import dataclass
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.reduce.kind_facts import EXCHANGE, RankWork, Variation, Waiting
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics.hypothesis_tests import MIN_PASSES, find_slowest, holm
from hpcbench.units import digits, grouped, plural, three_digits
from hpcbench.views.chart import Axis, ChartPoint, Dot, DotChart
from hpcbench.views.table import Column, Range, Row, Show, Table, cell_text

LEAST = 0.05
COMPUTE, LINK, WORK = "slow compute", "slow link", "uneven work"
LEAST_STALL = 0.05
"""Waiting for less of a call is not worth a finding."""
NO_INTERVAL = "too few steps for an interval"
LEAST_VARIED = 0.03
"""Nor is an exchange that deviates by less of a call."""
MOST_STAMPS = 1_000_000
"""Ranks times samples of a case: more stamps are not read, which would take seconds a case."""
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cause:
    """A rank, or all ranks with one share of the work, beside the next slowest.

    Attributes:
        path, label: the results and the case.
        cause: COMPUTE, LINK or WORK.
        who: the rank, or the number of the share of the work.
        group: what ranks with one share of the work have in common, such as a stage.
        ranks: how many ranks have that share.
        excess_s: how much longer it takes; ``low_s`` to ``high_s`` is the 99 % interval.
        share: ``excess_s`` over the time of the next slowest; ``high_share`` is ``high_s`` over it.
        explains: the share of the rank's delay that it explains.
        chance: how likely equal ones differ so much.
        is_clear: whether it is named."""

    path: str
    label: str
    cause: str
    who: int
    group: str
    ranks: int
    excess_s: float
    low_s: float
    high_s: float
    share: float
    explains: float
    chance: float
    high_share: float
    is_clear: bool = False


@dataclass(frozen=True, slots=True)
class Stalled:
    """The waiting in a case, by its stamps.

    Attributes:
        path, case_id, label: the results and the case.
        share: of the ranks' time in a call, spent waiting for the slowest rank; ``low`` to
            ``high`` is its 95 % interval.
        late_rank: the rank that is named as late with the greatest delay; ``late_share`` is the
            part of ``share`` that the delay explains, at most 1.
        variation: how the exchange varies; None where that is not known.
        missing: why something is not known.
        is_clear: whether the interval of the share begins at `LEAST_STALL` or above."""

    path: str
    case_id: str
    label: str
    share: float | None
    low: float | None
    high: float | None
    late_rank: int | None
    late_share: float
    variation: Variation | None
    missing: str
    is_clear: bool


@dataclass(frozen=True, slots=True)
class RankWaits:
    """The record of the topic."""

    stalled: tuple[Stalled, ...]
    causes: tuple[Cause, ...]
    answers: tuple[Answer, ...]


def waits(runs: Sequence[Run], options: TopicOptions) -> RankWaits:
    checks = sorted(diagnose(runs, options).checks, key=lambda one: one.share.value)
    late = {(one.path, one.case_id): one for one in checks if one.is_clear}
    stalled: list[Stalled] = []
    causes: list[Cause] = []
    for run in runs:
        for item in run.results.cases:
            if item.status == "ok" and item.case.world_size > 1:
                causes += _causes_of_case(run, item)
                stalled += [_stalled(run, item, waiting, late.get((run.path, item.case.case_id)))
                            for waiting in run.facts(item, Waiting)]
    stalled_cases, why = tuple(stalled), tuple(settled_causes(causes))
    return RankWaits(stalled_cases, why, with_command(
        (*cause_answers(why), *stalled_answers(stalled_cases)), runs, "waits"))


def _stalled(
    run: Run, item: CaseResult, waiting: Waiting, late: RankComparison | None,
) -> Stalled:
    share, ranks = waiting.share, item.case.world_size
    explained = late.share.value * (ranks - 1) / ranks / share if late and share else 0.0
    return Stalled(
        run.path, item.case.case_id, item.case.label, share, waiting.low, waiting.high,
        late.rank if late else None, min(1.0, explained), waiting.variation, waiting.missing,
        is_clear=waiting.low is not None and waiting.low >= LEAST_STALL)


def settled_causes(found: Sequence[Cause]) -> Iterator[Cause]:
    """Yield the causes; those are clear that hold among all of them and explain `EXPLAINS`."""
    for one, holds in zip(found, holm([one.chance for one in found], FALSE_ALARMS), strict=True):
        yield replace(one, is_clear=holds and one.explains >= EXPLAINS)


def _causes_of_case(run: Run, item: CaseResult) -> Iterator[Cause]:
    n_stamps = item.case.world_size * (item.statistics.n if item.statistics else 0)
    for rank_work in run.facts(item, RankWork, lambda: run.samples.samples(item.case.case_id)
                               if n_stamps <= MOST_STAMPS else None):
        yield from (replace(cause, path=run.path, label=item.case.label)
                    for cause in causes_of(rank_work))


def causes_of(rank_work: RankWork) -> Iterator[Cause]:
    """Yield the slowest rank with each share of the work, then the slowest share; or a link."""
    times_s = np.array(rank_work.times_s, dtype=np.float64)
    if times_s.ndim < 2 or times_s.shape[1] < MIN_PASSES:
        return
    if rank_work.what == EXCHANGE:
        if (cause := _link(rank_work, times_s)) is not None:
            yield cause
        return
    groups = grouped((number, row) for row, number in enumerate(rank_work.alike))
    for rows in groups.values():
        if len(rows) > 1:
            slowest = _slowest(times_s[rows])
            yield replace(slowest, cause=COMPUTE, who=rank_work.ranks[rows[slowest.who]],
                          group=rank_work.group, ranks=1)
    if len(groups) > 1:
        yield from _between(rank_work, times_s, groups)


def _between(
    rank_work: RankWork, times_s: Times, groups: Mapping[int, Sequence[int]],
) -> Iterator[Cause]:
    """Yield the share of the work that takes longest on every rank that has it.

    It is compared by its quickest rank, so one slow rank does not make it slow; the others by the
    median of theirs. Where one rank has a share, the work cannot be distinguished from the rank."""
    if any(len(rows) < 2 for rows in groups.values()):
        return
    numbers = list(groups)
    middle = np.stack([np.median(times_s[list(rows)], axis=0) for rows in groups.values()])
    at = int(middle.mean(axis=1).argmax())
    rows = list(groups[numbers[at]])
    quickest = rows[int(times_s[rows].mean(axis=1).argmin())]
    middle[at] = times_s[quickest]
    slowest = _slowest(middle)
    if slowest.who == at:
        yield replace(slowest, cause=WORK, who=numbers[at], group=rank_work.group, ranks=len(rows))


def _link(rank_work: RankWork, times_s: Times) -> Cause | None:
    """Return the rank whose exchange takes longest, and the share of its delay that explains."""
    slowest = _slowest(times_s)
    ready_s = np.array(rank_work.ready_s)
    if not ready_s.size:
        return None
    others = np.delete(ready_s, slowest.who, axis=0)
    late_s = float(np.mean(ready_s[slowest.who] - np.median(others, axis=0)))
    wait_s = float(np.mean(others.max(axis=0) - np.median(others, axis=0)))
    excess_s = max(slowest.excess_s, 0.0)
    behind_s = excess_s + max(late_s, 0.0) + wait_s
    return replace(slowest, cause=LINK, who=rank_work.ranks[slowest.who], ranks=1,
                   explains=excess_s / behind_s if behind_s > 0 else 0.0)


def _slowest(times_s: Times) -> Cause:
    """Return how far the slowest of rows (row, pass) is from the next, tested against LEAST."""
    slowest = find_slowest(times_s, LEAST * float(np.median(times_s)))
    next_s = float(times_s[slowest.next_row].mean())
    return Cause("", "", "", slowest.row, "", 0, slowest.apart_s, slowest.low_s, slowest.high_s,
                 slowest.apart_s / next_s, 1.0, slowest.chance, slowest.high_s / next_s)


_TO_DO = {
    COMPUTE: "fix: run products alone on that host (kind hardware); swap it with another host",
    LINK: "fix: measure its links (kind hardware, pairs); swap cable, port or host"}
_SHARE_TO_DO = "fix: give those ranks less of the work, such as fewer layers of a stage"


def cause_answers(causes: Sequence[Cause]) -> Iterator[Answer]:
    """Yield slow ranks and shares of the work, most first; or that there are none, or unknown."""
    named = sorted((one for one in causes if one.is_clear), key=lambda one: -one.share)
    for cause in named[:MOST_NAMED]:
        if cause.cause == COMPUTE:
            peers = f", against ranks of the same {cause.group}" if cause.group else ""
            finding, who = f"slow compute: rank {cause.who}{peers}", f"rank {cause.who}"
        elif cause.cause == LINK:
            finding, who = f"slow link: rank {cause.who}, once all are ready,", f"rank {cause.who}"
        else:
            who = f"{cause.group} {cause.who}"
            finding = f"uneven work: {who}, on each of its {plural(cause.ranks, 'rank')},"
        yield Answer(
            CLEAR, f"{finding} takes "
            f"{seconds_text(cause.excess_s, cause.low_s, cause.high_s)} longer "
f"than the next, {cell_text(cause.share, Show.PERCENT)} %: {cause.label}",
            (f"explains {cause.explains:.0%} of the delay; significant among "
             f"{plural(len(causes), 'comparison')}; false alarms in at most {FALSE_ALARMS:.0%} of "
             "reports", _TO_DO.get(cause.cause, _SHARE_TO_DO)), subject=who)
    if not causes:
        yield cannot_tell(
            "cause of delays", f"needs {MIN_PASSES} passes of training steps on several ranks, "
            f"at most {MOST_STAMPS} stamps")
    elif not named:
        yield from _no_cause(causes)


def _no_cause(causes: Sequence[Cause]) -> Iterator[Answer]:
    """Yield that no rank is slow, as far as intervals exclude it; and how far they reach."""
    widest = sorted(causes, key=lambda one: -one.high_share)
    seen = [one for one in widest if one.high_share <= MOST_UNSEEN]
    if seen:
        yield Answer(NONE, f"slow compute or link: none ({plural(len(seen), 'check')}; at most "
                     f"{digits(100 * seen[0].high_share, 2)} % slower)", (_widest(seen[0]),))
    if blind := widest[:len(widest) - len(seen)]:
        yield Answer(CANNOT_TELL, f"slow compute or link: {plural(len(blind), 'check')} too noisy, "
                     f"up to {three_digits(100 * blind[0].high_share)} %",
                     (_widest(blind[0]),), remedy="use more passes")


def _widest(one: Cause) -> str:
    return (f"widest interval: {one.cause}, {seconds_text(one.excess_s, one.low_s, one.high_s)} "
            f"in {one.label}")


def stalled_answers(stalled: Sequence[Stalled]) -> Iterator[Answer]:
    """Yield how much ranks wait, how the exchange varies, and why either is not known."""
    with_share = [one for one in stalled if one.share is not None]
    clear = sorted((one for one in with_share if one.is_clear), key=lambda one: -(one.share or 0))
    if clear:
        worst = clear[0]
        more = f", and {plural(len(clear) - 1, 'more case')}" if len(clear) > 1 else ""
        yield Answer(
            CLEAR, f"waiting for the slowest rank: {_share(worst)} of {worst.label}{more}",
            (*(f"{one.label}: {_share(one)}; {_cause(one)}" for one in clear[:MOST_NAMED]),
             "fix: give ranks equal work, their own cores and equal hosts"),
            subject=worst.label)
    elif bounded := [one for one in with_share if one.high is not None]:
        most = max(bounded, key=lambda one: one.high or 0.0)
        reach = most.high or 0.0
        bound = f"at most {digits(100 * reach, 2)} % of a call"
        evidence = (f"{plural(len(bounded), 'case')}; most in {most.label}, {_share(most)}",)
        yield (Answer(NONE, f"waiting for the slowest rank: {bound}", evidence)
               if reach <= MOST_UNSEEN else
               cannot_tell("waiting for the slowest rank", bound, evidence,
                           remedy="use more steps"))
    yield from _varying(stalled)
    if not stalled:
        yield cannot_tell("waiting for the slowest rank", "only steps of a training on 2 ranks "
                          "or more separate waiting from work")
    reasons = Counter(one.missing or NO_INTERVAL for one in stalled
                      if one.missing or one.share is not None and one.high is None)
    if reasons:
        texts = [f"{why} ({plural(count, 'case')})" for why, count in reasons.most_common()]
        yield cannot_tell(
            "waiting for the slowest rank", texts[0], texts[1:MOST_NAMED])


def _cause(stalled: Stalled) -> str:
    if stalled.late_rank is None:
        return "no single straggler: the slowest rank changes, or several are slow"
    if stalled.late_share >= EXPLAINS:
        return f"rank {stalled.late_rank} causes {stalled.late_share:.0%} of it"
    return f"rank {stalled.late_rank} causes {stalled.late_share:.0%} of it; others are slow, too"


def _share(stalled: Stalled) -> str:
    assert stalled.share is not None
    ends = "" if stalled.low is None or stalled.high is None else (
        f" (CI {digits(100 * stalled.low, 2)} to {digits(100 * stalled.high, 2)} %)")
    return f"{digits(100 * stalled.share, 2)} %{ends}"


def _varying(stalled: Sequence[Stalled]) -> Iterator[Answer]:
    """Yield the cases whose exchange varies much more than the computation before it."""
    pairs = sorted(((one.variation, one) for one in stalled
                    if one.variation is not None and one.variation.is_high
                    and one.variation.share >= LEAST_VARIED),
                   key=lambda pair: -pair[0].share)
    if pairs:
        how, worst = pairs[0]
        more = f", and {plural(len(pairs) - 1, 'more case')}" if len(pairs) > 1 else ""
        yield Answer(
            CLEAR, f"gradient exchange: jitter of {digits(100 * how.share, 2)} % of a call in "
            f"{worst.label}{more}",
            (f"coefficient of variation {how.cv:.0%}, of computing {how.own_cv:.0%} "
             f"(p = {how.chance:.2g})",
             "counted from the moment at which the last rank is ready: no straggler is in it",
             "fix: see what else uses the network and the cores that exchange"),
            subject=worst.label)
    elif shares := sorted(one.variation.share for one in stalled if one.variation is not None):
        most, n = 100 * shares[-1], plural(len(shares), "case")
        evidence = (f"{n}; it deviates by at most {three_digits(most)} % of a call",)
        yield (Answer(NONE, "gradient exchange: no excess jitter", evidence)
               if shares[-1] <= MOST_UNSEEN else
               cannot_tell("gradient exchange jitter", "computing varies as much", evidence))


def waits_tables(record: RankWaits) -> Iterator[Table]:
    if clear := _clear(record):
        yield plain_table("waiting for the slowest rank", (
            Column("case", "case"),
            Column("share", "of a call", Show.PERCENT, "%", "of the ranks' time", "less"),
            Column("interval", "95 % CI", Show.PERCENT, "%"),
            Column("rank", "slowest rank", Show.COUNT, optional=True),
            Column("explained", "explains", Show.PERCENT, "%", optional=True),
        ), (Row((one.label, one.share, _range(one), one.late_rank,
                 one.late_share if one.late_rank is not None else None), case_id=one.case_id)
            for one in clear))
    if slow := [one for one in record.causes if one.is_clear]:
        yield plain_table("slow compute, links and uneven work", (
            Column("case", "case"), Column("cause", "cause"),
            Column("rank", "rank, or share of the work", Show.COUNT),
            Column("excess", "longer by", Show.US, "us", "than the next", "less"),
            Column("interval", "99 % interval", Show.US, "us"),
            Column("share", "of the next one's time", Show.PERCENT, "%"),
        ), (Row((one.label, one.cause, one.who, one.excess_s, Range(one.low_s, one.high_s),
                 one.share)) for one in slow))


def waits_charts(record: RankWaits) -> Iterator[DotChart]:
    if clear := _clear(record)[:MOST_ROWS]:
        yield DotChart(
            "Waiting for the slowest rank", "share of the ranks' time in a call", "waits",
            ("Whisker: 95 % interval.",), tuple(dict.fromkeys(one.case_id for one in clear)),
            Axis("waiting", Show.PERCENT, "%"), (), tuple(
                Dot(one.label, ChartPoint(one.share or 0.0, _range(one)), ()) for one in clear))


def _clear(record: RankWaits) -> list[Stalled]:
    return [one for one in record.stalled if one.is_clear]


def _range(one: Stalled) -> Range:
    return Range(one.low or 0.0, one.high or 0.0)


TOPIC = Topic("waits", "waiting for other ranks, and its cause", waits,
              waits_tables, waits_charts, is_quiet=True)

"""Changes and disturbances of the machine during a run, and their cost to its cases.

Drift has a sentence for each series that is named, and one on all others; clocks and other
processes have their cost where passes show it, else a statement that they do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hpcbench.analysis.disturbances import (
    CLOCKS,
    FEWEST_PASSES,
    LEAST_EFFECT,
    LEAST_SHARE,
    STEAL,
    WAITS,
    ConditionEffect,
    Drifting,
    LostShare,
    RunReadings,
    drifts,
    following,
    lower,
    lowest_clock,
    readings,
    shares_of_nodes,
    waiting_rank,
)
from hpcbench.answers.answer import (
    CANARY,
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
    left_out,
    percent_text,
    plain_table,
    with_command,
)
from hpcbench.records import dataclass
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.reduce.results import Canary
from hpcbench.statistics.steady import FEWEST_RUNS, MOST_VALUES
from hpcbench.units import digits, plural
from hpcbench.views.chart import Axis, ChartPoint, Dot, DotChart
from hpcbench.views.table import Column, Range, Row, Show, Table

PRECISE = 0.1
"""A series whose interval reaches further cannot exclude drift."""
_DRIFT_TO_DO = (
    "fix: see what changed on the machine (clocks, other jobs) and run again; cases of the same "
    "pass still compare")


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Disturbances during all of a run: the rank that waits most, the one with the lowest clock,
    and nodes that lost cores."""

    path: str
    waiting: LostShare | None
    clock: LostShare | None
    others: tuple[LostShare, ...]
    steal: tuple[LostShare, ...]


@dataclass(frozen=True, slots=True)
class Conditions:
    """The record of the topic: series that drift, cases that follow a condition, lost cores."""

    drifts: tuple[Drifting, ...]
    following: tuple[ConditionEffect, ...]
    disturbed: tuple[Disturbed, ...]
    answers: tuple[Answer, ...]


def conditions(runs: Sequence[Run], options: TopicOptions) -> Conditions:
    read = {run.path: readings(run) for run in runs}
    drifting, follows = drifts(runs), following(read)
    lost = tuple(Disturbed(
        path, waiting_rank(one.cases), lowest_clock(one.cases),
        shares_of_nodes(one.cases, "others"), shares_of_nodes(one.cases, "steal"))
        for path, one in read.items())
    answers = [*drift_answers(runs, drifting)]
    for run, lost_of_run in zip(runs, lost, strict=True):
        seen = RunConditions(run, read[run.path], tuple(f for f in follows if f.path == run.path))
        answers += clock_answers(seen, lost_of_run.clock)
        answers += noise_answers(seen, lost_of_run.waiting, lost_of_run.others, lost_of_run.steal)
    return Conditions(drifting, follows, lost, with_command(answers, runs, "conditions"))


def drift_answers(runs: Sequence[Run], series: Sequence[Drifting]) -> Iterator[Answer]:
    """Yield the series that drift, most first; or that none does; then the undecided ones."""
    named = sorted((one for one in series if one.is_clear),
                   key=lambda one: (bool(one.case_id), -abs(one.change)))
    canaries = [canary for run in runs if (canary := run.results.canary) is not None
                and canary.tau is not None]
    for drift in named[:MOST_NAMED]:
        yield _of_series(drift, len(series), named, canaries)
    drifting = [one for one in canaries if one.is_drifting]
    if not named:
        yield from (Answer(
            CLEAR, f"drift: {_canary_text(one)}",
            ("false alarms in at most 1 % of runs (HB145)", _DRIFT_TO_DO),
            subject=CANARY) for one in drifting)
    rest = [one for one in series if not one.is_clear]
    precise = [one for one in rest if one.reach <= PRECISE]
    if precise and not named and not drifting:
        worst = max(precise, key=lambda one: one.reach)
        yield Answer(NONE, f"drift: none (changes are at most {digits(100 * worst.reach, 2)} %)",
                     (f"checked {_series_text(len(precise))}; widest interval: {worst.label}, "
                      f"{_change(worst)} over {worst.passes} passes",
                      *map(_canary_text, canaries)))
    if why := "; ".join(_unknown(runs, rest)):
        yield cannot_tell("drift", why, map(_canary_text, canaries))


def _of_series(
    drift: Drifting, made: int, named: Sequence[Drifting], canaries: Sequence[Canary],
) -> Answer:
    within = f" in {drift.lasted_s:.0f} s" if drift.lasted_s is not None else ""
    beside = (", in addition to the drift of all cases" if drift.case_id and any(
        not other.case_id and other.path == drift.path for other in named) else "")
    return Answer(
        CLEAR, f"drift: {drift.label} gets {'slower' if drift.change > 0 else 'faster'} by "
        f"{_change(drift)} over {plural(drift.passes, 'pass')}{within}{beside}",
        (f"Kendall's tau {drift.tau:+.2f}; significant among {_series_text(made)}; false alarms in "
         f"at most {FALSE_ALARMS:.0%} of runs", *map(_canary_text, canaries),
         _DRIFT_TO_DO), subject=drift.label)


def _canary_text(case: Canary) -> str:
    assert case.drift is not None and case.tau is not None
    lasted_s = case.runs[-1].since_start_s - case.runs[0].since_start_s
    does = f"changes steadily by {100 * case.drift:+.3g} %" if case.is_drifting else (
        "does not change steadily")
    return (f"the canary ({case.label}, between cases) {does} over "
            f"{plural(len(case.runs), 'run')} in {lasted_s:.0f} s (Kendall's tau {case.tau:+.2f})")


def _unknown(runs: Sequence[Run], rest: Sequence[Drifting]) -> Iterator[str]:
    timed = [item.timing.pass_medians_s for run in runs for item in run.results.cases
             if item.timing is not None]
    passes = [len(medians) for medians in timed]
    few = [count for count in passes if count < FEWEST_RUNS]
    if lost := sum(not all(medians) for medians in timed):
        yield f"{plural(lost, 'case')} lack passes"
    if max(passes, default=0) > MOST_VALUES:
        yield f"at most {MOST_VALUES} passes are analysed, not {max(passes)}"
    if few:
        yield f"needs {FEWEST_RUNS} passes, not {max(few)}: use --passes {FEWEST_RUNS}"
    wide = [one for one in rest if one.reach > PRECISE]
    if wide:
        most = max(one.reach for one in wide)
        cases = sum(bool(one.case_id) for one in wide)  # beside that of all cases together
        where = plural(cases, "case") if cases else "all cases together"
        yield f"noise hides changes up to {100 * most:.0f} % in {where}; use more passes"
    if not passes:
        yield "no case has times"


def _series_text(count: int) -> str:
    """Return how many series of medians were tested: one a case, and that of all together."""
    return f"{count} series of pass medians"


def _change(one: Drifting) -> str:
    sign = 1 if one.change > 0 else -1
    return percent_text(abs(one.change), *sorted((sign * one.low, sign * one.high)))


NOISE = frozenset(("HB143", "HB144"))
"""Findings of the check for noise before the sweep."""
_NOISE_TO_DO = (
    "fix: see what else runs there (top, the batch system), or pin ranks to other cores")
_COOLING = "fix: check cooling, power limits and clock settings of that host"
_FEW = f"needs {FEWEST_PASSES} passes or more, some of them less disturbed"


@dataclass(frozen=True, slots=True)
class RunConditions:
    """A run, the readings in its passes, and how cases follow them."""

    run: Run
    read: RunReadings
    following: tuple[ConditionEffect, ...]

    def of(self, condition: str) -> list[ConditionEffect]:
        """Return the cases that were compared with a condition, the largest effect first."""
        return sorted((one for one in self.following if one.condition == condition),
                      key=lambda one: -one.effect)

    def host(self, rank: int) -> str:
        """Return `` on HOST`` of a rank; empty where that is not recorded."""
        name = self.run.host(rank)
        return f" on {name}" if name else ""


def clock_answers(seen: RunConditions, lowest: LostShare | None) -> Iterator[Answer]:
    """Yield whether slower passes had lower clocks; or why that is not known."""
    compared, read = seen.of(CLOCKS), seen.read
    lowered = [item for item in seen.run.results.cases if item.usage and item.usage.throttled]
    why = "; ".join(dict.fromkeys(reason for item in lowered if item.usage
                                  for reason in item.usage.throttled_by))
    reasons = (
        *((f"clocks were lowered ({why}) in {plural(len(lowered), 'case')}",) if lowered else ()),
        *((f"GPUs had at most {read.celsius} degrees C",) if read.celsius is not None else ()))
    if lowest is not None:
        rank = read.clock_ranks[lowest.row]
        yield _always(rank, lowest, (
            f"low clock: the {read.clock_of} of rank {rank}{seen.host(rank)} runs {lowest.text} "
            "slower than the others"), reasons, _COOLING)
    causes = [one for one in compared if one.is_cause]
    if causes:
        worst = causes[0]
        who = _whose(seen, worst, read.clock_ranks)
        yield Answer(
            CLEAR, f"throttling: {worst.label} is {worst.text} slower in {worst.passes_text}, "
            f"while the {read.clock_of} clock of {who} falls to {worst.least:.0%}{_more(causes)}",
            (*map(_evidence, causes[:MOST_NAMED]), *reasons,
             _family(seen), _COOLING), subject=who)
    yield from _other_cause(compared, "throttling", reasons)
    if lowest is not None or any(one.is_clear for one in compared):
        return
    if "clocks" in read.missing:
        missing = read.missing["clocks"]
        yield cannot_tell("throttling", "no clock frequency was read",
                          (*([missing] if missing else ()), *reasons))
    elif lowered or _may_cost(compared, lost := _lost(seen, CLOCKS), LEAST_EFFECT):
        yield cannot_tell("throttling", f"clocks fell, no case follows them; {_FEW}", reasons)
    else:
        yield Answer(NONE, f"throttling: none (clocks fall by at most {digits(100 * lost, 2)} %)",
                     (f"no case's times follow the clock ({plural(len(compared), 'check')})",))


def noise_answers(
    seen: RunConditions, waiting: LostShare | None, others: Sequence[LostShare],
    steal: Sequence[LostShare],
) -> Iterator[Answer]:
    """Yield the ranks and nodes that lost cores to other processes, and the cost."""
    causes = [one for name in (WAITS, STEAL) for one in seen.of(name) if one.is_cause]
    before = tuple(f"{one.code}: {one.message}" for one in seen.run.results.findings
                   if one.code in NOISE)
    shares = [f"{what} {one.text} of the cores{seen.host(seen.read.nodes[one.row])}"
              for what, lost in (("other processes used", others), ("a hypervisor took", steal))
              for one in lost]
    evidence = (*shares, *before)
    for cause in causes[:1]:
        yield Answer(CLEAR, f"CPU contention: {cause.label} is {cause.text} slower in "
                     f"{cause.passes_text}, while {_during(seen, cause)}{_more(causes)}",
                     (*map(_evidence, causes[:MOST_NAMED]), *evidence,
                      _family(seen), _NOISE_TO_DO), subject=cause.label)
    if waiting is not None:
        rank = seen.read.wait_ranks[waiting.row]
        yield _always(rank, waiting, (
            f"CPU contention: rank {rank}{seen.host(rank)} waits for a core {waiting.text} of the "
            "time"), (f"{LEAST_SHARE:.0%} or more above every other rank", *evidence),
            _NOISE_TO_DO)
    both = [one for name in (WAITS, STEAL) for one in seen.of(name)]
    yield from _other_cause(both, "CPU contention", evidence)
    if causes or waiting is not None or any(one.is_clear for one in both):
        return
    if "waits" in seen.read.missing and "cores" in seen.read.missing:
        missing = seen.read.missing["waits"]
        yield cannot_tell("host noise", "no waits for cores were read",
                          (*([missing] if missing else ()), *before))
    elif shares:
        yield Answer(CANNOT_TELL, f"host noise: {'; '.join(shares)}; cost unknown",
                     (f"no case's passes follow it; {_FEW}", *before, _NOISE_TO_DO))
    elif _may_cost(both, lost := _lost(seen, WAITS), MOST_UNSEEN):
        open_to = max((one.high for one in seen.of(WAITS)), default=None)
        why = _FEW if open_to is None else (
            f"noise hides what it costs, up to {100 * open_to:.0f} %: use more passes")
        yield Answer(CANNOT_TELL, f"host noise: {_most_waiting(seen)}; cost unknown",
                     (f"no case's passes follow it; {why}", *before, _NOISE_TO_DO))
    else:
        yield Answer(NONE, "host noise: no significant effect (a rank waits for a core at most "
                     f"{digits(100 * lost, 2)} % of a pass)",
                     (f"no case's times follow it ({plural(len(both), 'check')})", *before))


def _may_cost(compared: Sequence[ConditionEffect], lost: float, least: float) -> bool:
    """Return whether the loss may have cost too much for a negative answer.

    Without comparisons it may from ``least`` on; else where intervals leave it open."""
    if not compared:
        return lost >= least
    return lost > MOST_UNSEEN and max(one.high for one in compared) > MOST_UNSEEN


def _always(
    rank: int, lost: LostShare, what: str, evidence: tuple[str, ...], to_do: str,
) -> Answer:
    """Return the answer on a rank that loses a share of its speed all the time."""
    return Answer(
        CLEAR, f"{what}; its work takes up to "
               f"{digits(100 * lost.value / (1 - lost.value), 2)} % longer",
        (*evidence, f"false alarms in at most {FALSE_ALARMS:.0%} of runs", to_do),
        subject=f"rank {rank}")


def _other_cause(
    compared: Sequence[ConditionEffect], what: str, evidence: tuple[str, ...],
) -> Iterator[Answer]:
    """Yield that times follow a condition that explains too little to be the cause."""
    beside = [one for one in compared if one.is_clear and not one.is_cause]
    if beside and not any(one.is_cause for one in compared):
        other = beside[0]
        yield Answer(
            CANNOT_TELL, f"{what}: explains only {other.share:.0%} of the slower passes of "
            f"{other.label}",
            (f"the passes are slower by {other.text}; a cause explains at least {EXPLAINS:.0%}",
             *map(_evidence, beside[:MOST_NAMED]), *evidence), subject=other.label)


def _whose(seen: RunConditions, one: ConditionEffect, ranks: Sequence[int]) -> str:
    if one.row is None:
        return "several ranks in turn"
    return f"rank {ranks[one.row]}{seen.host(ranks[one.row])}"


def _during(seen: RunConditions, cost: ConditionEffect) -> str:
    if cost.condition == WAITS:
        who = _whose(seen, cost, seen.read.wait_ranks)
        return f"other processes take {cost.least:.0%} to {cost.greatest:.0%} of a core of {who}"
    where = "" if cost.row is None else seen.host(seen.read.nodes[cost.row])
    return f"the hypervisor takes {cost.least:.0%} to {cost.greatest:.0%} of the cores{where}"


def _more(causes: Sequence[ConditionEffect]) -> str:
    return f", and {plural(len(causes) - 1, 'more case')}" if len(causes) > 1 else ""


def _evidence(one: ConditionEffect) -> str:
    return (f"{one.label}: {one.text}; {one.condition} {one.least:.0%} to "
            f"{one.greatest:.0%}, {one.disturbed} of {plural(one.passes, 'pass')} disturbed; "
            f"explains {one.share:.0%} of the rise and {one.fit:.0%} of the variance")


def _family(seen: RunConditions) -> str:
    return (f"significant among {plural(len(seen.following), 'comparison')}; false alarms in at "
            f"most {FALSE_ALARMS:.0%} of runs")


def _lost(seen: RunConditions, name: str) -> float:
    """Return the greatest share of its clock that any pass lost, or of its time that it waited."""
    values = [getattr(one, name) for one in seen.read.cases]
    lost = [float(np.nanmax(lower(one) if name == CLOCKS else one)) for one in values
            if np.isfinite(one).any()]
    return max(lost, default=0.0)


def _most_waiting(seen: RunConditions) -> str:
    """Return which rank waited most for a core in a pass, and in which case."""
    share, rank, label = max(
        (float(np.nanmax(waits)), rank, one.item.case.label) for one in seen.read.cases
        for rank, waits in zip(seen.read.wait_ranks, one.waits, strict=True)
        if np.isfinite(waits).any())
    return f"rank {rank} waits for a core up to {digits(100 * share, 2)} % of a pass of {label}"


_INTERVAL = Column("interval", "99 % CI", Show.PERCENT, "%")


def conditions_tables(record: Conditions) -> Iterator[Table]:
    """Yield the series that drift, and the cases that follow a condition; no others."""
    if named := [one for one in record.drifts if one.is_clear]:
        yield plain_table("drift over the run", (
            Column("case", "case"), Column("passes", "passes", Show.COUNT),
            Column("change", "change", Show.PERCENT, "%", "from the first pass to the last"),
            _INTERVAL,
        ), (Row((one.label, one.passes, one.change, Range(one.low, one.high)), case_id=one.case_id)
            for one in named))
    if follows := [one for one in record.following if one.is_clear]:
        yield plain_table("slowdowns by the state of the machine", (
            Column("case", "case"), Column("condition", "condition"),
            Column("disturbed", "passes disturbed", Show.COUNT),
            Column("effect", "slower by", Show.PERCENT, "%", "in the most disturbed pass", "less"),
            _INTERVAL,
            Column("share", "explained", Show.PERCENT, "%", "by the condition"),
        ), (Row((one.label, one.condition, one.disturbed, one.effect, Range(one.low, one.high),
                 one.share), case_id=one.case_id) for one in follows))


def conditions_charts(record: Conditions) -> Iterator[DotChart]:
    rows: list[tuple[str, float, Drifting | ConditionEffect]] = [
        *((f"drift: {one.label}", one.change, one) for one in record.drifts if one.is_clear),
        *((f"{one.condition}: {one.label}", one.effect, one)
          for one in record.following if one.is_clear)]
    if rows:
        yield DotChart(
            "Drift and slowdowns during the run", "share of the median time", "conditions",
            ("Whisker: 99 % interval.", *left_out(len(rows))),
            tuple(dict.fromkeys(one.case_id for *_, one in rows if one.case_id)),
            Axis("change", Show.PERCENT, "%"), (), tuple(
                Dot(label, ChartPoint(value, Range(one.low, one.high)), ())
                for label, value, one in rows[:MOST_ROWS]))


TOPIC = Topic("conditions", "drift, throttling and other processes",
              conditions, conditions_tables, conditions_charts, is_quiet=True)

"""Series of cases over numbers of ranks: their members, what is constant, and how they scale.

In weak scaling each rank has the same amount of work, in strong scaling all together have. The
speed-up is the ratio of rates of work (samples/s) to the base, the case on the fewest ranks; the
efficiency is that over the ratio of ranks. A strategy that was timed on several ranks only has the
training of one rank as its base, where there is one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from hpcbench.analysis.scaling_laws import AMDAHL, UNIVERSAL, Law, amdahl, universal, why_not
from hpcbench.answers.answer import Run
from hpcbench.answers.compare import FALSE_SHARE, CaseComparison, compare
from hpcbench.answers.compare_inputs import (
    CaseOfSide,
    Side,
    cases_of,
    items_of,
    other_differences,
)
from hpcbench.answers.tasks import OVER_PAIRS
from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import CallWork
from hpcbench.reduce.results import CaseResult, RunInfo
from hpcbench.statistics.order import Interval
from hpcbench.statistics.overlap import OverPasses, significant
from hpcbench.units import grouped
from hpcbench.views.labels import short_labels

_EVENLY = 1.001
"""Quotients of ranks and cores are this far from a whole number at most by rounding."""


def nodes_of(run: RunInfo, case: Case) -> int:
    """Return how many nodes a case used: its ranks are the first of the job, spread evenly."""
    return math.ceil(case.world_size / run.ranks_a_node)


def ranks_a_core(run: RunInfo, case: Case, device: str) -> float | None:
    """Return how many ranks of a case share a core where most do; None if unknown.

    1 or less means no sharing. Ranks on GPUs wait for these, not for cores, and have 0. The ranks
    of a case of fewer ranks than the job share cores in proportion. Older results record only the
    cores of one rank; if these are all of the machine's, the ranks of its node share them."""
    if not device.startswith("cpu"):
        return 0.0
    process = run.environment.get("process", {})
    on_node = case.world_size / nodes_of(run, case)
    reported = process.get("ranks_a_core")
    if isinstance(reported, int | float):
        return float(reported) if reported <= 1 else reported * on_node / run.ranks_a_node
    cores = process.get("affinity_cpus")
    if not isinstance(cores, int) or cores < 1:
        return None
    online = _online(run)
    return on_node / cores if online is None or cores >= online or on_node <= cores else None


def shares_cores(run: RunInfo, case: Case, device: str) -> bool:
    known = ranks_a_core(run, case, device)
    return known is not None and known > _EVENLY


def _online(run: RunInfo) -> int | None:
    """Return how many cores the machine has, of a text such as ``0-3,8-11``."""
    text = run.environment.get("cpu", {}).get("online")
    if not isinstance(text, str):
        return None
    ends = [part.partition("-") for part in text.split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Worked:
    """A timed case with its work. ``times`` are those of all files, ``run`` is the first of them.
    """

    run: Run
    item: CaseResult
    times: CaseOfSide
    work: CallWork

    @property
    def case(self) -> Case:
        return self.item.case

    @property
    def ranks(self) -> int:
        return self.case.world_size

    @property
    def nodes(self) -> int:
        return nodes_of(self.run.results.run, self.case)

    @property
    def device(self) -> str:
        """Return where it ran: ``cpu``, ``cuda``."""
        return (self.item.device or self.case.device).partition(":")[0]

    @property
    def shares_cores(self) -> bool:
        return shares_cores(self.run.results.run, self.case, self.device)

    @property
    def ranks_a_core(self) -> float | None:
        return ranks_a_core(self.run.results.run, self.case, self.device)

    @property
    def time_s(self) -> float:
        """Return the median over launches in s."""
        return median(self.times.launch_s)

    @property
    def key(self) -> tuple[object, ...]:
        """Return the key of comparable cases: their task, place, environment and timing."""
        case = self.case
        return (case.kind, case.backend, self.device, case.env, case.mode, case.batch,
                case.cuda_graph, case.arrival, self.work.task)

    @property
    def title(self) -> str:
        case = self.case
        variables = (f"{name}={value}" for name, value in case.env)
        return " ".join((self.work.title, case.backend, self.device, *variables))


def worked(runs: Sequence[Run]) -> list[Worked]:
    """Return each timed case with its work, once; the launches of several files are put together.
    """
    several = tuple(run.results for run in runs)
    times = cases_of(Side("", several))
    found = (next((Worked(runs[at], item, times[name], of) for at, item in items
                   for of in [_work_of(runs[at], item)] if of is not None), None)
             for name, items in items_of(several).items() if times[name].launch_s)
    return [one for one in found if one is not None]


def _work_of(run: Run, item: CaseResult) -> CallWork | None:
    if item.statistics is None or not item.statistics.median_s > 0:
        return None
    return next(iter(run.facts(item, CallWork)), None)


def short_ways(cases: Sequence[Worked]) -> dict[str, str]:
    """Return the name of each way among those of the cases, as labels are shortened."""
    return dict(short_labels(case.work.way for case in cases))


def compared(pairs: Sequence[tuple[Worked, Worked]]) -> list[CaseComparison]:
    """Return the time of the second case of each pair over the first's, with its interval.

    Cases of the same launch are compared by pairs of passes, others by launches."""
    in_launch = [bool(a.run is b.run and a.times.pass_s and b.times.pass_s) for a, b in pairs]
    comparisons: dict[str, CaseComparison] = {}
    for paired in (False, True):
        chosen = {str(at): pair for at, pair in enumerate(pairs) if in_launch[at] is paired}
        first, second = ({key: pair[side].times for key, pair in chosen.items()} for side in (0, 1))
        made = compare(first, second, ("", ""), in_launch=paired)
        comparisons |= {one.key: one for one in made.cases}
    return [comparisons[str(at)] for at in range(len(pairs))]


BY_PAIRS = " by pairs"
"""Follows the name of a ratio of `compared` within a launch: beside it stand other medians."""
MEANS_BY_PAIRS = f"by pairs, in one launch: {OVER_PAIRS}"


def scaled(case: Worked, factor: float) -> Worked:
    """Return the case with its times multiplied by ``factor``."""
    times = case.times
    return replace(case, times=replace(
        times, launch_s=tuple(time * factor for time in times.launch_s),
        time_s=times.time_s and times.time_s * factor,
        ends_s=times.ends_s and (times.ends_s[0] * factor, times.ends_s[1] * factor),
        passes_s=tuple(tuple(tuple(time and time * factor for time in of_pass)
                             for of_pass in launches) for launches in times.passes_s)))


def caveats(runs: Sequence[Run]) -> list[str]:
    """Return notes on cases without times, except skips, and on other differences of files."""
    kinds = grouped((item.status, item) for run in runs for item in run.results.cases
                    if item.status not in ("ok", "skipped"))
    notes = [f"without times: {len(items)} {status}" for status, items in kinds.items()]
    if keys := other_differences([(run.path, run.results) for run in runs]):
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        notes.append(
            f"the files also differ in {', '.join(keys[:_SHOWN])}{more}")
    return notes


STRONG, WEAK, NEITHER, MOVED = "strong", "weak", "neither", "moved data"
"""The kinds of a series, by what is constant; moving data is no work that ranks share."""
GOOD, EXCELLENT = 0.8, 0.9
IS_EXCELLENT, IS_GOOD, IS_BELOW = "excellent", "good", "below good"


@dataclass(frozen=True, slots=True)
class SeriesMember:
    """One case of a series.

    Attributes:
        amount: work of all ranks in a call, in the unit of the series.
        time_s, rate: the median of a call, and amount / time.
        speed_up, efficiency: beside the base, with 95 % intervals; None for the base, and where
            ranks share cores.
        ranks_a_core: how many ranks share a core; None if unknown.
        communication: the share of a call that communication adds; None if not measured.
        verdict: IS_EXCELLENT, IS_GOOD or IS_BELOW, where significant among all of the topic.
        in_launch: whether the interval is of passes of one launch, so that it holds in that only.
    """

    case_id: str
    ranks: int
    nodes: int
    amount: float
    time_s: float
    rate: float
    speed_up: Interval | None = None
    efficiency: Interval | None = None
    shares_cores: bool = False
    ranks_a_core: float | None = None
    communication: OverPasses | None = None
    verdict: str | None = None
    in_launch: bool = False

    @property
    def known_communication(self) -> float | None:
        return significant(self.communication)


@dataclass(frozen=True, slots=True)
class ScalingSeries:
    """Cases of one task and way, by ranks; the first is the base.

    ``kind`` is STRONG, WEAK, NEITHER or MOVED. ``laws`` are fitted to members whose ranks share
    no core; ``no_laws`` are the reasons for those that are not. ``base`` is the way of the first
    member, if it is another one's."""

    title: str
    way: str
    kind: str
    unit: str
    members: tuple[SeriesMember, ...]
    base: str = ""
    size: str = ""
    laws: tuple[Law, ...] = ()
    no_laws: tuple[str, ...] = ()


def series_of(cases: Sequence[Worked]) -> list[ScalingSeries]:
    tasks = grouped((case.key, case) for case in cases)
    picked = [one for same in tasks.values() for one in _of_task(same)]
    return [_with_laws(one) for one in _measured(picked)]


@dataclass(frozen=True, slots=True)
class _Picked:
    """A series before its times are compared."""

    kind: str
    way: str
    cases: tuple[Worked, ...]


def _of_task(of_task: Sequence[Worked]) -> Iterator[_Picked]:
    if of_task[0].work.only_communicates:
        cases = _one_each(of_task)
        if len(cases) > 1:
            yield _Picked(MOVED, "", cases)
        return
    alone = [case for case in of_task if case.work.alone and case.ranks == 1]
    names = short_ways(of_task)
    for way, members in grouped((case.work.way, case) for case in of_task).items():
        least = min(case.ranks for case in members)
        bases = [case for case in alone if case.work.way != way] if least > 1 else []
        yield from _of_way(names[way], [*members, *bases])


def _of_way(way: str, members: Sequence[Worked]) -> Iterator[_Picked]:
    measured_way = False
    for kind, groups in (
            (WEAK, grouped((case.work.amount / case.ranks, case) for case in members)),
            (STRONG, grouped((case.work.amount, case) for case in members))):
        for alike in groups.values():
            cases = _one_each(alike)
            if len(cases) > 1:
                measured_way = True
                yield _Picked(kind, way, cases)
    cases = _one_each(members)
    if len(cases) > 1 and not measured_way:
        yield _Picked(NEITHER, way, cases)


def _one_each(cases: Sequence[Worked]) -> tuple[Worked, ...]:
    """Return the first planned case of each number of ranks, the fewest first."""
    chosen: dict[int, Worked] = {}
    for case in cases:
        chosen.setdefault(case.ranks, case)
    return tuple(chosen[ranks] for ranks in sorted(chosen))


def _measured(picked: Sequence[_Picked]) -> Iterator[ScalingSeries]:
    """Yield the series with the ratios of their times, all compared as one family."""
    pairs = [(one, one.cases[0], case) for one in picked for case in one.cases[1:]]
    ratios = iter(compared([(base, case) for _, base, case in pairs]))
    verdicts = iter(_verdicts(
        [(base, case) for one, base, case in pairs if _has_verdict(one, case)]))
    for picked_one in picked:
        base, *others = picked_one.cases
        members = (_member(base), *(
            _beside(picked_one.kind, base, case, next(ratios),
                    next(verdicts) if _has_verdict(picked_one, case) else None) for case in others))
        own = picked_one.cases[-1].work
        ways = short_ways(picked_one.cases)
        yield ScalingSeries(
            picked_one.cases[-1].title, picked_one.way, picked_one.kind, own.unit, members,
            base=ways[base.work.way] if base.work.way != own.way else "", size=own.size)


def _has_verdict(one: _Picked, case: Worked) -> bool:
    return one.kind in (WEAK, STRONG) and not (case.shares_cores or one.cases[0].shares_cores)


def _verdicts(pairs: Sequence[tuple[Worked, Worked]]) -> list[str | None]:
    """Return the verdict of each pair of a base and a case, all of them one family of tests.

    A test scales the base to the case's time at the least good, or excellent, efficiency."""
    tests = [(scaled(base, case.work.amount / base.work.amount * base.ranks / case.ranks / share),
              case) for share in (GOOD, EXCELLENT) for base, case in pairs]
    comparisons = compared(tests)
    half = len(pairs)
    return [verdict(good, excellent)
            for good, excellent in zip(comparisons[:half], comparisons[half:], strict=True)]


def verdict(good: CaseComparison, excellent: CaseComparison) -> str | None:
    """Return the word for an efficiency; None if these tests do not decide."""
    if _is_significantly(excellent, less=True):
        return IS_EXCELLENT
    if _is_significantly(good, less=True):
        return IS_GOOD
    return IS_BELOW if _is_significantly(good, less=False) else None


def _is_significantly(comparison: CaseComparison, *, less: bool) -> bool:
    """Return whether a ratio is below, or above, 1 by its interval and among all of the family."""
    if comparison.low is None or comparison.high is None or comparison.false_share is None:
        return False
    beyond = comparison.high <= 1 if less else comparison.low > 1
    return beyond and comparison.false_share <= FALSE_SHARE


def _member(case: Worked) -> SeriesMember:
    return SeriesMember(
        case.case.case_id, case.ranks, case.nodes, case.work.amount, case.time_s,
        case.work.amount / case.time_s, shares_cores=case.shares_cores,
        ranks_a_core=case.ranks_a_core, communication=case.work.communication)


def _beside(
    kind: str, base: Worked, case: Worked, ratio: CaseComparison, verdict: str | None,
) -> SeriesMember:
    """Return a member beside the base; no efficiency where ranks share cores, or of NEITHER."""
    member = replace(_member(case), in_launch=ratio.in_launch, verdict=verdict)
    if kind == NEITHER or case.shares_cores or base.shares_cores:
        return member
    more = case.work.amount / base.work.amount
    rate = ratio.interval.map(lambda time: more / time)
    if kind == MOVED:  # a rank's rate, which at best stays as it is
        return replace(member, efficiency=rate)
    return replace(member, speed_up=rate, efficiency=rate.map(
        lambda value: value / (case.ranks / base.ranks)))


def _with_laws(series: ScalingSeries) -> ScalingSeries:
    if series.kind not in (STRONG, WEAK):
        return series
    free = [one for one in series.members if not one.shares_cores]
    wanted = (AMDAHL, UNIVERSAL) if series.kind == STRONG else (UNIVERSAL,)
    reasons = {name: why_not(name, len(free)) for name in wanted}
    ranks = [one.ranks for one in free]
    laws = tuple(
        amdahl(ranks, [one.time_s for one in free]) if name == AMDAHL else
        universal(ranks, [one.rate for one in free])
        for name, reason in reasons.items() if not reason)
    return replace(series, laws=laws, no_laws=tuple(filter(None, reasons.values())))

"""Which cases became slower or faster from one side to another, and which are undecided.

The unit is a launch: samples of one launch depend on one another far more than those of two. A case
is slower, or faster, only if all of this holds: the change is significant among all cases of the
comparison (Benjamini and Hochberg, a share of `most_false`), it is at least the smallest effect,
and its interval excludes `NEAR`. A case is the same only if the whole interval is within the
smallest effect. All else is inconclusive, with the number of launches that would suffice. The
interval is of the shift between launches (Hodges and Lehmann); the change is that of the medians
over launches, and where it lies outside the interval nothing is concluded. Cases of the same launch
are compared in pairs of passes, as in `recommend` (`tasks.paired`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, permutations
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hpcbench.answers.compare_inputs import (
    OPTION,
    UNSTATED,
    CaseOfSide,
    PhaseChange,
    Side,
    SideDifference,
    aligned,
    cases_of,
    differences,
    differs_from_nearest,
    do_the_same,
    measured_id,
    own_key,
    paired_keys,
    phase_changes,
    protocol_between,
    read_side,
    split_by,
    told_key,
    unmatched,
)
from hpcbench.answers.tasks import (
    ENOUGH_PASSES,
    FEWEST,
    LAUNCHES,
    PASSES,
    Paired,
    compared_tasks,
    paired,
)
from hpcbench.answers.verdict import doubts_of
from hpcbench.errors import UsageError, command_line
from hpcbench.plan.case import PROGRAM_KIND, Case
from hpcbench.records import dataclass
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.reduce.results_file import without_latest
from hpcbench.statistics.hypothesis_tests import (
    MOST_PASSES,
    benjamini_hochberg,
    chosen,
    least_chance,
    pairs_wanted,
    shift_of,
)
from hpcbench.statistics.order import Interval, median
from hpcbench.units import grouped, plural

FALSE_SHARE, NEAR, SMALLEST = 0.05, 0.01, 0.03
FEWEST_LAUNCHES, MOST_LAUNCHES = 4, 50
"""Fewer launches a side give no interval of 95 %, and more are not requested."""
_ROUNDING = 1e-9
SLOWER, FASTER, SAME, INCONCLUSIVE = "slower", "faster", "same", "inconclusive"
VERDICTS = (SLOWER, FASTER, INCONCLUSIVE, SAME)
"""In the order of reports."""
SUSPECT = 0.05
"""The least gap, as a share, between pass medians of two single launches that is suspicious."""
LOOKS = "looks"
"""First word of the reason of suspicious launches."""


@dataclass(frozen=True, slots=True)
class CaseComparison:
    """One case on two sides.

    Attributes:
        key: common to both sides: the id of the case, or all its parameters but one.
        label: name of the case on the second side; ``name`` is that of what it runs.
        first_s, second_s: each side's median over launches; of one file's pairs as `show` has it.
        ratio: the quotient of both, or the geometric mean over pairs where ``in_launch``;
            ``low`` to ``high`` is its 95 % interval, None where there are too few.
        launches: how many of ``unit`` there are on each side.
        jobs: of how many jobs they are on each side; ``repeated_by`` gives more launches.
        in_launch: whether passes of the same launch were compared in pairs.
        n_launches: in how many launches both were measured, where ``in_launch``.
        chance, false_share: the p-value, and after Benjamini and Hochberg, of ``tested``
            comparisons.
        verdict: one of VERDICTS; ``reason`` is why it is inconclusive, ``remedy`` what decides.
        more_launches: launches of each side that would probably suffice; None if not requested.
        phases: where the time of a step went, if it has phases.
        imported: whether each side has times that another program printed.
        protocol: what differs in how the sides were measured.
        ends_s: ends of the interval of each side's median, if that is one of `show`."""

    key: str
    label: str
    first_s: float
    second_s: float
    ratio: float
    low: float | None
    high: float | None
    launches: tuple[int, int]
    in_launch: bool = False
    chance: float | None = None
    false_share: float | None = None
    verdict: str = INCONCLUSIVE
    reason: str = ""
    remedy: str = ""
    more_launches: int | None = None
    phases: tuple[PhaseChange, ...] = ()
    jobs: tuple[int, int] = (1, 1)
    repeated_by: str = "other jobs, or --launches"
    imported: tuple[bool, bool] = (False, False)
    protocol: tuple[SideDifference, ...] = ()
    ends_s: tuple[tuple[float, float] | None, ...] = (None, None)
    unit: str = LAUNCHES
    n_launches: int = 1
    tested: int = 0
    name: str = ""

    @property
    def interval(self) -> Interval:
        return Interval(self.ratio, self.low, self.high)

    @property
    def most_false(self) -> float:
        """Return the share of false verdicts: of ways in one launch that of `recommend`."""
        return FALSE_ALARMS if self.in_launch else FALSE_SHARE

    @property
    def takes_launches(self) -> bool:
        """Return whether more launches could decide it."""
        return not self.in_launch

    @property
    def means_the_same(self) -> bool:
        """Return whether both times are of one kind: of one timing mode, and both means or medians.
        """
        return not {"mode", "time"} & {one.key for one in self.protocol}

    @property
    def is_within_jobs(self) -> bool:
        """Return whether launches of one job count several times: another job may differ by more.
        """
        return not self.in_launch and any(
            n > jobs for n, jobs in zip(self.launches, self.jobs, strict=True))


def repeated_by(case: Case, *, is_imported: bool) -> str:
    """Return what gives more launches of a case."""
    return "logs of other jobs" if is_imported else (
        "other runs of the program" if case.kind == PROGRAM_KIND else "other jobs, or --launches")


def scope_of(cases: Iterable[CaseComparison]) -> str:
    """Return in which jobs verdicts hold; empty where every launch is a job of its own."""
    jobs = [case.jobs for case in cases if case.is_within_jobs]
    if not jobs:
        return ""
    first, second = (min(ends) for ends in zip(*jobs, strict=True))
    return "within one job a side" if first == second == 1 else f"within {first} and {second} jobs"


@dataclass(frozen=True, slots=True)
class SideComparison:
    """Two sides: every case that both timed, and those that only one has, with the reason.

    ``launches_needed``: the fewest launches a side with which a verdict is possible, if every case
    changed, and if only one did. ``nearest``: where there are no cases, what the first one and the
    nearest of the other side differ in. ``of_one_work``: both sides do the same, so that the faster
    one is the better."""

    first: str
    second: str
    smallest: float
    cases: tuple[CaseComparison, ...]
    unmatched: tuple[tuple[str, str], ...]
    launches_needed: tuple[int, int] = (0, 0)
    nearest: tuple[SideDifference, ...] = ()
    of_one_work: bool = True

    def having(self, verdict: str) -> list[CaseComparison]:
        """Return the cases with a verdict, the largest change first."""
        found = [case for case in self.cases if case.verdict == verdict]
        return sorted(found, key=lambda case: -abs(math.log(case.ratio)))

    @property
    def geometric_mean(self) -> float | None:
        """Return the geometric mean of the ratios of matched cases; None without any."""
        logs = [math.log(case.ratio) for case in self.cases]
        return math.exp(sum(logs) / len(logs)) if logs else None


def compare(
    first: Mapping[str, CaseOfSide], second: Mapping[str, CaseOfSide], labels: tuple[str, str],
    smallest: float = SMALLEST, *, in_launch: bool = False,
) -> SideComparison:
    """Return the comparison of two sides by the keys of their cases; the arguments are those of
    `compare_each`."""
    (found,) = compare_each(first, (second,), labels, smallest, in_launch=in_launch)
    return found


def compare_each(
    first: Mapping[str, CaseOfSide], others: Sequence[Mapping[str, CaseOfSide]],
    labels: Sequence[str], smallest: float = SMALLEST, *, in_launch: bool = False,
    of_tasks: Mapping[tuple[str, str], Paired] = MappingProxyType({}),
) -> tuple[SideComparison, ...]:
    """Return the comparison of each other side with the first, all of them one family.

    ``smallest`` is the smallest effect that matters, as a share. ``in_launch``: the sides are of
    the same launches, so that medians of the same pass are compared, as the ways of `recommend`;
    ``of_tasks`` has those ways by their case ids. The others are a family of their own."""
    keys = [(at, key) for at, second in enumerate(others) for key in first
            if key in second and first[key].launch_s and second[key].launch_s]
    ways = grouped((key, (at, found)) for at, side in enumerate((*others, first))
                   for key, found in side.items() if found.launch_s)
    pairs = _pairs_of(ways, of_tasks) if in_launch else {}
    made = [(at, _in_pairs(each, pair) if pair else each) for at, key in keys
            for each in [_compared(key, first[key], others[at][key], in_launch=in_launch)]
            for pair in [pairs.get((key, len(others), at))]]
    chances = [chosen(len(ways[case.key]), case.chance) if in_launch else case.chance
               for _, case in made if not case.in_launch and case.chance is not None]
    shares = iter(benjamini_hochberg(chances))
    sizes = Counter(at for at, _ in keys)
    judged = grouped((at, _judged(
        case if case.in_launch or case.chance is None else replace(
            case, false_share=next(shares), tested=len(chances)), smallest, sizes[at]))
        for at, case in made)
    return tuple(SideComparison(
        labels[0], labels[1 + at], smallest, tuple(judged.get(at, ())),
        tuple(unmatched(first, second, (labels[0], labels[1 + at]), in_launch=in_launch)),
        (launches_needed(1), launches_needed(max(sizes[at], 1))),
        of_one_work=not in_launch or all(
            do_the_same(first[key].case, second[key].case) for key in first if key in second))
        for at, second in enumerate(others))


def _pairs_of(
    ways: Mapping[str, Sequence[tuple[int, CaseOfSide]]],
    of_tasks: Mapping[tuple[str, str], Paired],
) -> dict[tuple[str, int, int], Paired]:
    """Return each two sides of a key by their numbers, the second beside the first."""
    known = {(key, a, b): of_tasks[pair] for key, of in ways.items()
             for (a, one), (b, other) in permutations(of, 2)
             if (pair := (one.case.case_id, other.case.case_id)) in of_tasks}
    rest = {key: {at: found.passes_s for at, found in of} for key, of in ways.items()
            if not all((key, a, b) in known for (a, _), (b, _) in combinations(of, 2))}
    each = zip(rest, paired([*rest.values()]), strict=True)
    return {(key, *pair): one for key, of in each for pair, one in of.items()} | known


def at_most(launches: int) -> str:
    """Return a number of launches as text; more than MOST_LAUNCHES are not counted."""
    return str(launches) if launches <= MOST_LAUNCHES else f"over {MOST_LAUNCHES}"


def launches_needed(family: int) -> int:
    """Return the fewest launches a side that can show one change among ``family`` cases.

    They are more than MOST_LAUNCHES if that many cannot."""
    k = FEWEST_LAUNCHES
    while k <= MOST_LAUNCHES and not can_decide((k, k), family):
        k += 1
    return k


def can_decide(launches: tuple[int, int], family: int) -> bool:
    """Return whether so many launches of each side can show one change among ``family`` cases."""
    return least_chance(*launches) <= FALSE_SHARE / family


def _compared(
    key: str, first: CaseOfSide, second: CaseOfSide, *, in_launch: bool,
) -> CaseComparison:
    a, b = (np.array(side.launch_s) for side in (first, second))
    shift, chance = shift_of(np.log(a), np.log(b))
    ends = shift.map(math.exp)
    several = min(len(a), len(b)) > 1
    reason = _of_single(first, second, several=several)
    if in_launch and any(first.passes_s) and any(second.passes_s):
        reason = "no pass has both"
    times = over = median(a), median(b)
    ends_s: tuple[tuple[float, float] | None, ...] = (None, None)
    if (in_launch or len(a) == len(b) == 1) and first.time_s and second.time_s:
        times, ends_s = (first.time_s, second.time_s), (first.ends_s, second.ends_s)
    return CaseComparison(
        key, second.case.label, *times, over[1] / over[0], ends.low, ends.high,
        (len(a), len(b)), chance=chance if several else None, reason=reason,
        phases=tuple(phase_changes(first, second)), jobs=(first.jobs, second.jobs),
        imported=(first.is_imported, second.is_imported), ends_s=ends_s,
        repeated_by=repeated_by(second.case, is_imported=first.is_imported or second.is_imported),
        protocol=protocol_between(first, second, in_launch=in_launch),
        name=second.case.workload.name)


def _in_pairs(case: CaseComparison, pair: Paired) -> CaseComparison:
    """Return a comparison by pairs of a pass: what slows the machine for a while slows both."""
    return replace(
        case, ratio=pair.ratio, low=pair.low, high=pair.high, launches=(pair.n, pair.n),
        in_launch=True, chance=pair.chance, false_share=pair.false_share, tested=pair.tested,
        unit=pair.unit, n_launches=pair.n_launches,
        reason="" if pair.chance is not None else f"fewer than {FEWEST} {pair.unit} have both")


def _judged(case: CaseComparison, smallest: float, family: int) -> CaseComparison:
    if case.low is not None and case.high is not None and case.chance is not None:
        if not case.low * (1 - _ROUNDING) <= case.ratio <= case.high * (1 + _ROUNDING):
            return replace(case, reason="launches of a side have several levels: the "
                           "interval excludes the change of the medians")
        if 1 / (1 + smallest) <= case.low and case.high <= 1 + smallest:
            return replace(case, verdict=SAME)
        if case.false_share is not None and case.false_share <= case.most_false:
            if case.ratio >= 1 + smallest and case.low > 1 + NEAR:
                return replace(case, verdict=SLOWER)
            if case.ratio <= 1 / (1 + smallest) and case.high < 1 / (1 + NEAR):
                return replace(case, verdict=FASTER)
    wanted = _launches_wanted(case, smallest, max(family, 1)) if case.takes_launches else None
    pair = Paired(case.ratio, case.low, case.high, n=case.launches[0], unit=case.unit,
                  tested=case.tested)
    more = f"{at_most(wanted)} launches a side" if wanted is not None else (
        pairs_text([pair], smallest))
    return replace(case, more_launches=wanted, reason=case.reason or _unclear(case),
                   remedy=f"use {more}")


def _unclear(case: CaseComparison) -> str:
    if case.low is None or case.high is None:
        return "too few launches for an interval"
    if case.low <= 1 <= case.high:
        return "the interval includes 0 % and a change that matters"
    if case.false_share is not None and case.false_share <= case.most_false:
        return "the interval includes changes too small to matter"
    return (f"not significant, with at most {100 * case.most_false:.0f} % false, among "
            f"{plural(case.tested, 'comparison')}")


def pairs_text(pairs: Sequence[Paired], smallest: float) -> str:
    """Return how many passes, or launches, would probably decide on pairs, from least to most: ``11
    to 18 passes``; of too few pairs to tell, ``at least 9 passes``."""
    wanted = [_pairs_wanted(one, smallest) for one in pairs if one.n >= FEWEST]
    unit = pairs[0].unit if pairs[0].n else PASSES
    ends = dict.fromkeys((min(wanted), max(wanted))) if wanted else ()
    return (" to ".join(str(one) if one <= MOST_PASSES else f"over {MOST_PASSES}" for one in ends)
            or f"at least {ENOUGH_PASSES}") + f" {unit}"


def _pairs_wanted(pair: Paired, smallest: float) -> int:
    """Return how many passes, or launches, would probably decide; over MOST_PASSES if none would.
    """
    is_apart = max(pair.ratio, 1 / pair.ratio) >= 1 + smallest
    wanted = pairs_wanted(
        pair.interval.map(math.log), pair.n, _room(pair.ratio, smallest),
        FALSE_ALARMS / pair.tested if is_apart else 1)
    return MOST_PASSES + 1 if wanted is None else max(wanted, ENOUGH_PASSES)


def _room(ratio: float, smallest: float) -> float:
    """Return half the width that an interval may have to decide, as a logarithm."""
    change, matters = abs(math.log(ratio)), math.log1p(smallest)
    return change - math.log1p(NEAR) if change >= matters else matters - change


def _launches_wanted(case: CaseComparison, smallest: float, family: int) -> int:
    """Return how many launches a side would probably decide; over MOST_LAUNCHES if none would.

    With so many the test can hold among ``family`` tests, and the interval, which narrows with the
    root of their number, lies on one side of the smallest effect."""
    k = max(min(case.launches) + 1, FEWEST_LAUNCHES)
    room = _room(case.ratio, smallest)
    half = (math.log(case.high / case.low) / 2 if case.low and case.high else None)
    while k <= MOST_LAUNCHES:
        narrow = half is None or half * math.sqrt(min(case.launches) / k) <= room
        if narrow and least_chance(k, k) <= FALSE_SHARE / family:
            break
        k += 1
    return k


def _of_single(first: CaseOfSide, second: CaseOfSide, *, several: bool) -> str:
    """Return the reason of single launches: never a verdict, at most a suspicion; else empty."""
    if several:
        return ""
    if first.repeats or second.repeats:
        return "launches in one process (mpi, --inline) count as one: start several jobs"
    a, b = ([time_s for time_s in side.pass_s if time_s] for side in (first, second))
    if len(a) > 2 and len(b) > 2:
        for low, high, verdict in ((a, b, SLOWER), (b, a, FASTER)):
            if min(high) > max(low) * (1 + SUSPECT):
                return f"{LOOKS} {verdict} in every pass, but one launch a side proves nothing"
    where = "a side" if len(first.launch_s) == len(second.launch_s) else "on one side"
    return f"one launch {where}: the spread between launches is unknown"


@dataclass(frozen=True, slots=True)
class Compared:
    """Each other side beside the first, and their other differences.

    ``sides`` are their labels; ``in_launch``: cases of the same results were compared;
    ``doubts``: why runs of a side are not to be quoted, or that two sides have one."""

    sides: tuple[str, ...]
    comparisons: tuple[SideComparison, ...]
    differences: tuple[SideDifference, ...]
    in_launch: bool = False
    doubts: tuple[str, ...] = ()


def side_doubts(side: Side) -> Iterator[str]:
    """Yield `doubts_of` the runs of a side."""
    return doubts_of(zip(side.names, side.results, strict=True))


def _in_common(first: Side, second: Side) -> Iterator[str]:
    """Yield which runs count on both sides of a comparison, where the sides are not one."""
    ids, others = ([one.run.run_id for one in side.results] for side in (first, second))
    both = [name for name, run_id in zip(second.names, others, strict=True)
            if run_id and run_id in ids]
    if both and {*ids} != {*others}:
        yield (f"{first.label} and {second.label} both have {', '.join(both)}, which hides "
               "changes: leave it out of one")


def compare_sides(texts: Sequence[str], smallest: float) -> Compared:
    """Return the comparison of several sides. Raises UsageError if nothing matches, FileError."""
    single = [Path(text) for text in texts if not {",", "="} & {*text}]
    again = {*single}.difference(without_latest(single))
    texts = [text for text in texts if Path(text) not in again]
    if len(texts) < 2 and again:
        raise UsageError(f"{', '.join(map(str, again))} is that same run; compare needs two")
    if len(texts) < 2:
        raise UsageError("compare needs two sides, such as A B; or --by KEY inside one")
    sides = [read_side(text) for text in texts]
    labels, (first, *others) = tuple(side.label for side in sides), [*map(cases_of, sides)]
    others = [aligned(first, cases) for cases in others]
    results = tuple(compare(first, cases, (labels[0], label), smallest)
                    for label, cases in zip(labels[1:], others, strict=True))
    is_printed = any(one.run.imported for side in sides for one in side.results)
    results = _with_nearest(results, first, others, UNSTATED if is_printed else ())
    _refuse_nothing(results, texts)
    keys = {case.key for result in results for case in result.cases}
    compared = {measured_id(cases[key].case) for cases in (first, *others)
                for key in keys & cases.keys()}
    return Compared(labels, results, tuple(differences(sides, compared)),
                    doubts=(*chain.from_iterable(_in_common(sides[0], one) for one in sides[1:]),
                            *chain.from_iterable(map(side_doubts, sides))))


def compare_by(texts: Sequence[str], key: str, smallest: float) -> Compared:
    """Return the comparison of the values of a key inside one side.
    Raises UsageError for several sides, for an unknown key, and if nothing matches; FileError."""
    if len(texts) != 1:
        raise UsageError(f"--by {key} compares inside one side; give one, not {len(texts)}")
    side = read_side(texts[0])
    key = own_key(side, key)
    values = split_by(side, key)
    labels = tuple(f"{told_key(side, key)}={value}" for value in values)
    first, *others = values.values()
    of_tasks = {(task.ways[a].case_id, task.ways[b].case_id): pair
                for task, pairs in compared_tasks(side.results, key)
                for (a, b), pair in pairs.items()}
    results = compare_each(first, others, labels, smallest, in_launch=True, of_tasks=of_tasks)
    is_printed = any(one.run.imported for one in side.results)
    results = _with_nearest(results, first, others, (
        key, key.removeprefix(OPTION), *(UNSTATED if is_printed else ())))
    results = tuple(replace(one, unmatched=tuple(unmatched(
        first, second, (one.first, one.second), in_launch=True,
        by=(key, key.removeprefix(OPTION))))) if one.cases else one
        for one, second in zip(results, others, strict=True))
    if not any(one.cases for one in results):  # sides may differ in their own options alone
        results = tuple(sorted(results, key=lambda one: (
            one.first.split()[0] == one.second.split()[0])))
        _refuse_nothing(results, offered=paired_keys(side))
    return Compared(labels, results, (), in_launch=True, doubts=tuple(side_doubts(side)))


def _with_nearest(
    results: Sequence[SideComparison], first: Mapping[str, CaseOfSide],
    others: Sequence[Mapping[str, CaseOfSide]], may_differ: Collection[str],
) -> tuple[SideComparison, ...]:
    """Return the comparisons, those without cases with what the nearest ones differ in."""
    made = []
    for result, second in zip(results, others, strict=True):
        label, why = result.unmatched[0] if result.unmatched and not result.cases else ("", "")
        absent = next((each.case for each in first.values()
                       if each.case.label == label and why.startswith("not ")), None)
        made.append(result if absent is None else replace(result, nearest=differs_from_nearest(
            absent, (each.case for each in second.values()), may_differ)))
    return tuple(made)


def nearest_text(found: SideComparison) -> str:
    """Return what nearest cases differ in: ``backend (nccl, gloo)``."""
    return ", ".join(f"{one.key} ({', '.join(one.values)})" for one in found.nearest)


def _refuse_nothing(
    results: Sequence[SideComparison], texts: Sequence[str] = (), offered: Sequence[str] = (),
) -> None:
    """Raise UsageError where no case is compared; ``texts`` name the two sides, ``offered`` the
    keys by which there are pairs."""
    if any(one.cases for one in results):
        return
    result = results[0]
    label, why = result.unmatched[0] if result.unmatched else ("there is none", "")
    keys = [each.key for each in result.nearest]
    remedy = f"; there are pairs by {', '.join(offered)}" if offered else (
        "; measure it with the same values" if keys else "")
    if texts and not any("=" in text for text in texts) and "backend" in keys:
        by = command_line("compare", ",".join(texts), "--by", "backend")
        remedy = f"; {by} compares these" if keys == ["backend"] else (
            f"{remedy}, the backend apart, for {by}")
    raise UsageError(
        f"nothing to compare between {result.first} and {result.second}: "
        "no case has times on both; "
        f"first: {label} {why}".rstrip()
        + (f", where the nearest case differs in {nearest_text(result)}" if keys else "") + remedy)

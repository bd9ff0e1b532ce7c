"""Which cases became slower or faster from one side to another, and which are undecided.

The unit is a launch: samples of one launch depend on one another far more than those of two. A case
is slower, or faster, only if all of this holds: the change is significant among all cases of the
comparison (Benjamini and Hochberg, a share of `most_false`), it is at least the smallest effect,
and its interval excludes `NEAR`. A case is the same only if the whole interval is within the
smallest effect. All else is inconclusive, with the number of launches that would suffice. The
interval is of the shift between launches (Hodges and Lehmann); the change is that of the two times
shown, and where it lies outside the interval nothing is concluded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcbench.answers.answer import range_of, with_ends
from hpcbench.answers.compare_inputs import (
    TIMES_FROM,
    UNSTATED,
    CaseOfSide,
    PhaseChange,
    SideDifference,
    aligned,
    cases_of,
    change_text,
    differences,
    differs_from_nearest,
    phase_changes,
    protocol_between,
    read_side,
    split_by,
    unmatched,
)
from hpcbench.errors import UsageError
from hpcbench.records import dataclass
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.reduce.results_file import without_latest
from hpcbench.statistics.hypothesis_tests import (
    MOST_PASSES,
    Shift,
    benjamini_hochberg,
    chosen,
    least_chance,
    pairs_wanted,
    shift_of,
    shifts_of,
)
from hpcbench.statistics.order import Interval
from hpcbench.units import grouped, plural
from hpcbench.views.chart import Axis, ChartPoint, Dot, DotChart
from hpcbench.views.table import Column, Group, Line, Row, Show, Table

FALSE_SHARE, NEAR, SMALLEST = 0.05, 0.01, 0.03
FEWEST_LAUNCHES, MOST_LAUNCHES = 4, 50
"""Fewer launches a side give no interval of 95 %, and more are not requested."""
ENOUGH_PASSES = 9
"""The passes of one launch that are requested where fewer decided nothing."""
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
        label: name of the case on the second side.
        first_s, second_s: median over its launches on each side.
        ratio: ``second_s`` over ``first_s``, or their geometric mean over pairs of passes where
            ``in_launch``; ``low`` to ``high`` is the 95 % interval of the ratio of two launches, or
            of passes; None for one launch.
        launches: how many there are on each side; passes where ``in_launch``.
        jobs: from how many results files on each side.
        in_launch: whether passes of one launch were compared in pairs.
        chance, false_share: the p-value, and after Benjamini and Hochberg.
        verdict: one of VERDICTS; ``reason`` is why it is inconclusive.
        more_launches: launches of each side that would probably suffice; None if not requested.
        phases: where the time of a step went, if it has phases.
        imported: whether each side has times that another program printed.
        protocol: what differs in how the sides were measured.
        ends_s: ends of the interval of each side's median, of one launch that is shown as it is.
    """

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
    more_launches: int | None = None
    phases: tuple[PhaseChange, ...] = ()
    jobs: tuple[int, int] = (1, 1)
    imported: tuple[bool, bool] = (False, False)
    protocol: tuple[SideDifference, ...] = ()
    ends_s: tuple[tuple[float, float] | None, ...] = (None, None)

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
    changed, and if only one did.
    """

    first: str
    second: str
    smallest: float
    cases: tuple[CaseComparison, ...]
    unmatched: tuple[tuple[str, str], ...]
    launches_needed: tuple[int, int] = (0, 0)

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
) -> tuple[SideComparison, ...]:
    """Return the comparison of each other side with the first, all of them one family.

    ``smallest`` is the smallest effect that matters, as a share. ``in_launch``: the sides are of
    the same launch, so that medians of the same pass are compared, and are counted as the ways of
    `recommend` (`chosen`).
    """
    keys = [(at, key) for at, second in enumerate(others) for key in first
            if key in second and first[key].launch_s and second[key].launch_s]
    pairs = {(at, key): each for at, key in keys
             if in_launch and (each := _pairs(first[key], others[at][key]))}
    shifts = dict(zip(pairs, shifts_of([
        np.array([math.log(b / a) for a, b in each]) for each in pairs.values()]), strict=True))
    made = [(at, _in_pairs(key, first[key], others[at][key], shifts[at, key])
             if (at, key) in shifts else
             _compared(key, first[key], others[at][key], in_launch=in_launch)) for at, key in keys]
    ways = Counter(key for _, key in keys)
    chances = [chosen(1 + ways[case.key], case.chance) if in_launch else case.chance
               for _, case in made if case.chance is not None]
    shares = iter(benjamini_hochberg(chances))
    sizes = Counter(at for at, _ in keys)
    judged = grouped((at, _judged(replace(
        case, false_share=None if case.chance is None else next(shares)),
        smallest, sizes[at], len(chances))) for at, case in made)
    return tuple(SideComparison(
        labels[0], labels[1 + at], smallest, tuple(judged.get(at, ())),
        tuple(unmatched(first, second, (labels[0], labels[1 + at]), in_launch=in_launch)),
        (launches_needed(1), launches_needed(max(sizes[at], 1))))
        for at, second in enumerate(others))


def at_most(launches: int) -> str:
    """Return a number of launches as text; more than MOST_LAUNCHES are not counted."""
    return str(launches) if launches <= MOST_LAUNCHES else f"over {MOST_LAUNCHES}"


def launches_needed(family: int) -> int:
    """Return the fewest launches a side that can show one change among ``family`` cases.

    They are more than MOST_LAUNCHES if that many cannot.
    """
    k = FEWEST_LAUNCHES
    while k <= MOST_LAUNCHES and least_chance(k, k) > FALSE_SHARE / family:
        k += 1
    return k


def _compared(
    key: str, first: CaseOfSide, second: CaseOfSide, *, in_launch: bool,
) -> CaseComparison:
    a, b = (np.log(np.array(side.launch_s)) for side in (first, second))
    shift, chance = shift_of(a, b)
    ends = shift.map(math.exp)
    first_s, second_s = _time_of(first), _time_of(second)
    several = min(len(a), len(b)) > 1
    reason = _of_single(first, second, several=several)
    if in_launch and first.pass_s and second.pass_s:
        reason = "no pass has both"
    return CaseComparison(
        key, second.case.label, first_s, second_s, second_s / first_s, ends.low, ends.high,
        (len(a), len(b)), chance=chance if several else None,
        reason=reason, phases=tuple(phase_changes(first, second)), jobs=(first.jobs, second.jobs),
        imported=(first.is_imported, second.is_imported), ends_s=(first.ends_s, second.ends_s),
        protocol=protocol_between(first, second, in_launch=in_launch))


def _time_of(side: CaseOfSide) -> float:
    return float(np.exp(np.median(np.log(np.array(side.launch_s)))))


def _pairs(first: CaseOfSide, second: CaseOfSide) -> list[tuple[float, float]]:
    return [(a, b) for a, b in zip(first.pass_s, second.pass_s, strict=False) if a and b]


def _in_pairs(key: str, first: CaseOfSide, second: CaseOfSide, shift: Shift) -> CaseComparison:
    """Compare medians of the same pass: what slows the machine for a while slows both."""
    pairs = _pairs(first, second)
    ratio, several = shift.interval.map(math.exp), len(pairs) > 2
    return CaseComparison(
        key, second.case.label, _time_of(first), _time_of(second),
        ratio.value, ratio.low, ratio.high, (len(pairs), len(pairs)), in_launch=True,
        chance=shift.chance if several else None,
        reason="" if several else "fewer than 3 passes have both",
        phases=tuple(phase_changes(first, second)), jobs=(first.jobs, second.jobs),
        imported=(first.is_imported, second.is_imported), ends_s=(first.ends_s, second.ends_s),
        protocol=protocol_between(first, second, in_launch=True))


def _judged(
    case: CaseComparison, smallest: float, family: int, tested: int,
) -> CaseComparison:
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
    return replace(case, more_launches=wanted,
                   reason=case.reason or _unclear(case, smallest, tested))


def _unclear(case: CaseComparison, smallest: float, tested: int) -> str:
    """Return why a case that is one of ``tested`` comparisons has no verdict."""
    if case.low is None or case.high is None:
        return "too few launches for an interval"
    passes = f"; use {_passes_wanted(case, smallest, tested)} passes" if case.in_launch else ""
    if case.low <= 1 <= case.high:
        return f"the interval includes 0 % and a change that matters{passes}"
    if case.false_share is not None and case.false_share <= case.most_false:
        return f"the interval includes changes too small to matter{passes}"
    return (f"not significant, with at most {100 * case.most_false:.0f} % false, among "
            f"{plural(tested, 'comparison')}{passes}")


def _passes_wanted(case: CaseComparison, smallest: float, tested: int) -> str:
    """Return the passes of one launch that would probably decide, as text."""
    assert case.low is not None and case.high is not None
    ratio = case.ratio
    wanted = pairs_wanted(Interval(ratio, case.low, case.high).map(math.log),
                          case.launches[0], _room(case, smallest),
                          case.most_false / tested if max(ratio, 1 / ratio) >= 1 + smallest else 1)
    return f"over {MOST_PASSES}" if wanted is None else str(max(wanted, ENOUGH_PASSES))


def _room(case: CaseComparison, smallest: float) -> float:
    """Return half the width that an interval may have to decide, as a logarithm."""
    change, matters = abs(math.log(case.ratio)), math.log1p(smallest)
    return change - math.log1p(NEAR) if change >= matters else matters - change


def _launches_wanted(case: CaseComparison, smallest: float, family: int) -> int:
    """Return how many launches a side would probably decide; over MOST_LAUNCHES if none would.

    With so many the test can hold among ``family`` tests, and the interval, which narrows with the
    root of their number, lies on one side of the smallest effect.
    """
    k = max(min(case.launches) + 1, FEWEST_LAUNCHES)
    room = _room(case, smallest)
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

    ``sides`` are their labels; ``in_launch``: cases of the same results were compared.
    """

    sides: tuple[str, ...]
    comparisons: tuple[SideComparison, ...]
    differences: tuple[SideDifference, ...]
    in_launch: bool = False


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
    found = tuple(compare(first, aligned(first, cases), (labels[0], label), smallest)
                  for label, cases in zip(labels[1:], others, strict=True))
    _refuse_nothing(found, first, others[0], ())
    return Compared(labels, found, tuple(differences(sides)))


def compare_by(texts: Sequence[str], key: str, smallest: float) -> Compared:
    """Return the comparison of the values of a key inside one side.
    Raises UsageError for several sides, for an unknown key, and if nothing matches; FileError.
    """
    if len(texts) != 1:
        raise UsageError(f"--by {key} compares inside one side; give one, not {len(texts)}")
    side = read_side(texts[0])
    values = split_by(side, key)
    labels = tuple(f"{key}={value}" for value in values)
    first, *others = values.values()
    found = compare_each(first, others, labels, smallest, in_launch=True)
    _refuse_nothing(found, first, {task: case for cases in others for task, case in cases.items()},
                    (key, *(UNSTATED if any(one.run.imported for one in side.results) else ())))
    return Compared(labels, found, (), in_launch=True)


def _refuse_nothing(
    found: Sequence[SideComparison], first: Mapping[str, CaseOfSide],
    second: Mapping[str, CaseOfSide], may_differ: Collection[str],
) -> None:
    if not any(one.cases for one in found):
        one = found[0]
        label, why = one.unmatched[0] if one.unmatched else ("there is none", "")
        absent = next((each.case for each in first.values()
                       if each.case.label == label and why.startswith("not ")), None)
        differs = absent and differs_from_nearest(
            absent, (each.case for each in second.values()), may_differ)
        raise UsageError(
            f"nothing to compare between {one.first} and {one.second}: no case has times on both; "
            f"first: {label} {why}".rstrip()
            + (f", where the nearest case differs in {differs}; measure it with the same values"
               if differs else ""))


MEANINGS = {
    SLOWER: "slower", FASTER: "faster", INCONCLUSIVE: "undecided", SAME: "same",
}
CHANGE = Column("change", "change", Show.PERCENT, "%", "second side over the first, less 1", "less")
_BY_PAIRS = replace(CHANGE, unit="%, by pairs",
                    meaning="mean over pairs of a pass, not the quotient of two medians, less 1")
DISAGREE = "medians and pairs disagree"
_SHOWN = 20
_PHASES_SHOWN = 2
_DIFFERENCES_SHOWN = 8
_LONG = 60
_HEADING = 12


def comparison_table(found: SideComparison, *, full: bool = False) -> Table:
    """Return a row for each case, by verdict; not ``full``: the first ones, and none of SAME."""
    first, second = _headings(found.first, found.second)
    change = _BY_PAIRS if any(case.in_launch for case in found.cases) else CHANGE
    columns = (
        Column("case", "case"),
        Column("first", first, Show.US, "us", f"{found.first}: median over launches"),
        Column("second", second, Show.US, "us", f"{found.second}: median over launches"), change,
        Column("interval", "95 % CI", Show.PERCENT, "%"),
        Column("launches", "n", meaning="launches, or passes of one launch, of each side"),
        Column("protocol", "measured", optional=True,
               meaning="what differs in how the sides were measured: first, second"),
        Column("more", "launches needed", meaning="of each side, estimated, for a verdict",
               optional=True),
        Column("why", "why", optional=True))
    groups = []
    for verdict in VERDICTS:
        cases = found.having(verdict)
        shown = cases if full else [] if verdict == SAME else cases[:_SHOWN]
        if shown:
            winner = {FASTER: f": {second} wins", SLOWER: f": {first} wins"}.get(verdict, "")
            groups.append(Group(f"{MEANINGS[verdict]} ({plural(len(cases), 'case')}){winner}",
                                tuple(map(_row, shown))))
    hidden = len(found.cases) - sum(len(group.rows) for group in groups)
    notes = [Line(f"{plural(hidden, 'case')} not shown: hpcbench compare -v shows all", "quiet")]
    table = Table(f"{found.second} against {found.first}", columns, tuple(groups),
                  notes=tuple(notes if hidden else ()))
    return table if full else _without_shared(table, at_most(found.launches_needed[1]))


def _headings(*sides: str) -> tuple[str, ...]:
    """Return the names of two sides without a key's name; ``first``, ``second`` if too long."""
    names = tuple(side.partition("=")[2] or side for side in sides)
    short = all(0 < len(name) <= _HEADING for name in names)
    return names if short and len({*names}) == len(names) else ("first", "second")


def _without_shared(table: Table, needed: str) -> Table:
    """Return the table with what all rows share in notes: what differs in the protocol, and why.

    The launches needed are left out, too, where all rows need ``needed``, as in `needed_line`.
    """
    columns = [{row.cells[at] for row in table.rows} for at in (-3, -2, -1)]
    hidden = [len(table.rows) > 1 and len(texts) == 1 for texts in columns]
    hidden[1] = columns[1] == {needed}
    groups = tuple(replace(group, rows=tuple(replace(row, cells=(*row.cells[:-3], *(
        None if hide else cell for cell, hide in zip(row.cells[-3:], hidden, strict=True))))
        for row in group.rows)) for group in table.groups)
    shared = [texts.pop() for texts, hide in ((columns[0], hidden[0]), (columns[2], hidden[2]))
              if hide]
    notes = tuple(Line(f"all rows: {text}", "quiet") for text in shared if text)
    return replace(table, groups=groups, notes=(*notes, *table.notes))


def difference_table(differences: Sequence[SideDifference], labels: Sequence[str], *,
                     full: bool = False) -> Table | None:
    """Return a table of the other differences between the sides; None without any."""
    if not differences:
        return None
    shown = differences if full else differences[:_DIFFERENCES_SHOWN]
    left = len(differences) - len(shown)
    return Table(
        "other differences, possible causes of a change",
        (Column("key", "key"), *(Column(f"side_{at}", _short(label), Show.TEXT)
                                 for at, label in enumerate(labels))),
        (Group("", tuple(Row((one.key, *map(_short, one.values))) for one in shown)),),
        notes=(Line(f"and {left} more: hpcbench compare -v shows all", "quiet"),) if left else ())


def unmatched_table(found: SideComparison) -> Table | None:
    """Return the reasons why cases were not compared, each with their number and the first case;
    None where all were."""
    if not found.unmatched:
        return None
    reasons = grouped((why, label) for label, why in found.unmatched)
    rows = tuple(Row((len(labels), why, labels[0])) for why, labels in reasons.items())
    return Table("not compared", (Column("cases", "cases", Show.COUNT), Column("why", "why"),
                                  Column("first", "such as")), (Group("", rows),))


def comparison_chart(found: SideComparison) -> DotChart | None:
    """Return the ratio of each case with its interval; None without cases."""
    cases = [case for verdict in VERDICTS for case in found.having(verdict)]
    if not cases:
        return None
    rows = tuple(Dot(one.label, ChartPoint(one.ratio, range_of(one.interval)),
                     (MEANINGS[one.verdict],)) for one in cases)
    note = f"Whisker: 95 % interval. Smallest effect that matters: {100 * found.smallest:g} %."
    return DotChart(
        f"{found.second} against {found.first}", "time of the second side over that of the first",
        "comparison", (note,),
        (), Axis("ratio of times", Show.RATIO), (Column("verdict", "verdict"),), rows, 1.0)


def totals_line(found: SideComparison) -> str:
    """Return how many cases have each verdict, and the geometric mean of all changes."""
    counts = ", ".join(f"{n} {MEANINGS[verdict]}" for verdict in VERDICTS
                       if (n := len(found.having(verdict))))
    mean, scope = found.geometric_mean, scope_of(found.cases)
    over_all = f"; geometric mean {100 * (mean - 1):+.1f} %" if mean else ""
    where = f" {scope}" if scope else ""
    verdicts = f": {counts}" if counts else ""
    if not found.cases and found.unmatched:
        there = f" in {found.second}"
        own = [why for _, why in found.unmatched if why.endswith(there) and why != f"not{there}"]
        reasons = Counter(own or [why for _, why in found.unmatched])
        several = len(reasons) > 1
        verdicts = ": " + "; ".join(f"{n} x " * several + why.removesuffix(there)
                                    for why, n in reasons.items())
    return f"{plural(len(found.cases), 'case')} compared{where}{verdicts}{over_all}"


def needed_line(found: SideComparison) -> str:
    """Return why verdicts are impossible: one run on both sides, or too few launches; else empty.
    """
    decidable = [case for case in found.cases if case.takes_launches]
    each = [case.launches for case in decidable]
    if decidable and all(case.first_s == case.second_s for case in decidable):
        return (f"{found.second} has the times of {found.first} in every case: it is probably the "
                "same run")
    every, one = found.launches_needed
    if not each or min(map(min, each)) >= one:
        return ""
    spans = [(min(counts), max(counts)) for counts in zip(*each, strict=True)]
    there = " and ".join(dict.fromkeys(
        str(low) if low == high else f"{low} to {high}" for low, high in spans))
    decides = "decides" if there == "1" else "decide"
    few = max(map(min, each)) < every
    enough = f"; {every} are enough if all {len(each)} cases change" if few and every < one else ""
    more = "logs of other jobs" if any(any(case.imported) for case in decidable) else (
        "other jobs, or --launches")
    return (f"{there} {'launch' if there == '1' else 'launches'} a side {decides} "
            f"{'nothing' if few else 'no single change'}: use {at_most(one)} ({more}){enough}")


def _row(case: CaseComparison) -> Row:
    n, m = case.launches
    wanted = None if case.more_launches is None else at_most(case.more_launches)
    phases = case.phases[:_PHASES_SHOWN] if case.verdict in (SLOWER, FASTER) else ()
    contrary = case.in_launch and case.verdict == INCONCLUSIVE and (
        (case.second_s - case.first_s) * (case.ratio - 1) < 0)
    why = [*filter(None, (case.reason, DISAGREE if contrary else "")), *(
        f"{phase.name} is {100 * phase.share:.0f} % of the change" for phase in phases)]
    return Row((
        case.label, *map(with_ends, (case.first_s, case.second_s), case.ends_s),
        case.ratio - 1 if case.ratio < TIMES_FROM else change_text(case.ratio),
        range_of(case.interval.map(lambda ratio: ratio - 1)),
        str(n) if n == m else f"{n}, {m}", protocol_text(case) or None, wanted,
        "; ".join(why) or None))


def protocol_text(case: CaseComparison) -> str:
    """Return which sides are imported, and what differs in how they were measured."""
    sides = [name for name, is_imported in zip(("first", "second"), case.imported, strict=True)
             if is_imported]
    marks = [] if not sides else ["imported" if len(sides) == 2 else f"{sides[0]} imported"]
    return "; ".join(marks + [f"{one.key} {', '.join(one.values)}" for one in case.protocol])


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG - 4]} ..."

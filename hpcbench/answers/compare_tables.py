"""The tables, the chart and the lines of a comparison of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hpcbench.answers.answer import range_of, with_ends
from hpcbench.answers.compare import (
    FASTER,
    INCONCLUSIVE,
    SAME,
    SLOWER,
    VERDICTS,
    CaseComparison,
    SideComparison,
    at_most,
    can_decide,
    nearest_text,
    scope_of,
)
from hpcbench.answers.compare_inputs import SideDifference
from hpcbench.answers.tasks import LAUNCHES, OVER_PAIRS, PASSES, counted_as
from hpcbench.reduce.results_file import FILE_NAME
from hpcbench.statistics.hypothesis_tests import DECIDING_LAUNCHES
from hpcbench.statistics.order import Interval
from hpcbench.units import grouped, in_launches, plural, three_digits, vary
from hpcbench.views.chart import Axis, ChartPoint, Dot, DotChart
from hpcbench.views.table import Column, Group, Line, Row, Show, Table

MEANINGS = {
    SLOWER: "slower", FASTER: "faster", INCONCLUSIVE: "undecided", SAME: "same",
}
_CHANGE = Column("change", "change", Show.PERCENT, "%", "second over first, less 1", "less")
_TIMES = Column("change", "times as long", Show.RATIO, "", "second over first", "less")
DISAGREE = "medians and pairs disagree"
_OVER_LAUNCHES = ", medians over launches"
"""`hpcbench show` has those of all samples."""
_SHOWN = 20
_PHASES_SHOWN = 2
_DIFFERENCES_SHOWN = 8
_REASONS_SHOWN = 4
_LONG = 60
_HEADING = 16


def comparison_table(result: SideComparison, *, full: bool = False) -> Table:
    """Return a row for each case, by verdict; not ``full``: the first ones, and none of SAME."""
    names = first, second = _headings(result.first, result.second)
    shown = {verdict: cases if full else [] if verdict == SAME else cases[:_SHOWN]
             for verdict in VERDICTS for cases in [result.having(verdict)]}
    rows = [case for cases in shown.values() for case in cases]
    is_paired, in_times = (any(case.in_launch for case in rows),
                           any(case.ratio >= TIMES_FROM for case in rows))
    change, notes = _change(rows, is_paired=is_paired, in_times=in_times)
    columns = (
        Column("case", "case"),
        *(Column(name, heading, Show.US, "us", f"{side}: median over launches")
          for name, heading, side in zip(("first", "second"), names, (result.first, result.second),
                                         strict=True)),
        change, replace(change, name="interval", title="95 % CI", unit="" if in_times else "%",
                        meaning="", better=None),
        Column("launches", "pairs" if is_paired else LAUNCHES, meaning="of each side"),
        Column("protocol", "measured", optional=True,
               meaning=f"what differs in how the sides were measured: {first}, {second}"),
        Column("more", "launches needed", meaning="of each side, estimated, for a verdict",
               optional=True),
        Column("why", "why", optional=True))
    winners = {FASTER: f": {second} wins", SLOWER: f": {first} wins"} if result.of_one_work else {}
    groups = tuple(Group(
        f"{MEANINGS[verdict]} ({plural(len(result.having(verdict)), 'case')})"
        f"{winners.get(verdict, '')}",
        tuple(_row(case, names, is_paired=is_paired, in_times=in_times) for case in cases))
        for verdict, cases in shown.items() if cases)
    hidden = len(result.cases) - len(rows)
    notes += (Line(f"{plural(hidden, 'case')} not shown: hpcbench compare -v shows all", "quiet"),
              ) if hidden else ()
    over = "" if is_paired or all(case.launches == (1, 1) for case in rows) else _OVER_LAUNCHES
    table = Table(f"{result.second} against {result.first}{over}", columns, groups, notes=notes)
    return table if full else _without_shared(table, at_most(result.launches_needed[1]))


def _change(
    cases: Sequence[CaseComparison], *, is_paired: bool, in_times: bool,
) -> tuple[Column, tuple[Line, ...]]:
    """Return the column of changes, labelled where it is by pairs, not the quotient of the times
    beside it, and the note that says so."""
    column = _TIMES if in_times else _CHANGE
    if not is_paired:
        return column, ()
    times = "medians of all samples, as in hpcbench show" if all(
        case.jobs == (1, 1) for case in cases) else (
        "medians as in hpcbench show, of several files over launches")
    return (replace(column, unit=", ".join(filter(None, (column.unit, "by pairs"))),
                    meaning=OVER_PAIRS),
            (Line(f"times: {times}; {column.title}: {OVER_PAIRS}", about=(column.name,)),))


def _headings(*sides: str) -> tuple[str, ...]:
    """Return the values of a key, without options if long, or the names of two runs; else what they
    are to each other."""
    values = [side.partition("=")[2] for side in sides]
    whole = tuple(values) if all(values) else tuple(map(_run_name, sides))
    for names in (whole, tuple(name.partition(" ")[0] for name in whole)):
        if all(0 < len(name) <= _HEADING for name in names) and len({*names}) == len(names):
            return names
    return ("first", "second") if all(values) else ("before", "after")


def _run_name(side: str) -> str:
    """Return the name of a side, or of the folder or file of one run; empty of several."""
    path = Path(side)
    return "" if "," in side else path.parent.name if path.name == FILE_NAME else path.name


def _without_shared(table: Table, needed: str) -> Table:
    """Return the table with what all rows share in notes: what differs in the protocol, and why.

    The launches needed are left out, too, where all rows need ``needed``, as in `needed_line`."""
    shared = dict(vary(enumerate(row.cells[-3:]) for row in table.rows)[0])
    hidden = {at for at, text in shared.items()
              if (text == needed if at == 1 else len(table.rows) > 1)}
    groups = tuple(replace(group, rows=tuple(replace(row, cells=(*row.cells[:-3], *(
        None if at in hidden else cell for at, cell in enumerate(row.cells[-3:]))))
        for row in group.rows)) for group in table.groups)
    notes = tuple(Line(f"all rows: {shared[at]}", "quiet") for at in (0, 2)
                  if at in hidden and shared[at])
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


def unmatched_table(result: SideComparison, *, full: bool = False) -> Table | None:
    """Return the reasons why cases were not compared, the most frequent first, each with their
    number and the first case; None where all were."""
    if not result.unmatched:
        return None
    reasons = sorted(grouped((why, label) for label, why in result.unmatched).items(),
                     key=lambda item: -len(item[1]))
    shown = reasons if full else reasons[:_REASONS_SHOWN]
    n_cases = sum(len(labels) for _, labels in reasons[len(shown):])
    more = plural(len(reasons) - len(shown), "further reason")
    return Table(
        "not compared", (Column("cases", "cases", Show.COUNT), Column("why", "why"),
                         Column("first", "such as")),
        (Group("", tuple(Row((len(labels), why, labels[0])) for why, labels in shown)),),
        notes=(Line(f"and {plural(n_cases, 'case')} for {more}: hpcbench compare -v shows all",
                    "quiet"),) if n_cases else ())


def comparison_chart(result: SideComparison) -> DotChart | None:
    """Return the ratio of each case with its interval; None without cases."""
    cases = [case for verdict in VERDICTS for case in result.having(verdict)]
    if not cases:
        return None
    rows = tuple(Dot(one.label, ChartPoint(one.ratio, range_of(one.interval)),
                     (MEANINGS[one.verdict],)) for one in cases)
    note = f"Whisker: 95 % interval. Smallest effect that matters: {100 * result.smallest:g} %."
    return DotChart(
        f"{result.second} against {result.first}", "time of the second side over that of the first",
        "comparison", (note,),
        (), Axis("ratio of times", Show.RATIO), (Column("verdict", "verdict"),), rows, 1.0)


TIMES_FROM = 10
"""A change of so many times is no longer given in %."""


def change_text(change: Interval) -> str:
    """Return a change of times with its interval, if it has one: ``+12.3 % (10.1..14.5)``; from ten
    times on ``15x (5.28..43.8)``."""
    is_times = change.value >= TIMES_FROM
    text = f"{change.value:.0f}x" if is_times else f"{_percent(change.value):+.1f} %"
    ends = () if change.low is None or change.high is None else (change.low, change.high)
    shown = (three_digits(end) if is_times else f"{_percent(end):.1f}" for end in ends)
    return f"{text} ({'..'.join(shown)})" if ends else text


def _percent(ratio: float) -> float:
    return round(100 * (ratio - 1), 1) + 0.0  # no -0.0


def totals_line(result: SideComparison) -> str:
    """Return how many cases have each verdict, and the geometric mean of all changes."""
    counts = ", ".join(f"{n} {MEANINGS[verdict]}" for verdict in VERDICTS
                       if (n := len(result.having(verdict))))
    mean, scope = result.geometric_mean, scope_of(result.cases)
    over_all = f"; geometric mean {change_text(Interval(mean))}" if mean else ""
    where = f" {scope}" if scope else ""
    verdicts = f": {counts}" if counts else ""
    if not result.cases and result.unmatched:
        there = f" in {result.second}"
        own = [why for _, why in result.unmatched if why.endswith(there) and why != f"not{there}"]
        reasons = Counter(own or [why for _, why in result.unmatched])
        several = len(reasons) > 1
        only = {f"not in {result.second}": result.first, f"not in {result.first}": result.second}
        verdicts = ": " + "; ".join(
            f"{n} only in {only[why]}" if why in only else
            f"{n} x " * several + why.removesuffix(there) for why, n in reasons.items())
        if result.nearest:
            verdicts += f"; the nearest differ in {nearest_text(result)}: measure them alike"
    return f"{plural(len(result.cases), 'case')} compared{where}{verdicts}{over_all}"


def launches_line(cases: Iterable[CaseComparison]) -> str:
    """Return in which launches verdicts by pairs of passes hold; empty without any."""
    least = min((case for case in cases if case.in_launch and case.unit == PASSES),
                key=lambda case: case.n_launches, default=None)
    return "" if least is None else (
        f"{in_launches(least.n_launches)}: others may differ by more; use {DECIDING_LAUNCHES} "
        f"launches ({least.repeated_by})")


def needed_line(result: SideComparison) -> str:
    """Return why verdicts are impossible: one run on both sides, or too few launches; else empty.
    """
    decidable = [case for case in result.cases if case.takes_launches]
    each = [case.launches for case in decidable]
    if decidable and all(case.first_s == case.second_s for case in decidable):
        return (f"{result.second} has the times of {result.first} in every case: "
                "it is probably the "
"same run")
    every, single = result.launches_needed
    if all(can_decide(counts, len(each)) for counts in each):
        return ""
    spans = [(min(counts), max(counts)) for counts in zip(*each, strict=True)]
    there = " and ".join(dict.fromkeys(
        str(low) if low == high else f"{low} to {high}" for low, high in spans))
    decides = "decides" if there == "1" else "decide"
    few = not any(can_decide(counts, 1) for counts in each)
    fewer = few and every < single
    enough = f"; {every} are enough if all {len(each)} cases change" if fewer else ""
    return (f"{there} {'launch' if there == '1' else 'launches'} a side {decides} "
            f"{'nothing' if few else 'no single change'}: use {at_most(single)} "
            f"({decidable[0].repeated_by}){enough}")


def _row(
    case: CaseComparison, names: Sequence[str], *, is_paired: bool, in_times: bool,
) -> Row:
    n, m = case.launches
    wanted = None if case.more_launches is None else at_most(case.more_launches)
    phases = case.phases[:_PHASES_SHOWN] if case.verdict in (SLOWER, FASTER) else ()
    contrary = case.verdict == INCONCLUSIVE and (
        (case.second_s - case.first_s) * (case.ratio - 1) < 0)
    remedy = case.remedy if case.in_launch else ""  # else in a column of its own
    why = [*filter(None, (case.reason, remedy, DISAGREE if contrary else "")), *(
        f"{phase.name} is {100 * phase.share:.0f} % of the change" for phase in phases)]
    change = case.interval if in_times else case.interval.map(lambda ratio: ratio - 1)
    return Row((
        case.label, *map(with_ends, (case.first_s, case.second_s), case.ends_s),
        change.value, range_of(change),
        counted_as(n, case.unit) if is_paired and n == m else
        (f"{n}" if n == m else f"{n}, {m}") + f" {case.unit}" * is_paired,
        protocol_text(case, names) or None, wanted, "; ".join(why) or None))


def protocol_text(case: CaseComparison, names: Sequence[str]) -> str:
    """Return which sides, of these names, are imported, and what differs in how they were measured.
    """
    sides = [name for name, is_imported in zip(names, case.imported, strict=True) if is_imported]
    marks = [] if not sides else ["imported" if len(sides) == 2 else f"{sides[0]} imported"]
    return "; ".join(marks + [f"{one.key} {', '.join(one.values)}" for one in case.protocol])


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG - 4]} ..."

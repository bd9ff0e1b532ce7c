"""A comparison of results as tables, and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.analysis.compare import (
    FASTER,
    INCONCLUSIVE,
    SAME,
    SLOWER,
    VERDICTS,
    CaseComparison,
    Comparison,
    at_most,
    scope_of,
)
from hpcbench.analysis.confounders import Difference
from hpcbench.units import grouped, plural
from hpcbench.views.chart import Axis, Dot, DotChart, Point
from hpcbench.views.said_once import said_once, shared_of
from hpcbench.views.table import Column, Group, Line, Range, Row, Show, Table

MEANINGS = {
    SLOWER: "slower: clear among all cases, by more than the smallest effect that matters",
    FASTER: "faster: clear among all cases, by more than the smallest effect that matters",
    INCONCLUSIVE: "inconclusive: these launches cannot tell",
    SAME: "same: the whole interval is within the smallest effect that matters",
}
CHANGE = Column("change", "change", Show.PERCENT, "%", "second side over the first, less 1", "less")
_MIDDLE = "median over launches, or geometric mean over passes of one launch"
_SHOWN = 20
_PHASES_SHOWN = 2
_DIFFERENCES_SHOWN = 8
_LONG = 60


def comparison_table(found: Comparison, *, full: bool = False) -> Table:
    """Return a row for each case, by verdict; not ``full``: without those that are the same."""
    columns = (
        Column("case", "case"),
        Column("first", "first", Show.US, "us", f"{found.first}: {_MIDDLE}"),
        Column("second", "second", Show.US, "us", f"{found.second}: {_MIDDLE}"), CHANGE,
        Column("interval", "95 % interval", Show.PERCENT, "%"),
        Column("launches", "n", meaning="launches, or passes of one launch, of each side",
               once=True),
        Column("more", "launches needed", meaning="of each side: so many would probably tell",
               optional=True, once=True),
        Column("why", "why", optional=True, once=True))
    groups = []
    for verdict in VERDICTS:
        cases = found.having(verdict)
        shown = cases if full else [] if verdict == SAME else cases[:_SHOWN]
        if shown:
            groups.append(Group(f"{MEANINGS[verdict]} ({plural(len(cases), 'case')})",
                                tuple(map(_row, shown))))
    table = Table(f"{found.second} beside {found.first}", columns, tuple(groups),
                  notes=tuple(_notes(found, full=full)))
    return next(said_once([table], shared_of([table])))


def difference_table(differences: Sequence[Difference], labels: Sequence[str], *,
                     full: bool = False) -> Table | None:
    """Return what else differs between the sides; None where nothing does."""
    if not differences:
        return None
    shown = differences if full else differences[:_DIFFERENCES_SHOWN]
    left = len(differences) - len(shown)
    return Table(
        "what else differs: each may be the cause of a change",
        (Column("key", "key"), *(Column(f"side_{at}", _short(label), Show.TEXT)
                                 for at, label in enumerate(labels))),
        (Group("", tuple(Row((one.key, *map(_short, one.values))) for one in shown)),),
        notes=(Line(f"and {left} more: hpcbench compare -v shows all", "quiet"),) if left else ())


def unmatched_table(found: Comparison) -> Table | None:
    """Return why cases were not compared, with how many and the first; None where all were."""
    if not found.unmatched:
        return None
    reasons = grouped((why, label) for label, why in found.unmatched)
    rows = tuple(Row((len(labels), why, labels[0])) for why, labels in reasons.items())
    return Table("not compared", (Column("cases", "cases", Show.COUNT), Column("why", "why"),
                                  Column("first", "first")), (Group("", rows),))


def comparison_chart(found: Comparison) -> DotChart | None:
    """Return the ratio of each case with its interval; None without cases."""
    cases = [case for verdict in VERDICTS for case in found.having(verdict)]
    if not cases:
        return None
    rows = tuple(Dot(case.label, Point(case.ratio, _interval(case)), (case.verdict,))
                 for case in cases)
    return DotChart(
        f"{found.second} beside {found.first}", "time of the second side over that of the first",
        "comparison", (
            f"Whisker: 95 % interval. Smallest effect that matters: {100 * found.smallest:g} %.",),
        (), Axis("ratio of times", Show.RATIO), (Column("verdict", "verdict"),), rows)


def totals_line(found: Comparison) -> str:
    """Return how many cases have each verdict, and the geometric mean of all changes."""
    counts = ", ".join(f"{len(found.having(verdict))} {verdict}" for verdict in VERDICTS)
    mean, scope = found.geometric_mean, scope_of(found.cases)
    over_all = f"; geometric mean of the changes {100 * (mean - 1):+.1f} %" if mean else ""
    where = f" {scope}" if scope else ""
    return f"{plural(len(found.cases), 'case')} compared{where}: {counts}{over_all}"


def needed_line(found: Comparison) -> str:
    """Return how many launches a side there are and a verdict needs; empty where there are enough.
    """
    each = [case.launches for case in found.cases if not case.in_launch]
    every, one = found.launches_needed
    if not each or min(map(min, each)) >= one:
        return ""
    there = " and ".join(_span(counts) for counts in zip(*each, strict=True))
    needs = at_most(one) if every == one else (
        f"{every} if every case changed, {at_most(one)} if one did")
    return f"launches a side: {there}; a verdict needs {needs} (jobs at other times, or --launches)"


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _row(case: CaseComparison) -> Row:
    interval = _interval(case)
    return Row((
        case.label, case.first_s, case.second_s, case.ratio - 1,
        Range(interval.least - 1, interval.greatest - 1) if interval else None,
        _launches(case), _wanted(case), "; ".join(_why(case)) or None))


def _launches(case: CaseComparison) -> str:
    n, m = case.launches
    return str(n) if n == m else f"{n}, {m}"


def _interval(case: CaseComparison) -> Range | None:
    if case.low is None or case.high is None:
        return None
    return Range(case.low, case.high)


def _wanted(case: CaseComparison) -> str | None:
    if case.more_launches is None:
        return None
    return at_most(case.more_launches)


def _why(case: CaseComparison) -> Iterator[str]:
    if case.reason:
        yield case.reason
    if case.verdict in (SLOWER, FASTER):
        for phase in case.phases[:_PHASES_SHOWN]:
            yield f"{phase.name} is {100 * phase.share:.0f} % of the change"


def _notes(found: Comparison, *, full: bool) -> Iterator[Line]:
    hidden = 0 if full else len(found.having(SAME)) + sum(
        max(len(found.having(verdict)) - _SHOWN, 0) for verdict in VERDICTS if verdict != SAME)
    if hidden:
        yield Line(f"{plural(hidden, 'case')} not shown: hpcbench compare -v shows all", "quiet")


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG - 4]} ..."

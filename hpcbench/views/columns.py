"""Columns that tables of all kinds of cases have, their cells, and tables of only these.

What a report says of ranks that start late, and of how it tells.

What a profile says of cases of any kind: how unequal their ranks are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from hpcbench.plan.case import Case
from hpcbench.reduce.comparison import FALSE_ALARMS, NEEDED, Comparison, family
from hpcbench.reduce.results import CaseResult, Results, Statistics
from hpcbench.reduce.settling import comparisons
from hpcbench.reduce.spread import interval_share, launch_range, range_of
from hpcbench.units import grouped, plural
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Line,
    Range,
    Row,
    Show,
    Table,
    WithInterval,
    cell_text,
)
from hpcbench.views.words import (
    backend_text,
    batch_text,
    device_type,
    flag_cell,
    samples_text,
    timed_text,
)

if TYPE_CHECKING:
    from hpcbench.statistics.overlap import OverPasses


TABLED = ("ok", "wrong", "failed", "timeout")
"""Statuses that have rows in tables of results."""
COST = (
    Column("samples", "samples", optional=True), Column("needs", "needs", optional=True),
    Column("estimate", "estimate", Show.DURATION, "a pass", better="less", optional=True))
TIME = Column("time_p50", "time p50", Show.US, "us", "median of the timed samples", "less")
INTERVAL = Column("interval", "95 % interval", Show.US, "us",
                  "confidence interval of the median, from its lower to its upper end")
WRONG = Column("n_wrong", "#wrong", Show.COUNT, "", "wrong elements, summed over ranks and checked "
               "calls", "less", once=True)
N = Column("n", "n", Show.COUNT, "", "timed samples", once=True)
STATUS = Column("status", "status", once=True)
LAUNCHES = Column("launches", "launches", Show.US, "p50, us", "medians of the launches",
                  optional=True)
FLAGS = Column("flags", "flags", optional=True)
UNRELIABLE = "?"
CANNOT_TELL = "cannot tell"
"""In place of a comparison that may as well be chance (`statistics.overlap`)."""
_CASE = (Column("case", "case"), Column("backend", "backend"), Column("device", "device"),
         Column("ranks", "ranks", Show.COUNT))


def cost_cells(cases: Sequence[Case]) -> tuple[Cell, ...]:
    """Return the cells of COST for cases that are alike."""
    return (f"{samples_text(cases)} {batch_text(cases[0])}", ",".join(cases[0].needs) or None,
            sum(case.estimate_s for case in cases))


def median_cell(stats: Statistics | None) -> Cell:
    """Return the median in seconds, with the ends of its interval where that is sound."""
    if stats is None:
        return None
    ends = interval_cell(stats)
    return WithInterval(stats.median_s, ends.least, ends.greatest) if isinstance(
        ends, Range) else stats.median_s


def n_cell(stats: Statistics | None) -> Cell:
    """Return the number of timed samples."""
    return stats.n if stats else None


def interval_cell(stats: Statistics | None) -> Cell:
    """Return the interval of the median in seconds, or UNRELIABLE."""
    if stats is None or stats.ci_low_s is None or stats.ci_high_s is None:
        return None
    sound = interval_share(stats) is not None
    return Range(stats.ci_low_s, stats.ci_high_s) if sound else UNRELIABLE


def launches_cell(item: CaseResult) -> Cell:
    """Return the least and the greatest median of a launch; nothing without several launches."""
    ends = launch_range(item.timing) if item.timing else None
    return Range(*ends) if ends else ""


def wrong_cell(item: CaseResult) -> Cell:
    """Return how many elements were wrong, or ``unchecked``."""
    if item.n_wrong is not None:
        return item.n_wrong
    return None if item.case.validate else "unchecked"


def over_passes_cell(passes: OverPasses | None) -> Cell:
    """Return the median over passes, with the least and the greatest, or CANNOT_TELL."""
    if passes is None or not passes.tells:
        return CANNOT_TELL if passes else None
    return Range(passes.least, passes.greatest, passes.median)


def middle_cell(passes: OverPasses | None) -> Cell:
    """Return the median over passes alone, or CANNOT_TELL."""
    if passes is None or not passes.tells:
        return CANNOT_TELL if passes else None
    return passes.median


def names_of(name: str) -> tuple[str, ...]:
    """Return the fields of a number over passes: its ends, and whether it tells something."""
    return (name, f"{name}_least", f"{name}_greatest", f"{name}_tells")


def ends_of(name: str, passes: OverPasses | None) -> dict[str, float | bool | None]:
    """Return what the fields of `names_of` hold; the first is the median over passes."""
    values = (passes.median, passes.least, passes.greatest, passes.tells) if passes else (None,) * 4
    return dict(zip(names_of(name), values, strict=True))


def pass_range(item: CaseResult) -> Range | None:
    """Return the least and the greatest median of a pass; None without several passes."""
    ends = range_of(item.timing.pass_medians_s) if item.timing else None
    return Range(*ends) if ends else None


def any_plan(title: str, cases: Sequence[Case]) -> Table:
    """Return a row for each case, of any kind."""
    rows = (Row((case.index, *_case_cells(case, case.device), *cost_cells([case])),
                case_id=case.case_id) for case in cases)
    return Table(title, (Column("index", "#", Show.COUNT), *_CASE, *COST),
                 (Group("", tuple(rows)),))


def any_results(title: str, items: Sequence[CaseResult]) -> Iterator[Table]:
    """Yield a table with a row for each case, of any kind, that ran; nothing if none ran."""
    groups = grouped((timed_text(item), item) for item in items if item.status in TABLED)
    if groups:
        yield Table(title, (*_CASE, TIME, INTERVAL, N, STATUS, LAUNCHES, FLAGS), tuple(
            Group("", tuple(map(_any_row, group)), timed) for timed, group in groups.items()))


def _any_row(item: CaseResult) -> Row:
    return Row((*_case_cells(item.case, device_type(item)), median_cell(item.statistics),
                interval_cell(item.statistics), n_cell(item.statistics), item.status,
                launches_cell(item), flag_cell(item)), item.status, item.case.case_id)


def _case_cells(case: Case, device: str) -> tuple[Cell, ...]:
    words = case.workload.words(case.world_size)
    return " ".join(words), backend_text(case), device, case.world_size


MOST_NAMED = 5


def late_start(item: CaseResult) -> Comparison | None:
    """Return the rank of a case that surely starts later than any other; None if there is none."""
    late = item.timing.late_start if item.timing else None
    return late if late is not None and late.is_clear else None


def late_start_text(late: Comparison) -> str:
    """Return who starts late, and by how much."""
    ends = f"{cell_text(late.low_s, Show.US)}, {cell_text(late.high_s, Show.US)}"
    return (f"rank {late.rank} starts {cell_text(late.apart_s, Show.US)} us [{ends}: 99 % "
            f"interval] after the next one, rank {late.next_rank}: all wait for it")


def _late_starts(results: Results) -> list[tuple[CaseResult, Comparison]]:
    return [(item, found) for item in results.cases if (found := late_start(item)) is not None]


def late_rank_lines(results: Results) -> Iterator[str]:
    """Yield in one line who surely starts late in the first such case, and how many more there are.

    Nothing where nobody does.
    """
    late = _late_starts(results)
    if late:
        (item, found), *others = late
        more = f"; {plural(len(others), 'more case')}: late_start in summary.json" if others else ""
        yield f"{item.case.label}: {late_start_text(found)}{more}"


def slow_rank_lines(results: Results) -> Iterator[str]:
    """Yield which comparisons of ranks were made and how many hold; then who starts late."""
    known = family(comparisons(results))
    if known.n_made:
        yield (f"slow ranks: {plural(known.n_made, 'comparison')}, {known.n_clear} of them clear; "
               f"of equal ranks at most {FALSE_ALARMS:.0%} of reports have any")
    if known.n_too_few:
        yield (f"slow ranks: {plural(known.n_too_few, 'comparison')} cannot tell, because {NEEDED}")
    late = _late_starts(results)
    for item, found in late[:MOST_NAMED]:
        yield f"  {item.case.label}: {late_start_text(found)}"
    if len(late) > MOST_NAMED:
        yield f"  and {plural(len(late) - MOST_NAMED, 'more case')}: see late_start in summary.json"


MOST_ROWS = 12
"""A profile is at most a screen: the other cases are in the summaries."""
Title = Callable[[CaseResult], str]
_COLUMNS = (
    Column("case", "case"), TIME, INTERVAL, N,
    Column("imbalance", "imbalance", Show.US, "us", "last start - first start of a sample", "less"),
    Column("late", "late", Show.TEXT, "rank", "the rank that surely starts later than any other"),
    Column("late_by", "by", Show.US, "us", "its start after that of the next one", "less"),
)


def _label(item: CaseResult) -> str:
    return item.case.label


def any_profile(
    items: Sequence[CaseResult], title: Title = _label,
) -> Iterator[Line | Table]:
    """Yield which ranks stand out, then a table: a row a case, the most unequal ones.

    ``title`` gives what a case is called.
    """
    timed = [item for item in items if item.statistics is not None and item.timing is not None]
    for item in timed[:MOST_ROWS]:
        yield from (Line(f"{title(item)}: {text}") for text in _standing_out(item))
    listed = sorted(timed, key=_imbalance_s, reverse=True)[:MOST_ROWS]
    left = len(timed) - len(listed)
    notes = (Line(f"and {plural(left, 'case')} more, less unequal: see summary.csv", "quiet"),)
    if listed:
        yield Table("ranks beside each other", _COLUMNS, (Group("", tuple(
            _row(item, title) for item in listed)),), notes=notes if left else ())


def _imbalance_s(item: CaseResult) -> float:
    return (item.timing.imbalance_s if item.timing else None) or 0.0


def _standing_out(item: CaseResult) -> Iterator[str]:
    if (late := late_start(item)) is not None:
        yield late_start_text(late)


def _row(item: CaseResult, title: Title) -> Row:
    timing, late = item.timing, late_start(item)
    return Row((title(item), median_cell(item.statistics),
                interval_cell(item.statistics), n_cell(item.statistics),
                timing.imbalance_s if timing else None, None if late is None else str(late.rank),
                late.apart_s if late else None), item.status, item.case.case_id)

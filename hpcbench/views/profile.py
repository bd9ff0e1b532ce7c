"""What a profile says of cases of any kind: how unequal their ranks are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpcbench.reduce.results import CaseResult
from hpcbench.units import plural
from hpcbench.views import columns
from hpcbench.views.slow_ranks import late_start, late_start_text
from hpcbench.views.table import Column, Group, Line, Row, Show, Table

MOST_ROWS = 12
"""A profile is at most a screen: the other cases are in the summaries."""
Title = Callable[[CaseResult], str]
_COLUMNS = (
    Column("case", "case"), columns.TIME, columns.INTERVAL, columns.N,
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
    return Row((title(item), columns.median_cell(item.statistics),
                columns.interval_cell(item.statistics), columns.n_cell(item.statistics),
                timing.imbalance_s if timing else None, None if late is None else str(late.rank),
                late.apart_s if late else None), item.status, item.case.case_id)

"""How much ranks wait and which are slow, as tables, and the waiting as a chart."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.analysis.waits import Stalled, Waits
from hpcbench.views.chart import Axis, Dot, DotChart, Point
from hpcbench.views.table import Column, Group, Range, Row, Show, Table

MOST_ROWS = 60


def tables(record: Waits) -> Iterator[Table]:
    """Yield the cases whose ranks wait, and the ranks and shares of work that are slow."""
    if clear := _clear(record):
        yield Table("waiting for the last rank", (
            Column("case", "case"),
            Column("share", "of a call", Show.PERCENT, "%", "of the ranks' time", "less"),
            Column("interval", "95 % interval", Show.PERCENT, "%"),
            Column("rank", "late rank", Show.COUNT, optional=True),
            Column("explained", "explains", Show.PERCENT, "%", optional=True),
        ), (Group("", tuple(
            Row((one.label, one.share, _range(one), one.late_rank,
                 one.late_share if one.late_rank is not None else None), case_id=one.case_id)
            for one in clear)),))
    if slow := [one for one in record.causes if one.is_clear]:
        yield Table("what is slow by itself", (
            Column("case", "case"), Column("cause", "cause"),
            Column("rank", "rank, or share of the work", Show.COUNT),
            Column("excess", "longer by", Show.US, "us", "than the next", "less"),
            Column("interval", "99 % interval", Show.US, "us"),
            Column("share", "of its time", Show.PERCENT, "%"),
        ), (Group("", tuple(
            Row((one.label, one.cause, one.who, one.excess_s, Range(one.low_s, one.high_s),
                 one.share)) for one in slow)),))


def charts(record: Waits) -> Iterator[DotChart]:
    """Yield how much of a call ranks wait, where that is clear."""
    if clear := _clear(record)[:MOST_ROWS]:
        yield DotChart(
            "Waiting for the last rank", "share of the ranks' time in a call", "waits",
            ("Whisker: 95 % interval.",), tuple(dict.fromkeys(one.case_id for one in clear)),
            Axis("waiting", Show.PERCENT, "%"), (), tuple(
                Dot(one.label, Point(one.share or 0.0, _range(one)), ()) for one in clear))


def _clear(record: Waits) -> list[Stalled]:
    return [one for one in record.stalled if one.is_clear]


def _range(one: Stalled) -> Range:
    return Range(one.low or 0.0, one.high or 0.0)

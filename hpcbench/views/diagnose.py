"""The diagnosis as a table of the ranks that were compared, and a chart of those that are late."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.analysis.diagnose import Diagnosis, Estimate
from hpcbench.views.chart import Axis, Dot, DotChart, Point
from hpcbench.views.table import Column, Group, Range, Row, Show, Table

MOST_ROWS = 60
"""More rows of a chart could not be read."""
_INTERVAL = "99 % interval"


def tables(record: Diagnosis) -> Iterator[Table]:
    """Yield the ranks that are named, and what a call would take without their lateness."""
    named = [one for one in record.looks if one.is_clear]
    if not named:
        return
    columns = (
        Column("case", "case"), Column("rank", "rank", Show.COUNT),
        Column("host", "host", optional=True),
        Column("phase", "phase", meaning="where at least 80 % of the lateness arises",
               optional=True),
        Column("behind", "late by", Show.US, "us", "after the next rank", "less"),
        Column("interval", _INTERVAL, Show.US, "us"),
        Column("share", "of a call", Show.PERCENT, "%", better="less"),
        Column("call", "call", Show.US, "us", better="less"),
        Column("what_if", "without", Show.US, "us", "the call if the rank were as the next one",
               "less"))
    yield Table("ranks that others wait for", columns, (Group("", tuple(
        Row((one.label, one.rank, one.host or None, one.phase or None, one.behind_s.value,
             _range(one.behind_s), one.share.value, one.call_s, one.what_if_s.value),
            case_id=one.case_id) for one in named)),))


def charts(record: Diagnosis) -> Iterator[DotChart]:
    """Yield how late the named ranks are, as shares of a call."""
    named = [one for one in record.looks if one.is_clear]
    if not named:
        return
    left = [f"The first {MOST_ROWS} of {len(named)} are shown."] if len(named) > MOST_ROWS else []
    yield DotChart(
        "Ranks that others wait for", "lateness behind the next rank, as a share of a call",
        "diagnose_ranks", (f"Whisker: {_INTERVAL}.", *left),
        tuple(dict.fromkeys(one.case_id for one in named[:MOST_ROWS])),
        Axis("lateness", Show.PERCENT, "%"), (Column("host", "host"), Column("phase", "phase")),
        tuple(Dot(f"rank {one.rank}: {one.label}", Point(one.share.value, _range(one.share)),
                  (one.host or None, one.phase or None)) for one in named[:MOST_ROWS]))


def _range(one: Estimate) -> Range:
    return Range(one.low, one.high)

"""Bandwidths beside links and counters, as a table and a chart."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.analysis.bandwidth import UNKNOWN, BandwidthTruth, Carried
from hpcbench.views.chart import Axis, Dot, DotChart, Point
from hpcbench.views.table import Column, Group, Row, Show, Table


def bandwidth_tables(found: BandwidthTruth) -> Iterator[Table]:
    """Yield a row for each case with a bus bandwidth."""
    if not found.cases:
        return
    columns = (
        Column("case", "case"),
        Column("busbw", "busbw", Show.GB_PER_S, "GB/s", better="more"),
        Column("of_link", "of link", Show.PERCENT, "%", "of what the declared links allow",
               optional=True),
        Column("of_best", "of best", Show.PERCENT, "%", "of the highest of the backend"),
        Column("counted", "counted", Show.MB, "MB", "sent by interfaces in a pass", optional=True),
        Column("computed", "computed", Show.MB, "MB", "sent by formula", optional=True),
        Column("share", "counted / computed", Show.RATIO, optional=True),
        Column("algorithm", "algorithm", optional=True),
        Column("protocol", "protocol", optional=True),
        Column("problem", "what it says", optional=True))
    yield Table("bandwidth beside links and counters", columns,
                (Group("", tuple(map(_row, found.cases))),))


def _row(case: Carried) -> Row:
    return Row((case.label, case.busbw_bytes_per_s, case.of_link, case.of_best,
                case.counted_bytes, case.computed_bytes, case.counted_share,
                _known(case.algorithm), _known(case.protocol), case.problem or None),
               case_id=case.case_id)


def _known(text: str) -> str | None:
    return None if text == UNKNOWN else text


def bandwidth_charts(found: BandwidthTruth) -> Iterator[DotChart]:
    """Yield the bandwidth of each case beside the declared link; none where none is declared."""
    rows = tuple(Dot(case.label, Point(case.of_link), (case.problem or None,))
                 for case in found.cases if case.of_link is not None)
    if rows:
        yield DotChart(
            "Bandwidth beside the declared links", "share of what the declared links allow",
            "bandwidth", ("More than 1 is impossible: see what it says.",),
            tuple(case.case_id for case in found.cases), Axis("share of link", Show.RATIO),
            (Column("problem", "what it says"),), rows)

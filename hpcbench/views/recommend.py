"""Recommendations as a table a kind, and as a chart."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.analysis.recommend import Ranking, Recommendations, Rival
from hpcbench.grouping import grouped
from hpcbench.views.chart import Axis, Dot, DotChart, Point
from hpcbench.views.table import Column, Group, Range, Row, Show, Table

TOLD = {True: "clearly slower", False: "no clear difference"}


def recommend_tables(found: Recommendations) -> Iterator[Table]:
    """Yield a table of each kind: a group for each task, a row for each way."""
    columns = (
        Column("way", "way"), Column("time", "time", Show.US, "us", better="less"),
        Column("ratio", "times as long", Show.RATIO, meaning="as the fastest, pairs of a pass"),
        Column("interval", "95 % interval", Show.RATIO, optional=True),
        Column("pairs", "pairs", Show.TEXT, optional=True, once=True),
        Column("verdict", "", Show.TEXT))
    for kind, rankings in grouped((one.kind, one) for one in found.rankings).items():
        yield Table(f"which way is fastest: {kind}", columns, tuple(map(_group, rankings)))


def _group(ranking: Ranking) -> Group:
    first = Row((ranking.best, ranking.time_s, 1.0, None, None, "fastest"))
    return Group(ranking.task, (first, *map(_row, ranking.rivals)))


def _row(rival: Rival) -> Row:
    found = rival.paired
    pairs = f"{found.n} {found.unit}"
    verdict = TOLD[rival.is_clear] if found.chance is not None else "cannot tell: too few pairs"
    return Row((rival.name, rival.time_s, found.ratio, _interval(rival), pairs, verdict))


def _interval(rival: Rival) -> Range | None:
    low, high = rival.paired.low, rival.paired.high
    return None if low is None or high is None else Range(low, high)


def recommend_charts(found: Recommendations) -> Iterator[DotChart]:
    """Yield a chart of each kind: how much longer each way takes than the fastest of its task."""
    for kind, rankings in grouped((one.kind, one) for one in found.rankings).items():
        rows = tuple(Dot(f"{one.task}: {rival.name}", Point(
            rival.paired.ratio, _interval(rival)), (one.best, TOLD[rival.is_clear]))
            for one in rankings for rival in one.rivals)
        yield DotChart(
            f"Which way is fastest: {kind}", "time of each way over that of the fastest way",
            f"recommend_{kind}", ("Whisker: 95 % interval of the ratio over pairs of a pass.",),
            (), Axis("ratio of times", Show.RATIO),
            (Column("best", "fastest"), Column("verdict", "")), rows)

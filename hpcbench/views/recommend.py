"""Recommendations as a table a kind, and as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.analysis.recommend import Ranking, Recommendations, Rival
from hpcbench.analysis.sides import OPTION
from hpcbench.analysis.ways import short
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.units import grouped
from hpcbench.views.chart import Axis, Dot, DotChart, Point, Scale, is_wide
from hpcbench.views.short_labels import without_shared
from hpcbench.views.table import Column, Group, Range, Row, Show, Table

MOST_ROWS = 60
"""More rows of a chart could not be read."""
WIDE = 8
"""Ratios of which the greatest is so many times the least are on a log scale."""
_COLUMNS = (
    Column("time", "time", Show.US, "us", better="less"),
    Column("ratio", "times as long", Show.RATIO, meaning="as the fastest, pairs of a pass"),
    Column("interval", "95 % interval", Show.RATIO, meaning="of this pair alone", optional=True),
    Column("false_share", "by chance", Show.SIGNIFICANT_PERCENT, "%",
           "of differences as sure as this one, among all of the run (Benjamini-Hochberg); clear "
           f"up to {FALSE_ALARMS:.0%}", optional=True),
    Column("pairs", "pairs", Show.TEXT, optional=True, once=True),
    Column("verdict", "verdict"))
TOLD = {True: "clearly slower", False: "no clear difference"}


def recommend_tables(found: Recommendations) -> Iterator[Table]:
    """Yield a table of each kind and key: a group for each task, a row for each way."""
    for (kind, key), same in grouped(((one.kind, one.key), one) for one in found.rankings).items():
        yield Table(f"which {short(key)} is fastest: {kind}",
                    (Column("way", short(key)), *_COLUMNS), tuple(map(_group, same)))


def _group(ranking: Ranking) -> Group:
    first = Row((ranking.best, ranking.time_s, 1.0, None, None, None, "shortest"))
    return Group(ranking.task, (first, *map(_row, ranking.rivals)))


def _row(rival: Rival) -> Row:
    found = rival.paired
    pairs = f"{found.n} {found.unit}"
    verdict = TOLD[rival.is_clear] if found.chance is not None else "cannot tell: too few pairs"
    return Row((rival.name, rival.time_s, found.ratio, _interval(rival), rival.false_share, pairs,
                verdict))


def _interval(rival: Rival) -> Range | None:
    low, high = rival.paired.low, rival.paired.high
    return None if low is None or high is None else Range(low, high)


def recommend_charts(found: Recommendations) -> Iterator[DotChart]:
    """Yield a chart of each kind: how much longer each way takes than the fastest of its task."""
    for kind, rankings in grouped((one.kind, one) for one in found.rankings).items():
        shared, tasks = _tasks([one.task for one in rankings])
        rows = [Dot(f"{task}: {_way(one, rival.name)}".removeprefix(": "), Point(
            rival.paired.ratio, _interval(rival)), (_verdict(one, rival),))
            for task, one in zip(tasks, rankings, strict=True)
            for rival in one.rivals if _interval(rival)]
        if not rows:
            continue
        ends = [row.point.interval for row in rows if row.point.interval]
        scale = Scale.LOG if is_wide(ends, WIDE) else Scale.LINEAR
        left = [f"The first {MOST_ROWS} of {len(rows)} are shown."] if len(rows) > MOST_ROWS else []
        yield DotChart(
            f"Which way is fastest: {kind}",
            shared or "time of each way over that of the fastest one",
            f"recommend_{kind}",
            ("Whisker: 95 % interval of the ratio over pairs of a pass.", *left), (),
            Axis("times as long as the fastest", Show.RATIO, scale=scale),
            (Column("verdict", "beside the fastest"),), tuple(rows[:MOST_ROWS]))


def _tasks(tasks: Sequence[str]) -> tuple[str, list[str]]:
    """Return what all tasks have alike, and of each task what it has not."""
    if len({*tasks}) == 1:
        return tasks[0], [""] * len(tasks)
    return without_shared(tasks)


def _verdict(ranking: Ranking, rival: Rival) -> str:
    """Return ``clearly slower than mpi``."""
    link = "than" if rival.is_clear else "from"
    return f"{TOLD[rival.is_clear]} {link} {_way(ranking, ranking.best)}"


def _way(ranking: Ranking, name: str) -> str:
    """Return a way's name; that of an option is a value alone, which tells nothing by itself."""
    return f"{short(ranking.key)}={name}" if ranking.key.startswith(OPTION) else name

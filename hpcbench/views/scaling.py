"""How work scales over ranks, as tables and charts: ideal and measured side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.analysis.scaling import Scaling, kind_text, subject_of
from hpcbench.analysis.scaling_series import EXCELLENT, GOOD, MOVED, STRONG, WEAK, Band, Series
from hpcbench.units import plural
from hpcbench.views.chart import Axis, LineChart, Panel, Point, Scale
from hpcbench.views.chart import Line as Course
from hpcbench.views.table import Column, Group, Line, Range, Row, Show, Table

MOST_COURSES = 6
"""More lines in a panel cannot be told apart."""
_INTERVAL = "95 % interval"
_LEAD = (
    "speed-up = samples/s (rows/s) over those of the base; efficiency = that over the ratio of "
    "ranks",
    f"good from {100 * GOOD:.0f} %, excellent from {100 * EXCELLENT:.0f} %; none is given where "
    "ranks share cores")


def tables(record: Scaling) -> Iterator[Table]:
    """Yield the series of work, the laws, and collectives against the number of ranks."""
    work = [one for one in record.series if one.kind != MOVED]
    if work:
        yield _work_table(work)
    if any(one.laws for one in work):
        yield _law_table([one for one in work if one.laws])
    if moved := [one for one in record.series if one.kind == MOVED]:
        yield _moved_table(moved)


def charts(record: Scaling) -> Iterator[LineChart]:
    """Yield speed-ups beside the ideal one, and bus bandwidths beside that of fewest ranks."""
    shown = {kind: _with_band([one for one in record.series if one.kind == kind])
             for kind in (STRONG, WEAK, MOVED)}
    for kind in (STRONG, WEAK):
        if shown[kind]:
            yield LineChart(
                f"{kind.capitalize()} scaling: ideal and measured speed-up",
                "rate of work beside the base, the fewest ranks", f"scaling_{kind}",
                (f"Bar: {_INTERVAL}. Ideal: as many times the base as there are ranks.",),
                _ids(shown[kind]), _ranks_axis(), (_speed_ups(shown[kind]),))
    if shown[MOVED]:
        yield LineChart(
            "Collectives over ranks", "bus bandwidth beside that of the fewest ranks",
            "scaling_collectives", (f"Bar: {_INTERVAL}. Ideal: it stays as it is.",),
            _ids(shown[MOVED]), _ranks_axis(), (_bandwidths(shown[MOVED]),))


def _work_table(found: Sequence[Series]) -> Table:
    columns = (
        Column("ranks", "ranks", Show.COUNT), Column("nodes", "nodes", Show.COUNT),
        Column("amount", "work", Show.NUMBER, "a call"), Column("time", "time", Show.MS, "ms"),
        Column("rate", "rate", Show.NUMBER, "1/s", better="more"),
        Column("speed_up", "speed-up", Show.RATIO, better="more", optional=True),
        Column("speed_up_interval", _INTERVAL, Show.RATIO, optional=True),
        Column("efficiency", "efficiency", Show.PERCENT, "%", better="more", optional=True),
        Column("efficiency_interval", _INTERVAL, Show.PERCENT, "%", optional=True),
        Column("communication", "communication", Show.PERCENT, "%",
               "what communication adds to a call, as a share of it; - if it may be chance", "less",
               optional=True),
        Column("note", "note", optional=True))
    groups = tuple(Group(f"{subject_of(series)}: {kind_text(series)}", tuple(
        Row((one.ranks, one.nodes, one.amount, one.time_s, one.rate, *_band(one.speed_up),
             *_band(one.efficiency), one.told_communication, _note(series, at)),
            case_id=one.case_id)
        for at, one in enumerate(series.members))) for series in found)
    return Table("scaling over ranks", columns, groups, lead=tuple(map(Line, _LEAD)))


def _note(series: Series, at: int) -> str | None:
    one = series.members[at]
    if one.shares_cores:
        return f"{one.ranks_a_core:.3g} ranks share a core: no efficiency"
    if at == 0:
        return f"base: {series.base}" if series.base else "base"
    return None


def _law_table(found: Sequence[Series]) -> Table:
    columns = (
        Column("law", "law"), Column("parameter", "parameter"),
        Column("value", "value", Show.SIGNIFICANT_PERCENT, "%"),
        Column("interval", _INTERVAL, Show.SIGNIFICANT_PERCENT, "%", optional=True),
        Column("points", "points", Show.COUNT),
        Column("worst", "worst residual", Show.SIGNIFICANT_PERCENT, "%", better="less"),
        Column("valid", "valid for"))
    groups = tuple(Group(subject_of(series), tuple(
        Row((law.name, name, one.value, _range(Band(one.value, one.low, one.high)),
             len(law.residuals), law.worst, f"{law.least_ranks} to {law.most_ranks} ranks"))
        for law in series.laws for name, one in law.parameters.items())) for series in found)
    return Table("laws of scaling", columns, groups, notes=(Line(
        "do not draw a law out: it says nothing of more ranks than it was fitted to", "warning"),))


def _moved_table(found: Sequence[Series]) -> Table:
    columns = (
        Column("size", "size"), Column("ranks", "ranks", Show.COUNT),
        Column("nodes", "nodes", Show.COUNT), Column("time", "time", Show.US, "us"),
        Column("busbw", "busbw", Show.GB_PER_S, "GB/s", better="more"),
        Column("share", "of base", Show.PERCENT, "%", "bus bandwidth over that of fewest ranks",
               "more", optional=True),
        Column("interval", _INTERVAL, Show.PERCENT, "%", optional=True),
        Column("note", "note", optional=True))
    titles = dict.fromkeys(one.title for one in found)
    return Table("collectives over ranks", columns, tuple(Group(title, tuple(
        Row((series.size, one.ranks, one.nodes, one.time_s, one.rate, *_band(one.efficiency),
             _note(series, at)), case_id=one.case_id)
        for series in found if series.title == title
        for at, one in enumerate(series.members))) for title in titles))


def _band(band: Band | None) -> tuple[float | None, Range | None]:
    return (None, None) if band is None else (band.value, _range(band))


def _range(band: Band) -> Range | None:
    if band.low is None or band.high is None:
        return None
    return Range(band.low, band.high)


def _with_band(found: Sequence[Series]) -> list[Series]:
    return [one for one in found if any(member.efficiency for member in one.members)]


def _ids(found: Sequence[Series]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.case_id for series in found for one in series.members))


def _ranks_axis() -> Axis:
    return Axis("ranks", Show.COUNT, scale=Scale.LOG2)


def _speed_ups(found: Sequence[Series]) -> Panel:
    shown = found[:MOST_COURSES]
    base = min(series.members[0].ranks for series in shown)
    places = sorted({one.ranks for series in shown for one in series.members})
    ideal = Course(f"ideal beside {plural(base, 'rank')}",
                   tuple((ranks, Point(ranks / base)) for ranks in places))
    courses = tuple(Course(_label(series, shown), (
        (series.members[0].ranks, Point(1.0)),
        *((one.ranks, _point(one.speed_up)) for one in series.members if one.speed_up)))
        for series in shown)
    left = len(found) - len(shown)
    return Panel(Axis("speed-up", Show.RATIO), (ideal, *courses),
                 f"{left} more in the table" if left else "")


def _label(series: Series, shown: Sequence[Series]) -> str:
    """Return the words that tell a series from the others of a panel, with the work of its end."""
    same = len({one.title for one in shown}) == 1
    words = (series.way or series.size if same else subject_of(series)) or series.title
    last = series.members[-1]
    return words if series.kind == MOVED else f"{words}, {last.amount:g} {series.unit}"


def _bandwidths(found: Sequence[Series]) -> Panel:
    shown = found[:MOST_COURSES]
    left = len(found) - len(shown)
    return Panel(
        Axis("bus bandwidth of base", Show.PERCENT, "%"), tuple(
            Course(_label(series, shown), (
                (series.members[0].ranks, Point(1.0)),
                *((one.ranks, _point(one.efficiency)) for one in series.members
                  if one.efficiency))) for series in shown),
        f"{left} more in the table" if left else "", reference=Range(1.0, 1.0, 1.0))


def _point(band: Band | None) -> Point:
    assert band is not None  # only members with one are drawn
    return Point(band.value, _range(band))

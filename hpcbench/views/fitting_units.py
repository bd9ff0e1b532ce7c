"""Axes and columns of times in the unit that makes their numbers short: us, ms or s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from hpcbench.views.chart import Axis, BarChart, Chart, DotChart, HeatMap, LineChart, Panel, Point
from hpcbench.views.table import Cell, Column, Range, Show, WithInterval

LADDER = (Show.US, Show.MS, Show.S)
"""From the smallest unit; a time is in no smaller one than its kind chose."""
GREATEST_S = {Show.US: 0.01, Show.MS: 10.0}
"""Times from this on are in the next unit: 10,000 is the first number that is hard to read."""
Rows = TypeVar("Rows", DotChart, BarChart)
Titled = TypeVar("Titled", Axis, Column)


def with_fitting_units(chart: Chart) -> Chart:
    """Return the chart with each axis and column of times in the unit that fits its values."""
    if isinstance(chart, LineChart):
        return replace(chart, panels=tuple(map(_fitted_panel, chart.panels)))
    if isinstance(chart, DotChart):
        ends = [end for row in chart.rows for end in _ends(row.point)]
        return _fitted_rows(chart, ends, [row.cells for row in chart.rows])
    if isinstance(chart, BarChart):
        bars = [bar for section in chart.sections for bar in section.bars]
        lengths = [sum(length for length, _ in bar.segments) for bar in bars]
        return _fitted_rows(chart, lengths, [bar.cells for bar in bars])
    if isinstance(chart, HeatMap):
        return replace(chart, colour=fitted(chart.colour, [chart.limits.greatest]))
    return chart


def fitted(titled: Titled, values_s: Iterable[float]) -> Titled:
    """Return an axis or a column in the unit that fits these times; others as they are."""
    if titled.show not in GREATEST_S or not titled.unit.startswith(titled.show.value):
        return titled
    greatest, show = max(values_s, default=0.0), titled.show
    while show in GREATEST_S and greatest >= GREATEST_S[show]:
        show = LADDER[LADDER.index(show) + 1]
    unit = show.value + titled.unit.removeprefix(titled.show.value)
    return replace(titled, show=show, unit=unit)


def _fitted_panel(panel: Panel) -> Panel:
    ends = [end for line in panel.lines for _, point in line.points for end in _ends(point)]
    return replace(panel, y=fitted(panel.y, ends))


def _ends(point: Point) -> Iterator[float]:
    yield point.value
    yield from (span.greatest for span in (point.interval, point.band) if span)


def _fitted_rows(
    chart: Rows, along_x: list[float], rows: list[tuple[Cell, ...]],
) -> Rows:
    """Return a chart of rows whose times, at the axis and beside it, are in one unit."""
    cells = [number for at, column in enumerate(chart.columns) if column.show in GREATEST_S
             for number in _numbers(row[at] for row in rows)]
    values = cells + (along_x if chart.x.show in GREATEST_S else [])
    return replace(chart, x=fitted(chart.x, values), columns=tuple(
        fitted(column, values) for column in chart.columns))


def _numbers(cells: Iterable[Cell]) -> Iterator[float]:
    for cell in cells:
        if isinstance(cell, Range):
            yield cell.greatest
        elif isinstance(cell, WithInterval):
            yield cell.value
        elif isinstance(cell, (int, float)):
            yield float(cell)

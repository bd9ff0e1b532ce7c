"""Points to compare, one a row, with their values in words at the right."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcbench.report.plots.fit import short_labels, width
from hpcbench.report.plots.style import (
    GREY,
    SIDE_INCHES,
    SIZE_INCHES,
    SMALL,
    dress,
    ends_in_unit,
    in_unit,
    new_figure,
    plain_formatter,
)
from hpcbench.views.cell_text import cell_text
from hpcbench.views.chart import COLOURS, Dot, DotChart, Scale
from hpcbench.views.table import Show

COLOUR = COLOURS[0]
ROW_INCHES, ABOVE_INCHES, BELOW_INCHES = 0.32, 1.05, 1.0
LEAST_ACROSS = 1.5
"""How wide the axes are at least, in inches."""
LONGEST_LABEL = 60
PLUS_MINUS = "+-"
"""How the unit of a column begins whose values say how exact those before them are."""


def draw_dots(chart: DotChart) -> Figure:
    """Return the figure of a dot chart."""
    inside = ROW_INCHES * (len(chart.rows) + 0.4)
    height = ABOVE_INCHES + inside + BELOW_INCHES
    figure = new_figure(chart, height)
    rows = chart.rows[::-1]
    words = ["".join(_words(chart, row)) for row in rows]
    labels = short_labels([row.label for row in rows], LONGEST_LABEL)
    heading = _heading(chart)
    left = 2 * SIDE_INCHES + max(width(label, SMALL + 1) for label in labels)
    right = 2 * SIDE_INCHES + max(width(text, SMALL + 1) for text in (*words, heading))
    inches = SIZE_INCHES[0]
    across = max(inches - left - right, LEAST_ACROSS)
    axes = figure.add_axes((left / inches, BELOW_INCHES / height, across / inches, inside / height))
    beside = 1 + SIDE_INCHES / across
    for at, (row, text) in enumerate(zip(rows, words, strict=True)):
        _draw_row(axes, row, at, chart.x.show)
        axes.text(beside, at, text, transform=axes.get_yaxis_transform(), va="center",
                  fontsize=SMALL + 1)
    if chart.x.scale is Scale.LOG:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(plain_formatter())
    else:
        axes.set_xlim(left=0)
    dress(axes, x_label=chart.x.label, y_label="")
    axes.grid(False, axis="y")
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.text(beside, 1.01, heading, transform=axes.transAxes, fontsize=SMALL, color=GREY,
              va="bottom")
    return figure


def _heading(chart: DotChart) -> str:
    """Return what the words beside the rows are; a column may have no title."""
    return ", ".join(column.title for at, column in enumerate(chart.columns) if column.title and (
        not column.optional or any(row.cells[at] is not None for row in chart.rows)))


def _draw_row(axes: Axes, row: Dot, at: int, show: Show) -> None:
    """Draw a band, an interval and a point, one above the other."""
    point = row.point
    for span, opacity, thick in ((point.band, 0.35, 9.0), (point.interval, 1.0, 2.5)):
        if span:
            axes.hlines(at, *ends_in_unit(span, show), color=COLOUR, alpha=opacity, linewidth=thick)
    axes.plot(in_unit(point.value, show), at, marker="o", markersize=6, color=COLOUR)


def _words(chart: DotChart, row: Dot) -> Iterator[str]:
    """Yield ``12.3 us``, `` +-1.0%`` and ``, 4.5 GB/s``."""
    for at, (column, cell) in enumerate(zip(chart.columns, row.cells, strict=True)):
        if cell is None:
            continue
        text = cell_text(cell, column.show)
        if column.unit.startswith(PLUS_MINUS):
            yield f" {PLUS_MINUS}{text}{column.unit.removeprefix(PLUS_MINUS)}"
        else:
            yield f"{', ' if at else ''}{text} {column.unit}".rstrip()

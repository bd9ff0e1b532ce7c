"""Points to compare, one a row, with their values in words at the right."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcbench.report.plots.style import (
    GREY,
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
PLUS_MINUS = "+-"
"""How the unit of a column begins whose values say how exact those before them are."""


def draw_dots(chart: DotChart) -> Figure:
    """Return the figure of a dot chart."""
    figure = new_figure(chart)
    height = min(0.61, max(0.35, 0.1 + 0.07 * len(chart.rows)))
    axes = figure.add_axes((0.28, 0.83 - height, 0.5, height))
    rows = chart.rows[::-1]
    for at, row in enumerate(rows):
        _draw_row(axes, row, at, chart.x.show)
        axes.text(1.02, at, "".join(_words(chart, row)), transform=axes.get_yaxis_transform(),
                  va="center", fontsize=SMALL + 1)
    if chart.x.scale is Scale.LOG:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(plain_formatter())
    else:
        axes.set_xlim(left=0)
    dress(axes, x_label=chart.x.label, y_label="")
    axes.grid(False, axis="y")
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(-0.7, len(rows) - 0.3)
    titles = [column.title for at, column in enumerate(chart.columns)
              if not column.optional or any(row.cells[at] is not None for row in rows)]
    axes.text(1.02, 1.01, ", ".join(titles), transform=axes.transAxes, fontsize=SMALL,
              color=GREY, va="bottom")
    return figure


def _draw_row(axes: Axes, row: Dot, at: int, show: Show) -> None:
    """Draw a band, an interval and a point, one above the other."""
    point = row.point
    for span, opacity, width in ((point.band, 0.35, 9.0), (point.interval, 1.0, 2.5)):
        if span:
            axes.hlines(at, *ends_in_unit(span, show), color=COLOUR, alpha=opacity, linewidth=width)
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
            yield f"{', ' if at else ''}{text} {column.unit}"

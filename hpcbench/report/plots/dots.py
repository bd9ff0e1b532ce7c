"""Points to compare, one a row, with their values in words at the right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcbench.report.plots.fit import cut, fitting, short_labels, width
from hpcbench.report.plots.row_labels import marked
from hpcbench.report.plots.style import (
    GREY,
    SIDE_INCHES,
    Style,
    dress,
    ends_in_unit,
    in_unit,
    new_figure,
    plain_log_axis,
)
from hpcbench.views.cell_text import cell_text
from hpcbench.views.chart import COLOURS, Dot, DotChart, Scale
from hpcbench.views.table import Show

COLOUR = COLOURS[0]
ROW_INCHES, ABOVE_INCHES, BELOW_INCHES = 0.32, 1.05, 1.0
NARROW_ROW_INCHES, NARROW_ABOVE_INCHES, NARROW_BELOW_INCHES = 0.32, 0.06, 0.42
NARROW_SIDE = 0.16
"""Beside the axes of a narrow figure: half of the number at their end."""
LEAST_ACROSS = 1.5
"""How wide the axes are at least, in inches."""
LONGEST_LABEL = 60
ABOVE_MARK = 0.42
"""How far above its mark a label of a narrow figure stands, in rows."""
PLUS_MINUS = "+-"
"""How the unit of a column begins whose values say how exact those before them are."""


def draw_dots(chart: DotChart, style: Style) -> Figure:
    """Return the figure of a dot chart."""
    rows = chart.rows[::-1]
    axes = (_narrow_axes if style.is_narrow else _wide_axes)(chart, rows, style)
    for at, row in enumerate(rows):
        _draw_row(axes, row, at, chart.x.show)
    if chart.x.scale is Scale.LOG:
        plain_log_axis(axes, axes.xaxis)
    else:
        axes.set_xlim(left=0)
    dress(axes, style, x_label=chart.x.label, y_label="")
    axes.grid(False, axis="y")
    return axes.get_figure(root=True) or Figure()


def _wide_axes(chart: DotChart, rows: Sequence[Dot], style: Style) -> Axes:
    """Return axes with the labels of rows at their left, and the values at their right."""
    inside = ROW_INCHES * (len(rows) + 0.4)
    height = ABOVE_INCHES + inside + BELOW_INCHES
    figure = new_figure(chart, style, height)
    words = ["".join(_words(chart, row)) for row in rows]
    short = short_labels([row.label for row in rows], LONGEST_LABEL)
    labels = [marked(label, row.mark) for label, row in zip(short, rows, strict=True)]
    heading = _heading(chart)
    left = 2 * SIDE_INCHES + max(width(label, style.row, bold=bool(row.mark))
                                 for label, row in zip(labels, rows, strict=True))
    right = 2 * SIDE_INCHES + max(width(text, style.row) for text in (*words, heading))
    across = max(style.width - left - right, LEAST_ACROSS)
    axes = figure.add_axes((left / style.width, BELOW_INCHES / height, across / style.width,
                            inside / height))
    beside = 1 + SIDE_INCHES / across
    for at, text in enumerate(words):
        axes.text(beside, at, text, transform=axes.get_yaxis_transform(), va="center",
                  fontsize=style.row)
    axes.set_yticks(range(len(rows)), labels)
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_fontweight("bold" if row.mark else "normal")
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.text(beside, 1.01, heading, transform=axes.transAxes, fontsize=style.small, color=GREY,
              va="bottom")
    return axes


def _narrow_axes(chart: DotChart, rows: Sequence[Dot], style: Style) -> Axes:
    """Return axes with labels and values above the marks of rows: as much of each as fits."""
    inside = NARROW_ROW_INCHES * (len(rows) + 0.2)
    height = NARROW_ABOVE_INCHES + inside + NARROW_BELOW_INCHES
    figure = new_figure(chart, style, height)
    room = style.width - 2 * NARROW_SIDE
    axes = figure.add_axes((NARROW_SIDE / style.width, NARROW_BELOW_INCHES / height,
                            room / style.width, inside / height))
    across, labels = axes.get_yaxis_transform(), [row.label for row in rows]
    for at, row in enumerate(rows):
        value = _fitting(_words(chart, row), room / 2, style)
        is_marked, left = bool(row.mark), room - width(value, style.row) - 0.1
        label = marked(fitting(labels, labels.index(row.label), left - width(
            marked("", row.mark), style.row, bold=is_marked), style.row, bold=is_marked), row.mark)
        for place, text, side in ((0.0, label, "left"), (1.0, value, "right")):
            axes.text(place, at + ABOVE_MARK, text, transform=across, ha=side, va="center",
                      fontsize=style.row,
                      fontweight="bold" if row.mark and side == "left" else "normal")
    axes.set_yticks([])
    axes.set_ylim(-0.4, len(rows) - 0.2)
    return axes


def _fitting(words: Iterable[str], inches: float, style: Style) -> str:
    """Return as many of the values as fit; the first one is cut where it does not."""
    first, *others = [*words] or [""]
    text = cut(first, inches, style.row)
    for word in others:
        if width(text + word, style.row) > inches:
            break
        text += word
    return text


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

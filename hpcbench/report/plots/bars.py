"""Bars to compare, in sections, with lines across them and columns of values beside them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from textwrap import fill
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpcbench.report.plots.style import (
    GREY,
    LIGHT_GREY,
    SMALL,
    dress,
    ends_in_unit,
    in_unit,
    new_figure,
)
from hpcbench.views.cell_text import cell_text
from hpcbench.views.chart import Bar, BarChart, BarSection, Look
from hpcbench.views.table import Column, Show

ROW_INCHES, ABOVE_INCHES, BELOW_INCHES = 0.26, 1.35, 1.55
LEAST_COLUMNS, COLUMNS_END = 0.31, 0.985
"""How wide all columns are at least, and where they end: shares of the figure's width."""
LABEL_CHARACTER, CELL_CHARACTER = 0.0069, 0.0063
GAP_CHARACTERS = 3
SHORTEST_LABEL, LONGEST_LABEL = 16, 55
"""Longer labels are broken into lines."""
INK = "black"
THIN, THICK = 1.2, 2
DASHES = (0, (2, 1))


def draw_bars(chart: BarChart) -> Figure:
    """Return the figure of a bar chart."""
    slots = sum(map(_slots, chart.sections))
    inside = ROW_INCHES * (slots + 0.6)
    height = ABOVE_INCHES + inside + BELOW_INCHES
    figure = new_figure(chart, height)
    left, (right, *ends) = _left(chart), _column_ends(chart)
    axes = figure.add_axes((left, BELOW_INCHES / height, right - left, inside / height))
    axes.set_ylim(slots - 0.3, -0.9)
    places = [(end - left) / (right - left) for end in ends]
    top = 0
    for section in chart.sections:
        _draw_section(axes, section, chart, top, places)
        top += _slots(section)
    dress(axes, x_label=chart.x.label, y_label="")
    axes.grid(False, axis="y")
    axes.set_yticks([])
    axes.set_xlim(left=0)
    for end, column in zip(ends, chart.columns, strict=True):
        figure.text(end, 1 - (ABOVE_INCHES - 0.09) / height, _heading(column), fontsize=SMALL,
                    color=GREY, ha="right", va="bottom")
    if handles := list(_handles(chart)):
        figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.013, 1 - 0.72 / height),
                      ncols=len(handles), fontsize=SMALL + 1, frameon=False)
    return figure


def _slots(section: BarSection) -> int:
    """Return the rows of a section, its heading included."""
    return len(section.bars) + bool(section.title)


def _left(chart: BarChart) -> float:
    """Return where the bars begin: the labels stand to the left of them."""
    longest = max(len(text) for section in chart.sections
                  for text in (section.title, *(bar.label for bar in section.bars)))
    return 0.03 + LABEL_CHARACTER * max(SHORTEST_LABEL, min(longest, LONGEST_LABEL))


def _column_ends(chart: BarChart) -> list[float]:
    """Return where the bars end, and then each column: as far apart as their texts are long."""
    if not chart.columns:
        return [COLUMNS_END]
    rows = [bar.cells for section in chart.sections for bar in section.bars]
    texts = ([_heading(column), *(cell_text(row[at], column.show) for row in rows)]
             for at, column in enumerate(chart.columns))
    ends = list(accumulate((max(map(len, text)) + GAP_CHARACTERS for text in texts), initial=0))
    width = max(LEAST_COLUMNS, ends[-1] * CELL_CHARACTER)
    return [COLUMNS_END - width * (1 - end / ends[-1]) for end in ends]


def _heading(column: Column) -> str:
    return f"{column.title} ({column.unit})" if column.unit else column.title


def _draw_section(
    axes: Axes, section: BarSection, chart: BarChart, top: int, places: list[float],
) -> None:
    """Draw a heading at ``top``, the bars below it, and lines across the bars."""
    across, show = axes.get_yaxis_transform(), chart.x.show
    if top:
        axes.axhline(top - 0.5, color=LIGHT_GREY, linewidth=0.8)
    if section.title:
        axes.text(-0.01, top, section.title, transform=across, ha="right", va="center",
                  fontsize=SMALL + 1, fontweight="bold")
    first = top + bool(section.title)
    for at, bar in enumerate(section.bars, start=first):
        _draw_bar(axes, bar, at, show)
        axes.text(-0.01, at, fill(bar.label, LONGEST_LABEL), transform=across, ha="right",
                  va="center", fontsize=SMALL + 1)
        for place, cell, column in zip(places, bar.cells, chart.columns, strict=True):
            axes.text(place, at, cell_text(cell, column.show), transform=across, ha="right",
                      va="center", fontsize=SMALL + 1)
    for value, look in section.lines:
        axes.plot([in_unit(value, show)] * 2, [top - 0.3, top + _slots(section) - 0.55],
                  **_of_line(look))


def _draw_bar(axes: Axes, bar: Bar, at: int, show: Show) -> None:
    end = 0.0
    for length, look in bar.segments:
        axes.barh(at, in_unit(length, show), left=end, height=0.62, linewidth=0,
                  color=look.colour, alpha=look.opacity)
        end += in_unit(length, show)
    if bar.whisker:
        ends = ends_in_unit(bar.whisker, show)
        axes.hlines(at, *ends, color=INK, linewidth=THIN)
        axes.vlines(ends, at - 0.16, at + 0.16, color=INK, linewidth=THIN)
    if bar.limit is not None:
        axes.vlines(in_unit(bar.limit, show), at - 0.4, at + 0.46, color=INK, linewidth=THIN,
                    linestyles=DASHES)
    if bar.below is not None:
        axes.hlines(at + 0.4, end - in_unit(bar.below, show), end, color=INK, linewidth=THICK)


def _of_line(look: Look) -> dict[str, Any]:
    return {"color": look.colour, "linewidth": look.width, "alpha": look.opacity,
            "linestyle": ":" if look.dotted else "-", "solid_capstyle": "butt"}


def _handles(chart: BarChart) -> Iterator[Artist]:
    """Yield what stands for each look in the legend."""
    of_lines = {look for section in chart.sections for _, look in section.lines}
    for look in chart.legend:
        if look in of_lines:
            yield Line2D([], [], label=look.label, **_of_line(look))
        else:
            yield Patch(color=look.colour, alpha=look.opacity, label=look.label)

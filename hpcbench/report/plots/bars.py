"""Bars to compare, in sections, with lines across them and columns of values beside them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpcbench.report.plots.fit import short_labels, width
from hpcbench.report.plots.style import (
    GREY,
    LIGHT_GREY,
    SIDE_INCHES,
    SIZE_INCHES,
    SMALL,
    dress,
    ends_in_unit,
    in_unit,
    new_figure,
)
from hpcbench.views.cell_text import cell_text
from hpcbench.views.chart import Bar, BarChart, BarSection, Look
from hpcbench.views.table import Column, Show

ROW_INCHES, ABOVE_INCHES, BELOW_INCHES = 0.26, 1.15, 1.0
LEGEND_ROW_INCHES, HANDLE_INCHES = 0.22, 0.62
"""A row of the legend; a mark of it, and the space around."""
LEAST_COLUMNS, COLUMNS_END = 0.2, 0.985
"""How wide all columns are at least, and where they end: shares of the figure's width."""
GAP_INCHES = 0.25
SHORTEST_LABEL, LONGEST_LABEL = 0.9, 55
"""In inches, and in characters: of longer labels a part is left out."""
INK = "black"
THIN, THICK = 1.2, 2
DASHES = (0, (2, 1))


def draw_bars(chart: BarChart) -> Figure:
    """Return the figure of a bar chart."""
    slots = sum(map(_slots, chart.sections))
    inside = ROW_INCHES * (slots + 0.6)
    handles = list(_handles(chart))
    rows = _legend_rows(handles)
    above = ABOVE_INCHES + LEGEND_ROW_INCHES * rows
    height = above + inside + BELOW_INCHES
    figure = new_figure(chart, height)
    labels = _labels(chart)
    left, (right, *ends) = _left(chart, labels), _column_ends(chart)
    axes = figure.add_axes((left, BELOW_INCHES / height, right - left, inside / height))
    axes.set_ylim(slots - 0.3, -0.9)
    places = [(end - left) / (right - left) for end in ends]
    top = 0
    for section in chart.sections:
        _draw_section(axes, section, chart, top, places, labels)
        top += _slots(section)
    dress(axes, x_label=chart.x.label, y_label="")
    axes.grid(False, axis="y")
    axes.set_yticks([])
    axes.set_xlim(left=0)
    for end, column in zip(ends, chart.columns, strict=True):
        figure.text(end, 1 - (above - 0.09) / height, _heading(column), fontsize=SMALL,
                    color=GREY, ha="right", va="bottom")
    if handles:
        figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.013, 1 - 0.72 / height),
                      ncols=-(-len(handles) // rows), fontsize=SMALL + 1, frameon=False)
    return figure


def _slots(section: BarSection) -> int:
    """Return the rows of a section, its heading included."""
    return len(section.bars) + bool(section.title)


def _labels(chart: BarChart) -> dict[str, str]:
    """Return label -> what is shown of it, also for the headings of sections."""
    labels = list(dict.fromkeys(text for section in chart.sections for text in (
        section.title, *(bar.label for bar in section.bars))))
    return dict(zip(labels, short_labels(labels, LONGEST_LABEL), strict=True))


def _left(chart: BarChart, labels: dict[str, str]) -> float:
    """Return where the bars begin: the labels stand to the left of them."""
    longest = max([SHORTEST_LABEL, *(width(text, SMALL + 1) for text in labels.values()),
                   *(width(labels[section.title], SMALL + 1, bold=True)
                     for section in chart.sections)])
    return (1.6 * SIDE_INCHES + longest) / SIZE_INCHES[0]


def _legend_rows(handles: list[Artist]) -> int:
    """Return how many rows the legend has: its columns are as wide as what is in them."""
    if not handles:
        return 0
    inches = [width(str(handle.get_label()), SMALL + 1) + HANDLE_INCHES for handle in handles]
    for rows in range(1, len(handles)):  # matplotlib fills a column before the next one
        if sum(max(inches[at:at + rows]) for at in range(0, len(inches), rows)) <= SIZE_INCHES[0]:
            return rows
    return len(handles)


def _column_ends(chart: BarChart) -> list[float]:
    """Return where the bars end, and then each column: as far apart as their texts are long."""
    if not chart.columns:
        return [COLUMNS_END]
    rows = [bar.cells for section in chart.sections for bar in section.bars]
    texts = ([_heading(column), *(cell_text(row[at], column.show) for row in rows)]
             for at, column in enumerate(chart.columns))
    inches = [max(width(text, SMALL + 1) for text in column) + GAP_INCHES for column in texts]
    ends = list(accumulate(inches, initial=0.0))
    share = max(LEAST_COLUMNS, ends[-1] / SIZE_INCHES[0])
    return [COLUMNS_END - share * (1 - end / ends[-1]) for end in ends]


def _heading(column: Column) -> str:
    return f"{column.title} ({column.unit})" if column.unit else column.title


def _draw_section(
    axes: Axes, section: BarSection, chart: BarChart, top: int, places: list[float],
    labels: dict[str, str],
) -> None:
    """Draw a heading at ``top``, the bars below it, and lines across the bars."""
    across, show = axes.get_yaxis_transform(), chart.x.show
    if top:
        axes.axhline(top - 0.5, color=LIGHT_GREY, linewidth=0.8)
    if section.title:
        axes.text(-0.01, top, labels[section.title], transform=across, ha="right", va="center",
                  fontsize=SMALL + 1, fontweight="bold")
    first = top + bool(section.title)
    for at, bar in enumerate(section.bars, start=first):
        _draw_bar(axes, bar, at, show)
        axes.text(-0.01, at, labels[bar.label], transform=across, ha="right",
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
    """Yield what stands for each look in the legend, and for each mark that a bar has."""
    of_lines = {look for section in chart.sections for _, look in section.lines}
    for look in chart.legend:
        if look in of_lines:
            yield Line2D([], [], label=look.label, **_of_line(look))
        else:
            yield Patch(color=look.colour, alpha=look.opacity, label=look.label)
    bars = [bar for section in chart.sections for bar in section.bars]
    if chart.limit and any(bar.limit is not None for bar in bars):
        yield Line2D([], [], color=INK, linewidth=THIN, linestyle=DASHES, label=chart.limit)
    if chart.below and any(bar.below is not None for bar in bars):
        yield Line2D([], [], color=INK, linewidth=THICK, label=chart.below)
    if chart.whisker and any(bar.whisker for bar in bars):
        yield Line2D([], [], color=INK, linewidth=THIN, marker="|", markevery=[0, -1],
                     label=chart.whisker)

"""Lines above an x axis, in panels beside one another."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcbench.report.plots.style import (
    GREY,
    MARKERS,
    SMALL,
    TEXT,
    dress,
    ends_in_unit,
    in_unit,
    log2_axis,
    new_figure,
    plain_formatter,
    plain_log_axis,
)
from hpcbench.views.chart import COLOURS, Axis, Line, LineChart, Panel, Point, Scale
from hpcbench.views.table import Range, Show

Box = tuple[float, float, float, float]
ALONE: Box = (0.085, 0.22, 0.88, 0.6)
SHADES = (0.08, 0.2)
"""Of spans that are shaded, in turn."""
GAP = 0.105
"""Between panels, in shares of the figure's width: the second one's numbers and label."""


def draw_lines(chart: LineChart) -> Figure:
    """Return the figure of a line chart."""
    figure = new_figure(chart)
    for box, panel in zip(_boxes(len(chart.panels)), chart.panels, strict=True):
        _draw_panel(figure.add_axes(box), panel, chart.x)
    _legend(figure)
    return figure


def _boxes(panels: int) -> list[Box]:
    """Return where the panels are, in shares of the figure."""
    if panels == 1:
        return [ALONE]
    width = (0.97 - 0.085 - GAP * (panels - 1)) / panels
    return [(0.085 + at * (width + GAP), 0.25, width, 0.54) for at in range(panels)]


def _draw_panel(axes: Axes, panel: Panel, x: Axis) -> None:
    show = panel.y.show
    if panel.reference:
        middle = panel.reference.middle
        axes.axhspan(*ends_in_unit(panel.reference, show), color=GREY, alpha=0.15, linewidth=0)
        axes.axhline(in_unit(panel.reference.least if middle is None else middle, show),
                     color=GREY, linewidth=1, linestyle="--")
    for number, span in enumerate(panel.spans):
        axes.axvspan(*span, color=GREY, alpha=SHADES[number % len(SHADES)], linewidth=0)
    for index, line in enumerate(panel.lines):
        if line.points:
            _draw_line(axes, line, show, index, marker=MARKERS[index % len(MARKERS)]
                       if panel.has_marks else "")
    dress(axes, x_label=x.label, y_label=panel.y.label)
    axes.set_title(panel.title, fontsize=TEXT, loc="left")
    if panel.y.limits:
        axes.set_ylim(*ends_in_unit(panel.y.limits, show))
    places = sorted({place for line in panel.lines for place, _ in line.points})
    if places:
        _scale(axes, x, panel.y, places)
        return
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, panel.empty, transform=axes.transAxes, ha="center", va="center",
              fontsize=TEXT, color=GREY)


def _draw_line(axes: Axes, line: Line, show: Show, index: int, *, marker: str) -> None:
    """Draw points, their intervals, and the band around them; of one point a wide bar."""
    colour = COLOURS[index % len(COLOURS)]
    places = [place for place, _ in line.points]
    points = [point for _, point in line.points]
    axes.plot(places, [in_unit(point.value, show) for point in points], color=colour,
              marker=marker, markersize=5, linewidth=1.8, linestyle="-" if line.is_joined else "",
              label=line.label)
    intervals = [_ends(point, point.interval, show) for point in points]
    axes.vlines(places, *zip(*intervals, strict=True), color=colour, linewidth=1.2)
    if all(point.band is None for point in points):
        return
    lows, highs = zip(*(_ends(point, point.band, show) for point in points), strict=True)
    if len(places) > 1:
        axes.fill_between(places, lows, highs, color=colour, alpha=0.18, linewidth=0)
    else:
        axes.vlines(places, lows, highs, color=colour, alpha=0.4, linewidth=5)


def _ends(point: Point, span: Range | None, show: Show) -> tuple[float, float]:
    """Return the ends of a range; the value twice where there is none."""
    return ends_in_unit(span or Range(point.value, point.value), show)


def _scale(axes: Axes, x: Axis, y: Axis, places: list[float]) -> None:
    if x.scale is Scale.LOG2:
        log2_axis(axes, places, x.show)
    if y.scale is Scale.LOG:
        plain_log_axis(axes)
    else:
        axes.yaxis.set_major_formatter(plain_formatter())


def _legend(figure: Figure) -> None:
    """Name the lines where there are several: beside the title, or in a panel that is alone.

    Panels that have no line in common name their own.
    """
    first = figure.axes[0]
    handles, labels = first.get_legend_handles_labels()
    named = [set(axes.get_legend_handles_labels()[1]) for axes in figure.axes]
    if all(named) and not set.intersection(*named):
        for axes in figure.axes:
            axes.legend(fontsize=SMALL, frameon=False)
        return
    if len(handles) < 2:
        return
    if len(figure.axes) == 1:
        first.legend(fontsize=SMALL + 1, frameon=False, ncols=min(len(handles), 6))
        return
    longest = max(map(len, labels))
    figure.legend(handles, labels, loc="upper right", bbox_to_anchor=(0.985, 0.985),
                  ncols=3 if longest <= 18 else 2 if longest <= 30 else 1,
                  fontsize=SMALL + 1, frameon=False)

"""Names of lines at their right ends, where a reader looks first, without overlaps.

Lines above an x axis, in panels beside one another; in a narrow figure one above the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from hpcbench.report.plots.style import (
    GREY,
    MARKERS,
    POINTS,
    Style,
    dress,
    ends_in_unit,
    in_unit,
    legend_rows,
    log2_axis,
    make_room_for_numbers,
    new_figure,
    plain_formatter,
    plain_log_axis,
    width,
)
from hpcbench.views.chart import COLOURS, Axis, ChartPoint, Curve, Level, LineChart, Panel, Scale
from hpcbench.views.table import Range, Show

MOST_LINES = 4
MOST_SHARE = 0.3
"""Longer names, as a share of a panel of a figure's width, stand in a legend."""
LINE_SPACE = 1.25
"""Heights of a font between two names."""
BESIDE_INCHES = 0.08


def room_for_ends(panels: Sequence[Panel], style: Style) -> float:
    """Return how many inches the names at the ends take; 0 where a legend is clearer.

    That is where there is one line, or many, or where lines end at different places.
    """
    drawn = [[line for line in panel.lines if line.points] for panel in panels]
    names = {line.label for lines in drawn for line in lines}
    if len(names) < 2 or any(len(lines) > MOST_LINES for lines in drawn):
        return 0.0
    if not all(map(_end_together, drawn)):
        return 0.0
    room = max(width(name, style.row) for name in names) + BESIDE_INCHES
    beside = 1 if style.is_narrow else len(panels)
    return room if room <= MOST_SHARE * style.width / beside else 0.0


def _end_together(lines: Sequence[Curve]) -> bool:
    ends = {line.points[-1][0] for line in lines}
    return len(ends) <= 1 and all(line.is_joined and line.label for line in lines)


def label_ends(axes: Axes, panel: Panel, style: Style) -> None:
    """Write the names of a panel's lines beside their ends, in their colours."""
    axes.get_ylim()  # settles the limits, which the places of the names follow from
    box, dpi = axes.get_window_extent(), axes.figure.dpi
    width_inches, height_inches = box.width / dpi, box.height / dpi
    ends = [(at, line) for at, line in enumerate(panel.lines) if line.points]
    heights = [axes.transAxes.inverted().transform(axes.transData.transform(
        (line.points[-1][0], in_unit(line.points[-1][1].value, panel.y.show))))[1] * height_inches
        for _, line in ends]
    apart = spread(heights, LINE_SPACE * style.row / POINTS, height_inches)
    for (at, line), height in zip(ends, apart, strict=True):
        axes.text(1 + BESIDE_INCHES / 2 / width_inches, height / height_inches, line.label,
                  transform=axes.transAxes, fontsize=style.row, va="center",
                  color=COLOURS[at % len(COLOURS)])


def spread(heights: Sequence[float], space: float, most: float) -> list[float]:
    """Return the heights, moved upwards as far as keeps them ``space`` apart; their order stays.

    Those that would be above ``most`` are moved down, and push those below them.
    """
    order = sorted(range(len(heights)), key=lambda at: heights[at])
    moved = list(heights)
    for below, above in zip(order, order[1:], strict=False):
        moved[above] = max(moved[above], moved[below] + space)
    highest = most
    for at in reversed(order):
        moved[at] = min(moved[at], highest)
        highest = moved[at] - space
    return moved


SHADES = (0.08, 0.2)
"""Of spans that are shaded, in turn."""
LEFT, RIGHT, GAP, ABOVE, INSIDE, BELOW = 0.94, 0.3, 1.1, 1.0, 3.4, 1.1
"""Inches around panels, and between the second one's numbers and label and the first one."""
NARROW_LEFT, NARROW_RIGHT, NARROW_GAP, NARROW_ABOVE, NARROW_INSIDE, NARROW_BELOW = (
    0.62, 0.14, 0.24, 0.08, 1.45, 0.42)
HANDLE_INCHES = 0.5


def draw_lines(chart: LineChart, style: Style) -> Figure:
    """Return the figure of a line chart."""
    panels = [panel for panel in chart.panels if not style.is_narrow or any(
        line.points for line in panel.lines)] or list(chart.panels[:1])
    room = room_for_ends(panels, style)
    names = [] if room else _names(panels)
    rows = legend_rows([width(name, style.row) + HANDLE_INCHES for name in names], style.width)
    figure = _figure(chart, panels, style, room, rows)
    places = sorted({place for panel in panels for line in panel.lines for place, _ in line.points})
    for axes, panel in zip(figure.axes, panels, strict=True):
        _draw_panel(axes, panel, chart.x, places, style)
    lefts = [NARROW_LEFT] * len(panels) if style.is_narrow else [LEFT, *[GAP] * (len(panels) - 1)]
    make_room_for_numbers(figure.axes, lefts, style)
    for axes, panel in zip(figure.axes, panels, strict=True):
        if room:
            label_ends(axes, panel, style)
    if style.is_narrow:
        for axes in figure.axes[:-1]:
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
    if names:
        _legend(figure, names, rows, style)
    elif not room:
        for axes in figure.axes:
            if len(axes.get_legend_handles_labels()[1]) > 1:
                axes.legend(fontsize=style.small, frameon=False)
    return figure


def _names(panels: Sequence[Panel]) -> list[str]:
    """Return what one legend of all panels names; nothing where each panel has lines of its own."""
    named = [[line.label for line in panel.lines if line.points] for panel in panels]
    names = list(dict.fromkeys(label for labels in named for label in labels if label))
    if len(panels) > 1 and all(named) and not set.intersection(*map(set, named)):
        return []
    return names if len(names) > 1 else []


def _figure(
    chart: LineChart, panels: Sequence[Panel], style: Style, room: float, rows: int,
) -> Figure:
    """Return a figure with the axes of each panel; ``room`` inches are right of each of them."""
    count = len(panels)
    if style.is_narrow:
        above = NARROW_ABOVE + style.legend_row * rows
        height = above + count * NARROW_INSIDE + (count - 1) * NARROW_GAP + NARROW_BELOW
        figure = new_figure(chart, style, height)
        across = style.width - NARROW_LEFT - NARROW_RIGHT - room
        for at in range(count):
            bottom = NARROW_BELOW + (count - 1 - at) * (NARROW_INSIDE + NARROW_GAP)
            figure.add_axes(
                (NARROW_LEFT / style.width, bottom / height, across / style.width,
                 NARROW_INSIDE / height), sharex=figure.axes[0] if at else None)
        return figure
    above = ABOVE + style.legend_row * rows
    height = above + INSIDE + BELOW
    figure = new_figure(chart, style, height)
    across = (style.width - LEFT - RIGHT - GAP * (count - 1)) / count
    for at in range(count):
        figure.add_axes(((LEFT + at * (across + GAP)) / style.width, BELOW / height,
                         (across - room) / style.width, INSIDE / height))
    return figure


def _draw_panel(
    axes: Axes, panel: Panel, x: Axis, places: list[float], style: Style,
) -> None:
    show = panel.y.show
    if panel.reference:
        middle = panel.reference.middle
        axes.axhspan(*ends_in_unit(panel.reference, show), color=GREY, alpha=0.15, linewidth=0)
        axes.axhline(in_unit(panel.reference.least if middle is None else middle, show),
                     color=GREY, linewidth=1, linestyle="--")
    for number, shade in enumerate(SHADES):
        _shade(axes, panel.spans[number::len(SHADES)], shade)
    for index, line in enumerate(panel.lines):
        if line.points:
            marker = MARKERS[index % len(MARKERS)] if panel.has_marks else ""
            _draw_line(axes, line, show, index, style, marker=marker)
    for level in panel.levels:
        _draw_level(axes, level, show, style)
    dress(axes, style, x_label=x.label, y_label=panel.y.label)
    if not style.is_narrow:
        # a stated place: else all texts of ticks are measured to find one above them
        axes.set_title(panel.title, fontsize=style.text, loc="left", y=1.0)
    if panel.y.limits:
        axes.set_ylim(*ends_in_unit(panel.y.limits, show))
    if any(line.points for line in panel.lines):
        _scale(axes, x, panel.y, places, style)
        return
    axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
    axes.grid(False)
    axes.text(0.5, 0.5, panel.empty, transform=axes.transAxes, ha="center", va="center",
              fontsize=style.text, color=GREY)


def _shade(axes: Axes, spans: Sequence[tuple[float, float]], opacity: float) -> None:
    """Shade spans of x from the bottom to the top, as one patch: of one each, 200 take 0.2 s."""
    if spans:
        shapes = Path.make_compound_path(*(
            Path([(begin, 0), (end, 0), (end, 1), (begin, 1), (begin, 0)], closed=True)
            for begin, end in spans))
        axes.add_patch(PathPatch(shapes, color=GREY, alpha=opacity, linewidth=0,
                                 transform=axes.get_xaxis_transform()))
        axes.autoscale_view(scaley=False)


def _draw_line(
    axes: Axes, line: Curve, show: Show, index: int, style: Style, *, marker: str,
) -> None:
    """Draw points, their intervals, and the band around them; of one point a wide bar."""
    colour = COLOURS[index % len(COLOURS)]
    places = [place for place, _ in line.points]
    points = [point for _, point in line.points]
    axes.plot(places, [in_unit(point.value, show) for point in points], color=colour,
              marker=marker, markersize=style.marker, linewidth=style.line,
              linestyle="-" if line.is_joined else "", label=line.label)
    intervals = [_ends(point, point.interval, show) for point in points]
    axes.vlines(places, *zip(*intervals, strict=True), color=colour, linewidth=1.2)
    if all(point.band is None for point in points):
        return
    lows, highs = zip(*(_ends(point, point.band, show) for point in points), strict=True)
    if len(places) > 1:
        axes.fill_between(places, lows, highs, color=colour, alpha=0.18, linewidth=0)
    else:
        axes.vlines(places, lows, highs, color=colour, alpha=0.4, linewidth=5)


def _draw_level(axes: Axes, level: Level, show: Show, style: Style) -> None:
    """Draw a line across the panel, and what it is just above its left end."""
    height = in_unit(level.value, show)
    axes.axhline(height, color=GREY, linewidth=1.2, linestyle=":" if level.dotted else "--")
    axes.annotate(level.label, (0, height), xycoords=axes.get_yaxis_transform(), xytext=(3, 2),
                  textcoords="offset points", fontsize=style.tiny, color=GREY, va="bottom",
                  zorder=1.5,  # above bands, below what was measured
                  bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.3})


def _ends(point: ChartPoint, span: Range | None, show: Show) -> tuple[float, float]:
    """Return the ends of a range; the value twice where there is none."""
    return ends_in_unit(span or Range(point.value, point.value), show)


def _scale(axes: Axes, x: Axis, y: Axis, places: list[float], style: Style) -> None:
    if x.scale is Scale.LOG2:
        log2_axis(axes, places, x.show, style)
    if y.scale is Scale.LOG:
        plain_log_axis(axes, axes.yaxis)
    else:
        axes.yaxis.set_major_formatter(plain_formatter())


def _legend(figure: Figure, names: Sequence[str], rows: int, style: Style) -> None:
    """Name the lines in rows above the panels."""
    named = {label: handle for axes in figure.axes
             for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    height = figure.get_figheight()
    from_top = 0.0 if style.is_narrow else 0.66
    figure.legend([named[name] for name in names], names, loc="upper left",
                  bbox_to_anchor=(0.0 if style.is_narrow else 0.013, 1 - from_top / height),
                  ncols=-(-len(names) // rows), fontsize=style.row, frameon=False)

"""Lines and rooflines, in panels beside one another; in a narrow figure one above the other.

Names of lines stand at their right ends, where a reader looks first, without overlaps."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from hpcbench.report.plots.style import (
    GREY,
    HATCH,
    MARKERS,
    POINTS,
    PlainFormatter,
    Style,
    axes_at,
    dress,
    ends_in_unit,
    in_unit,
    legend_above,
    legend_rows,
    log2_axis,
    make_room_for_numbers,
    new_figure,
    plain_log_axis,
    width,
)
from hpcbench.views.chart import (
    COLOURS,
    Axis,
    ChartPoint,
    Curve,
    Level,
    LineChart,
    Panel,
    Roof,
    RooflineChart,
    RooflinePanel,
    Scale,
)
from hpcbench.views.table import Range, Show

MOST_LINES = 4
MOST_SHARE = 0.3
"""Longer names, as a share of the figure's width for each panel, stand in a legend."""
LINE_SPACE = 1.25
"""Heights of a font between two names."""
BESIDE_INCHES = 0.08


def room_for_ends(panels: Sequence[Panel], style: Style) -> float:
    """Return how many inches the names at the ends take; 0 where a legend is clearer.

    That is where there is one line, or many, or long names, or lines end at different places."""
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
    spaced = space_out(heights, LINE_SPACE * style.row / POINTS, height_inches)
    for (at, line), height in zip(ends, spaced, strict=True):
        axes.text(1 + BESIDE_INCHES / 2 / width_inches, height / height_inches, line.label,
                  transform=axes.transAxes, fontsize=style.row, va="center",
                  color=line.colour or COLOURS[at % len(COLOURS)])


def space_out(heights: Sequence[float], space: float, most: float) -> list[float]:
    """Return the heights, moved upwards as far as keeps them ``space`` apart; their order stays.

    Those that would be above ``most`` are moved down, and push those below them."""
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
"""Opacities of shaded spans, in turn."""
WIDE, NARROW = (0.94, 0.3, 1.1, 1.0, 3.4, 1.1), (0.62, 0.14, 0.24, 0.08, 1.45, 0.42)
"""Inches: left, right, between panels, above, of a panel's height, below."""
HANDLE_INCHES = 0.5


def draw_lines(chart: LineChart, style: Style) -> Figure:
    panels = [panel for panel in chart.panels if not style.is_narrow or any(
        line.points for line in panel.lines)] or list(chart.panels[:1])
    room = room_for_ends(panels, style)
    names = [] if room else _names(panels)
    rows = legend_rows([width(name, style.row) + HANDLE_INCHES for name in names], style.width)
    figure = _figure(chart, panels, style, room, rows)
    places = sorted({place for panel in panels for line in panel.lines for place, _ in line.points})
    for axes, panel in zip(figure.axes, panels, strict=True):
        _draw_panel(axes, panel, chart.x, places, style)
    left, gap = (NARROW[0], NARROW[0]) if style.is_narrow else (WIDE[0], WIDE[2])
    make_room_for_numbers(figure.axes, [left, *[gap] * (len(panels) - 1)], style)
    for axes, panel in zip(figure.axes, panels, strict=True):
        if room:
            label_ends(axes, panel, style)
    if style.is_narrow:
        for axes in figure.axes[:-1]:
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
    if names:
        named = _handles(figure)
        legend_above(figure, [named[name] for name in names], rows, 0.66, style)
    elif not room:
        for axes in figure.axes:
            if len(axes.get_legend_handles_labels()[1]) > 1:
                axes.legend(fontsize=style.small, frameon=False)
    return figure


def _names(panels: Sequence[Panel]) -> list[str]:
    """Return the names of a legend of all panels; none where each panel has lines of its own."""
    named = [[line.label for line in panel.lines if line.points] for panel in panels]
    names = list(dict.fromkeys(label for labels in named for label in labels if label))
    if len(panels) > 1 and all(named) and not set.intersection(*map(set, named)):
        return []
    return names if len(names) > 1 else []


def _figure(
    chart: LineChart, panels: Sequence[Panel], style: Style, room: float, rows: int,
) -> Figure:
    """Return a figure with the axes of each panel; ``room`` inches are right of each of them."""
    left, right, gap, above, inside, below = NARROW if style.is_narrow else WIDE
    others, above = len(panels) - 1, above + style.legend_row * rows
    across = style.width - left - right
    if style.is_narrow:
        figure = new_figure(chart, style, above + inside + others * (inside + gap) + below)
        for at in range(len(panels)):
            axes_at(figure, left, below + (others - at) * (inside + gap), across - room, inside,
                    figure.axes[0] if at else None)
        return figure
    figure = new_figure(chart, style, above + inside + below)
    across = (across - gap * others) / len(panels)
    for at in range(len(panels)):
        axes_at(figure, left + at * (across + gap), below, across - room, inside)
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
    axes.text(0.5, 0.5, textwrap.fill(panel.empty, EMPTY_CHARACTERS),
              transform=axes.transAxes, ha="center", va="center", fontsize=style.text, color=GREY)


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
    colour = line.colour or COLOURS[index % len(COLOURS)]
    places = [place for place, _ in line.points]
    points = [point for _, point in line.points]
    joint = "--" if line.is_predicted else "-"
    axes.plot(places, [in_unit(point.value, show) for point in points], color=colour,
              marker="" if line.is_predicted else marker, markersize=style.marker,
              linewidth=style.line, linestyle=joint if line.is_joined else "", label=line.label)
    intervals = [_ends(point, point.interval, show) for point in points]
    axes.vlines(places, *zip(*intervals, strict=True), color=colour, linewidth=1.2)
    if all(point.band is None for point in points):
        return
    lows, highs = zip(*(_ends(point, point.band, show) for point in points), strict=True)
    if len(places) > 1:
        axes.fill_between(places, lows, highs, color=colour, alpha=0.18, linewidth=0)
        if line.hatched:
            axes.fill_between(places, lows, highs, facecolor="none", edgecolor=colour, alpha=0.5,
                              linewidth=0, hatch=HATCH)
    else:
        axes.vlines(places, lows, highs, color=colour, alpha=0.4, linewidth=5)


def _draw_level(axes: Axes, level: Level, show: Show, style: Style) -> None:
    """Draw a line across the panel, and its label just above its left end."""
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
        axes.yaxis.set_major_formatter(PlainFormatter())


def _handles(figure: Figure) -> dict[str, Artist]:
    return {label: handle for axes in figure.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}


ROOFLINE_LEFT, ROOFLINE_GAP, ROOFLINE_BELOW, ROOFLINE_LEGEND = 0.88, 0.55, 1.08, 7.2
ROOFLINE_HEIGHT, ROOFLINE_INSIDE, ROOFLINE_ACROSS = 5.4, 3.4, 6.27
NARROW_ROOFLINE_RIGHT, NARROW_ROOFLINE_INSIDE, NARROW_ROOFLINE_BELOW = 0.16, 1.8, 0.46
NARROW_LEGEND_ROW, NARROW_CHARACTERS = 0.145, 50
ROOM, ROOM_FOR_LABEL = 4.0, 12.0
"""Factors between the outermost values and the ends of the axes; the second one at the left."""
LEGEND_CHARACTERS = 46
EMPTY_CHARACTERS = 34


def draw_roofline(chart: RooflineChart, style: Style) -> Figure:
    figure, place = (_narrow_roofline if style.is_narrow else _wide_roofline)(chart, style)
    for at, (axes, panel) in enumerate(zip(figure.axes, chart.panels, strict=True)):
        is_first = at == 0 or style.is_narrow
        _draw_roofs(axes, panel, chart.y.show, chart.y.label if is_first else "", style)
    labelled = figure.axes if style.is_narrow else figure.axes[:1]
    left = NARROW[0] if style.is_narrow else ROOFLINE_LEFT
    make_room_for_numbers(labelled, [left] * len(labelled), style)
    named = _handles(figure)
    figure.legend(named.values(), named.keys(), loc="upper left", fontsize=style.small,
                  frameon=False, bbox_to_anchor=place,
                  borderaxespad=0.0 if style.is_narrow else None)
    return figure


def _wide_roofline(chart: RooflineChart, style: Style) -> tuple[Figure, tuple[float, float]]:
    """Return a figure with axes beside one another, and where its legend is."""
    figure = new_figure(chart, style, ROOFLINE_HEIGHT)
    count = max(len(chart.panels), 1)
    across = (ROOFLINE_ACROSS - ROOFLINE_GAP * (count - 1)) / count
    for at in range(len(chart.panels)):
        axes_at(figure, ROOFLINE_LEFT + at * (across + ROOFLINE_GAP), ROOFLINE_BELOW, across,
                ROOFLINE_INSIDE)
    return figure, (ROOFLINE_LEGEND / style.width, 0.85)


def _narrow_roofline(chart: RooflineChart, style: Style) -> tuple[Figure, tuple[float, float]]:
    """Return a figure with axes one above the other, and where its legend is, below them."""
    lines = sum(_spot_label(label, style).count("\n") + 1 for label in dict.fromkeys(
        spot.label for panel in chart.panels for spot in panel.spots))
    below = NARROW_LEGEND_ROW * lines + style.side
    each = NARROW_ROOFLINE_INSIDE + NARROW_ROOFLINE_BELOW
    figure = new_figure(chart, style, style.side * 2 + len(chart.panels) * each + below)
    for at in range(len(chart.panels)):
        axes_at(figure, NARROW[0], below + (len(chart.panels) - 1 - at) * each
                + NARROW_ROOFLINE_BELOW, style.width - NARROW[0] - NARROW_ROOFLINE_RIGHT,
                NARROW_ROOFLINE_INSIDE)
    return figure, (style.side / style.width, below / figure.get_figheight())


def _spot_label(label: str, style: Style) -> str:
    return textwrap.fill(label, NARROW_CHARACTERS if style.is_narrow else LEGEND_CHARACTERS)


def _draw_roofs(
    axes: Axes, panel: RooflinePanel, show: Show, y_label: str, style: Style,
) -> None:
    _limit(axes, panel, show)
    for axis in (axes.xaxis, axes.yaxis):
        plain_log_axis(axes, axis)
    dress(axes, style, x_label=panel.x.label, y_label=y_label)
    slopes = [in_unit(roof.rate, show) for roof in panel.roofs if roof.is_slope]
    flats = [in_unit(roof.rate, show) for roof in panel.roofs if not roof.is_slope]
    for roof in panel.roofs:
        _draw_roof(axes, roof, show, (slopes, flats), style)
    for spot in panel.spots:
        # neighbours have different shapes, so that one is seen below another
        shape = MARKERS[(spot.number + spot.number // len(COLOURS)) % len(MARKERS)]
        colour = spot.colour or COLOURS[spot.number % len(COLOURS)]
        axes.plot([spot.intensity], [in_unit(spot.rate, show)], linestyle="", marker=shape,
                  markersize=style.marker + 2, color=colour,
                  label=_spot_label(spot.label, style))


def _limit(axes: Axes, panel: RooflinePanel, show: Show) -> None:
    slopes = [roof.rate for roof in panel.roofs if roof.is_slope]
    flats = [roof.rate for roof in panel.roofs if not roof.is_slope]
    places = [spot.intensity for spot in panel.spots]
    places += [flat / slope for flat in flats for slope in slopes]
    rates = [spot.rate for spot in panel.spots] + flats
    axes.set_xlim(min(places) / ROOM_FOR_LABEL, max(places) * ROOM)
    axes.set_ylim(in_unit(min(rates), show) / ROOM, in_unit(max(rates), show) * ROOM)


def _draw_roof(
    axes: Axes, roof: Roof, show: Show, roofs: tuple[list[float], list[float]], style: Style,
) -> None:
    """Draw a roof as far as it limits: slopes up to the highest flat, flats from the first slope.

    ``roofs`` are the rates of all slopes and of all flats."""
    slopes, flats = roofs
    rate, dash = in_unit(roof.rate, show), ":" if roof.dotted else "-"
    low, high = axes.get_xlim()
    if roof.is_slope:
        end = min(high, max(flats, default=rate * high) / rate)
        axes.plot([low, end], [low * rate, end * rate], color=GREY, linewidth=1.4, linestyle=dash)
        _label_slope(axes, roof, rate, end, style)
        return
    start = max(low, rate / max(slopes)) if slopes else low
    axes.plot([start, high], [rate, rate], color=GREY, linewidth=1.4, linestyle=dash)
    axes.annotate(roof.label, (high, rate), xytext=(0, 3), textcoords="offset points", ha="right",
                  va="bottom", fontsize=style.tiny, color=GREY)


def _label_slope(axes: Axes, roof: Roof, rate: float, end: float, style: Style) -> None:
    """Write along a slope, from where it enters the panel."""
    low, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
    start = max(low, bottom / rate) * 1.5
    if start >= end:
        return
    (x0, y0), (x1, y1) = axes.transData.transform([(start, start * rate), (end, end * rate)])
    axes.annotate(roof.label, (start, start * rate), xytext=(-3, 4), textcoords="offset points",
                  rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)), rotation_mode="anchor",
                  ha="left", va="bottom", fontsize=style.tiny, color=GREY)

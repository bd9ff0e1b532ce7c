"""Rates by intensity below the ceilings of the machine, on logarithmic axes."""

from __future__ import annotations

import math
import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcbench.report.plots.style import (
    GREY,
    MARKERS,
    Style,
    dress,
    in_unit,
    make_room_for_numbers,
    new_figure,
    plain_log_axis,
)
from hpcbench.views.chart import COLOURS, Roof, RooflineChart, RooflinePanel
from hpcbench.views.table import Show

LEFT, WIDTH, GAP, HEIGHT_INCHES, BOTTOM, HEIGHT = 0.08, 0.57, 0.05, 5.4, 0.2, 0.63
NARROW_LEFT, NARROW_RIGHT, NARROW_INSIDE, NARROW_BELOW = 0.62, 0.16, 1.8, 0.46
NARROW_LEGEND_INCHES, NARROW_CHARACTERS = 0.145, 50
ROOM, ROOM_FOR_LABEL = 4.0, 12.0
"""Factors between the outermost values and the ends of the axes; the second one at the left."""
LEGEND_CHARACTERS = 46


def draw_roofline(chart: RooflineChart, style: Style) -> Figure:
    """Return the figure of a roofline chart."""
    figure, place = (_narrow_figure if style.is_narrow else _wide_figure)(chart, style)
    for at, (axes, panel) in enumerate(zip(figure.axes, chart.panels, strict=True)):
        is_first = at == 0 or style.is_narrow
        _draw_panel(axes, panel, chart.y.show, chart.y.label if is_first else "", style)
    if style.is_narrow:
        make_room_for_numbers(figure.axes, [NARROW_LEFT] * len(figure.axes), style)
    else:
        make_room_for_numbers(figure.axes[:1], [LEFT * style.width][:len(figure.axes)], style)
    named = {label: handle for axes in figure.axes
             for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="upper left", fontsize=style.small,
                  frameon=False, bbox_to_anchor=place,
                  borderaxespad=0.0 if style.is_narrow else None)
    return figure


def _wide_figure(chart: RooflineChart, style: Style) -> tuple[Figure, tuple[float, float]]:
    """Return a figure with axes beside one another, and where its legend is."""
    figure = new_figure(chart, style, HEIGHT_INCHES)
    count = max(len(chart.panels), 1)
    width = (WIDTH - GAP * (count - 1)) / count
    for at in range(len(chart.panels)):
        figure.add_axes((LEFT + at * (width + GAP), BOTTOM, width, HEIGHT))
    return figure, (LEFT + WIDTH + 0.005, BOTTOM + HEIGHT + 0.02)


def _narrow_figure(chart: RooflineChart, style: Style) -> tuple[Figure, tuple[float, float]]:
    """Return a figure with axes one above the other, and where its legend is, below them."""
    lines = sum(_spot_label(label, style).count("\n") + 1 for label in dict.fromkeys(
        spot.label for panel in chart.panels for spot in panel.spots))
    below = NARROW_LEGEND_INCHES * lines + style.side
    each = NARROW_INSIDE + NARROW_BELOW
    height = style.side * 2 + len(chart.panels) * each + below
    figure = new_figure(chart, style, height)
    for at in range(len(chart.panels)):
        bottom = below + (len(chart.panels) - 1 - at) * each + NARROW_BELOW
        figure.add_axes((NARROW_LEFT / style.width, bottom / height,
                         1 - (NARROW_LEFT + NARROW_RIGHT) / style.width, NARROW_INSIDE / height))
    return figure, (style.side / style.width, below / height)


def _spot_label(label: str, style: Style) -> str:
    return textwrap.fill(label, NARROW_CHARACTERS if style.is_narrow else LEGEND_CHARACTERS)


def _draw_panel(
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
        axes.plot([spot.intensity], [in_unit(spot.rate, show)], linestyle="",
                  marker=_marker(spot.number),
                  markersize=style.marker + 2,
                  color=COLOURS[spot.number % len(COLOURS)], label=_spot_label(spot.label, style))


def _marker(number: int) -> str:
    """Return a shape: neighbours have different ones, so that one is seen below another."""
    return MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]


def _limit(axes: Axes, panel: RooflinePanel, show: Show) -> None:
    """Show all marks, and where the roofs meet."""
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

    ``roofs`` are the rates of all slopes and of all flats.
    """
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

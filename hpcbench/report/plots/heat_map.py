"""A value for each row and column, as colour."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hpcbench.report.plots.style import (
    GREY,
    Style,
    dress,
    ends_in_unit,
    in_unit,
    new_figure,
    plain,
    plain_formatter,
)
from hpcbench.views.chart import HeatMap, Scale
from hpcbench.views.table import format_number

ROW_INCHES, LEAST_INCHES, MOST_INCHES = 0.45, 1.9, 3.5
NARROW_LEAST_INCHES, NARROW_MOST_INCHES = 1.35, 2.4
ABOVE_INCHES, BELOW_INCHES = 1.05, 1.0
NARROW_ABOVE_INCHES, NARROW_BELOW_INCHES = 0.3, 0.42
ACROSS, NARROW_ACROSS = (0.075, 0.8, 0.895, 0.018), (0.125, 0.655, 0.805, 0.025)
"""Where the values and the colour bar begin and how wide they are, in shares of the figure."""
MOST_NAMES = 16
"""Rows that can be named at an axis."""
MOST_NUMBERS = 8
"""Rows and columns of which each cell has room for its number."""
DARK = 0.5
"""Share of the colours that are so dark that only white can be read on them."""


def draw_heat_map(chart: HeatMap, style: Style) -> Figure:
    """Return the figure of a heat map, which has at least one column."""
    least, most, above, below, across = (
        (NARROW_LEAST_INCHES, NARROW_MOST_INCHES, NARROW_ABOVE_INCHES, NARROW_BELOW_INCHES,
         NARROW_ACROSS) if style.is_narrow else
        (LEAST_INCHES, MOST_INCHES, ABOVE_INCHES, BELOW_INCHES, ACROSS))
    inside = min(most, max(least, ROW_INCHES * len(chart.rows)))
    height = above + inside + below
    figure = new_figure(chart, style, height)
    bottom, share = below / height, inside / height
    axes = figure.add_axes((across[0], bottom, across[1], share))
    _draw_values(axes, chart, style)
    place = figure.add_axes((across[2], bottom, across[3], share))
    _colour_bar(figure, axes.images[0], place, chart, style)
    if (len(chart.rows) <= MOST_NUMBERS and chart.n_columns <= MOST_NUMBERS
            and not style.is_narrow):  # there a number is wider than its cell
        _write_values(axes, chart, style)
    _mark_spans(axes, chart, inside, style)
    for column in chart.breaks:
        axes.axvline(column - 0.5, color="white", linewidth=style.line, linestyle="--")
    return figure


def _draw_values(axes: Axes, chart: HeatMap, style: Style) -> None:
    values, rows = in_unit(chart.values, chart.colour.show), len(chart.rows)
    scale = LogNorm if chart.colour.scale is Scale.LOG else Normalize
    norm = scale(*ends_in_unit(chart.limits, chart.colour.show))
    axes.imshow(
        values, aspect="auto", cmap="viridis", interpolation="nearest", norm=norm,
        extent=(-0.5, values.shape[1] * chart.step - 0.5, rows - 0.5, -0.5))
    axes.set_xlim(-0.5, chart.n_columns - 0.5)
    dress(axes, style, x_label=chart.x.label, y_label=chart.y.label)
    axes.grid(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    named = range(0, rows, -(-rows // MOST_NAMES))
    axes.set_yticks(list(named), [str(chart.rows[row]) for row in named])


def _write_values(axes: Axes, chart: HeatMap, style: Style) -> None:
    """Write into each cell its value, where it has one."""
    values = in_unit(chart.values, chart.colour.show)
    shades = np.asarray(axes.images[0].norm(values), dtype=np.float64)
    for row, column in np.argwhere(np.isfinite(values)):
        axes.text(column * chart.step, row, format_number(float(values[row, column])),
                  ha="center", va="center", fontsize=style.row,
                  color="white" if shades[row, column] < DARK else "black")


def _colour_bar(
    figure: Figure, image: AxesImage, place: Axes, chart: HeatMap, style: Style,
) -> None:
    """Draw the scale of colours, with an arrow at the ends beyond which values lie."""
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[chart.outside]
    bar = figure.colorbar(image, cax=place, extend=extend, format=plain_formatter())
    bar.set_label(chart.colour.label, fontsize=style.text)
    bar.ax.tick_params(which="both", labelsize=style.row)
    bar.ax.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: _minor_label(value)))


def _minor_label(value: float) -> str:
    """Return the number where its first digit is 2 or 5: more labels would not fit."""
    text = plain(value)
    return text if text.lstrip("0.")[:1] in ("2", "5") else ""


def _mark_spans(axes: Axes, chart: HeatMap, inches: float, style: Style) -> None:
    """Draw a bar above the columns of each span, and say at the first one what they are."""
    top, above = axes.get_xaxis_transform(), 1 + 0.07 / inches
    for begin, end in chart.spans:
        axes.plot([begin - 0.5, end - 0.5], [above, above], color=GREY, linewidth=4,
                  transform=top, clip_on=False, solid_capstyle="butt")
        axes.axvline(end - 0.5, color="white", linewidth=style.line)
    if chart.spans:
        axes.text(chart.spans[0][0] - 0.5, 1 + 0.14 / inches, chart.span_title, transform=top,
                  fontsize=style.small, color=GREY, va="bottom")

"""Rows to compare: maps of colours, bars in sections with columns of values, points with words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hpcbench.records import dataclass
from hpcbench.report.plots.style import (
    GREY,
    HATCH,
    LIGHT_GREY,
    SIDE_INCHES,
    PlainFormatter,
    Style,
    axes_at,
    cut,
    dress,
    ends_in_unit,
    fitting,
    in_lines,
    in_unit,
    legend_above,
    legend_rows,
    new_figure,
    plain,
    plain_log_axis,
    short_labels,
    width,
)
from hpcbench.views.chart import (
    PLAIN,
    Bar,
    BarChart,
    BarSection,
    Dot,
    DotChart,
    HeatMap,
    Look,
    Scale,
)
from hpcbench.views.table import Show, cell_text, format_number

ROW_INCHES = 0.45
MAP, NARROW_MAP = (1.9, 3.5, 1.05, 1.0), (1.35, 2.4, 0.3, 0.42)
"""Inches of the values at least and at most, above and below."""
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
    least, most, above, below = NARROW_MAP if style.is_narrow else MAP
    inside = min(most, max(least, ROW_INCHES * len(chart.rows)))
    figure = new_figure(chart, style, above + inside + below)
    left, wide, beside, thick = (
        share * style.width for share in (NARROW_ACROSS if style.is_narrow else ACROSS))
    axes = axes_at(figure, left, below, wide, inside)
    _draw_values(axes, chart, style)
    _colour_bar(figure, axes.images[0], axes_at(figure, beside, below, thick, inside), chart, style)
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
    bar = figure.colorbar(image, cax=place, extend=extend, format=PlainFormatter())
    bar.set_label(chart.colour.label, fontsize=style.text)
    bar.ax.tick_params(which="both", labelsize=style.row)
    bar.ax.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: _minor_label(value)))


def _minor_label(value: float) -> str:
    """Return the number where its first digit is 2 or 5: more labels would not fit."""
    text = plain(value)
    return text if text.lstrip("0.")[:1] in ("2", "5") else ""


def _mark_spans(axes: Axes, chart: HeatMap, inches: float, style: Style) -> None:
    """Draw a bar above the columns of each span, and write their title at the first one."""
    top, above = axes.get_xaxis_transform(), 1 + 0.07 / inches
    for begin, end in chart.spans:
        axes.plot([begin - 0.5, end - 0.5], [above, above], color=GREY, linewidth=4,
                  transform=top, clip_on=False, solid_capstyle="butt")
        axes.axvline(end - 0.5, color="white", linewidth=style.line)
    if chart.spans:
        axes.text(chart.spans[0][0] - 0.5, 1 + 0.14 / inches, chart.span_title, transform=top,
                  fontsize=style.small, color=GREY, va="bottom")


def marked(label: str, mark: str) -> str:
    return f"{label} ({mark})" if mark else label


BARS, NARROW_BARS, TWO_LINES_INCHES = (0.26, 1.15, 1.0), (0.16, 0.06, 0.42), 0.36
"""Inches of a row, above and below; of a row whose label has two lines."""
BACKGROUND = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
"""Of a text that stands in front of lines."""
BESIDE_AXIS = 0.012
"""Where a text above a bar of a narrow figure begins: a share of the width of the axes."""
NARROW_SIDE = 0.16
"""Beside the bars of a narrow figure: half of the number at the end of the axis."""
HANDLE_INCHES = 0.62
"""A mark of the legend, and the space around."""
LEAST_COLUMNS, COLUMNS_END = 0.2, 0.985
"""How wide all columns are at least, and where they end: shares of the figure's width."""
GAP_INCHES = 0.25
SHORTEST_LABEL, LONGEST_BAR_LABEL, LONGEST_NARROW = 0.9, 55, 32
"""In inches, and in characters: of longer labels a part is left out."""
INK = "black"
THIN, THICK = 1.2, 2
DASHES = (0, (2, 1))


@dataclass(frozen=True, slots=True)
class _Rows:
    """How rows are laid out: a bar takes ``pitch`` rows, of which it is the last.

    ``ends`` are where columns of values end, in widths of the axes; ``labels``: label -> the text
    shown for it."""

    pitch: int
    ends: list[float]
    labels: dict[str, str]
    style: Style


def draw_bars(chart: BarChart, style: Style) -> Figure:
    labels = _labels(chart, style)
    has_two_lines = any("\n" in text for text in labels.values())
    pitch = 2 + has_two_lines if style.is_narrow else 1
    slots = sum(_slots(section, pitch) for section in chart.sections)
    handles = list(_handles(chart))
    rows = legend_rows([width(str(handle.get_label()), style.row) + HANDLE_INCHES
                        for handle in handles], style.width)
    row, above, below = NARROW_BARS if style.is_narrow else BARS
    row = TWO_LINES_INCHES if has_two_lines and not style.is_narrow else row
    inside, above = row * (slots + 0.6), above + style.legend_row * rows
    height = above + inside + below
    figure = new_figure(chart, style, height)
    left, (right, *ends) = _left(chart, labels, style), _column_ends(chart, style)
    axes = axes_at(figure, left * style.width, below, (right - left) * style.width, inside)
    axes.set_ylim(slots - 0.3, -0.9)
    places = _Rows(pitch, [(end - left) / (right - left) for end in ends], labels, style)
    top = 0
    for section in chart.sections:
        _draw_section(axes, section, chart, top, places)
        top += _slots(section, pitch)
    dress(axes, style, x_label=chart.x.label, y_label="")
    axes.grid(False, axis="y")
    axes.set_yticks([])
    axes.set_xlim(left=0)
    for end, column in zip(ends, chart.columns, strict=False):
        figure.text(end, 1 - (above - 0.09) / height, column.label, fontsize=style.small,
                    color=GREY, ha="right", va="bottom")
    if handles:
        legend_above(figure, handles, rows, 0.72, style)
    return figure


def _slots(section: BarSection, pitch: int) -> int:
    """Return the rows of a section, its heading included."""
    return pitch * len(section.bars) + bool(section.title)


def _labels(chart: BarChart, style: Style) -> dict[str, str]:
    """Return label -> the lines shown for it, also for the headings of sections, of one line."""
    bars = [*dict.fromkeys(bar.label for section in chart.sections for bar in section.bars)]
    titles = [*dict.fromkeys(section.title for section in chart.sections)]
    longest = LONGEST_NARROW if style.is_narrow else LONGEST_BAR_LABEL
    return {**dict(zip(titles, short_labels(titles, LONGEST_BAR_LABEL), strict=True)),
            **dict(zip(bars, in_lines(bars, longest), strict=True))}


def _left(chart: BarChart, labels: dict[str, str], style: Style) -> float:
    """Return where the bars begin, as a share of the width: labels are left of them, or above."""
    if style.is_narrow:
        return NARROW_SIDE / style.width
    bold = [labels[section.title] for section in chart.sections]
    bars = [bar for section in chart.sections for bar in section.bars]
    bold += [marked(labels[bar.label], bar.mark) for bar in bars if bar.mark]
    longest = max([SHORTEST_LABEL, *(width(text, style.row) for text in labels.values()),
                   *(width(text, style.row, bold=True) for text in bold)])
    return (1.6 * SIDE_INCHES + longest) / style.width


def _column_ends(chart: BarChart, style: Style) -> list[float]:
    """Return where the bars and then each column end, as shares of the width: texts just fit."""
    if style.is_narrow:
        return [1 - NARROW_SIDE / style.width]
    if not chart.columns:
        return [COLUMNS_END]
    rows = [bar.cells for section in chart.sections for bar in section.bars]
    texts = ([column.label, *(cell_text(row[at], column.show) for row in rows)]
             for at, column in enumerate(chart.columns))
    inches = [max(width(text, style.row) for text in column) + GAP_INCHES for column in texts]
    ends = list(accumulate(inches, initial=0.0))
    share = max(LEAST_COLUMNS, ends[-1] / style.width)
    return [COLUMNS_END - share * (1 - end / ends[-1]) for end in ends]


def _draw_section(
    axes: Axes, section: BarSection, chart: BarChart, top: int, places: _Rows,
) -> None:
    """Draw a heading at ``top``, the bars below it, and lines across the bars."""
    show, style = chart.x.show, places.style
    if top:
        axes.axhline(top - 0.5, color=LIGHT_GREY, linewidth=0.8)
    if section.title:
        axes.text(BESIDE_AXIS if style.is_narrow else -0.01, top, places.labels[section.title],
                  transform=axes.get_yaxis_transform(), ha="left" if style.is_narrow else "right",
                  va="center", fontsize=style.row, fontweight="bold",
                  bbox=BACKGROUND if style.is_narrow else None)
    first = top + bool(section.title)
    for number, bar in enumerate(section.bars):
        at = first + number * places.pitch
        _draw_bar(axes, bar, at + places.pitch - 1, show)
        _write_row(axes, bar, chart, at, places)
    end = top + _slots(section, places.pitch)
    for value, look in section.lines:
        axes.plot([in_unit(value, show)] * 2, [top - 0.3, end - 0.55], **_of_line(look))


def _write_row(axes: Axes, bar: Bar, chart: BarChart, at: int, places: _Rows) -> None:
    """Write a bar's label and values beside it; in a narrow figure, above it, only the first."""
    style, across = places.style, axes.get_yaxis_transform()
    label = marked(places.labels[bar.label], bar.mark)
    weight = "bold" if bar.mark else "normal"
    if style.is_narrow:
        value = ""
        if chart.columns and bar.cells[0] is not None:
            first = chart.columns[0]
            value = f"{cell_text(bar.cells[0], first.show)} {first.unit}".rstrip()
        middle = at + (places.pitch - 1.8) / 2
        for place, text, side in ((BESIDE_AXIS, label, "left"), (1.0, value, "right")):
            axes.text(place, middle, text, transform=across, ha=side, va="center",
                      color=bar.colour or INK if side == "left" else INK,
                      fontsize=style.row, fontweight=weight if side == "left" else "normal",
                      bbox=BACKGROUND)
        return
    axes.text(-0.01, at, label, transform=across, ha="right", va="center", fontsize=style.row,
              fontweight=weight, color=bar.colour or INK)
    for end, cell, column in zip(places.ends, bar.cells, chart.columns, strict=True):
        axes.text(end, at, cell_text(cell, column.show), transform=across, ha="right",
                  va="center", fontsize=style.row)


def _draw_bar(axes: Axes, bar: Bar, at: int, show: Show) -> None:
    end = 0.0
    for length, look in bar.segments:
        axes.barh(at, in_unit(length, show), left=end, height=0.62, **_of_area(look))
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


def _of_area(look: Look) -> dict[str, Any]:
    hatch = {"hatch": HATCH, "edgecolor": "white"} if look.hatched else {}
    return {"facecolor": look.colour, "alpha": look.opacity, "linewidth": 0, **hatch}


def _handles(chart: BarChart) -> Iterator[Artist]:
    """Yield the legend's handle of each `Look`, and of each mark that a bar has."""
    of_lines = {look for section in chart.sections for _, look in section.lines}
    for look in chart.legend:
        if look in of_lines:
            yield Line2D([], [], label=look.label, **_of_line(look))
        else:
            yield Patch(**_of_area(look), label=look.label)
    bars = [bar for section in chart.sections for bar in section.bars]
    if chart.limit and any(bar.limit is not None for bar in bars):
        yield Line2D([], [], color=INK, linewidth=THIN, linestyle=DASHES, label=chart.limit)
    if chart.below and any(bar.below is not None for bar in bars):
        yield Line2D([], [], color=INK, linewidth=THICK, label=chart.below)
    if chart.whisker and any(bar.whisker for bar in bars):
        yield Line2D([], [], color=INK, linewidth=THIN, marker="|", markevery=[0, -1],
                     label=chart.whisker)


DOTS, NARROW_DOTS = (0.32, 1.05, 1.0), (0.32, 0.06, 0.42)
"""Inches of a row, above and below."""
LEAST_ACROSS = 1.5
"""How wide the axes are at least, in inches."""
LONGEST_DOT_LABEL = 60
ABOVE_MARK, TEXT_LINE = 0.135, 0.135
"""Inches of a text of a narrow figure above its mark, and of a line of text."""
PLUS_MINUS = "+-"
"""The unit of a column begins with it if its values give the precision of those before them."""


def draw_dots(chart: DotChart, style: Style) -> Figure:
    rows = chart.rows[::-1]
    axes = (_narrow_axes if style.is_narrow else _wide_axes)(chart, rows, style)
    for at, row in enumerate(rows):
        _draw_row(axes, row, at, chart.x.show)
    if chart.reference is not None:
        axes.axvline(in_unit(chart.reference, chart.x.show), color=INK, linewidth=THIN, zorder=1)
    if chart.x.scale is Scale.LOG:
        plain_log_axis(axes, axes.xaxis)
    else:
        axes.set_xlim(left=0)
    dress(axes, style, x_label=chart.x.label, y_label="")
    axes.grid(False, axis="y")
    return axes.get_figure(root=True) or Figure()


def _wide_axes(chart: DotChart, rows: Sequence[Dot], style: Style) -> Axes:
    """Return axes with the labels of rows at their left, and the values at their right."""
    row_inches, above, below = DOTS
    inside = row_inches * (len(rows) + 0.4)
    figure = new_figure(chart, style, above + inside + below)
    texts = ["".join(_value_texts(chart, row)) for row in rows]
    short = in_lines([row.label for row in rows], LONGEST_DOT_LABEL)
    labels = [marked(label, row.mark) for label, row in zip(short, rows, strict=True)]
    heading = ", ".join(
        column.title for at, column in enumerate(chart.columns) if column.title and (
            not column.optional or any(row.cells[at] is not None for row in rows)))
    left = 2 * SIDE_INCHES + max(width(label, style.row, bold=bool(row.mark))
                                 for label, row in zip(labels, rows, strict=True))
    right = 2 * SIDE_INCHES + max(width(text, style.row) for text in (*texts, heading))
    across = max(style.width - left - right, LEAST_ACROSS)
    axes = axes_at(figure, left, below, across, inside)
    beside = 1 + SIDE_INCHES / across
    for at, text in enumerate(texts):
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
    """Return axes with labels and values above the marks of rows, on a line each where both do not
    fit into one."""
    room = style.width - 2 * NARROW_SIDE
    labels = [marked(row.label, row.mark) for row in rows]
    values = [cut("".join(_value_texts(chart, row)), room, style.row) for row in rows]
    is_split = any(width(label, style.row, bold=bool(row.mark)) + width(value, style.row) + 0.1
                   > room for row, label, value in zip(rows, labels, values, strict=True))
    row_inches, above, below = NARROW_DOTS
    row_inches += TEXT_LINE * is_split
    inside = row_inches * (len(rows) + 0.2)
    figure = new_figure(chart, style, above + inside + below)
    axes = axes_at(figure, NARROW_SIDE, below, room, inside)
    for at, row in enumerate(rows):
        label = fitting(labels, at, room, style.row, bold=bool(row.mark))
        for place, text, side, inches in (
                (BESIDE_AXIS, label, "left", ABOVE_MARK + TEXT_LINE * is_split),
                (1.0, values[at], "right", ABOVE_MARK)):
            axes.text(place, at + inches / row_inches, text, transform=axes.get_yaxis_transform(),
                      ha=side, va="center", fontsize=style.row,
                      fontweight="bold" if row.mark and side == "left" else "normal",
                      bbox=BACKGROUND)
    axes.set_yticks([])
    axes.set_ylim(-0.4, len(rows) - 0.2)
    return axes


def _draw_row(axes: Axes, row: Dot, at: int, show: Show) -> None:
    """Draw a band, an interval and a point, one above the other."""
    point = row.point
    for span, opacity, thick in ((point.band, 0.35, 9.0), (point.interval, 1.0, 2.5)):
        if span:
            axes.hlines(at, *ends_in_unit(span, show), color=row.colour or PLAIN, alpha=opacity,
                        linewidth=thick)
    axes.plot(in_unit(point.value, show), at, marker="o", markersize=6, color=row.colour or PLAIN)


def _value_texts(chart: DotChart, row: Dot) -> Iterator[str]:
    """Yield ``12.3 us``, `` +-1.0%`` and ``, 4.5 GB/s``."""
    for at, (column, cell) in enumerate(zip(chart.columns, row.cells, strict=True)):
        if cell is None:
            continue
        text = cell_text(cell, column.show)
        if column.unit.startswith(PLUS_MINUS):
            yield f" {PLUS_MINUS}{text}{column.unit.removeprefix(PLUS_MINUS)}"
        else:
            yield f"{', ' if at else ''}{text} {column.unit}".rstrip()

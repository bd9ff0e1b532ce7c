"""One style for all figures: sizes, axes, texts that fit, and the footer.

Figures are made with matplotlib's object interface: no pyplot, no global state, nothing to close.
Texts are measured here, not by matplotlib's layout engine, which takes 1.4 times as long."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from os.path import commonprefix
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from matplotlib import rcParams, rcParamsDefault
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.markers import TICKDOWN, TICKLEFT, MarkerStyle
from matplotlib.textpath import text_to_path
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    Formatter,
    FuncFormatter,
    LogLocator,
    NullLocator,
)
from matplotlib.transforms import Bbox

from hpcbench.records import dataclass
from hpcbench.trace.container import whole_file
from hpcbench.views.chart import Chart
from hpcbench.views.table import NUMBERS, Range, Show, cell_text, format_number

POINTS = 72
LONGEST_MEASURED = 400
"""Nothing longer fits any figure; measuring a text of 10 kB would take long."""
DOTS = "..."
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")


def width(text: str, size: float, *, bold: bool = False) -> float:
    """Return how wide the longest line of a text is, in inches; ``size`` is in points."""
    return max((_measured(line[:LONGEST_MEASURED], size, bold=bold)
                for line in text.split("\n") if line), default=0.0)


@lru_cache(maxsize=4096)
def _measured(line: str, size: float, *, bold: bool) -> float:
    font = FontProperties(size=size, weight="bold" if bold else "normal")
    points, *_ = text_to_path.get_text_width_height_descent(line, font, ismath=False)
    return float(points) / POINTS


def legend_rows(inches: Sequence[float], room: float) -> int:
    """Return how many rows a legend has: its columns are as wide as their entries."""
    for rows in range(1, len(inches)):  # matplotlib fills a column before the next one
        if sum(max(inches[at:at + rows]) for at in range(0, len(inches), rows)) <= room:
            return rows
    return len(inches)


def legend_above(
    figure: Figure, handles: Sequence[Artist], rows: int, from_top: float, style: Style,
) -> None:
    """Name handles in rows above the axes; a figure with headings has ``from_top`` inches of them.
    """
    left, from_top = (0.0, 0.0) if style.is_narrow else (0.013, from_top)
    figure.legend(handles=handles, loc="upper left", ncols=-(-len(handles) // rows),
                  bbox_to_anchor=(left, 1 - from_top / figure.get_figheight()),
                  fontsize=style.row, frameon=False)


def cut(text: str, inches: float, size: float, *, bold: bool = False) -> str:
    """Return the text, or as much of its beginning as fits, with dots."""
    if width(text, size, bold=bold) <= inches and len(text) <= LONGEST_MEASURED:
        return text
    fits, too_long = 0, min(len(text), LONGEST_MEASURED)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if width(f"{text[:middle]} {DOTS}", size, bold=bold) <= inches:
            fits = middle
        else:
            too_long = middle
    return f"{text[:fits].rstrip()} {DOTS}"


def sentences(text: str, inches: float, size: float, more: str) -> str:
    """Return the text, or the first of its sentences that fit, and then ``more``."""
    if width(text, size) <= inches and len(text) <= LONGEST_MEASURED:
        return text
    first, *others = _SENTENCE_END.split(text)
    room = inches - width(f" {more}", size)
    kept = cut(first, room, size)
    for sentence in others:
        longer = f"{kept} {sentence}"
        if width(longer, size) > room or len(longer) > LONGEST_MEASURED:
            break
        kept = longer
    return f"{kept} {more}"


def short_labels(labels: Sequence[str], most: int) -> list[str]:
    """Return labels of at most ``most`` characters, of which those that differ still differ."""
    short = {label: label if len(label) <= most else _shortened(label, labels, most)
             for label in labels}
    seen = Counter(short.values())
    for number, (label, text) in enumerate(short.items(), 1):
        if seen[text] > 1:
            ending = f" #{number}"
            short[label] = text[:most - len(ending)] + ending
    return [short[label] for label in labels]


def in_lines(labels: Sequence[str], most: int) -> list[str]:
    """Return labels in one or two lines of at most ``most`` characters; what is longer is left out
    of their middle."""
    return [label if len(label) <= most else textwrap.fill(label, most)
            for label in short_labels(labels, 2 * most - most // 4)]


def fitting(
    labels: Sequence[str], at: int, inches: float, size: float, *, bold: bool = False,
) -> str:
    """Return as much of a label as fits, distinct from that of other labels."""
    label = labels[at]
    for most in range(len(label[:LONGEST_MEASURED]), len(DOTS) + 8, -2):
        text = short_labels(labels, most)[at]
        if width(text, size, bold=bold) <= inches:
            return text
    return cut(label, inches, size, bold=bold)


def _shortened(label: str, labels: Sequence[str], most: int) -> str:
    """Keep a label's beginning, and the part around its first difference from the most similar."""
    common = max((len(commonprefix([label, other])) for other in labels if other != label),
                 default=0)
    head = most // 3
    start = min(max(common - most // 6, 0), len(label) - (most - head - len(DOTS)))
    if start <= head:
        return label[:most - len(DOTS)] + DOTS
    rest = label[start:]
    room = most - head - len(DOTS)
    ending = rest if len(rest) <= room else rest[:room - len(DOTS)] + DOTS
    return f"{label[:head]}{DOTS}{ending}"


Number = TypeVar("Number", float, npt.NDArray[np.float64])
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"
LIGHT_GREY = "#dddddd"
HATCH = "////"
"""Of what is extrapolated."""
SIDE_INCHES = 0.22
"""Between the edge of a figure and its texts."""
MOST_TICKS, LAST_TICK = 8, 0.6
"""Labels of an axis, and how close to the last one they are; turned ones may be closer."""
_OF_AXIS = 0.5
"""The z order of an axis that is below the data."""
_MOST_DECIMALS = 12
_LABEL_HEIGHT, _AROUND_NUMBERS = 1.25, 13.0
"""Height of an axis's label, in those of its font; points of a tick and the gaps at its number."""
_TRUETYPE = 42
"""The font type that a PDF embeds, and publishers accept; an SVG has outlines without a font."""


@dataclass(frozen=True, slots=True)
class Style:
    """How large a figure and its texts are: fonts, marks and lines in points, others in inches.

    ``is_narrow`` is one column of a paper: title and notes are in the caption file alone, panels
    stand one above the other, and labels above their rows."""

    width: float
    title: float
    text: float
    row: float
    small: float
    tiny: float
    marker: float
    line: float
    legend_row: float
    side: float
    dpi: int
    most_ticks: int
    last_tick: float
    is_narrow: bool
    image_format: str


REPORT = Style(11.0, 13, 10, 9, 8, 7, 5, 1.8, 0.22, SIDE_INCHES, 120, MOST_TICKS, LAST_TICK,
               is_narrow=False, image_format="png")
PAPER = Style(3.5, 8, 8, 7.5, 7, 7, 3, 1.2, 0.17, 0.04, 300, 5, 1.0, is_narrow=True,
              image_format="pdf")
STYLES: Mapping[str, Style] = MappingProxyType({"report": REPORT, "paper": PAPER})
"""Name of a style -> the style; each has the format that is usual for it."""


_KEPT = ("backend", "font.", "savefig.directory")
"""Prefixes of matplotlib's settings that stay the user's, whose letters may need a font."""

_DEFAULTS: Mapping[str, Any] = MappingProxyType({
    name: value for name, value in rcParamsDefault.items() if not name.startswith(_KEPT)})


@contextmanager
def our_look(more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Have matplotlib's settings be its defaults in the block, but for the user's fonts.

    A matplotlibrc with ``text.usetex`` needs LaTeX, and one with ``savefig.bbox`` changes the size
    of a figure. A $ begins no formula. Letters keep their shape, which pixels would widen by up to
    a fifth: they are as wide as `width` measures. ``more`` are other settings."""
    settings: dict[Any, Any] = {
        **_DEFAULTS, "text.parse_math": False, "text.hinting": "none", **(more or {})}
    before = dict(dict.items(rcParams))  # to ask for the backend by its name imports pyplot
    dict.update(rcParams, settings)  # as they are: to check 300 takes longer than a legend
    try:
        yield
    finally:
        dict.update(rcParams, before)


def in_unit(value: Number, show: Show) -> Number:
    """Return the number that stands at an axis, or all of an array, in the unit people read."""
    return NUMBERS[show](value) if show in NUMBERS else value


def ends_in_unit(span: Range, show: Show) -> tuple[float, float]:
    """Return the least and the greatest value of a range as they stand at an axis."""
    return in_unit(span.least, show), in_unit(span.greatest, show)


def new_figure(chart: Chart, style: Style, height: float) -> Figure:
    """Return an empty figure with its headings, if it has any; ``height`` is in inches."""
    figure = Figure(figsize=(style.width, height), dpi=style.dpi, facecolor="white")
    if style.is_narrow:
        return figure
    room = style.width - 2 * style.side
    figure.text(0.02, 1 - 0.26 / height, cut(chart.title, room, style.title, bold=True),
                fontsize=style.title, fontweight="bold", va="center")
    figure.text(0.02, 1 - 0.55 / height, cut(chart.subtitle, room, style.text),
                fontsize=style.text, color=GREY, va="center")
    return figure


def axes_at(
    figure: Figure, left: float, bottom: float, across: float, high: float,
    below: Axes | None = None,
) -> Axes:
    """Return new axes at a place in inches; ``below`` has the same x."""
    width_inches, height_inches = figure.get_size_inches()
    return figure.add_axes((left / width_inches, bottom / height_inches, across / width_inches,
                            high / height_inches), sharex=below)


def dress(axes: Axes, style: Style, *, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label, fontsize=style.text)
    axes.set_ylabel(y_label, fontsize=style.text)
    axes.tick_params(labelsize=style.row)
    axes.grid(True, which="major", color=LIGHT_GREY, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def log2_axis(axes: Axes, values: Sequence[float], show: Show, style: Style) -> None:
    """Make x a log2 axis with ticks on the ascending values, thinned to what fits.

    A size of 0, of fewer elements than ranks, stands left of the others on a linear part."""
    positive = [value for value in values if value > 0]
    if len(positive) == len(values):
        axes.set_xscale("log", base=2)
    elif positive:
        axes.set_xscale("symlog", base=2, linthresh=positive[0])
    ticks = [*([0.0] * (len(positive) < len(values))),
             *thin(positive, style.most_ticks, style.last_tick)]
    axes.xaxis.set_major_locator(FixedLocator([float(value) for value in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(
        lambda value, _: cell_text(int(value) if float(value).is_integer() else value, show)))
    axes.tick_params(axis="x", rotation=40 if len(ticks) > 6 else 0)


def thin(
    values: Sequence[float], most: int = MOST_TICKS, last: float = LAST_TICK,
) -> list[float]:
    """Return the first and last of ascending values and those between with room for a label."""
    room = math.log2(values[-1] / values[0]) / most if values else 0.0
    kept = list(values[:1])
    for value in values[1:-1]:
        before, after = math.log2(value / kept[-1]), math.log2(values[-1] / value)
        if before >= 0.99 * room and after >= last * room:
            kept.append(value)
    return kept + list(values[1:][-1:])


def plain_log_axis(axes: Axes, axis: YAxis | XAxis) -> None:
    """Make an axis of these a log one with plain numbers (0.01, 1, 100), also within a decade."""
    is_x = axis is axes.xaxis
    set_scale, set_limits = (axes.set_xscale, axes.set_xlim) if is_x else (
        axes.set_yscale, axes.set_ylim)
    set_scale("log")
    low, high = axes.get_xlim() if is_x else axes.get_ylim()
    if high < 2 * low:
        low, high = low / 1.4, high * 1.4
        set_limits(low, high)
    steps = range(1, 10) if high < 4 * low else (1, 2, 5) if high < 300 * low else (1,)
    axis.set_major_locator(LogLocator(base=10, subs=steps))
    axis.set_major_formatter(PlainFormatter())
    _mark_between(axes, axis)


def _mark_between(axes: Axes, axis: YAxis | XAxis) -> None:
    """Draw the minor ticks of an axis of which the limits are settled.

    They are one line of marks: a tick has five artists, and those of a report took 0.2 s."""
    low, high = axis.get_view_interval()
    places = [place for place in axis.get_minorticklocs() if low <= place <= high]
    axis.set_minor_locator(NullLocator())
    at_edge = [0.0] * len(places)
    if axis is axes.xaxis:
        x, y, mark, across = places, at_edge, TICKDOWN, axes.get_xaxis_transform()
    else:
        x, y, mark, across = at_edge, places, TICKLEFT, axes.get_yaxis_transform()
    axes.add_artist(Line2D(
        x, y, linestyle="", color="black", marker=MarkerStyle(mark),
        markersize=rcParams["xtick.minor.size"], markeredgewidth=rcParams["xtick.minor.width"],
        zorder=_OF_AXIS, clip_on=False, transform=across))


def make_room_for_numbers(
    every: Sequence[Axes], lefts: Sequence[float], style: Style,
) -> None:
    """Move the left sides of axes where long numbers would push the label of y out of its room.

    ``lefts`` are the inches that there are left of each. Those of a narrow figure stand one above
    the other, and keep one left side."""
    lacking = [max(0.0, _left_of(axes, style) - left)
               for axes, left in zip(every, lefts, strict=True)]
    if style.is_narrow:
        lacking = [max(lacking, default=0.0)] * len(lacking)
    for axes, inches in zip(every, lacking, strict=True):
        box, share = axes.get_position(), inches / style.width
        axes.set_position((box.x0 + share, box.y0, box.width - share, box.height))


def _left_of(axes: Axes, style: Style) -> float:
    """Return how many inches the numbers at y and the label of the axis take."""
    axis = axes.yaxis
    low, high = sorted(axis.get_view_interval())
    places = [place for place in axis.get_majorticklocs() if low <= place <= high]
    numbers = axis.get_major_formatter().format_ticks(places) if places else []
    return (max((width(text, style.row) for text in numbers), default=0.0)
            + (_LABEL_HEIGHT * style.text + _AROUND_NUMBERS) / POINTS)


def plain(value: float) -> str:
    text = format_number(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


class PlainFormatter(Formatter):
    """Writes plain numbers at an axis, with as many digits as distinguish its ticks.

    Each axis needs its own."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return plain(x)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the texts of all ticks: in a narrow range the usual digits are all the same.

        Those at equal distances have equally many decimals."""
        texts = [plain(value) for value in values]
        if len(values) > 1 and np.allclose(np.diff(values), values[1] - values[0]):
            decimals = max(len(text.partition(".")[2]) for text in texts)
            texts = [f"{value:.{decimals}f}" for value in values]
        for decimals in range(3, _MOST_DECIMALS):
            if len({*texts}) == len({*values}):
                break
            texts = [f"{value:.{decimals}f}" for value in values]
        return texts


class _Scale(Artist):
    """The lines, marks, numbers and title of an axis, all drawn by the artists of its first tick.

    matplotlib makes five artists a tick, and asks each where it is: a third of a figure's time."""

    def __init__(self, axes: Axes, axis: YAxis | XAxis) -> None:
        super().__init__()
        self.set_zorder(_OF_AXIS)
        self._axes, self._axis, self._is_x = axes, axis, axis is axes.xaxis
        self._tick = axis.get_major_ticks(1)[0]
        to_screen = axis.get_transform().transform
        low, high = to_screen(sorted(axis.get_view_interval()))
        places, slack = axis.get_majorticklocs().tolist(), 1e-10 * (high - low)
        self._numbers = [
            (place, text) for place, text in zip(
                places, axis.get_major_formatter().format_ticks(places), strict=True)
            if low - slack <= to_screen(place) <= high + slack]

    def is_usual(self) -> bool:
        """Return whether there is nothing but numbers at one side, without a common factor."""
        formatter = self._axis.get_major_formatter()
        return bool(
            self._numbers and self._axis.get_visible()
            and isinstance(self._axis.get_minor_locator(), NullLocator)
            and not isinstance(formatter, FixedFormatter) and not formatter.get_offset()
            and not self._tick.tick2line.get_visible() and not self._tick.label2.get_visible())

    def replace_axis(self) -> None:
        self._axis.set_visible(False)
        self._axes.add_artist(self)

    def draw(self, renderer: RendererBase) -> None:
        """Draw them, the title beside the numbers as matplotlib does."""
        along = [place for place, _ in self._numbers]
        lines = np.repeat(along, 3), np.tile([0.0, 1.0, np.nan], len(along))
        marks = along, [0.0] * len(along)
        self._tick.gridline.set_data(*lines if self._is_x else lines[::-1])
        self._tick.tick1line.set_data(*marks if self._is_x else marks[::-1])
        for artist in (self._tick.gridline, self._tick.tick1line):
            artist.draw(renderer)
        box = self._axes.spines["bottom" if self._is_x else "left"].get_window_extent()
        number = self._tick.label1
        if number.get_visible():
            widest = max((text for _, text in self._numbers),
                         key=lambda text: width(text, float(number.get_fontsize())))
            for place, text in self._numbers:
                number.set_text(text)
                (number.set_x if self._is_x else number.set_y)(place)
                number.draw(renderer)
                if text == widest:
                    box = Bbox.union([box, number.get_window_extent(renderer)])
        gap = renderer.points_to_pixels(self._axis.labelpad)
        x, y = self._axes.transAxes.inverted().transform((box.x0 - gap, box.y0 - gap))
        self._axis.set_label_coords(*(0.5, y) if self._is_x else (x, 0.5))
        self._axis.label.draw(renderer)


def with_light_ticks(figure: Figure) -> Figure:
    """Return a finished figure, whose axes of plain numbers are drawn by `_Scale` from now on."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if (scale := _Scale(axes, axis)).is_usual():
                scale.replace_axis()
    return figure


PNG_LEVEL = 2
"""Of 9; the usual 6 makes files smaller by a tenth in twice the time."""


def save(figure: Figure, path: Path, image_format: str) -> Path:
    """Write the figure; the file is absent or whole. Raises FileError."""
    more: Mapping[str, Any] = {
        "svg": {"metadata": {"Date": None}}, "png": {"pil_kwargs": {"compress_level": PNG_LEVEL}}}
    with whole_file(path, make_folder=True) as part, our_look(
            {"pdf.fonttype": _TRUETYPE, "svg.fonttype": "path"}):
        with_light_ticks(figure).savefig(
            part, format=image_format, **more.get(image_format, {}))
    return path


MORE = "More: the .txt file beside."
FOOTER_LINES = 2
LINE_INCHES, LOWEST_INCHES = 0.168, 0.128


def footer(figure: Figure, chart: Chart, origin: str, style: Style) -> None:
    """Write the chart's notes, as far as they fit, and its origin, a line each."""
    inches = figure.get_figheight()
    room = figure.get_figwidth() - 2 * style.side
    notes = sentences(" ".join(chart.notes), room, style.small, MORE)
    for line, color, row in ((notes, "black", 1), (cut(origin, room, style.small), GREY, 0)):
        figure.text(style.side / figure.get_figwidth(),
                    (LOWEST_INCHES + LINE_INCHES * row) / inches, line, fontsize=style.small,
                    color=color, va="center")


def caption(chart: Chart, origin: str) -> str:
    return "\n".join([f"{chart.title} ({chart.subtitle})" if chart.subtitle else chart.title,
                      *chart.notes, origin, ""])


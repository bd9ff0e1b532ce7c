"""One look for all figures: sizes, axes, colours of lines that nobody chose, footers.

Figures are made with matplotlib's object interface: no pyplot, no global state, nothing to close.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    Formatter,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
)

from hpcbench.trace.files import whole_file
from hpcbench.views.cell_text import NUMBERS, cell_text, format_number
from hpcbench.views.chart import Chart
from hpcbench.views.table import Range, Show

Number = TypeVar("Number", float, npt.NDArray[np.float64])
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"
LIGHT_GREY = "#dddddd"
TEXT, SMALL, TITLE = 10, 8, 13
SIZE_INCHES = (11.0, 5.8)
NOTE_CHARACTERS, ORIGIN_CHARACTERS = 195, 185
"""What fits into a line of the footer: fewer where many are digits, which are wide."""
MOST_TICKS = 8
_MOST_DECIMALS = 12
DPI = 120


def in_unit(value: Number, show: Show) -> Number:
    """Return the number that stands at an axis, or all of an array, in the unit people read."""
    return NUMBERS[show](value) if show in NUMBERS else value


def ends_in_unit(span: Range, show: Show) -> tuple[float, float]:
    """Return the least and the greatest value of a range as they stand at an axis."""
    return in_unit(span.least, show), in_unit(span.greatest, show)


def new_figure(chart: Chart, height: float = SIZE_INCHES[1]) -> Figure:
    """Return an empty figure with its headings; ``height`` is in inches."""
    figure = Figure(figsize=(SIZE_INCHES[0], height), dpi=DPI, facecolor="white")
    figure.text(0.02, 1 - 0.26 / height, chart.title, fontsize=TITLE, fontweight="bold",
                va="center")
    figure.text(0.02, 1 - 0.55 / height, chart.subtitle, fontsize=TEXT, color=GREY, va="center")
    return figure


def dress(axes: Axes, *, x_label: str, y_label: str) -> None:
    """Label axes and draw a light grid behind the data."""
    axes.set_xlabel(x_label, fontsize=TEXT)
    axes.set_ylabel(y_label, fontsize=TEXT)
    axes.tick_params(labelsize=SMALL + 1)
    axes.grid(True, which="major", color=LIGHT_GREY, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def log2_axis(axes: Axes, values: Sequence[float], show: Show) -> None:
    """Make x a log2 axis with ticks on the ascending values, thinned to what fits.

    A size of 0, of fewer elements than ranks, stands left of the others on a linear part.
    """
    positive = [value for value in values if value > 0]
    if len(positive) == len(values):
        axes.set_xscale("log", base=2)
    elif positive:
        axes.set_xscale("symlog", base=2, linthresh=positive[0])
    ticks = [*([0.0] * (len(positive) < len(values))), *thin(positive)]
    axes.xaxis.set_major_locator(FixedLocator([float(value) for value in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(
        lambda value, _: cell_text(int(value) if float(value).is_integer() else value, show)))
    axes.tick_params(axis="x", rotation=40 if len(ticks) > 6 else 0)


def thin(values: Sequence[float]) -> list[float]:
    """Return the first and last of ascending values and those between with room for a label."""
    room = math.log2(values[-1] / values[0]) / MOST_TICKS if values else 0.0
    kept = list(values[:1])
    for value in values[1:-1]:
        before, after = math.log2(value / kept[-1]), math.log2(values[-1] / value)
        if before >= 0.99 * room and after >= 0.6 * room:
            kept.append(value)
    return kept + list(values[1:][-1:])


def plain_log_axis(axes: Axes) -> None:
    """Make y a log axis with plain numbers (0.01, 1, 100), also where it spans no decade."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 2 * low:
        low, high = low / 1.4, high * 1.4
        axes.set_ylim(low, high)
    steps = range(1, 10) if high < 4 * low else (1, 2, 5) if high < 300 * low else (1,)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=steps))
    axes.yaxis.set_major_formatter(plain_formatter())
    axes.yaxis.set_minor_formatter(NullFormatter())


def plain(value: float) -> str:
    """Return a tick's number without trailing zeros."""
    text = format_number(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


class PlainFormatter(Formatter):
    """Writes plain numbers at an axis, with as many digits as tell its ticks apart."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the text of one tick."""
        return plain(x)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the texts of all ticks: in a narrow range the usual digits are all the same."""
        texts = [plain(value) for value in values]
        for decimals in range(3, _MOST_DECIMALS):
            if len({*texts}) == len({*values}):
                break
            texts = [f"{value:.{decimals}f}" for value in values]
        return texts


def plain_formatter() -> PlainFormatter:
    """Return what writes plain numbers at an axis; each axis needs its own."""
    return PlainFormatter()


def footer(figure: Figure, chart: Chart, origin: str) -> None:
    """Write what is shown, how it was timed, and which run it was: the figure stands alone."""
    texts = [*((note, "black", NOTE_CHARACTERS) for note in chart.notes),
             (origin, GREY, ORIGIN_CHARACTERS)]
    lines = [(line, color) for text, color, most in texts for line in textwrap.wrap(text, most)]
    inches = figure.get_figheight()
    for row, (line, color) in enumerate(lines, start=1):
        height = (0.128 + 0.168 * (len(lines) - row)) / inches
        figure.text(0.02, height, line, fontsize=SMALL, color=color, va="center")


def save(figure: Figure, path: Path, image_format: str) -> Path:
    """Write the figure; the file is absent or whole. Raises FileError."""
    fixed: dict[str, Any] = {"metadata": {"Date": None}} if image_format == "svg" else {}
    with whole_file(path, make_folder=True) as part:
        figure.savefig(part, format=image_format, **fixed)
    return path

"""One look for all figures: sizes, colours that colour-blind readers can tell apart, footers.

Figures are made with matplotlib's object interface: no pyplot, no global state, nothing to close.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from hpcbench.reduce.results import CaseResult, Results
from hpcbench.trace.files import whole_file
from hpcbench.units import format_bytes
from hpcbench.views.cell_text import format_number
from hpcbench.views.timing import clock_text, modes_text, repeats_text
from hpcbench.views.words import plural

# Okabe and Ito (2008), without yellow, which is too light for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"
TEXT, SMALL, TITLE = 10, 8, 13
SIZE_INCHES = (11.0, 5.8)
FOOTER_CHARACTERS, ORIGIN_CHARACTERS = 195, 185
"""What fits into a line of the footer: fewer where many are digits, which are wide."""
MOST_TICKS = 8
DPI = 120


def new_figure(title: str, subtitle: str, height: float = SIZE_INCHES[1]) -> Figure:
    """Return an empty figure with its headings; ``height`` is in inches."""
    figure = Figure(figsize=(SIZE_INCHES[0], height), dpi=DPI, facecolor="white")
    figure.text(0.02, 1 - 0.26 / height, title, fontsize=TITLE, fontweight="bold", va="center")
    figure.text(0.02, 1 - 0.55 / height, subtitle, fontsize=TEXT, color=GREY, va="center")
    return figure


def dress(axes: Axes, *, x_label: str, y_label: str) -> None:
    """Label axes and draw a light grid behind the data."""
    axes.set_xlabel(x_label, fontsize=TEXT)
    axes.set_ylabel(y_label, fontsize=TEXT)
    axes.tick_params(labelsize=SMALL + 1)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def size_axis(axes: Axes, sizes: list[int]) -> None:
    """Make x a log2 axis with ticks on measured sizes, thinned to what fits."""
    axes.set_xscale("log", base=2)
    ticks = thin(sizes)
    axes.xaxis.set_major_locator(FixedLocator([float(size) for size in ticks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_label(int(size))))
    axes.tick_params(axis="x", rotation=40 if len(ticks) > 6 else 0)


def thin(sizes: list[int]) -> list[int]:
    """Return the first and last of the ascending sizes and those between with room for a label."""
    room = math.log2(sizes[-1] / sizes[0]) / MOST_TICKS
    kept = sizes[:1]
    for size in sizes[1:-1]:
        before, after = math.log2(size / kept[-1]), math.log2(sizes[-1] / size)
        if before >= 0.99 * room and after >= 0.6 * room:
            kept.append(size)
    return kept + sizes[1:][-1:]


def size_label(size_bytes: int) -> str:
    """Return ``8 B``, ``64 KiB``."""
    text = format_bytes(size_bytes)
    digits = text.rstrip("BGKMi")
    return f"{digits} {text[len(digits):] or 'B'}"


def plain_log_axis(axes: Axes) -> None:
    """Make y a log axis with plain numbers (0.01, 1, 100), also where it spans no decade."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 2 * low:
        low, high = low / 1.4, high * 1.4
        axes.set_ylim(low, high)
    steps = range(1, 10) if high < 4 * low else (1, 2, 5) if high < 300 * low else (1,)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def plain(value: float) -> str:
    """Return a tick's number without trailing zeros."""
    text = format_number(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def timing_text(results: Results, items: Sequence[CaseResult]) -> str:
    """Return how the cases of a figure were timed: mode, fold, clock, repeats."""
    return f"Mode {modes_text(items)}; {clock_text(results, items)}; {repeats_text(results.plan)}."


def footer(figure: Figure, results: Results, *, caption: str, timing: str) -> None:
    """Write what is shown, how it was timed, and which run it was: the figure stands alone."""
    run = results.run
    versions = ", ".join(f"{name} {text}" for name, text in run.versions.items())
    when = run.started_at or "start time unknown"
    origin = (f"{run.name}, run {run.run_id}, {when}; "
              f"{plural(run.world_size, 'rank')} on {plural(len(run.nodes), 'node')}; {versions}")
    lines = [(line, color) for text, color, most in (
        (caption, "black", FOOTER_CHARACTERS), (timing, "black", FOOTER_CHARACTERS),
        (origin, GREY, ORIGIN_CHARACTERS)) for line in textwrap.wrap(text, most)]
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

"""One problem of a primitive: the time of every implementation, and of its parts alone.

The longer part alone is the bound of perfect overlap, as in a roofline; both together are what
one after the other takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import fill
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpcbench.kinds.primitive.derive.partners import (
    COMMUNICATE,
    COMPUTE,
    NOTHING,
    Comparison,
    does_both,
)
from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.kinds.primitive.present.problems import ProblemChart, Row, Section
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.plots.style import (
    COLOURS,
    GREY,
    SMALL,
    dress,
    footer,
    new_figure,
    timing_text,
)
from hpcbench.units import to_us
from hpcbench.views.cell_text import MISSING, cell_text
from hpcbench.views.columns import median_cell, over_passes_cell
from hpcbench.views.table import Show

ROW_INCHES, ABOVE_INCHES, BELOW_INCHES = 0.25, 1.35, 1.6
RIGHT = 0.675
"""Where the bars end, in shares of the figure's width as all that is horizontal."""
VALUES = ((0.745, "time (us)"), (0.865, "overlap %"), (0.925, "x longest"), (0.985, "x torch"))
"""Where the columns beside the bars end, and their titles."""
CHARACTER = 0.0066
"""A character of a label."""
LONGEST_LABEL = 55
"""Longer labels are broken into lines."""
BAR_COLOUR, PART_COLOUR = COLOURS[0], "#999999"
CAPTION = (
    "Bar: median over the samples of all passes; whisker: from the least to the greatest median of "
    "a pass. Lines: the product alone (compute_only), the communication alone (comm_only), the "
    "longer of the two, which perfect overlap would take, and their sum. Overlap: (compute_only + "
    "comm_only - t) / the shorter of the two: 100 % where all of it is hidden, negative where t is "
    "longer than one after the other. x longest: t / the longer of the two. x torch: torch / t. "
    "These are the median over passes of what each pass gives, overlap also from the least to the "
    "greatest pass.")
Dashes = Literal["-", ":"]
Comparisons = Mapping[str, Comparison]


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How a line across a section looks, and what it is called."""

    label: str
    colour: str
    width: float
    dashes: Dashes
    alpha: float = 1.0


BOUND = LineStyle("longer of the two: perfect overlap", "black", 6, "-", 0.22)
COMPUTE_LINE = LineStyle(COMPUTE, COLOURS[1], 1.6, "-")
COMMUNICATE_LINE = LineStyle(COMMUNICATE, COLOURS[2], 1.6, "-")
TOGETHER = LineStyle("sum: one after the other", "black", 1.2, ":")
STYLES = (COMPUTE_LINE, COMMUNICATE_LINE, BOUND, TOGETHER)


def draw_problem(chart: ProblemChart, comparisons: Comparisons, results: Results) -> Figure:
    """Return the figure of one problem."""
    slots = sum(len(section.rows) + 1 for section in chart.sections)
    inside = ROW_INCHES * (slots + 0.5)
    height = ABOVE_INCHES + inside + BELOW_INCHES
    figure = new_figure(chart.title, chart.subtitle, height)
    left = _left(chart)
    axes = figure.add_axes((left, BELOW_INCHES / height, RIGHT - left, inside / height))
    axes.set_ylim(slots, -0.5)
    top = 0.0
    for section in chart.sections:
        _draw_section(axes, section, top, comparisons)
        top += len(section.rows) + 1
    dress(axes, x_label="time of one call (us)", y_label="")
    axes.grid(False, axis="y")
    axes.set_yticks([])
    axes.set_xlim(left=0)
    _headings(figure, 1 - (ABOVE_INCHES - 0.1) / height)
    _legend(figure, chart, 1 - 0.72 / height)
    footer(figure, results, caption=CAPTION, timing=timing_text(results, chart.items))
    return figure


def _left(chart: ProblemChart) -> float:
    """Return where the bars begin: the labels stand to the left of them."""
    longest = max(len(text) for section in chart.sections
                  for text in (section.title, *(row.label for row in section.rows)))
    return 0.03 + CHARACTER * max(20, min(longest, LONGEST_LABEL))


def _draw_section(axes: Axes, section: Section, top: float, comparisons: Comparisons) -> None:
    """Draw a heading at ``top``, a row for each case below it, and lines across the rows."""
    across, left = axes.get_yaxis_transform(), axes.get_position().x0
    axes.text(-0.01, top, section.title, transform=across, ha="right", va="center",
              fontsize=SMALL + 1, fontweight="bold")
    if top:
        axes.axhline(top - 0.5, color="#dddddd", linewidth=0.8)
    for at, row in enumerate(section.rows, start=1):
        _draw_row(axes, row, top + at)
        axes.text(-0.01, top + at, fill(row.label, LONGEST_LABEL), transform=across, ha="right",
                  va="center", fontsize=SMALL + 1)
        told = comparisons.get(row.item.case.case_id, NOTHING)
        for (end, _), text in zip(VALUES, _cells(row.item, told), strict=True):
            axes.text((end - left) / (RIGHT - left), top + at, text, transform=across,
                      ha="right", va="center", fontsize=SMALL + 1)
    for time_s, style in _lines(section):
        axes.plot([to_us(time_s)] * 2, [top - 0.3, top + len(section.rows) + 0.45],
                  color=style.colour, linewidth=style.width, linestyle=style.dashes,
                  alpha=style.alpha, solid_capstyle="butt")


def _draw_row(axes: Axes, row: Row, at: float) -> None:
    item = row.item
    if item.statistics is None:
        return
    axes.barh(at, to_us(item.statistics.median_s), height=0.62,
              color=BAR_COLOUR if does_both(primitive_of(item.case)) else PART_COLOUR, alpha=0.75)
    medians = [to_us(time_s) for time_s in item.timing.pass_medians_s if time_s is not None
               ] if item.timing else []
    if len(medians) > 1:
        axes.hlines(at, min(medians), max(medians), color="black", linewidth=1.2)
        axes.vlines([min(medians), max(medians)], at - 0.16, at + 0.16, color="black",
                    linewidth=1.2)


def _cells(item: CaseResult, told: Comparison) -> Iterator[str]:
    """Yield the values beside a bar, one for each of VALUES."""
    yield cell_text(median_cell(item.statistics), Show.US)
    yield cell_text(over_passes_cell(told.efficiency), Show.WHOLE_PERCENT)
    yield f"{told.times_longest.median:.2f}" if told.times_longest else MISSING
    yield f"{told.speedup.median:.2f}" if told.speedup else MISSING


def _lines(section: Section) -> Iterator[tuple[float, LineStyle]]:
    """Yield where the lines of a section stand, and how they look."""
    compute_s, communicate_s = section.compute_s, section.communicate_s
    if compute_s is not None and communicate_s is not None:
        yield max(compute_s, communicate_s), BOUND
        yield compute_s + communicate_s, TOGETHER
    if compute_s is not None:
        yield compute_s, COMPUTE_LINE
    if communicate_s is not None:
        yield communicate_s, COMMUNICATE_LINE


def _headings(figure: Figure, height: float) -> None:
    """Write the titles of the columns beside the bars."""
    for end, title in VALUES:
        figure.text(end, height, title, fontsize=SMALL, color=GREY, ha="right", va="bottom")


def _legend(figure: Figure, chart: ProblemChart, height: float) -> None:
    """Name the lines that some section has; nothing where no part was measured alone."""
    drawn = {style for section in chart.sections for _, style in _lines(section)}
    handles = [Line2D([], [], color=style.colour, linewidth=style.width, linestyle=style.dashes,
                      alpha=style.alpha, label=style.label)
               for style in STYLES if style in drawn]
    if handles:
        figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.013, height),
                      ncols=len(handles), fontsize=SMALL + 1, frameon=False)

"""Names of lines at their right ends, where a reader looks first, without overlaps."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from hpcbench.report.plots.fit import POINTS, width
from hpcbench.report.plots.style import Style, in_unit
from hpcbench.views.chart import COLOURS, Line, Panel

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


def _end_together(lines: Sequence[Line]) -> bool:
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

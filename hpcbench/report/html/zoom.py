"""Line charts as data that the page can zoom into; the drawing stays for print and no script."""

from __future__ import annotations

from typing import Any

from hpcbench.views.cell_text import NUMBERS
from hpcbench.views.chart import Chart, LineChart, Panel, Scale
from hpcbench.views.table import Show

_FEWEST = 4
"""Lines with fewer points than this in all need no zoom."""


def zoom_data(chart: Chart) -> list[dict[str, Any]]:
    """Return each panel of a line chart as JSON values; nothing where there is nothing to zoom."""
    if not isinstance(chart, LineChart):
        return []
    return [_panel(chart, panel) for panel in chart.panels
            if sum(len(line.points) for line in panel.lines) >= _FEWEST]


def _panel(chart: LineChart, panel: Panel) -> dict[str, Any]:
    """Return x of all lines, and for each line its values there; null where it has no point."""
    places = sorted({x for line in panel.lines for x, _ in line.points})
    series = []
    for line in panel.lines:
        values = {x: _number(point.value, panel.y.show) for x, point in line.points}
        series.append({"label": line.label, "values": [values.get(x) for x in places]})
    return {"title": panel.title or panel.y.label, "x": [_number(x, chart.x.show) for x in places],
            "x_label": chart.x.label, "y_label": panel.y.label,
            "x_log": _log(chart.x.scale) if places[0] > 0 else 0, "y_log": _log(panel.y.scale),
            "series": series}


def _log(scale: Scale) -> int:
    """Return the base of a log scale, 0 of a linear one."""
    return {Scale.LOG: 10, Scale.LOG2: 2}.get(scale, 0)


def _number(value: float, show: Show) -> float:
    return float(NUMBERS[show](value)) if show in NUMBERS else float(value)

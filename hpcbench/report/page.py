"""A document as one page of HTML: a template, one style sheet, one script, and nothing else.

Line charts bring their points as data that the page can zoom into.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hpcbench.report.document import ReportDocument
from hpcbench.texts import to_json
from hpcbench.views.chart import Chart, LineChart, Panel, Scale
from hpcbench.views.table import (
    NUMBERS,
    Cell,
    Column,
    Line,
    Range,
    Show,
    Table,
    WithInterval,
    cell_text,
)

if TYPE_CHECKING:
    from hpcbench.report.plots import Drawn


_LONG = 20
"""Characters of a text from which on its column has a least width."""
_MOST_CHOICES = 12
"""A column with more different texts than this is filtered by text only."""
_FEWEST = 4
"""Lines with fewer points than this in all need no zoom."""
_ASSETS = files("hpcbench.report") / "assets"
_SCRIPTS = ("sortable.min.js", "sortable.a11y.min.js", "uPlot.iife.min.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")
_LICENCES = ("LICENSE.sortable-tablesort", "LICENSE.uPlot")


def html_text(document: ReportDocument, version: str, *, scripted: bool = True) -> str:
    """Return the page; not ``scripted``, as for paper, it has no script at all."""
    style = _joined(_STYLES)
    script = _joined(_SCRIPTS) if scripted else ""
    numbers = count(1)

    def draw(chart: Chart) -> Drawn:
        from hpcbench.report.plots import drawn  # it takes half a second

        return drawn(chart, next(numbers))

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True)
    environment.tests |= {
        "table": lambda item: isinstance(item, Table), "line": lambda item: isinstance(item, Line)}
    template = environment.from_string(_asset("page.html.j2"))
    return template.render(
        document=document, version=version, style=Markup(style), script=Markup(script),
        policy=_policy(style, script), draw=draw, choices=_choices, is_long=_is_long,
        meaning=_meaning, meanings=_meanings, sort_key=_sort_key,
        zoom=_zoom if scripted else lambda _: "",
        licences=[_asset(name) for name in _LICENCES] if scripted else [])


def _choices(table: Table, at: int) -> list[str]:
    """Return the different texts of a column where they are few: an axis to filter by."""
    texts = _column_texts(table, at)
    return texts if 1 < len(texts) <= _MOST_CHOICES else []


def _is_long(table: Table, at: int) -> bool:
    """Return whether texts would stand one word below the other in what other columns leave."""
    return max(map(len, _column_texts(table, at)), default=0) > _LONG


def _column_texts(table: Table, at: int) -> list[str]:
    """Return the different texts of a column; none of numbers."""
    return [*dict.fromkeys(cell_text(row.cells[at]) for row in table.rows)] if (
        table.columns[at].show is Show.TEXT) else []


def _meaning(column: Column) -> str:
    better = f"{column.better} is better" if column.better else ""
    return "; ".join(filter(None, (column.meaning, better)))


def _meanings(table: Table) -> list[tuple[str, str]]:
    """Return what titles of columns mean, each once."""
    explained = ((column.title, _meaning(column)) for column in table.columns)
    return list(dict.fromkeys((title, meaning) for title, meaning in explained if meaning))


def _sort_key(cell: Cell) -> str:
    """Return what a cell is sorted by: its raw number, the middle of a range, or its text."""
    if isinstance(cell, Range):
        return repr((cell.least + cell.greatest) / 2 if cell.middle is None else cell.middle)
    if isinstance(cell, WithInterval):
        return repr(cell.value)
    return cell if isinstance(cell, str) else "" if cell is None else repr(cell)


def _zoom(chart: Chart) -> str:
    """Return the panels of a line chart as JSON that cannot end the element that it stands in.

    Nothing where there is nothing to zoom.
    """
    panels = [_panel(chart, panel) for panel in chart.panels
              if sum(len(line.points) for line in panel.lines) >= _FEWEST
              ] if isinstance(chart, LineChart) else []
    text = to_json(panels, allow_nan=False, separators=(",", ":")) if panels else ""
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


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


def _policy(style: str, script: str) -> str:
    """Return the page's Content-Security-Policy: its own style and script by hash, pictures in it.
    """
    scripts = f"script-src '{_hash(script)}'; " if script else ""
    return (f"default-src 'none'; {scripts}style-src '{_hash(style)}'; img-src data:; "
            "base-uri 'none'; form-action 'none'")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _joined(names: tuple[str, ...]) -> str:
    return "\n" + "\n".join(_asset(name).strip() for name in names) + "\n"


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")

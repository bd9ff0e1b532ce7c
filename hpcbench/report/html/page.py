"""Tables as a template reads them: each cell with its text, and with what it is sorted by.

Line charts as data that the page can zoom into; the drawing stays for print and no script.

A document as one page of HTML: a template, one style sheet, one script, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hpcbench.report.document import Item, ReportDocument, ReportSection
from hpcbench.texts import to_json
from hpcbench.views.chart import Chart, LineChart, Panel, Scale
from hpcbench.views.table import (
    NUMBERS,
    Cell,
    Column,
    Group,
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


@dataclass(frozen=True, slots=True)
class CellShown:
    """The text of a cell, and its sort key; ``status`` is that of the row if it is not ok."""

    text: str
    key: str


@dataclass(frozen=True, slots=True)
class RowShown:
    """A row: its cells, and the status of what it is about."""

    cells: tuple[CellShown, ...]
    status: str


@dataclass(frozen=True, slots=True)
class ColumnShown:
    """A column: ``choices`` are its different texts, where there are few: an axis to filter by.

    ``is_long`` of texts that would stand one word below the other in what other columns leave.
    """

    title: str
    unit: str
    meaning: str
    is_text: bool
    is_long: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableShown:
    """A table as it is shown; ``groups`` are pairs of a heading and rows.

    ``meanings`` are pairs of a column's title and what it means, each once.
    """

    title: str
    columns: tuple[ColumnShown, ...]
    groups: tuple[tuple[str, tuple[RowShown, ...]], ...]
    lead: tuple[Line, ...]
    meanings: tuple[tuple[str, str], ...]
    notes: tuple[Line, ...]


def table_shown(table: Table) -> TableShown:
    """Return a table without its empty optional columns, as texts and sort keys."""
    table = table.without_empty()
    columns = tuple(_column(table, at, column) for at, column in enumerate(table.columns))
    return TableShown(
        table.title, columns,
        tuple((group.heading, tuple(_rows(table, group))) for group in table.groups), table.lead,
        tuple(dict.fromkeys((one.title, one.meaning) for one in columns if one.meaning)),
        table.notes)


def _column(table: Table, at: int, column: Column) -> ColumnShown:
    is_text = column.show is Show.TEXT
    texts = tuple(dict.fromkeys(cell_text(row.cells[at], column.show) for row in table.rows))
    choices = texts if is_text and 1 < len(texts) <= _MOST_CHOICES else ()
    is_long = is_text and max(map(len, texts), default=0) > _LONG
    return ColumnShown(column.title, column.unit, _meaning(column), is_text, is_long, choices)


def _meaning(column: Column) -> str:
    better = f"{column.better} is better" if column.better else ""
    return "; ".join(filter(None, (column.meaning, better)))


def _rows(table: Table, group: Group) -> Iterator[RowShown]:
    for row in group.rows:
        yield RowShown(tuple(
            CellShown(cell_text(cell, column.show), _key(cell))
            for cell, column in zip(row.cells, table.columns, strict=True)), row.status)


def _key(cell: Cell) -> str:
    """Return what a cell is sorted by: its raw number, the middle of a range, or its text."""
    if cell is None:
        return ""
    if isinstance(cell, Range):
        middle = cell.middle if cell.middle is not None else (cell.least + cell.greatest) / 2
        return repr(middle)
    if isinstance(cell, WithInterval):
        return repr(cell.value)
    return cell if isinstance(cell, str) else repr(cell)


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


_ASSETS = files("hpcbench.report.html") / "assets"
_SCRIPTS = ("sortable.min.js", "sortable.a11y.min.js", "uPlot.iife.min.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")
_LICENCES = ("LICENSE.sortable-tablesort", "LICENSE.uPlot")


@dataclass(frozen=True, slots=True)
class FigureShown:
    """A chart of the page: ``zoom`` is JSON text for the script, empty where nothing is zoomed."""

    chart: Chart
    drawn: Drawn
    zoom: str


@dataclass(frozen=True, slots=True)
class SectionShown:
    """A section whose items are of three sorts: one is set in each."""

    key: str
    title: str
    level: int
    items: tuple[tuple[Line | None, TableShown | None, FigureShown | None], ...]
    parts: tuple[SectionShown, ...]
    short: str


def html_text(document: ReportDocument, version: str, *, scripted: bool = True) -> str:
    """Return the page; not ``scripted``, as for paper, it has no script at all."""
    style = _joined(_STYLES)
    script = _joined(_SCRIPTS) if scripted else ""
    numbers = iter(range(1, 1_000_000))

    def figure(chart: Chart) -> FigureShown:
        from hpcbench.report.plots import drawn  # it takes half a second

        panels = zoom_data(chart) if scripted else []
        return FigureShown(chart, drawn(chart, next(numbers)), _data(panels) if panels else "")

    def section(one: ReportSection, level: int) -> SectionShown:
        return SectionShown(one.key, one.title, level, tuple(_item(item, figure)
                            for item in one.items),
                            tuple(section(part, level + 1) for part in one.parts),
                            one.short or one.title)

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True)
    template = environment.from_string(_asset("page.html.j2"))
    return template.render(
        document=document, version=version, sections=[section(one, 2) for one in document.sections],
        style=Markup(style), script=Markup(script), policy=_policy(style, script),
        licences=[_asset(name) for name in _LICENCES] if scripted else [])


def _item(item: Item, figure: Any) -> tuple[Line | None, TableShown | None, FigureShown | None]:
    if isinstance(item, Line):
        return item, None, None
    if isinstance(item, Table):
        return None, table_shown(item), None
    return None, None, figure(item)


def _policy(style: str, script: str) -> str:
    """Return the page's Content-Security-Policy: its own style and script by hash, pictures in it.
    """
    scripts = f"script-src '{_hash(script)}'; " if script else ""
    return (f"default-src 'none'; {scripts}style-src '{_hash(style)}'; img-src data:; "
            "base-uri 'none'; form-action 'none'")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(panels: list[dict[str, Any]]) -> Markup:
    """Return JSON that cannot end the element that it stands in."""
    text = to_json(panels, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


def _joined(names: tuple[str, ...]) -> str:
    return "\n" + "\n".join(_asset(name).strip() for name in names) + "\n"


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")

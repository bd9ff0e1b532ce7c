"""A document as one page of HTML: a template, one style sheet and one script; its line charts bring
their points as data to zoom into."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.util import cache_from_source
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import (
    Environment,
    FileSystemBytecodeCache,
    FunctionLoader,
    StrictUndefined,
    Template,
)
from jinja2.bccache import Bucket
from markupsafe import Markup

from hpcbench.answers.winners import FASTEST
from hpcbench.report.document import NOT_DRAWN, Cards, ReportDocument
from hpcbench.texts import Lines, as_field, to_json
from hpcbench.views.chart import Chart, LineChart, Panel, Scale, in_fields
from hpcbench.views.table import (
    NUMBERS,
    Cell,
    Column,
    Line,
    Range,
    Row,
    Show,
    Table,
    WithInterval,
    cell_text,
)

_LONG = 20
"""Characters of a text from which on its column has a least width."""
_SHORT = 8
"""Characters of a title that stay on one line."""
_MOST_CHOICES = 12
"""A column with more different texts than this is filtered by text only."""
_FEWEST = 4
"""Lines with fewer points than this in all need no zoom."""
_ASSETS = files("hpcbench.report") / "assets"
_COMPILED = Path(cache_from_source(__file__)).parent
_SCRIPTS = ("sortable.min.js", "sortable.a11y.min.js", "uPlot.iife.min.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")
_LICENCES = ("LICENSE.sortable-tablesort", "LICENSE.uPlot")


def html_text(
    document: ReportDocument, version: str, figures: Mapping[int, Any] = NOT_DRAWN.figures, *,
    scripted: bool = True,
) -> str:
    """Return the page, with the ``figures`` of `Drawn`; not ``scripted``, as for paper, it has no
    script at all."""
    style = _joined(_STYLES)
    script = _joined(_SCRIPTS) if scripted else ""
    numbers = count(1)

    def draw(chart: Chart, *, is_narrow: bool = False) -> Markup:
        from hpcbench.report.plots import drawn  # it takes half a second

        return Markup(drawn(in_fields(chart), next(numbers), is_narrow=is_narrow,
                            figure=figures.get(id(chart))))

    return _template().render(
        document=document, version=version, style=Markup(style), script=Markup(script),
        policy=_policy(style, script), draw=draw, choices=_choices, is_long=_is_long,
        is_spare=_is_spare, begins=_begins_span, heading=_heading, is_best=_is_best,
        meaning=_meaning, meanings=_meanings, sort_key=_sort_key,
        in_fields=in_fields, zoom=_zoom if scripted else lambda _: "",
        licences=[Lines(_asset(name)) for name in _LICENCES] if scripted else [])


class _Kept(FileSystemBytecodeCache):
    """Compiled templates, read by all, and written where and when Python writes its modules."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode and os.access(_COMPILED, os.W_OK):
            super().dump_bytecode(bucket)


@cache
def _template() -> Template:
    """Return the page's template, which takes as long to compile as a page without charts: it is
    kept where Python keeps this module."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_shown, loader=FunctionLoader(_asset), bytecode_cache=_Kept(str(_COMPILED)))
    environment.tests |= {
        "table": lambda item: isinstance(item, Table), "line": lambda item: isinstance(item, Line),
        "cards": lambda item: isinstance(item, Cards)}
    return environment.get_template("page.html.j2")


def _shown(value: Any) -> Any:
    """Return a value as the page has it: a text is a field, but for several lines of a table."""
    is_field = isinstance(value, str) and not isinstance(value, (Lines, Markup))
    return as_field(value) if is_field else value


def _choices(table: Table, at: int) -> list[str]:
    """Return the different texts of a column where they are few: an axis to filter by."""
    texts = _column_texts(table, at)
    return texts if 1 < len(texts) <= _MOST_CHOICES else []


def _is_long(table: Table, at: int) -> bool:
    """Return whether a column has so long a text that it needs a least width."""
    return max(map(len, _column_texts(table, at)), default=0) > _LONG


def _is_spare(table: Table, at: int) -> bool:
    """Return whether a narrow page may hide a column: it is behind one to compare, and is none."""
    return not table.columns[at].better and any(one.better for one in table.columns[:at])


def _is_best(table: Table, row: Row, at: int) -> bool:
    """Return whether a cell is of the row, or of the span of a row, that a text calls fastest."""
    marks = {mark for cell in row.cells if isinstance(cell, str) for mark in cell.split(", ")}
    return f"{table.columns[at].span} {FASTEST}".strip() in marks


def _heading(column: Column) -> str:
    """Return the title of a column, on one line if it is short; else its name."""
    title = column.title or column.name
    return title if len(title) > _SHORT else title.replace(" ", "\N{NO-BREAK SPACE}")


def _begins_span(table: Table, at: int) -> bool:
    """Return whether a column is the first of neighbours with a title of their own, or behind."""
    return at > 0 and table.columns[at].span != table.columns[at - 1].span


def _column_texts(table: Table, at: int) -> list[str]:
    """Return the different texts of a column; none for numbers."""
    return [*dict.fromkeys(cell_text(row.cells[at]) for row in table.rows)] if (
        table.columns[at].show is Show.TEXT) else []


def _meaning(column: Column) -> str:
    better = f"{column.better} is better" if column.better else ""
    return "; ".join(filter(None, (column.meaning, better)))


def _meanings(table: Table) -> list[tuple[str, str]]:
    explained = ((column.title, _meaning(column)) for column in table.columns)
    return list(dict.fromkeys((title, meaning) for title, meaning in explained if meaning))


def _sort_key(cell: Cell) -> str:
    """Return the sort key of a cell: its raw number, the middle of a range, or its text."""
    if isinstance(cell, Range):
        return repr((cell.least + cell.greatest) / 2 if cell.middle is None else cell.middle)
    if isinstance(cell, WithInterval):
        return repr(cell.value)
    return cell_text(cell) if isinstance(cell, str) else "" if cell is None else repr(cell)


def _zoom(chart: Chart) -> Markup:
    """Return panels worth a zoom as JSON that cannot end the element that it stands in, or ""."""
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
        series.append({"label": line.label, "colour": line.colour,
                       "values": [values.get(x) for x in places]})
    return {"title": panel.title or panel.y.label, "x": [_number(x, chart.x.show) for x in places],
            "x_label": chart.x.label, "y_label": panel.y.label,
            "x_log": _log(chart.x.scale) if places[0] > 0 else 0, "y_log": _log(panel.y.scale),
            "series": series}


def _log(scale: Scale) -> int:
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

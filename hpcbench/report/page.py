"""A document as one page of HTML, with one style sheet and one script; its line charts bring their
points as data to zoom into.

The page is made by `html`, which escapes all that is not `Html`. A template took as long to compile
as a page without charts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from itertools import count
from typing import Any

from hpcbench.answers.winners import FASTEST
from hpcbench.report.document import NOT_DRAWN, Cards, Item, ReportDocument, ReportSection
from hpcbench.texts import Lines, as_field, to_json
from hpcbench.views.chart import Chart, LineChart, Panel, Scale, in_fields
from hpcbench.views.table import (
    NUMBERS,
    Cell,
    Column,
    Group,
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
_SCRIPTS = ("sortable.min.js", "sortable.a11y.min.js", "uPlot.iife.min.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")
_LICENCES = ("LICENSE.sortable-tablesort", "LICENSE.uPlot")


_WIDE = 11
"""A table of more columns is wider than the text."""
_ESCAPES = str.maketrans({
    "&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;"})


class Html(str):
    """A text that stands in the page as it is."""

    __slots__ = ()


def html(form: str, *values: object) -> Html:
    """Return a form with values in its places. What is not `Html` is a field, but for `Lines`, and
    is escaped."""
    return Html(form.format(*map(_escaped, values)))


def _escaped(value: object) -> str:
    if isinstance(value, Html):
        return value
    return (value if isinstance(value, Lines) else as_field(str(value))).translate(_ESCAPES)


def _joined(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


def html_text(
    document: ReportDocument, version: str, figures: Mapping[int, Any] = NOT_DRAWN.figures, *,
    scripted: bool = True,
) -> str:
    """Return the page, with the ``figures`` of `Drawn`; not ``scripted``, as for paper, it has no
    script at all."""
    style, script = _assets(_STYLES), _assets(_SCRIPTS) if scripted else Html()
    numbers = count(1)

    def draw(chart: Chart, *, is_narrow: bool = False) -> Html:
        from hpcbench.report.plots import drawn  # it takes half a second

        return Html(drawn(in_fields(chart), next(numbers), is_narrow=is_narrow,
                          figure=figures.get(id(chart))))

    return html(
        _PAGE, _policy(style, script), version, document.title, style, document.sections[0].key,
        document.title, document.subtitle,
        _joined(html('<li><a href="#{}">{}</a></li>\n', one.key, one.title)
                for one in document.sections),
        _joined(_section(one, 2, draw, scripted=scripted) for one in document.sections),
        document.origin, version, _licences() if scripted else Html(),
        html("<script>{}</script>", script) if scripted else Html())


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="hpcbench {}">
<title>{}</title>
<style>{}</style>
</head>
<body>
<a class="skip" href="#{}">to the verdict</a>
<header>
<h1>{}</h1>
<p>{}</p>
</header>
<nav aria-label="contents"><ul>
{}</ul></nav>
<main>
{}</main>
<footer>
<p>{}</p>
<p>Made by hpcbench {}.<span class="on-screen"> This file needs no network.</span></p>
{}</footer>
{}</body>
</html>"""


def _licences() -> Html:
    return html("<details><summary>licences of what this page contains</summary>\n{}</details>\n",
                _joined(html("<pre>{}</pre>", Lines(_asset(name))) for name in _LICENCES))


def _section(
    section: ReportSection, level: int, draw: Callable[..., Html], *, scripted: bool,
) -> Html:
    first = next(iter(section.items), None)
    is_wide = isinstance(first, Table) and len(first.without_empty().columns) > _WIDE
    return html(
        '<section id="{}">\n<h{}{}>{}</h{}>\n{}{}</section>\n', section.key, level,
        Html(' class="wide"' * is_wide), section.title, level,
        _joined(_item(item, draw, scripted=scripted) for item in section.items),
        _joined(_section(part, level + 1, draw, scripted=scripted) for part in section.parts))


def _item(item: Item, draw: Callable[..., Html], *, scripted: bool) -> Html:
    if isinstance(item, Line):
        return _line(item)
    if isinstance(item, Cards):
        return html('<dl class="cards">{}</dl>\n', _joined(
            html('<div class="card {}"><dt>{}</dt><dd><strong>{}</strong>{}</dd></div>', one.tone,
                 one.title, one.value, html(" <span>{}</span>", one.note) if one.note else "")
            for one in item.cards))
    if isinstance(item, Table):
        return _table(item.without_empty())
    return _figure(item, draw, scripted=scripted)


def _line(line: Line, place: str = "") -> Html:
    return html(
        '<p class="line {}{}">{}{}{}</p>\n', line.tone, place,
        Html('<strong class="mark">!</strong> ' * (line.tone == "warning")),
        html("<strong>{}:</strong> ", line.topic) if line.topic else "", line.text)


def _figure(given: Chart, draw: Callable[..., Html], *, scripted: bool) -> Html:
    chart = in_fields(given)
    drawing = ('<div class="drawing {}" role="img" aria-label="{}. {}">\n{}\n</div>\n')
    data = _zoom(chart) if scripted else ""
    return html(
        '<figure class="chart">\n{}{}{}<figcaption>{}</figcaption>\n</figure>\n',
        html(drawing, "broad", chart.title, chart.subtitle, draw(given)),
        html(f'<p class="narrow"><strong>{{}}</strong><br>{{}}</p>\n{drawing}', chart.title,
             chart.subtitle, "narrow", chart.title, chart.subtitle, draw(given, is_narrow=True))
        if scripted else "",
        html('<button type="button" class="zoom" hidden aria-expanded="false">zoom</button>\n'
             '<script type="application/json" class="zoom-data">{}</script>\n'
             '<div class="zoomed" hidden></div>\n', data) if data else "",
        _joined(html("<span>{}</span> ", note) for note in chart.notes))


def _table(table: Table) -> Html:
    explained = _joined(html("<div><dt>{}</dt><dd>{}</dd></div>", *pair)
                        for pair in _meanings(table))
    detail = table.detail
    return html(
        '{}<figure class="table{}">\n{}{}<div class="tools" hidden>\n{}</div>\n'
        '<div class="scroll" tabindex="0" role="region" aria-label="{}">\n'
        '<table class="sortable n-last asc">\n<thead><tr>\n{}</tr></thead>\n{}</table>\n</div>\n'
        '{}{}</figure>\n{}',
        html('<details class="more"><summary>details: {}</summary>', table.title) if detail else "",
        " wide" * (len(table.columns) > _WIDE),
        "" if detail else html("<figcaption>{}</figcaption>", table.title),
        _joined(_line(note, " lead") for note in table.lead), _tools(table), table.title,
        _joined(_head(table, at) for at in range(len(table.columns))),
        _joined(_group(table, group) for group in table.groups), _joined(map(_line, table.notes)),
        html('<dl class="meanings">{}</dl>\n', explained) if explained else "",
        Html("</details>" * detail))


def _tools(table: Table) -> Html:
    """Return what finds and filters rows, hides columns and copies them."""
    columns = list(enumerate(table.columns))
    filters = ((at, column, _choices(table, at)) for at, column in columns)
    return html(
        '<label>find <input type="search" class="find" autocomplete="off"></label>\n{}'
        '<details class="columns"><summary>columns</summary><div>\n{}</div></details>\n'
        '<button type="button" class="copy">copy as CSV</button> '
        '<span class="said" role="status"></span>\n',
        _joined(html('<label>{} <select data-column="{}"><option value="">all</option>\n{}'
                     "</select></label>\n", _name(column), at, _joined(
                         html("<option>{}</option>", choice) for choice in choices))
                for at, column, choices in filters if choices),
        _joined(html('<label><input type="checkbox" checked data-column="{}"{}{}> {}</label>\n',
                     at, " data-detail" * column.detail, " data-spare" * _is_spare(table, at),
                     _name(column)) for at, column in columns))


def _name(column: Column) -> str:
    return f"{column.span} {column.title or column.name}" if column.span else (
        column.title or column.name)


def _sort(column: Column) -> str:
    return "text" if column.show is Show.TEXT else "number"


def _head(table: Table, at: int) -> Html:
    column, unit = table.columns[at], '<span class="unit">{}</span>'
    meaning, has_unit = _meaning(column), column.unit or any(one.span for one in table.columns)
    return html(
        '<th scope="col" class="{}{}{}"{}>{}<b>{}</b>{}</th>\n', _sort(column),
        " long" * _is_long(table, at), " begins" * _begins_span(table, at),
        html(' title="{}"', meaning) if meaning else "",
        html(f"{unit} ", column.span) if column.span else "", _heading(column),
        html(f" {unit}", column.unit or "\N{NO-BREAK SPACE}") if has_unit else "")


def _group(table: Table, group: Group) -> Html:
    heading = html('<tbody class="heading"><tr><th colspan="{}" scope="rowgroup"><span>{}</span>'
                   "</th></tr></tbody>\n", len(table.columns), group.heading)
    return html("{}<tbody>\n{}</tbody>\n", heading if group.heading else "", _joined(
        html("<tr{}>{}</tr>\n", "" if row.status == "ok" else html(' class="{}"', row.status),
             _joined(_cells(table, row))) for row in group.rows))


def _cells(table: Table, row: Row) -> Iterator[Html]:
    for at, text in enumerate(table.texts(row)):
        key = _sort_key(row.cells[at])
        yield html('<td class="{}{}{}"{}>{}</td>', _sort(table.columns[at]),
                   " begins" * _begins_span(table, at), " best" * _is_best(table, row, at),
                   "" if key == text else html(' data-sort="{}"', key), text)


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


def _zoom(chart: Chart) -> Html:
    """Return panels worth a zoom as JSON that cannot end the element that it stands in, or ""."""
    panels = [_panel(chart, panel) for panel in chart.panels
              if sum(len(line.points) for line in panel.lines) >= _FEWEST
              ] if isinstance(chart, LineChart) else []
    text = to_json(panels, allow_nan=False, separators=(",", ":")) if panels else ""
    return Html(text.replace("<", "\\u003c").replace("&", "\\u0026"))


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


def _assets(names: tuple[str, ...]) -> Html:
    return Html("\n" + "\n".join(_asset(name).strip() for name in names) + "\n")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")

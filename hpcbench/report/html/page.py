"""A document as one page of HTML: a template, one style sheet, one script, and nothing else."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from hpcbench.report.html.cells import TableShown, shown
from hpcbench.report.html.zoom import zoom_data
from hpcbench.texts import to_json
from hpcbench.views.chart import Chart
from hpcbench.views.document import Document, Item, Section
from hpcbench.views.table import Line, Table

if TYPE_CHECKING:
    from hpcbench.report.plots.inline import Drawn

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


def html_text(document: Document, version: str, *, scripted: bool = True) -> str:
    """Return the page; not ``scripted``, as for paper, it has no script at all."""
    style = _joined(_STYLES)
    script = _joined(_SCRIPTS) if scripted else ""
    numbers = iter(range(1, 1_000_000))

    def figure(chart: Chart) -> FigureShown:
        from hpcbench.report.plots.inline import drawn  # it takes half a second

        panels = zoom_data(chart) if scripted else []
        return FigureShown(chart, drawn(chart, next(numbers)), _data(panels) if panels else "")

    def section(one: Section, level: int) -> SectionShown:
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
        return None, shown(item), None
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

"""Charts as figures of a page: drawings as SVG in the page, maps of colours as PNG.

The page's policy allows no style attribute, so what matplotlib writes as one becomes attributes of
SVG. Ids are those that something refers to, and differ between the figures of a page.
"""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from xml.etree import ElementTree

from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from hpcbench.report.plots import bare
from hpcbench.report.plots.style import our_look
from hpcbench.views.chart import Chart, HeatMap

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_JOINS = {"stroke-linejoin": "round", "stroke-linecap": "butt"}
"""What matplotlib states in a style sheet of its own for the whole drawing."""
_PLACES = 2
"""Decimals of a place in points: a hundredth of a point is not seen."""
_PLACED = frozenset({"d", "x", "y", "points"})
"""Attributes that hold places; a scale of glyphs, which is small, keeps its decimals."""
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
PNG_DPI = 100
_BELOW_AXES_INCHES = 0.85
"""Labels of ticks, which may be turned, and the title of the axis."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure: ``svg`` is markup of the page; ``png`` is a picture in base64; one is empty."""

    svg: str = ""
    png: str = ""


def drawn(chart: Chart, number: int) -> Drawn:
    """Return a chart as the ``number``-th figure of a page."""
    figure = bare(chart)
    if isinstance(chart, HeatMap):
        return Drawn(png=_png(figure))
    return Drawn(svg=_inline(_svg(figure), f"f{number}-"))


def _png(figure: Figure) -> str:
    stream = io.BytesIO()
    with our_look():
        figure.savefig(stream, format="png", dpi=PNG_DPI, bbox_inches=_cropped(figure))
    return base64.b64encode(stream.getvalue()).decode()


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    with our_look({"svg.hashsalt": "hpcbench", "svg.fonttype": "path"}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None},
                       bbox_inches=_cropped(figure))
    return stream.getvalue()


def _cropped(figure: Figure) -> Bbox:
    """Return the figure (inches) without the room for notes, which are text of the page."""
    width, height = figure.get_size_inches()
    lowest = min((axes.get_position().y0 for axes in figure.axes), default=0.0) * height
    return Bbox([[0.0, max(0.0, lowest - _BELOW_AXES_INCHES)], [width, height]])


def _inline(text: str, prefix: str) -> str:
    """Return a drawing as an element of a page."""
    root = ElementTree.fromstring(text)
    used = {link.removeprefix("#") for node in root.iter() for link in _links(node)}
    for parent in root.iter():
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for node in root.iter():
        node.tag = node.tag.removeprefix(f"{{{_SVG}}}")
        _restyle(node)
        _rename(node, used, prefix)
        for name in _PLACED & node.attrib.keys():
            node.attrib[name] = _rounded(node.attrib[name])
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    root.attrib |= {**_JOINS, "aria-hidden": "true", "focusable": "false"}
    return ElementTree.tostring(root, encoding="unicode")


def _links(node: ElementTree.Element) -> list[str]:
    """Return the ids that a node refers to, each behind a #."""
    texts = " ".join(node.attrib.values())
    return [node.attrib[name] for name in ("href", f"{{{_LINK}}}href") if name in node.attrib] + \
        re.findall(r"url\((#[^)]+)\)", texts)


def _restyle(node: ElementTree.Element) -> None:
    for part in node.attrib.pop("style", "").split(";"):
        name, _, value = part.partition(":")
        if value:
            node.attrib[name.strip()] = value.strip()


def _rename(node: ElementTree.Element, used: set[str], prefix: str) -> None:
    """Keep the ids that are referred to, with a prefix; links lose their old namespace."""
    if (link := node.attrib.pop(f"{{{_LINK}}}href", None)) is not None:
        node.attrib["href"] = link
    if (name := node.attrib.pop("id", None)) in used:
        node.attrib["id"] = f"{prefix}{name}"
    for key, value in node.attrib.items():
        node.attrib[key] = re.sub(r"(^|url\()#", rf"\1#{prefix}", value) \
            if key == "href" or "url(#" in value else value


def _rounded(text: str) -> str:
    """Return a number of a path or a place without decimals that cannot be seen."""
    return _LONG_NUMBER.sub(
        lambda match: f"{float(match.group()):.{_PLACES}f}".rstrip("0").rstrip("."), text)

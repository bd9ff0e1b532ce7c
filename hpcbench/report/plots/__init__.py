"""Charts drawn by matplotlib: as files, and in a page as SVG, maps of colours as PNG.

Importing this package imports matplotlib; nothing else does. The page's policy allows no style
attribute, so those of matplotlib become attributes of SVG. Only ids that something refers to are
kept, and they differ between the figures of a page."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import hpcbench.report.plots.matplotlib_import  # noqa: F401

# isort: split
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter
from matplotlib.transforms import Bbox

from hpcbench.answers.answer import Run
from hpcbench.answers.compare import Compared
from hpcbench.answers.compare_tables import comparison_chart
from hpcbench.answers.topics import topic_results
from hpcbench.config.axes import unknown_name
from hpcbench.errors import FileError, UsageError, command_line
from hpcbench.reduce.results import Results, SampleSource
from hpcbench.reduce.results_file import open_results
from hpcbench.report.charts import ALL, ChartChoice, charts_of, chosen_charts, origin_text
from hpcbench.report.plots.bars import draw_bars, draw_dots, draw_heat_map
from hpcbench.report.plots.lines import draw_lines, draw_roofline
from hpcbench.report.plots.style import (
    FOOTER_LINES,
    PAPER,
    REPORT,
    STYLES,
    Style,
    caption,
    footer,
    our_look,
    save,
    with_light_ticks,
)
from hpcbench.texts import as_field, valid
from hpcbench.trace.container import whole_file
from hpcbench.views.chart import (
    BarChart,
    Chart,
    DotChart,
    HeatMap,
    LineChart,
    RooflineChart,
    in_fields,
)

IMAGE_FORMATS = ("png", "svg", "pdf")
MOST_CHARACTERS = 250
"""No text of a figure is longer: a line of it has room for some 200."""
DRAWERS: Mapping[type[Chart], Callable[[Any, Style], Figure]] = MappingProxyType({
    LineChart: draw_lines, DotChart: draw_dots, BarChart: draw_bars, HeatMap: draw_heat_map,
    RooflineChart: draw_roofline})
"""Kind of chart -> function that draws one."""


def draw(
    chart: Chart, origin: str, style: Style = REPORT, figure: Figure | None = None,
) -> Figure:
    """Return the figure of a chart, which may be there but for the footer; ``origin``, in this,
    names its run."""
    figure = figure or bare(chart, style)
    if not style.is_narrow:
        with our_look():
            footer(figure, chart, origin, style)
    return figure


def bare(chart: Chart, style: Style = REPORT) -> Figure:
    """Return the figure of a chart without its footer.

    Names of hosts, blocks and variables are shown as they are: a $ begins no formula, and a text
    that is too long is cut."""
    with our_look():
        figure = DRAWERS[type(chart)](chart, style)
    for text in _texts(figure):
        if len(text.get_text()) > MOST_CHARACTERS:
            text.set_text(f"{text.get_text()[:MOST_CHARACTERS - 4]} ...")
    return figure


def _texts(figure: Figure) -> Iterator[Text]:
    """Yield the texts of a figure, but of ticks only names: all take half a second to read."""
    yield from figure.texts
    for axes in figure.axes:
        yield from (one for one in axes.get_children() if isinstance(one, Text))
        yield from (axes.xaxis.label, axes.yaxis.label)
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), FixedFormatter):  # names, not numbers
                yield from axis.get_ticklabels()
    for legend in (*figure.legends, *(axes.get_legend() for axes in figure.axes)):
        if legend is not None:
            yield from legend.get_texts()


def named_style(name: str) -> Style:
    """Return the style with this name. Raises UsageError."""
    if name not in STYLES:
        raise UsageError(f"--style {unknown_name(name, STYLES)}")
    return STYLES[name]


def plot_file(
    path: Path, output: Path | None, image_format: str | None, chosen: ChartChoice = ALL,
    style: Style = REPORT,
) -> list[Path]:
    """Plot ``results.h5`` (or the folder that holds it) and return the figures' paths.

    ``output`` is a folder; the default is ``plots/`` beside the file. Without ``image_format`` the
    style's is taken. Raises UsageError for an unknown format or case, for a file as folder, and
    where nothing that was ``chosen`` is there; FileError where no case is ok: there is nothing to
    draw."""
    if image_format is None:
        image_format = style.image_format
    if image_format not in IMAGE_FORMATS:
        raise UsageError(f"--format {image_format}: allowed are {', '.join(IMAGE_FORMATS)}")
    if output is not None and output.is_file():
        raise UsageError(f"-o {output}: is a file; give a folder")
    folder = output or (path.parent if path.is_file() else path) / "plots"
    with open_results(path) as file:
        figures = plot_results(file.results, file, folder, image_format, chosen, style)
    if not figures:
        raise FileError(f"{path}: no case is ok, so there is nothing to plot; "
                        f"{command_line('show', path)} states why")
    return figures


def plot_results(
    results: Results, source: SampleSource, folder: Path, image_format: str = "png",
    chosen: ChartChoice = ALL, style: Style = REPORT,
) -> list[Path]:
    """Write every figure, none where no case is ok, and return their paths. Raises FileError."""
    advice = topic_results(Run(valid(str(folder)), results, source))
    charts = chosen_charts(charts_of(results, source, advice, chosen.case), results, chosen)
    return plot_charts(charts, results, folder, image_format, style)


def plot_charts(
    charts: Iterable[Chart], results: Results, folder: Path, image_format: str = "png",
    style: Style = REPORT, figures: Mapping[int, Figure] = MappingProxyType({}),
) -> list[Path]:
    """Write a figure of each chart into ``folder`` and return their paths. Raises FileError.

    ``figures`` are those that are `bare`, by the id of their chart, and stay so."""
    paths = []
    for chart in charts:
        paths.append(folder / f"{chart.file_stem}.{image_format}")
        write(chart, origin_text(results), paths[-1], style, figures.get(id(chart)))
    return paths


def write(
    chart: Chart, origin: str, path: Path, style: Style = REPORT, figure: Figure | None = None,
) -> None:
    """Write a chart's figure, as ``path`` ends, and its caption beside it. Raises FileError."""
    chart, origin = in_fields(chart), as_field(origin)
    with whole_file(path.with_suffix(".txt"), make_folder=True) as part:
        part.write_text(caption(chart, origin), encoding="utf-8")
    whole = draw(chart, origin, style, figure)
    save(whole, path, path.suffix[1:])
    if figure is not None:
        for line in figure.texts[-FOOTER_LINES:]:
            line.remove()


def plot_comparisons(answer: Compared, path: Path) -> list[Path]:
    """Draw each comparison, numbered from the second one on. Raises FileError."""
    charts = [chart for one in answer.comparisons if (chart := comparison_chart(one)) is not None]
    return plot_numbered(charts, f"sides: {', '.join(answer.sides)}", path)


def plot_numbered(charts: Sequence[Chart], origin: str, path: Path) -> list[Path]:
    """Draw each chart, numbered from the second one on. Raises FileError."""
    paths = [path, *(path.with_stem(f"{path.stem}-{number}")
                     for number in range(2, len(charts) + 1))][:len(charts)]
    for chart, file in zip(charts, paths, strict=True):
        write(chart, origin, file)
    return paths


_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_JOINS = {"stroke-linejoin": "round", "stroke-linecap": "butt"}
"""Attributes that matplotlib states in a style sheet of its own for the whole drawing."""
_PLACES = 2
"""Decimals of a place in points: a hundredth of a point is not seen."""
_PLACED = frozenset({"d", "x", "y", "points"})
"""Attributes that hold places; a scale of glyphs, which is small, keeps its decimals."""
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
PNG_DPI = 100
_BELOW_AXES_INCHES, _TURNED_INCHES = 0.5, 0.85
"""Labels of ticks, which may be turned, and the title of the axis."""


def drawn(
    chart: Chart, number: int, *, is_narrow: bool = False, figure: Figure | None = None,
) -> str:
    """Return a chart as markup: the ``number``-th figure of a page. One that ``is_narrow`` is in
    the style of a column of a paper, without its title: panels stand one above the other. The
    other is the ``figure``, if there is one."""
    if is_narrow or figure is None:
        figure = bare(chart, PAPER if is_narrow else REPORT)
    inches = figure.bbox_inches if is_narrow else _cropped(figure)
    if isinstance(chart, HeatMap):
        picture = io.BytesIO()
        with our_look():
            with_light_ticks(figure).savefig(
                picture, format="png", dpi=PNG_DPI * (1 + is_narrow), bbox_inches=inches)
        return ('<img alt="" src="data:image/png;base64,'
                f'{base64.b64encode(picture.getvalue()).decode()}">')
    drawing = io.StringIO()
    with our_look({"svg.hashsalt": "hpcbench", "svg.fonttype": "path"}):
        with_light_ticks(figure).savefig(
            drawing, format="svg", transparent=True, metadata={"Date": None}, bbox_inches=inches)
    return _inline(drawing.getvalue(), f"f{number}-")


def _cropped(figure: Figure) -> Bbox:
    """Return the figure (inches) without the room for notes, which are text of the page."""
    width, height = figure.get_size_inches()
    lowest = min((axes.get_position().y0 for axes in figure.axes), default=0.0) * height
    is_turned = any(axes.xaxis.get_tick_params().get("labelrotation") for axes in figure.axes)
    below = _TURNED_INCHES if is_turned else _BELOW_AXES_INCHES
    return Bbox([[0.0, max(0.0, lowest - below)], [width, height]])


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

"""Charts drawn by matplotlib. Importing this package imports it; nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter

from hpcbench.analysis.answer import Run
from hpcbench.config.names import unknown_name
from hpcbench.errors import FileError, UsageError, command_line
from hpcbench.reduce.results import Results, SampleSource
from hpcbench.reduce.results_file import open_results
from hpcbench.report.charts import charts_of, origin_text
from hpcbench.report.chosen_charts import ALL, Chosen, chosen_charts
from hpcbench.report.plots.bars import draw_bars
from hpcbench.report.plots.dots import draw_dots
from hpcbench.report.plots.footnote import footer, save_caption
from hpcbench.report.plots.heat_map import draw_heat_map
from hpcbench.report.plots.lines import draw_lines
from hpcbench.report.plots.roofline import draw_roofline
from hpcbench.report.plots.style import REPORT, STYLES, Style, our_look, save
from hpcbench.texts import valid
from hpcbench.views.chart import BarChart, Chart, DotChart, HeatMap, LineChart, RooflineChart
from hpcbench.views.topics import told_of

IMAGE_FORMATS = ("png", "svg", "pdf")
MOST_CHARACTERS = 250
"""No text of a figure is longer: a line of it has room for some 200."""
DRAWERS: Mapping[type[Chart], Callable[[Any, Style], Figure]] = MappingProxyType({
    LineChart: draw_lines, DotChart: draw_dots, BarChart: draw_bars, HeatMap: draw_heat_map,
    RooflineChart: draw_roofline})
"""Kind of chart -> what draws one."""


def draw(chart: Chart, origin: str, style: Style = REPORT) -> Figure:
    """Return the figure of a chart; ``origin``, below it, says which run it is of."""
    figure = bare(chart, style)
    if not style.is_narrow:
        with our_look():
            footer(figure, chart, origin, style)
    return figure


def bare(chart: Chart, style: Style = REPORT) -> Figure:
    """Return the figure of a chart without what stands below it.

    Names of hosts, blocks and variables are shown as they are: a $ begins no formula, and what is
    too long is cut.
    """
    with our_look():
        figure = DRAWERS[type(chart)](chart, style)
    for text in _texts(figure):
        if len(text.get_text()) > MOST_CHARACTERS:
            text.set_text(f"{text.get_text()[:MOST_CHARACTERS - 4]} ...")
    return figure


def _texts(figure: Figure) -> Iterator[Text]:
    """Yield the texts of a figure but those of ticks, which take half a second to look at."""
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
    path: Path, output: Path | None, image_format: str | None, chosen: Chosen = ALL,
    style: Style = REPORT,
) -> list[Path]:
    """Plot ``results.h5`` (or the folder that holds it) and return the figures' paths.

    ``output`` is a folder; the default is ``plots/`` beside the file. Without ``image_format`` the
    style's is taken. Raises UsageError for an unknown format or case, for a file as folder, and
    where nothing that was ``chosen`` is there; FileError where no case is ok: there is nothing to
    draw.
    """
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
                        f"{command_line('show', path)} tells why")
    return figures


def plot_results(
    results: Results, source: SampleSource, folder: Path, image_format: str = "png",
    chosen: Chosen = ALL, style: Style = REPORT,
) -> list[Path]:
    """Write every figure into ``folder`` and return their paths; none where no case is ok.

    Raises FileError.
    """
    told = told_of(Run(valid(str(folder)), results, source))
    charts = chosen_charts(charts_of(results, source, told, chosen.case), results, chosen)
    return plot_charts(charts, results, folder, image_format, style)


def plot_charts(
    charts: Iterable[Chart], results: Results, folder: Path, image_format: str = "png",
    style: Style = REPORT,
) -> list[Path]:
    """Write a figure of each chart into ``folder`` and return their paths. Raises FileError."""
    origin = origin_text(results)
    return [write(chart, origin, folder / f"{chart.file_stem}.{image_format}", style)
            for chart in charts]


def write(chart: Chart, origin: str, path: Path, style: Style = REPORT) -> Path:
    """Write a chart's figure, as the ending of ``path`` says, and its caption beside it.

    Raises FileError.
    """
    save_caption(path, chart, origin)
    return save(draw(chart, origin, style), path, path.suffix[1:])

"""Style paper: a column wide, fonts embedded, notes in the caption file alone, no text cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pypdf
import pytest
from matplotlib.text import Text

from bad_input_process import hpcbench
from hpcbench.reduce.results_file import open_results
from hpcbench.report.charts import charts_of
from hpcbench.report.plots import bare, plot_results
from hpcbench.report.plots.style import PAPER, REPORT, Style
from hpcbench.views.chart import Chart, ChartPoint, LineChart
from results_factory import MemorySamples, all_ok, sweep

GALLERY = Path(__file__).parents[2] / "plots" / "results.h5"


def test_a_page_is_a_column_wide_and_its_fonts_are_embedded(tmp_path: Path) -> None:
    results = all_ok(sweep(("all_reduce", "barrier"), ("gloo", "mpi")))
    paths = plot_results(results, MemorySamples(results), tmp_path, "pdf", style=PAPER)
    assert {path.name for path in paths} > {"all_reduce.pdf", "barrier.pdf"}
    for path in paths:
        (page,) = pypdf.PdfReader(path).pages
        assert float(page.mediabox.width) == pytest.approx(3.5 * 72)
        fonts = [font.get_object() for font in page["/Resources"]["/Font"].values()]
        assert fonts
        for font in fonts:
            assert font["/Subtype"] != "/Type3"
            (inner,) = [one.get_object() for one in font.get("/DescendantFonts", [font])]
            assert "/FontFile2" in inner["/FontDescriptor"]
        assert "Point: median" not in page.extract_text()
    said = (tmp_path / "all_reduce.txt").read_text()
    assert "Point: median" in said and "time and bus bandwidth against size" in said


def test_texts_can_be_read_and_stay_inside() -> None:
    with open_results(GALLERY) as file:
        for chart in charts_of(file.results, file):
            check_texts(chart)


@pytest.mark.parametrize("style", [PAPER, REPORT])
@pytest.mark.parametrize("backends", [("gloo",), ("gloo", "mpi")])
def test_long_numbers_leave_room_for_the_label_of_their_axis(
    style: Style, backends: tuple[str, ...],
) -> None:
    """From 8 B on the bus bandwidth is 0.0001 GB/s, and its label was cut at the edge."""
    results = all_ok(sweep(("all_reduce",), backends, tuple(2**power for power in range(3, 20))))
    chart = charts_of(results, MemorySamples(results))[0]
    assert isinstance(chart, LineChart)
    slow = replace(chart, panels=tuple(replace(panel, lines=tuple(replace(line, points=tuple(
        (place, ChartPoint(point.value / 1e4)) for place, point in line.points))
        for line in panel.lines)) for panel in chart.panels))
    for one in (chart, slow):
        check_texts(one, style)


def check_texts(chart: Chart, style: Style = PAPER) -> None:
    figure = bare(chart, style)
    assert figure.get_figwidth() == style.width
    figure.draw_without_rendering()
    for text in figure.findobj(Text):
        if not text.get_text().strip() or not text.get_visible():
            continue
        assert text.get_fontsize() >= 7
        box = text.get_window_extent()
        inside = (box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1
                  and box.y0 >= -1 and box.y1 <= figure.bbox.y1 + 1)
        is_tick = any(text in axis.get_ticklabels(which="both") for axes in figure.axes
                      for axis in (axes.xaxis, axes.yaxis))
        assert inside or is_tick, f"{chart.file_stem}: {text.get_text()}"


def test_lines_are_named_at_their_ends_without_overlap() -> None:
    results = all_ok(sweep(("all_reduce",), ("gloo", "mpi"), world_sizes=(2, 4)))
    chart = charts_of(results, MemorySamples(results))[0]
    assert isinstance(chart, LineChart)
    figure = bare(chart)
    figure.draw_without_rendering()
    assert not figure.legends
    for axes in figure.axes:
        names = [text for text in axes.texts if text.get_text()]
        assert [text.get_text() for text in names] == [line.label for line in chart.panels[0].lines]
        boxes = sorted((text.get_window_extent() for text in names), key=lambda box: box.y0)
        assert all(low.y1 <= high.y0 + 1 for low, high in zip(boxes, boxes[1:], strict=False))


@pytest.mark.parametrize("flag", [("--style", "papr"), ("--case", "nothing"), ("--format", "bmp")])
def test_a_bad_value_is_one_line(flag: tuple[str, str], tmp_path: Path) -> None:
    ran = hpcbench("plot", str(GALLERY), "-o", str(tmp_path), *flag)
    assert ran.returncode == 2
    assert len(ran.stderr.strip().splitlines()) == 1 and flag[1] in ran.stderr
    assert not [*tmp_path.iterdir()]

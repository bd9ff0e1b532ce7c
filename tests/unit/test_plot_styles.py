"""Style paper, and the figure of a problem: its rows, its lines, and what it says of ceilings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pypdf
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from bad_input_process import hpcbench
from figure_texts import charts_of_kind, figure_of, first_figure, texts_of, texts_of_first
from hpcbench.kinds.primitive.present import BOUND, MOST_ROWS, TOGETHER
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.results_file import open_results
from hpcbench.report.charts import case_to_map, charts_of, rank_iteration
from hpcbench.report.plots import bare, plot_results
from hpcbench.report.plots.style import PAPER, REPORT, Style, our_look
from hpcbench.views.chart import BarChart, Chart, ChartPoint, LineChart
from results_factory import (
    MemorySamples,
    all_ok,
    in_passes,
    make_case,
    make_primitive,
    make_primitive_case,
    make_results,
    make_samples,
    make_workload,
    not_ok,
    ok,
    sweep,
)

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
    with our_look():
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


NAMES = ("torch", "comm_only", "chunked_pipeline", "compute_only")
MEDIANS: dict[str, tuple[float, ...]] = {
    "compute_only": (6e-3, 12e-3), "comm_only": (4e-3, 8e-3), "torch": (10e-3, 20e-3),
    "chunked_pipeline": (8e-3, 18e-3), "p2p_ring": (9e-3, 18e-3)}


def problem(
    *names: str, first: int = 0, case: dict[str, Any] | None = None, **workload: Any
) -> list[CaseResult]:
    return [in_passes(make_primitive_case(make_primitive(name, **workload), index=first + at,
                                          **case or {}), *MEDIANS[name])
            for at, name in enumerate(names)]


def drawn(items: list[CaseResult]) -> Figure:
    (_,) = problem_charts(items)
    return first_figure(make_results(tuple(items)))


def problem_charts(items: list[CaseResult]) -> list[BarChart]:
    return charts_of_kind("primitive", items)


def test_an_image_is_written_for_each_problem_and_collectives_ignore_them(tmp_path: Path) -> None:
    items = [*problem(*NAMES), *problem("torch", first=9, primitive="tp_mlp"), ok(make_case())]
    results = make_results(tuple(items))
    paths = plot_results(results, MemorySamples(results), tmp_path)
    assert [path.name for path in paths] == [
        "all_reduce.png", "tp_columnwise.png", "tp_mlp.png", "rank_iteration.png"]
    for path in paths:
        assert np.unique(imread(path)).size > 20


def test_rows_begin_with_the_parts_and_sections_are_orders() -> None:
    items = [*problem(*NAMES), *problem("torch", "p2p_ring", first=9, order="AG_after")]
    (chart,) = problem_charts(items)
    assert chart.title.startswith("tp_columnwise, m=4096 n=1024 k=512")
    assert chart.subtitle == "gloo, cpu, 4 ranks, isolated, fp32"
    before, after = chart.sections
    assert (before.title, after.title) == ("AG_before weight=sharded", "AG_after weight=sharded")
    assert [bar.label for bar in before.bars] == [
        "compute_only", "comm_only", "torch", "chunked_pipeline chunks=4"]
    assert {look.label: time_s for time_s, look in before.lines} == {
        "compute_only": 12e-3, "comm_only": 8e-3, BOUND.label: 12e-3, TOGETHER.label: 20e-3}
    assert after.lines == ()


@pytest.mark.parametrize("other", [
    {"mnk": (4096, 1024, 1024)}, {"dtype": "fp64"}, {"case": {"backend": "mpi"}},
    {"case": {"world_size": 2}}, {"case": {"mode": "barrier_start"}},
    {"case": {"env": (("A", "1"),)}}])
def test_what_does_not_compare_has_a_figure_of_its_own(other: dict[str, Any]) -> None:
    charts = problem_charts([*problem("torch"), *problem("torch", first=1, **other)])
    assert len({chart.file_stem for chart in charts}) == len(charts) == 2


def test_the_primitives_own_options_make_sections_and_the_unsharded_product_no_line() -> None:
    items = [*problem("torch", "p2p_ring"),
             *problem("torch", first=5, weight="replicated"),
             *problem("compute_only", first=7, size="unsharded")]
    (chart,) = problem_charts(items)
    assert [section.title for section in chart.sections] == [
        "AG_before weight=sharded", "AG_before weight=replicated"]
    assert [bar.label for bar in chart.sections[0].bars] == [
        "compute_only size=unsharded", "torch", "p2p_ring"]
    assert chart.sections[0].lines == ()


def test_what_two_passes_cannot_decide_is_shown() -> None:
    after = texts_of(drawn(problem(*NAMES))).partition("\n18.0\n")[2]
    assert after.splitlines()[:3] == ["unclear"] * 3


def test_the_figure_shows_times_overlap_bound_and_what_they_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steady = {"compute_only": (12e-3,) * 4, "comm_only": (8e-3,) * 4, "torch": (20e-3,) * 4,
              "chunked_pipeline": (16.9e-3, 17.04e-3, 17.04e-3, 17.1e-3)}
    for name, medians_s in steady.items():
        monkeypatch.setitem(MEDIANS, name, medians_s)
    figure = drawn(problem(*NAMES))
    shown = texts_of_first(make_results(tuple(problem(*NAMES))))
    for words in ("20.0", "37 (36..39)", "1.42", "1.17", "overlap %", "AG_before",
                  "longer of the two: perfect overlap", "negative where t is longer than one",
                  "whisker: from the least to the greatest median of a pass", "Mode isolated"):
        assert words in " ".join(shown.split()), words
    lines = {line.get_linewidth(): list(line.get_xdata())  # type: ignore[call-overload]
             for line in figure.axes[0].lines}
    assert lines[BOUND.width] == pytest.approx([12.0] * 2)
    assert lines[TOGETHER.width] == pytest.approx([20.0] * 2)


def test_bars_start_at_zero_and_hold_the_medians() -> None:
    axes = drawn(problem(*NAMES)).axes[0]
    assert axes.get_xlim()[0] == 0
    widths = [patch.get_width() for patch in axes.patches]  # type: ignore[attr-defined]
    assert widths == pytest.approx([12.0, 8.0, 20.0, 18.0])


def test_without_parts_there_are_bars_and_no_lines() -> None:
    figure = drawn(problem("torch"))
    shown = texts_of_first(make_results(tuple(problem("torch"))))
    assert "perfect overlap would take" in shown and "sum: one after the other" not in shown
    assert len(figure.axes[0].lines) == 0


def test_too_many_rows_are_split_by_section() -> None:
    def many(order: str, first: int) -> list[CaseResult]:
        return [item for at in range(MOST_ROWS // 2 + 1)
                for item in problem("chunked_pipeline", first=first + at, order=order,
                                    chunks=1 << at % 8, case={"block": f"b{at}"})]

    items = [*many("AG_before", 0), *many("AG_after", 100), *problem("torch", first=200)]
    charts = problem_charts(items)
    assert [len(chart.sections) for chart in charts] == [1, 1]
    assert len({chart.file_stem for chart in charts}) == 2
    assert charts[0].file_stem.endswith("AG_before_weight=sharded")


def test_the_text_of_20_rows_does_not_overlap() -> None:
    items = [item for at in range(20)
             for item in problem("chunked_pipeline", first=at, chunks=1 << at % 8)]
    figure = drawn(items)
    figure.draw_without_rendering()
    labels = [text for text in figure.axes[0].texts if text.get_text().startswith("chunked")]
    tops = sorted(text.get_window_extent().y1 for text in labels)
    bottoms = sorted(text.get_window_extent().y0 for text in labels)
    assert len(labels) == 20
    assert all(low >= high for low, high in zip(bottoms[1:], tops, strict=False))
    assert min(text.get_window_extent().x0 for text in labels) > 0


def test_only_cases_with_times_are_drawn() -> None:
    failed = not_ok(make_primitive_case(make_primitive("p2p_ring"), index=1), "failed", "x")
    (chart,) = problem_charts([*problem("torch"), failed, ok(make_case(index=2))])
    assert [bar.label for bar in chart.sections[0].bars] == ["torch weight=sharded"]
    assert problem_charts([failed]) == []


def test_results_without_medians_of_passes_have_no_whiskers() -> None:
    old = [replace(item, timing=item.timing and replace(item.timing, pass_medians_s=()))
           for item in problem(*NAMES)]
    assert len(drawn(old).axes[0].collections) == 0


def test_the_heat_map_shows_a_primitive_only_where_there_is_no_collective() -> None:
    fused = problem("chunked_pipeline", first=3)[0]
    small = ok(make_case(make_workload("broadcast", 8)))
    assert case_to_map([fused, small]) == small
    assert case_to_map([fused]) == fused
    shown = texts_of(figure_of(
        rank_iteration(fused, make_samples(fused.case, 1e-3)), all_ok((fused.case,))))
    for words in ("tp_columnwise by chunked_pipeline", "AG_before, chunks=4 weight=sharded",
                  "m=4096 n=1024 k=512"):
        assert words in shown
    assert "No rank can finish" not in shown

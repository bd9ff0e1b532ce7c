"""What fits into a figure: texts, labels, rows, bands, and units of times."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.text import Text

from figure_texts import figure_of
from hpcbench.kinds.collective.present import MOST_BANDS
from hpcbench.report.charts import canary_chart, charts_of, fitted, with_fitting_units
from hpcbench.report.plots import draw
from hpcbench.report.plots.style import MORE, REPORT, caption, cut, sentences, short_labels, width
from hpcbench.views.chart import (
    COLOURS,
    Axis,
    Bar,
    BarChart,
    BarSection,
    Chart,
    ChartPoint,
    Dot,
    DotChart,
    LineChart,
    Look,
)
from hpcbench.views.table import Column, Range, Show
from results_factory import MemorySamples, all_ok, make_canary, sweep

LONG = "NCCL_ALGO=Ring NCCL_PROTO=LL128 " * 4
STYLE = Look("all", COLOURS[0])
TIME = Column("time", "time", Show.US, "us")


Head = tuple[str, str, str, tuple[str], tuple[()]]


def head(title: str = "a title", note: str = "A note.") -> Head:
    return title, "a subtitle", "stem", (note,), ()


def dots(*labels: str, time_s: float = 1e-4) -> DotChart:
    rows = tuple(Dot(label, ChartPoint(time_s, None, Range(time_s / 2, time_s)), (time_s,))
                 for label in labels)
    return DotChart(*head(), Axis("time", Show.US, "us"), (TIME,), rows)


def bars(*labels: str, title: str = "a title", note: str = "A note.") -> BarChart:
    rows = tuple(Bar(label, (1e-4,), ((1e-4, STYLE),), Range(9e-5, 2e-4), 5e-5, 4e-5)
                 for label in labels)
    return BarChart(*head(title, note), Axis("time", Show.US, "us"), (TIME,),
                    (BarSection("", rows),), (STYLE,), "passes", "without", "alone")


@given(st.lists(st.text("ab=_ ", max_size=60), max_size=8), st.integers(16, 40))
@example(["a" * 50 + "1", "a" * 50 + "2", "a" * 50 + "1"], 20)
def test_labels_that_differ_still_differ(labels: list[str], most: int) -> None:
    short = short_labels(labels, most)
    assert all(len(text) <= most for text in short)
    for (one, told), (other, told_other) in product(zip(labels, short, strict=True), repeat=2):
        assert (told == told_other) == (one == other)


def test_the_part_of_a_long_label_that_differs_is_kept() -> None:
    ring, tree = short_labels([f"{LONG}A=1 {LONG}", f"{LONG}A=2 {LONG}"], 55)
    assert "A=1" in ring and "A=2" in tree


@pytest.mark.parametrize("text", ["x" * 10_000, "W" * 300, "short"])
def test_what_is_cut_fits(text: str) -> None:
    assert width(cut(text, 3.0, 10), 10) <= 3.0


def test_whole_sentences_are_kept() -> None:
    text = "One is here. " + "Two is long, and here, too. " * 3
    shown = sentences(text.strip(), 2.6, 8, MORE)
    assert shown == f"One is here. {MORE}"
    assert sentences("One. Two.", 3.0, 8, MORE) == "One. Two."


@pytest.mark.parametrize("chart", [
    dots(f"{LONG}A=1", f"{LONG}A=2"), bars(f"{LONG}A=1", f"{LONG}A=2", title="t" * 300,
                                           note="A sentence that is long. " * 40)])
def test_no_text_crosses_an_edge_of_the_figure(chart: Chart) -> None:
    figure = draw(chart, "an origin " * 60)
    figure.draw_without_rendering()
    beyond = {tick.label1 for axes in figure.axes for tick in axes.xaxis.get_major_ticks()
              if tick.get_loc() > axes.get_xlim()[1]}  # which are not drawn
    for text in figure.findobj(Text):
        if text.get_text().strip() and text.get_visible() and text not in beyond:
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, text.get_text()


def test_two_lines_stand_below_a_figure_and_all_in_its_caption() -> None:
    chart = bars("a row", note="A sentence that is long. " * 40 + "The last one.")
    figure = draw(chart, "a run")
    below = [text for text in figure.texts if text.get_position()[1] < 0.2]
    assert [text.get_text() for text in below][1:] == ["a run"] and len(below) == 2
    assert "The last one." in caption(chart, "a run")


def test_height_follows_rows_and_labels_do_not_overlap() -> None:
    heights = [draw(dots(*map(str, range(rows))), "a run").get_figheight() for rows in (1, 2, 16)]
    assert heights == sorted(heights) and heights[1] < 0.3 * REPORT.width
    figure = draw(dots(*map(str, range(16))), "a run")
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert not any(one.overlaps(other) for one, other in zip(boxes, boxes[1:], strict=False))


def test_each_mark_of_a_bar_is_in_the_legend() -> None:
    (legend,) = draw(bars("a row"), "a run").legends
    assert [text.get_text() for text in legend.get_texts()] == ["all", "without", "alone", "passes"]


@pytest.mark.parametrize(("time_s", "unit"), [(9.9e-3, "us"), (1.146, "ms"), (12.0, "s")])
def test_times_are_in_the_unit_that_fits(time_s: float, unit: str) -> None:
    chart = with_fitting_units(dots("a row", time_s=time_s))
    assert isinstance(chart, DotChart)
    assert (chart.x.unit, chart.columns[0].unit) == (unit, unit)
    assert fitted(Axis("t", Show.US, "us, log scale"), [time_s]).unit == f"{unit}, log scale"
    assert fitted(Axis("rate", Show.GB_PER_S, "GB/s"), [time_s]).unit == "GB/s"


def test_bands_are_drawn_of_a_few_lines_only() -> None:
    for world_sizes in ((2,), (2, 4, 8, 16)):
        results = all_ok(sweep(("all_reduce",), ("gloo",), world_sizes=world_sizes))
        chart = next(iter(charts_of(results, MemorySamples(results))))
        assert isinstance(chart, LineChart)
        few = len(world_sizes) <= MOST_BANDS
        points = [point for line in chart.panels[0].lines for _, point in line.points]
        assert all((point.band is not None) == few for point in points)
        assert ("No bands" in chart.notes[0]) != few


def test_runs_of_the_canary_are_not_joined() -> None:
    results = all_ok(sweep(("all_reduce",), ("gloo",)))
    chart = canary_chart(make_canary(1e-4, 2e-4, 1e-4), results.plan)
    assert figure_of(chart, results).axes[0].lines[-1].get_linestyle() == "None"

"""What a chart marks: the fastest row, links beside rates, a chosen case; short names of charts."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import starmap

import pytest
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from figure_texts import charts_of_kind, texts_of
from hpcbench.answers.recommend import Ranking, Rival
from hpcbench.answers.tasks import Paired
from hpcbench.answers.winners import FASTEST, winners_of, with_fastest, with_winners
from hpcbench.errors import UsageError
from hpcbench.report.charts import charts_of, named_case, with_short_names
from hpcbench.report.plots import bare
from hpcbench.report.plots.lines import space_out
from hpcbench.report.plots.style import our_look, plain_log_axis, with_light_ticks
from hpcbench.views.chart import (
    Axis,
    Chart,
    ChartPoint,
    Dot,
    DotChart,
    HeatMap,
    Level,
    LineChart,
    Scale,
)
from hpcbench.views.presenter import presenter_of
from hpcbench.views.table import Column, Group, Row, Show, Table
from results_factory import MemorySamples, all_ok, make_case, not_ok, sweep


def ranking(best: str, *rivals: str) -> Ranking:
    """Of ids of cases; ! after that of a rival that is not clearly slower."""
    return Ranking("", "", "", "", "", best, 1.0, tuple(
        Rival("", "", one.rstrip("!"), 1.0, Paired(2.0), is_clear=one.isalpha() or " " in one)
        for one in rivals))


def rows(*ids: str) -> DotChart:
    return DotChart("a title", "", "stem", ("A note.",), ids, Axis("time", Show.US, "us"), (),
                    tuple(Dot(one, ChartPoint(1e-3), (), case_id=one) for one in ids))


def test_the_row_that_is_clearly_fastest_is_marked_and_named() -> None:
    marked = with_winners(rows("a", "b"), winners_of([ranking("a", "b")]))
    assert isinstance(marked, DotChart)
    assert [row.mark for row in marked.rows] == [FASTEST, ""]
    assert len(marked.notes) == 2
    assert "a (fastest)" in texts_of(bare(marked))


@pytest.mark.parametrize("rankings", [
    (), (("a", "elsewhere"),), (("a", "b"), ("b", "a")), (("a", "b"), ("a", "b!")),
    (("a", "b"), ("c", "b")), (("a", "b"), ("b", "c!"))])
def test_no_row_is_marked_without_one_clear_winner(rankings: tuple[tuple[str, str], ...]) -> None:
    chart = rows("a", "b", *("c" for one in rankings if "c" in "".join(one)))
    assert with_winners(chart, winners_of(starmap(ranking, rankings))) is chart


def test_the_fastest_of_a_setting_is_not_marked_beside_a_faster_row_of_the_same_work() -> None:
    """The baseline is not compared with b by the setting; it is with the setting's best."""
    found = winners_of([ranking("own a", "own b"), ranking("plain", "own a"),
                        ranking("other", "unlike")])
    marked = with_winners(rows("own a", "own b", "plain"), found)
    assert isinstance(marked, DotChart)
    assert [row.mark for row in marked.rows] == ["", "", FASTEST]
    ids = ("own a", "own b", "plain", "other", "unlike")
    table = Table("", (Column("time", "time"),), (
        Group("", tuple(Row((1.0,), case_id=case_id) for case_id in ids)),))
    assert [row.cells[-1] for row in with_fastest(table, found).rows] == [
        "", "", FASTEST, FASTEST, ""]


def test_what_links_allow_is_a_line_with_its_name() -> None:
    items = [replace(item, timing=replace(item.timing, link_bytes_per_s=12.5e9))
             if item.timing else item
             for item in all_ok(sweep(("all_reduce",), ("gloo",))).cases]
    (chart,) = charts_of_kind("collective", items)
    assert isinstance(chart, LineChart)
    assert chart.panels[1].levels == (Level("declared link: 12.5 GB/s", 12.5e9, dotted=True),)
    assert "declared link: 12.5 GB/s" in texts_of(bare(chart))


def test_what_two_ranks_reached_is_named_by_backend() -> None:
    items = all_ok(sweep(("all_reduce",), ("gloo", "mpi"))).cases
    known = {item.case.case_id: {"measured_link_bytes_per_s": 3e9} for item in items
             if item.case.backend == "gloo"}
    *_, chart = presenter_of("collective").overviews(items, known)
    assert chart.panels[1].levels == (Level("two gloo ranks: 3.00 GB/s", 3e9),)


@pytest.mark.parametrize("heights", [[0.0, 0.0, 0.0], [1.0, 0.99, 0.0], [0.5, 0.4], [1.0, 1.0]])
def test_names_at_line_ends_are_apart_and_inside(heights: list[float]) -> None:
    moved = sorted(space_out(heights, 0.2, 1.0))
    assert all(high - low >= 0.2 - 1e-9 for low, high in zip(moved, moved[1:], strict=False))
    assert moved[0] >= 0.0 and moved[-1] <= 1.0


def test_a_log_axis_within_a_decade_has_numbers() -> None:
    chart = DotChart("a title", "", "stem", (), (), Axis("time", Show.US, "us", Scale.LOG), (), (
        Dot("a", ChartPoint(2e-5), ()), Dot("b", ChartPoint(7e-5), ())))
    figure = bare(chart)
    figure.draw_without_rendering()
    low, high = figure.axes[0].get_xlim()
    shown = [tick.get_text() for place, tick in zip(
        figure.axes[0].get_xticks(), figure.axes[0].get_xticklabels(), strict=True)
        if low <= place <= high]
    assert {"20", "50"} <= {*shown}


@pytest.mark.parametrize("is_x", [True, False])
def test_minor_ticks_of_a_log_axis_are_marks_of_one_line(*, is_x: bool) -> None:
    axes = Figure().add_subplot()
    axes.plot([1, 1000], [1, 1000])
    plain_log_axis(axes, axes.xaxis if is_x else axes.yaxis)
    axis, (low, high) = (axes.xaxis, axes.get_xlim()) if is_x else (axes.yaxis, axes.get_ylim())
    axis.set_minor_locator(LogLocator(subs=range(2, 10)))
    wanted = [place for place in axis.get_minorticklocs() if low <= place <= high]
    line = axes.lines[-1]
    assert list(line.get_xdata() if is_x else line.get_ydata()) == wanted
    assert {20, 300} <= {*wanted} and 100 not in wanted


def test_light_ticks_are_drawn_as_those_of_matplotlib() -> None:
    (chart,) = charts_of_kind("collective", all_ok(sweep(("all_reduce",), ("gloo",))).cases)
    usual, light = bare(chart), with_light_ticks(bare(chart))
    pictures = [io.BytesIO(), io.BytesIO()]
    with our_look():
        for figure, picture in zip((usual, light), pictures, strict=True):
            figure.savefig(picture, format="png")
    assert pictures[0].getvalue() == pictures[1].getvalue()
    assert not any(axis.get_visible() for axes in light.axes for axis in (axes.xaxis, axes.yaxis))


def test_the_map_is_of_the_case_that_is_asked_for() -> None:
    results = all_ok(sweep(("all_reduce", "broadcast"), ("gloo",), sizes=(8, 1024)))
    chosen = results.cases[2]
    for name, why in ((chosen.case.case_id, "asked for"), (None, "an all_reduce")):
        charts = charts_of(results, MemorySamples(results), case=name)
        (shown,) = [chart for chart in charts if isinstance(chart, HeatMap)]
        assert (shown.case_ids == (chosen.case.case_id,)) == (name is not None)
        assert why in shown.notes[-1]


def test_a_case_is_named_by_enough_of_its_id_or_label() -> None:
    cases = sweep(("all_reduce",), ("gloo",), sizes=(8,)) + sweep(
        ("broadcast",), ("mpi",), sizes=(8, 1024))
    abc, abd, short, skipped = (replace(case, case_id=case_id) for case, case_id in zip(
        (*cases, make_case()), ("abc1", "abd2", "abd", "x"), strict=True))
    items = (*all_ok((abc, abd, short)).cases, not_ok(skipped, "skipped", "no nccl"))
    for name, case in (("abc1", abc), ("abc", abc), ("abd", short), (abd.label, abd),
                       ("all_reduce gloo cpu fp32 sum 8B", abc)):
        assert named_case(items, name).case == case
    for name, said in (("ab", "fits 3 cases"), ("mpi", "fits 2 cases"), ("x", "is skipped"),
                       (f"{abd.label}0", "nearest: abd2 "), ("", "no case has")):
        with pytest.raises(UsageError, match=said):
            named_case(items, name)


LONG = "training-transformer-2_layers__hidden_128__sequence_64__heads_4__changed-fp32-"


@pytest.mark.parametrize(("given", "wanted"), [
    (["all_reduce", "rank_iteration"], ["all_reduce", "rank_iteration"]),
    (["tp_mlp-m=1-n=2-fp32", "stalls"], ["tp_mlp", "stalls"]),
    (["tp_mlp-m=1-n=2", "tp_mlp-m=4-n=2"], ["tp_mlp-m=1", "tp_mlp-m=4"]),
    ([f"{LONG}gloo", f"{LONG}mpi", "stalls"], ["training-1", "training-2", "stalls"]),
    ([f"{LONG}gloo", f"{LONG}mpi", "training-1"], [f"{LONG}gloo", f"{LONG}mpi", "training-1"]),
])
def test_names(given: list[str], wanted: list[str]) -> None:
    found = with_short_names([Chart("", "", name, (), ()) for name in given])
    assert [chart.file_stem for chart in found] == wanted

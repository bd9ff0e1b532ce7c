"""Figures: which lines go where, real images, and nothing where there is nothing to draw."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

from figure_texts import all_texts_of, figure_of, first_figure, texts_of, texts_of_first
from hpcbench.errors import UsageError
from hpcbench.kinds.collective.present import MAX_LINES, MAX_ROWS, collective_figures
from hpcbench.report.charts import ChartChoice, canary_chart, charts_of, chosen_charts
from hpcbench.report.plots import draw, drawn, plot_file, plot_results
from hpcbench.report.plots.style import PAPER, in_unit, our_look, thin
from hpcbench.views.chart import (
    Axis,
    Bar,
    BarChart,
    BarSection,
    ChartPoint,
    Curve,
    LineChart,
    Look,
    Panel,
)
from hpcbench.views.table import Column, Range, Show
from results_factory import (
    ITEM_BYTES,
    MemorySamples,
    all_ok,
    as_version_1,
    flagged,
    make_canary,
    make_case,
    make_results,
    make_statistics,
    make_workload,
    mixed_results,
    not_ok,
    ok,
    shaped,
    sweep,
)


def test_images_are_written_and_are_images(tmp_path: Path) -> None:
    results = all_ok(sweep(("all_reduce", "all_gather", "barrier")))
    paths = plot_results(results, MemorySamples(results), tmp_path / "plots")
    assert [path.name for path in paths] == [
        "all_reduce.png", "all_gather.png", "barrier.png", "rank_iteration.png"]
    assert sorted((tmp_path / "plots").iterdir()) == sorted(
        file for path in paths for file in (path, path.with_suffix(".txt")))
    for path in paths:
        image = imread(path)
        assert image.shape[0] > 250
        assert np.unique(image).size > 20


@pytest.mark.parametrize(("image_format", "magic"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_other_formats(tmp_path: Path, image_format: str, magic: bytes) -> None:
    results = all_ok(sweep(("broadcast",)))
    for path in plot_results(results, MemorySamples(results), tmp_path, image_format):
        assert path.read_bytes().startswith(magic)
        assert path.suffix == f".{image_format}"


def test_unknown_format_is_refused_before_the_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="allowed are png, svg, pdf"):
        plot_file(tmp_path / "missing.h5", None, "jpeg")


def test_a_file_is_no_folder_for_figures(tmp_path: Path) -> None:
    (tmp_path / "figures").write_text("")
    with pytest.raises(UsageError, match="-o .*figures: is a file; give a folder"):
        plot_file(tmp_path / "missing.h5", tmp_path / "figures", "png")


def test_nothing_ok_draws_nothing(tmp_path: Path) -> None:
    results = make_results((not_ok(make_case(), "skipped", "no nccl"),))
    assert plot_results(results, MemorySamples(results), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_only_ok_cases_are_drawn() -> None:
    drawn = [item for group in collective_figures(mixed_results().cases) for item in group.items]
    assert [item.case.workload.size_bytes for item in drawn] == [8, 2**20]


def test_labels_name_only_what_differs() -> None:
    group, = collective_figures(all_ok(sweep(("all_reduce",), world_sizes=(2, 4))).cases)
    assert [label for label, _ in group.lines] == [
        "gloo 2 ranks", "gloo 4 ranks", "mpi 2 ranks", "mpi 4 ranks"]
    assert group.subtitle == "cpu, isolated, fp32, sum, out of place"


def test_splits_and_groups_are_shown_only_where_they_are_unusual() -> None:
    cases = [shaped(split, 1, index) for index, split in enumerate(("even", "linear"))]
    cases += [shaped("linear", 2, 2)]
    group, = collective_figures(all_ok(tuple(cases)).cases)
    assert [label for label, _ in group.lines] == [
        "split even 1 group", "split linear 1 group", "split linear 2 groups"]
    linear, = collective_figures(all_ok((cases[1], shaped("linear", 1, 3, 4096))).cases)
    assert linear.subtitle == "gloo, cpu, 4 ranks, isolated, split linear, fp32, out of place"


def test_asynchronous_calls_have_lines_of_their_own() -> None:
    works = [replace(make_workload(size_bytes=size), asynchronous=apart)
             for apart in (False, True) for size in (8, 1024)]
    items = [ok(make_case(work, index=index)) for index, work in enumerate(works)]
    group, = collective_figures(items)
    assert [(label, len(cases)) for label, cases in group.lines] == [("", 2), ("async", 2)]
    alone, = collective_figures(items[2:])
    assert "async" in alone.subtitle.split(", ")


def test_environment_variables_that_all_share_are_not_in_the_labels() -> None:
    cases = tuple(make_case(index=index, env=(("NCCL_ALGO", algorithm), ("NCCL_PROTO", "LL")))
                  for index, algorithm in enumerate(("Ring", "Tree")))
    group, = collective_figures(all_ok(cases).cases)
    assert [label for label, _ in group.lines] == ["NCCL_ALGO=Ring", "NCCL_ALGO=Tree"]
    assert "NCCL_PROTO=LL" in group.subtitle


def test_modes_and_folds_never_share_a_line() -> None:
    cases = [make_case(make_workload(size_bytes=size), index=index, mode=mode)
             for index, (mode, size) in enumerate(
                 (mode, size) for mode in ("isolated", "pipelined", "barrier_start")
                 for size in (8, 1024))]
    items = [ok(case) for case in cases]
    items.append(flagged(ok(make_case(make_workload(size_bytes=64), index=9)), fold="local_max"))
    group, = collective_figures(items)
    assert [label for label, _ in group.lines] == [
        "isolated", "pipelined", "barrier_start", "isolated (fold local_max)"]
    alone, = collective_figures(items[:2])
    assert "isolated" in alone.subtitle
    shown = texts_of_first(make_results(tuple(items)))
    longest = "the longest of the ranks' own times from start to end"
    for words in (f"pipelined, fold per_call ({longest}, divided by the calls)",
                  f"isolated, fold local_max ({longest})"):
        assert words in shown


def test_the_same_line_from_two_blocks_is_one_line() -> None:
    cases = sweep(("all_reduce",), ("gloo",), (8, 64)) + sweep(
        ("all_reduce",), ("gloo",), (1024,), block="scaling")
    group, = collective_figures(all_ok(cases).cases)
    assert [item.case.workload.size_bytes for item in group.items] == [8, 64, 1024]
    assert len(group.lines) == 1


AXES = st.fixed_dictionaries({
    "backends": st.sets(st.sampled_from(("gloo", "mpi", "nccl", "ucc")), min_size=1),
    "world_sizes": st.sets(st.sampled_from((1, 2, 4, 8)), min_size=1),
    "dtypes": st.sets(st.sampled_from(tuple(ITEM_BYTES)), min_size=1),
    "sizes": st.sets(st.sampled_from((8, 1024, 2**20)), min_size=1),
})


@settings(max_examples=30)
@given(AXES)
def test_every_case_is_drawn_once_and_no_figure_is_crowded(axes: dict[str, set[object]]) -> None:
    cases = sweep(("all_reduce", "barrier"), **{name: tuple(v) for name, v in axes.items()})
    found = [*collective_figures(all_ok(cases).cases)]
    drawn = [item.case.case_id for group in found for item in group.items]
    assert sorted(drawn) == sorted(case.case_id for case in cases)
    assert len({group.file_stem for group in found}) == len(found)
    for group in found:
        sizes = {item.case.workload.size_bytes for item in group.items}
        limit = MAX_ROWS if len(sizes) == 1 else MAX_LINES
        labels = [label for label, _ in group.lines]
        if group.name != "barrier":  # the factory repeats a barrier per dtype
            assert len(labels) <= limit
            assert len(set(labels)) == len(labels)


def test_file_names_hold_no_separator_of_backends_or_variables() -> None:
    cases = tuple(make_case(make_workload(size_bytes=size), index=index * 10 + size % 7,
                            backend=backend, env=(("A", "x/y"),) if index % 2 else ())
                  for index, backend in enumerate(("ucc", "ucc/tl/ucp", "gloo", "mpi"))
                  for size in (8, 64))
    more = tuple(replace(case, world_size=2, case_id=case.case_id + "2") for case in cases)
    items = tuple(ok(case, 1e-4) for case in cases + more)
    assert all("/" not in group.file_stem for group in collective_figures(items))


def test_figure_explains_itself() -> None:
    results = all_ok(sweep(("all_reduce",), ("gloo",), world_sizes=(1, 4)))
    shown = texts_of_first(results)
    for words in ("all_reduce", "time per operation (us)", "bus bandwidth (GB/s)", "8 B", "1 KiB",
                  "1 MiB", "5th to 95th percentile", "n = 20",
                  "Mode isolated, fold global (from the first",
                  "95% confidence interval", "times of different ranks are not compared", "1 pass",
                  "torch 2.13.0+cpu", "2026-03-01", "4 ranks on 1 node", "One rank"):
        assert words in shown


def test_band_is_the_range_where_percentiles_do_not_exist() -> None:
    results = all_ok(sweep(("all_reduce",), iterations=8))
    assert "minimum to maximum" in texts_of(first_figure(results))


def test_only_the_lines_with_few_samples_have_another_band() -> None:
    cases = sweep(("all_reduce",), ("gloo", "mpi"))
    items = [ok(case) for case in cases]
    items[-1] = replace(items[-1], statistics=make_statistics(1e-3, n=8))
    results = make_results(tuple(items))
    assert ("Band: 5th to 95th percentile (of mpi, with n < 20: minimum to maximum)"
            in texts_of(first_figure(results)))


def test_the_canary_of_a_machine_that_changed_a_lot_is_drawn_on_a_log_scale() -> None:
    results = all_ok(sweep(("all_reduce",), ("gloo",)))
    for medians_s, scale in (((1e-4, 2e-4, 3e-4), "linear"), ((1e-4, 2e-3, 1e-4), "log")):
        chart = canary_chart(make_canary(*medians_s), results.plan)
        assert figure_of(chart, results).axes[0].get_yscale() == scale


def test_points_without_an_interval_are_counted() -> None:
    cases = sweep(("all_reduce",), ("gloo",))
    items = [ok(case) for case in cases]
    items[0] = replace(items[0], statistics=replace(make_statistics(1e-4), ci_reliable=False))
    results = make_results(tuple(items))
    assert "1 of 3 points have none" in texts_of_first(results)
    few = all_ok(sweep(("all_reduce",), iterations=5))
    assert "No sound confidence interval" in texts_of_first(few)


def test_rows_show_the_interval() -> None:
    cases = tuple(make_case(mode=mode, index=index)
                  for index, mode in enumerate(("isolated", "barrier_start")))
    items = [ok(cases[0], 1e-3), as_version_1(ok(cases[1], 1e-3))]
    shown = texts_of(first_figure(make_results(tuple(items))))
    assert "1000 us +-2.0%, " in shown
    assert "1000 us, " in shown


def test_the_canary_is_drawn_from_three_runs_on(tmp_path: Path) -> None:
    results = all_ok(sweep(("all_reduce",), ("gloo",)))
    two = replace(results, canary=make_canary(1e-4, 1.1e-4))
    names = [path.name for path in plot_results(two, MemorySamples(two), tmp_path)]
    assert "canary.png" not in names
    canary = make_canary(1e-4, 1.02e-4, 1.1e-4, quality=("drifting",))
    drifted = replace(results, canary=canary)
    names = [path.name for path in plot_results(drifted, MemorySamples(drifted), tmp_path)]
    assert names[-1] == "canary.png"
    shown = all_texts_of(canary_chart(canary, drifted.plan), drifted)
    for words in ("n = 20", "Steady drift: slope +10.0%", "within 3%", "Fold local_max",
                  "order statistics", canary.label):
        assert words in shown


def test_one_rank_alone_has_no_bandwidth_curve() -> None:
    results = all_ok(sweep(("all_reduce",), ("gloo",), world_sizes=(1,)))
    shown = texts_of(first_figure(results))
    assert "nothing crosses a link" in shown


@given(st.sets(st.integers(1, 2**40), min_size=1, max_size=60))
def test_ticks_are_measured_sizes_few_and_keep_both_ends(sizes: set[int]) -> None:
    ordered = sorted(sizes)
    ticks = thin(ordered)
    assert set(ticks) <= sizes
    assert (ticks[0], ticks[-1]) == (ordered[0], ordered[-1])
    assert len(ticks) <= 11
    assert ticks == sorted(set(ticks))


def test_the_users_settings_of_matplotlib_change_no_figure(tmp_path: Path) -> None:
    """LaTeX is not there, and a page of a paper keeps its width."""
    results = all_ok(sweep(("all_reduce",)))
    theirs = {"text.usetex": True, "savefig.bbox": "tight", "figure.autolayout": True,
                "savefig.dpi": 31, "axes.titlesize": 40, "xtick.major.size": 30}
    pictures = []
    for folder, chosen in (("theirs", theirs), ("ours", {})):
        with matplotlib.rc_context(chosen):
            paths = plot_results(results, MemorySamples(results), tmp_path / folder, style=PAPER)
            report = [drawn(chart, 1) for chart in charts_of(results, MemorySamples(results))]
        pictures.append(([path.read_bytes() for path in paths], report))
    assert pictures[0] == pictures[1]


def test_drawing_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    results = all_ok(sweep(("all_reduce",)))
    plot_results(results, MemorySamples(results), tmp_path)
    assert dict(matplotlib.rcParams) == before


def test_only_the_plots_import_matplotlib() -> None:
    code = ("import sys, hpcbench.report.console, "
            "hpcbench.report.terminal, hpcbench.report.summary;"
            "print([m for m in ('matplotlib', 'torch', 'mpi4py', 'scipy') if m in sys.modules])")
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "[]", shown.stderr


HEAD = ("a title", "a subtitle", "a_file", ("a note",), ())
NUMBERS = tuple(Column(f"value{at}", "a value", Show.RATIO, "GB/s") for at in range(6))


@pytest.mark.parametrize("columns", [0, 1, 6])
def test_any_number_of_columns_stands_beside_bars(columns: int) -> None:
    bars = tuple(Bar(f"row {at}", (1.0 + at,) * columns, ((1.0 + at, Look("part", "#0072B2")),))
                 for at in range(2))
    figure = draw(BarChart(*HEAD, Axis("time", Show.US, "us"), NUMBERS[:columns],
                           (BarSection("", bars),), ()), "a run")
    with our_look():
        figure.draw_without_rendering()
    cells = [text.get_window_extent() for text in figure.axes[0].texts
             if text.get_text() == "2.00"]
    assert len(cells) == columns
    bars_end = figure.axes[0].get_window_extent().x1
    assert all(left.x1 < right.x0 for left, right in zip(cells, cells[1:], strict=False))
    assert all(bars_end < cell.x0 and cell.x1 < figure.bbox.x1 for cell in cells)


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_panels_of_lines_do_not_overlap(panels: int) -> None:
    line = Curve("a line", ((1, ChartPoint(1e-6)), (2, ChartPoint(2e-6, Range(1e-6, 3e-6)))))
    panel = Panel(Axis("time", Show.US, "us"), (line, line))
    figure = draw(LineChart(*HEAD, Axis("ranks"), (panel,) * panels), "a run")
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert len(boxes) == panels
    assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:], strict=False))
    assert list(figure.axes[0].lines[0].get_ydata()) == pytest.approx([1.0, 2.0])


def test_only_the_charts_that_are_asked_for() -> None:
    results = all_ok(sweep(collectives=("all_reduce", "all_gather"), backends=("gloo", "mpi")))
    charts = list(charts_of(results, MemorySamples(results)))
    names = [chart.file_stem for chart in chosen_charts(
        charts, results, ChartChoice("comm", ("all_*",)))]
    assert names == ["all_reduce", "all_gather"]
    with pytest.raises(UsageError, match=r"--only x\*: no chart has such a name; there are: all_"):
        list(chosen_charts(charts, results, ChartChoice(only=("x*",))))
    with pytest.raises(UsageError, match="trainin"):
        list(chosen_charts(charts, results, ChartChoice("trainin")))


@pytest.mark.parametrize("sizes", [(0, 8, 1024), (0,)])
def test_a_size_of_nothing_is_drawn_on_no_log_axis(sizes: tuple[int, ...]) -> None:
    results = all_ok(sweep(collectives=("reduce_scatter",), sizes=sizes))
    for chart in charts_of(results, MemorySamples(results)):
        figure_of(chart, results).canvas.draw()


@pytest.mark.parametrize("show", [show for show in Show if "percent" in show.value])
def test_a_share_stands_at_an_axis_as_in_a_table(show: Show) -> None:
    assert in_unit(0.701, show) == pytest.approx(70.1)

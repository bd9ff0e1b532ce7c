"""Figures of steps, ranks and readings: what shares one, what fits in, what is marked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import PathPatch
from matplotlib.text import Text

from figure_texts import all_texts_of, charts_of_kind, figure_of, texts_of
from hpcbench.kinds.collective.present import MOST_BANDS
from hpcbench.kinds.training.derive.fingerprints import same_programs
from hpcbench.kinds.training.present.charts import MOST_ROWS
from hpcbench.plan.workload import UnknownWorkload
from hpcbench.reduce.results import (
    MOST_POINTS,
    CaseResult,
    CaseSamples,
    RankTelemetry,
    Results,
    TimeSeries,
    Usage,
    core_use,
    powers,
)
from hpcbench.report.charts import (
    canary_chart,
    case_to_map,
    charts_of,
    fitted,
    rank_iteration,
    with_fitting_units,
)
from hpcbench.report.console import print_results
from hpcbench.report.plots import draw, plot_results
from hpcbench.report.plots.style import (
    MORE,
    POINTS,
    REPORT,
    caption,
    cut,
    our_look,
    sentences,
    short_labels,
    width,
)
from hpcbench.report.summary import write_summary
from hpcbench.trace.schema import Flag
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
from hpcbench.views.columns import MOST_LINES, telemetry_chart
from hpcbench.views.table import Column, Range, Show
from results_factory import (
    MemorySamples,
    all_ok,
    make_canary,
    make_case,
    make_results,
    make_samples,
    not_ok,
    ok,
    shaped,
    sweep,
)
from training_results import SHARES, strategies, trained, training_case, with_peak

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


def test_a_text_is_as_wide_as_it_is_measured() -> None:
    text = Figure(dpi=POINTS).text(0, 0, "i" * 40, fontsize=9)
    with our_look():
        inches = text.get_window_extent().width / POINTS
    assert inches == pytest.approx(width("i" * 40, 9), rel=0.01)


@pytest.mark.parametrize("chart", [
    dots(f"{LONG}A=1", f"{LONG}A=2"), bars(f"{LONG}A=1", f"{LONG}A=2", title="t" * 300,
                                           note="A sentence that is long. " * 40)])
def test_no_text_crosses_an_edge_of_the_figure(chart: Chart) -> None:
    figure = draw(chart, "an origin " * 60)
    with our_look():
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


def drawn(results: Results, samples: CaseSamples) -> Figure:
    """Return the map of the first case."""
    return figure_of(with_fitting_units(rank_iteration(results.cases[0], samples)), results)


def map_texts(results: Results, samples: CaseSamples) -> str:
    return all_texts_of(rank_iteration(results.cases[0], samples), results)


def test_heat_map_marks_warm_ups_and_passes() -> None:
    case = make_case()
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    half = (np.arange(25) >= 12).astype(np.int64)
    shown = map_texts(results, replace(samples, pass_index=half))
    for words in ("warm-up, not in the statistics", "time in the call (us", "rank", "iteration",
                  "next pass", "1 KiB"):
        assert words in shown


def test_heat_map_marks_single_calls_and_the_next_launch() -> None:
    case = make_case(mode="pipelined", batch=20)
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    flags = samples.flags.copy()
    flags[:, -1] = Flag.SINGLE | Flag.CHECKED
    launch = (np.arange(25) >= 12).astype(np.int64)
    shown = map_texts(results, replace(samples, flags=flags, launch=launch))
    for words in ("single checked call", "next pass", "a sample of 20 calls"):
        assert words in shown


def test_many_samples_share_columns_and_none_is_hidden() -> None:
    case = make_case(iterations=3001)
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    end = samples.end_ns.copy()
    end[1, 2000] = samples.start_ns[1, 2000] + 90_000_000
    samples = replace(samples, end_ns=end)
    figure = drawn(results, samples)
    assert "the longest of 4 samples" in map_texts(results, samples)
    shown = figure.axes[0].images[0].get_array()
    assert shown.shape == (4, 752)
    assert float(shown[1, 500]) == 90.0


def test_heat_map_of_equal_or_only_warm_up_samples() -> None:
    case = make_case()
    results = all_ok((case,))
    samples = make_samples(case, 1e-3)
    drawn(results, replace(samples, end_ns=samples.start_ns))
    drawn(results, replace(samples, flags=np.ones_like(samples.flags)))


def test_case_to_map_case_is_the_largest_all_reduce_of_the_most_ranks() -> None:
    results = all_ok(sweep(("broadcast", "all_reduce"), sizes=(8, 2**20), world_sizes=(2, 4)))
    chosen = case_to_map(results.cases)
    assert isinstance(chosen, CaseResult)
    work = chosen.case.workload
    assert (work.collective, work.size_bytes, chosen.case.world_size) == ("all_reduce", 2**20, 4)
    batches = [ok(make_case(mode="pipelined", batch=20)), ok(make_case(index=1))]
    assert case_to_map(batches) == batches[1]


def test_ranks_may_finish_early_where_a_part_is_empty() -> None:
    for split, waits in (("even", True), ("linear", True), ("zero", False)):
        case = shaped(split, 1, 0)
        (note,) = rank_iteration(ok(case), make_samples(case, 1e-3)).notes
        assert ("no rank can finish before all have arrived" in note) == waits, split


def test_a_case_of_a_kind_that_is_not_installed_is_mapped_after_all_others() -> None:
    case = replace(make_case(index=1), kind="toy", workload=UnknownWorkload({"name": "spin"}))
    results = make_results((ok(case, 1e-3),))
    assert case_to_map(results.cases) is results.cases[0]
    known = ok(make_case())
    assert case_to_map([*results.cases, known]) is known
    assert "spin: time in the call" in texts_of(drawn(results, make_samples(case, 1e-3)))


def test_a_figure_for_each_model_and_number_of_ranks(tmp_path: Path) -> None:
    results = strategies()
    paths = plot_results(results, MemorySamples(results), tmp_path)
    assert [path.name for path in paths] == [
        "training-1.png", "training-2.png", "training-3.png", "recommend_training.png",
        "rank_iteration.png"]
    assert all(imread(path).shape[1] == 1320 for path in paths)


def test_the_parts_of_a_bar_are_the_step() -> None:
    parts = parts_s(trained(training_case(), 8e-3))
    assert list(parts) == ["data wait", *[*SHARES][1:], "other"]
    assert sum(parts.values()) == pytest.approx(8e-3)
    assert parts["backward"] == pytest.approx(4.4e-3)
    assert parts_s(trained(training_case(), 8e-3, {})) == {"other": 8e-3}


def parts_s(item: CaseResult) -> dict[str, float]:
    (bar,) = step_charts([item])[0].sections[0].bars
    return {look.label: time_s for time_s, look in bar.segments}


def step_charts(items: Sequence[CaseResult]) -> list[BarChart]:
    return charts_of_kind("training", items)


def test_the_figure_states_what_is_shown() -> None:
    results = with_peak(strategies(), fp32=50e9)
    (_, chart, *_) = charts_of(results, MemorySamples(results))
    figure = figure_of(chart, results)
    text = texts_of(figure)
    assert "data dp=2 bucket_mb=1 comm_hook=none" in text
    assert "checkpointing=full" in text and "checkpointing=none" not in text
    assert "8.00" in text and "32000.0" in text and "22.81" in text and "9.00" in text
    assert "MFU: FLOPs as megatron counts them." in all_texts_of(chart, results)
    (legend,) = figure.legends
    assert [item.get_text() for item in legend.get_texts()] == [
        "data wait", "forward", "backward", "fwd+bwd", "optimizer", "other", "medians of passes"]


def test_only_trainings_with_numbers_and_as_many_as_can_be_read() -> None:
    items = [trained(training_case(index=at, batch_size=at + 1)) for at in range(MOST_ROWS + 2)]
    charts = step_charts([*items, not_ok(training_case(index=99), "failed", ""), ok(make_case())])
    assert [len(chart.sections[0].bars) for chart in charts] == [MOST_ROWS, 2]
    assert charts[0].sections[0].bars[0].label == "data dp=2 batch_size=1"
    assert charts[0].file_stem != charts[1].file_stem
    assert step_charts([ok(make_case())]) == []


def test_a_training_is_mapped_only_where_nothing_else_is() -> None:
    training, collective = trained(training_case()), ok(make_case(index=1))
    assert case_to_map([training, collective]) is collective
    larger = trained(training_case(index=2, batch_size=64))
    assert case_to_map([training, larger]) is larger


SECOND = 10**9


def course(values: list[int], *, rank: int = 0, device: str = "d") -> TimeSeries:
    """A reading a second, from second 5 on."""
    times = SECOND * (5 + np.arange(len(values), dtype=np.int64))
    return TimeSeries(rank, device, times, np.array(values, dtype=np.int64))


class Read(MemorySamples):
    """Results in memory with courses."""

    def __init__(self, results: Results, **columns: list[TimeSeries]) -> None:
        super().__init__(results)
        self._columns = columns

    def time_series(self, table: str, column: str) -> tuple[TimeSeries, ...]:
        return tuple(self._columns.get(f"{table}_{column}", ()))


def cores(nodes: int = 1) -> dict[str, list[TimeSeries]]:
    """Each second 60 of 100 parts in processes, 20 in the kernel, 15 idle, 5 stolen."""
    steps = {"user_ns": 60, "system_ns": 20, "idle_ns": 15, "steal_ns": 5}
    return {f"cpu_{name}": [course([7 + step * at for at in range(4)], rank=8 * node,
                                   device="all cores") for node in range(nodes)]
            for name, step in steps.items()}


def results_with(*spans_s: tuple[int, int]) -> Results:
    items = [replace(ok(make_case(index=number), 1e-3), usage=Usage(
        1, spans_ns=((begin * SECOND, end * SECOND),)))
        for number, (begin, end) in enumerate(spans_s)]
    return replace(make_results(tuple(items)), telemetry=(RankTelemetry(0, 0, 2.0),))


def test_power_is_that_of_gpus_and_the_rise_of_energy_of_packages() -> None:
    results = results_with((5, 6))
    source = Read(results, gpu_power_mw=[course([250_000, 300_000], rank=1, device="GPU-a")],
                  energy_energy_uj=[course([0, 30_000_000, 90_000_000], device=name)
                                    for name in ("package-0", "package-0/dram", "psys")])
    gpu, package = powers(source.time_series)
    assert (gpu.rank, gpu.device) == (1, "GPU-a")
    assert [point.mean for point in gpu.points] == [250, 300]
    assert [(point.time_ns / SECOND, point.mean) for point in package.points] == [(6, 30), (7, 60)]


def test_cores_are_busy_in_processes_and_in_the_kernel() -> None:
    (node,) = core_use(Read(results_with(), **cores()).time_series)
    assert [point.mean for point in node.points] == pytest.approx([0.8] * 3)


def test_many_readings_share_points() -> None:
    values = [1000 * (at % 10) for at in range(MOST_POINTS * 10)]
    (line,) = powers(Read(results_with(), gpu_power_mw=[course(values)]).time_series)
    assert len(line.points) == MOST_POINTS
    assert (line.points[3].least, line.points[3].mean, line.points[3].greatest) == (0, 4.5, 9)


def test_one_reading_has_no_rise() -> None:
    assert [line.points for line in powers(Read(
        results_with(), energy_energy_uj=[course([5], device="package-0")]).time_series)] == [()]


def test_readings_that_are_close_together_share_a_point() -> None:
    """A case ended at 6 s, the next one began 1 ms later, when the counter had not moved."""
    times = SECOND * np.array([5, 6, 6, 7], dtype=np.int64) + [0, 0, 10**6, 0]
    course_of = TimeSeries(0, "package-0", times, np.array([0, 30, 30, 90], dtype=np.int64) * 10**6)
    (line,) = powers(Read(results_with(), energy_energy_uj=[course_of]).time_series)
    assert [point.mean for point in line.points] == [30, 60]


def test_the_chart_marks_the_cases() -> None:
    results = results_with((6, 7), (5, 6))
    source = Read(results, **cores(nodes=MOST_LINES + 1),
                  gpu_power_mw=[course([250_000] * 4, device="GPU-a")])
    chart = telemetry_chart(results, source)
    assert chart.file_stem in {one.file_stem for one in charts_of(results, source)}
    power, busy = chart.panels
    assert power.spans == busy.spans == ((0, 1), (1, 2)) and len(busy.lines) == MOST_LINES
    assert [place for place, _ in power.lines[0].points] == [0, 1, 2, 3]
    figure = figure_of(chart, results)
    text = texts_of(figure)
    for words in ("rank 0: all cores", "power (W)", "busy cores (% of the node's)",
                  "The first 6 of 7 lines", "2 runs of cases"):
        assert words in " ".join(text.split()), text
    shaded = {patch.get_alpha(): patch.get_path().get_extents().intervalx.tolist()
              for patch in figure.axes[0].findobj(PathPatch)}
    assert shaded == {0.08: [0, 1], 0.2: [1, 2]}


def test_nothing_read_is_no_chart() -> None:
    results = results_with((5, 6))
    assert telemetry_chart(results, MemorySamples(results)) is None


def of_buckets(*sizes_mib: int, **changes: Any) -> list[CaseResult]:
    return [trained(training_case("data", index=index, options=(
        ("bucket_mb", mib), ("bucket_view", False), ("comm_hook", "none")), **changes))
        for index, mib in enumerate(sizes_mib)]


def test_buckets_that_all_hold_the_whole_model_are_one_program() -> None:
    items = of_buckets(25, 50, 100)
    first = items[0].case.case_id
    assert same_programs(items) == {item.case.case_id: first for item in items[1:]}


def test_other_buckets_are_other_programs() -> None:
    """Of 64 layers no such bucket holds all."""
    assert same_programs(of_buckets(1, 2, 4, layers=64)) == {}


@pytest.mark.parametrize("other", [
    {"batch_size": 8}, {"dtype": "bf16"}, {"optimizer": "sgd"}, {"communication": "off"}])
def test_what_differs_otherwise_is_another_program(other: dict[str, Any]) -> None:
    one, = of_buckets(25)
    assert same_programs([one, *of_buckets(50, **other)]) == {}


def test_other_options_are_other_programs() -> None:
    one, = of_buckets(25)
    view = trained(training_case("data", index=1, options=(
        ("bucket_mb", 25), ("bucket_view", True), ("comm_hook", "none"))))
    assert same_programs([one, view]) == {}


def test_table_chart_and_summary_name_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    items = of_buckets(25, 50, 100)
    results = make_results(tuple(items))
    print_results(results, tmp_path)
    assert ("data bucket_mb=25: the same program as data bucket_mb=50, data bucket_mb=100; what "
            "they differ by is noise") in " ".join(capsys.readouterr().out.split())
    charts = [chart for chart in charts_of_kind("training", items) if "step" in chart.title]
    assert any("the same program as" in note for chart in charts for note in chart.notes)
    write_summary(results, tmp_path)
    rows = json.loads((tmp_path / "summary.json").read_text())["results"]["training"]["data"]
    assert [row["same_program_as"] for row in rows] == [None, *[rows[0]["case_id"]] * 2]

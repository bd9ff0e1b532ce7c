"""What a reader sees of charts: declared peaks, one colour a phase, rows that are told apart."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from figure_texts import charts_of_kind, texts_of
from hpcbench.answers.answer import Run
from hpcbench.answers.compare import SAME, CaseComparison, SideComparison
from hpcbench.answers.compare_tables import comparison_table
from hpcbench.kinds.hardware.derive import HardwareDeriver
from hpcbench.kinds.hardware.plan.test import Stream
from hpcbench.kinds.hardware.present import HardwarePresenter
from hpcbench.kinds.memory.present import MemoryPresenter
from hpcbench.kinds.primitive.derive import PrimitiveDeriver
from hpcbench.kinds.primitive.present import BARS, PrimitivePresenter
from hpcbench.kinds.training.present.charts import PART_LOOKS, PHASES
from hpcbench.kinds.training.present.presenter import TrainingPresenter
from hpcbench.reduce.results import CaseResult, Finding
from hpcbench.reduce.stack import RankTimeline, SampleTimeline
from hpcbench.report.charts import charts_of, timeline_chart
from hpcbench.report.colours import colours_of, with_colours
from hpcbench.report.document import ReportDocument, ReportSection
from hpcbench.report.page import html_text
from hpcbench.report.plots import bare
from hpcbench.report.plots.style import PlainFormatter
from hpcbench.report.report_file import document_of
from hpcbench.units import in_parts
from hpcbench.views.chart import (
    BACKEND_COLOURS,
    COLOURS,
    DARK,
    PALE,
    PART_COLOURS,
    PLAIN,
    Axis,
    Bar,
    BarChart,
    BarSection,
    Curve,
    HeatMap,
    LineChart,
    Look,
    Panel,
    RooflineChart,
)
from hpcbench.views.table import Column, Group, Line, Range, Row, Show, Table
from results_factory import MemorySamples, make_case, make_primitive, make_primitive_case, ok
from training_results import strategies, trained, training_case, with_peak

MEASURES = {"measured": {
    "flops": {"cpu fp32": 1e11}, "memory": {"cpu": 1e10}, "links": {"cpu gloo 2": 1e9},
    "messages": {"cpu gloo 2": 1e4}}}


def streams(**hardware: float) -> BarChart:
    """Return the chart of a copy of two ranks at 20 GB/s each."""
    case = replace(make_case(world_size=2), kind="hardware", workload=Stream("fp64", "copy", 0, 0))
    item = replace(ok(case, 4e7 / 2e10), detail={"0": {"stream": {"array_bytes": 2 * 10**7}}})
    records = HardwareDeriver().derive([item], hardware)
    chart, = (one for one in HardwarePresenter().overviews([item], records)
              if isinstance(one, BarChart))
    assert isinstance(chart, BarChart)
    return chart


def test_a_declared_peak_of_memory_is_a_line_across_the_bars_of_all_ranks() -> None:
    chart = streams(memory_bandwidth_gb_per_s=40)
    ((value, look),) = chart.sections[0].lines
    assert value == pytest.approx(80e9)
    assert look.dotted and look in chart.legend
    assert "declared peak of all ranks" in texts_of(bare(chart))


def test_without_a_declared_peak_there_is_no_line() -> None:
    chart = streams()
    assert chart.sections[0].lines == ()
    assert "declared" not in texts_of(bare(chart))


def timeline(item: CaseResult, *parts: str) -> dict[str, Look]:
    """Return the looks of a timeline of these parts, by what the legend calls them."""
    ranks = (RankTimeline(0, 0.0, tuple((name, 1e-3) for name in parts)),)
    chart = timeline_chart(item, (SampleTimeline("middle", 1, ranks),), "a case", PART_LOOKS)
    return {look.label: look for look in chart.legend}


def test_a_phase_has_the_same_colour_in_each_chart() -> None:
    item = trained(training_case())
    (steps, *_) = charts_of_kind("training", [item])
    of_steps = {look.label: look for _, look in steps.sections[0].bars[0].segments}
    found = timeline(item, "data", "forward", "backward", "optimizer", "")
    assert {name: look.colour for name, look in found.items()} == {
        name: look.colour for name, look in of_steps.items() if name in found}
    assert TrainingPresenter().part_looks["forward"] == PHASES["forward"]
    assert MemoryPresenter().part_looks == TrainingPresenter().part_looks


def test_a_colour_has_one_meaning() -> None:
    """Backends, other names, parts and plain marks share no colour, and a backend keeps its own."""
    meanings = [*BACKEND_COLOURS.values(), *COLOURS, *PART_COLOURS, PLAIN, DARK, PALE,
                *(look.colour for look in BARS.values())]
    assert len({colour.lower() for colour in meanings}) == len(meanings)
    for first in BACKEND_COLOURS:
        items = [ok(make_case(index=at, backend=name), 1e-3)
                 for at, name in enumerate((first, *BACKEND_COLOURS))]
        assert colours_of(items)[first] == BACKEND_COLOURS[first]
    chart = LineChart("", "", "", (), (), Axis("x"), (Panel(Axis("y"), tuple(
        Curve(name, ()) for name in ("launch 1", "launch 2"))),))
    coloured = with_colours(chart, BACKEND_COLOURS, ())
    assert isinstance(coloured, LineChart)
    found = {line.colour for line in coloured.panels[0].lines}
    assert len(found) == 2 and found <= {*COLOURS}


def test_parts_without_a_style_of_their_own_differ_in_colour() -> None:
    found = timeline(ok(make_case()), "forward", "one", "another", "")
    assert len({look.colour for look in found.values()}) == 4
    assert list(timeline(ok(make_case()), "")) == ["in the call"]


def test_spots_that_differ_in_an_option_alone_are_distinguished() -> None:
    cases = [make_primitive_case(replace(make_primitive(name), options=options),
                                 index=at, world_size=2)
             for at, (name, options) in enumerate((
                 ("chunked_pipeline", (("chunks", 2),)), ("chunked_pipeline", (("chunks", 4),)),
                 ("torch", ())))]
    items = [ok(case, 1e-2) for case in cases]
    records = PrimitiveDeriver().derive(items, MEASURES)
    (chart,) = (one for one in PrimitivePresenter().overviews(items, records)
                if isinstance(one, RooflineChart))
    labels = [spot.label.partition(":")[0] for spot in chart.panels[0].spots]
    assert labels == ["chunked_pipeline chunks=2", "chunked_pipeline chunks=4", "torch"]
    assert "fp32" in chart.subtitle and "2 ranks" in chart.subtitle
    (table,) = (one for one in PrimitivePresenter().overviews(items, records)
                if isinstance(one, Table))
    assert len({row.cells[0] for row in table.rows}) == 3


def test_columns_and_styles_that_no_bar_has_are_not_drawn() -> None:
    used, unused, line = (Look(name, "#000000") for name in ("used", "unused", "line"))
    chart = BarChart(
        "title", "", "stem", (), (), Axis("time", Show.MS, "ms"),
        (Column("step", "step"), Column("mfu", "MFU %")), (BarSection(
            "", (Bar("a", (1.0, None), ((1.0, used), (0.0, unused))),), ((2.0, line),)),),
        (used, unused, line)).without_empty()
    assert [column.title for column in chart.columns] == ["step"]
    assert chart.sections[0].bars[0].cells == (1.0,)
    assert [look.label for look in chart.legend] == ["used", "line"]


def test_a_training_without_a_declared_peak_has_no_column_of_mfu() -> None:
    for results, has_mfu in ((strategies(), False), (with_peak(strategies(), fp32=50e9), True)):
        chart, *_ = charts_of(results, MemorySamples(results))
        assert ("MFU %" in texts_of(bare(chart))) is has_mfu


def test_what_is_split_is_numbered() -> None:
    assert list(in_parts([1, 2, 3], 3)) == [("", [1, 2, 3])]
    assert list(in_parts([1, 2, 3], 2)) == [("-1", [1, 2]), ("-2", [3])]
    assert list(in_parts([], 2)) == []


def test_a_small_map_has_its_numbers_and_a_large_one_has_not() -> None:
    for ranks, is_written in ((2, True), (9, False)):
        values = np.full((ranks, ranks), 2.5e-6)
        values[0, 0] = np.nan
        chart = HeatMap(
            "pairs", "", "pairs", (), (), Axis("other"), Axis("rank"), tuple(range(ranks)), values,
            ranks, 1, Axis("latency", Show.US, "us"), Range(1e-6, 3e-6), (False, False), (), "", ())
        assert (texts_of(bare(chart)).count("2.50") == ranks**2 - 1) is is_written


def test_a_report_has_no_table_without_columns() -> None:
    results = strategies()
    document = document_of([Run("x", results, MemorySamples(results))])
    found = [item for section in document.sections for item in section.items
             if isinstance(item, Table)]
    assert found and all(table.columns for table in found)


def test_a_meaning_is_printed_once_however_many_columns_have_it() -> None:
    column = Column("a", "dev.", meaning="measured / predicted - 1")
    other = Column("b", "dev.", meaning="another")
    table = Table("memory", (column, column, other), (Group("", (Row((1, 2, 3)),)),))
    page = html_text(ReportDocument("", "", (ReportSection("key", "", (table,)),)), "1")
    assert re.findall("<dd>(.*?)</dd>", page) == ["measured / predicted - 1", "another"]


def test_a_comparison_that_leaves_cases_out_names_the_command_that_shows_them() -> None:
    same = CaseComparison("a", "a case", 1e-3, 1e-3, 1.0, 0.99, 1.01, (4, 4), verdict=SAME)
    found = SideComparison("before", "after", 0.05, (same,), ())
    (note,) = comparison_table(found).notes
    assert "hpcbench compare -v" in note.text
    assert not comparison_table(found, full=True).notes


@pytest.mark.parametrize(("ticks", "texts"), [
    ((2.25, 2.3, 2.35), ["2.25", "2.30", "2.35"]), ((0.01, 0.1, 1.0), ["0.01", "0.1", "1"]),
    ((0.0, 2.5, 5.0), ["0.0", "2.5", "5.0"]), ((0.0, 10.0, 20.0), ["0", "10", "20"]),
    ((0.5, 1.0, 2.0, 5.0), ["0.5", "1", "2", "5"])])
def test_ticks_at_equal_distances_have_as_many_digits(
    ticks: tuple[float, ...], texts: list[str],
) -> None:
    assert PlainFormatter().format_ticks(ticks) == texts


def test_the_first_screen_names_what_disturbed_the_run() -> None:
    notes = tuple(Finding(code, "note", f"{code} disturbed it") for code in (
        "HB144", "HB125", "HB137", "HB150"))
    results = replace(strategies(), findings=notes)
    sections = document_of([Run("x", results, MemorySamples(results))]).sections
    assert [one.key for one in sections][2] == "findings"
    (table,) = (item for item in sections[2].items if isinstance(item, Table))
    assert [row.cells[0] for row in table.rows] == ["HB144", "HB125", "HB137", "HB150"]


def test_definitions_are_whole_and_facts_are_no_json() -> None:
    results = strategies()
    results = replace(results, run=replace(results.run, environment={
        "host": {"name": "node 1"}, "clock": "mono"}))
    sections = {one.key: one for one in document_of(
        [Run("x", results, MemorySamples(results))]).sections}
    (facts,) = sections["environment"].items
    assert isinstance(facts, Table)
    assert {(group.title, row.cells) for group in facts.groups for row in group.rows} == {
        ("host", ("host.name", "node 1")), ("", ("clock", "mono"))}
    method = [item.text for item in sections["method"].items if isinstance(item, Line)]
    assert not [text for text in method if text.startswith(" ") or text.endswith((",", ";"))]


def test_a_bar_without_a_cell_for_each_column_is_refused() -> None:
    with pytest.raises(ValueError, match="bar 'one': 1 cells for 0 columns"):
        BarChart("t", "", "t", (), (), Axis("x"), (),
                 (BarSection("", (Bar("one", (1,), ()),)),), ())

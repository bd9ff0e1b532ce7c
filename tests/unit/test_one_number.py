"""One case, one number: its time has the same unit and digits in every table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from hpcbench.answers.answer import Run, TopicOptions
from hpcbench.answers.compare import compare
from hpcbench.answers.compare_inputs import Side, cases_of
from hpcbench.answers.compare_tables import comparison_table
from hpcbench.answers.recommend import recommend, recommend_charts, recommend_tables
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.results_lines import brief_tables_of, tables_of
from hpcbench.views.table import Column, Group, Range, Row, Show, Table, WithInterval
from results_factory import (
    MemorySamples,
    in_passes,
    make_case,
    make_primitive,
    make_primitive_case,
    make_results,
)

TIMES = {"2.8 ms": 2.76e-3, "3.1 us": 3.14e-6}


def times_in(tables: Iterable[Table]) -> set[str]:
    """Return the texts of all cells with the units of their columns, as a reader sees them."""
    shown = [table.without_empty() for table in tables]
    return {f"{text} {column.unit}".strip() for table in shown for row in table.rows
            for text, column in zip(table.texts(row), table.columns, strict=True)}


def timed(index: int, time_s: float, primitive: bool) -> CaseResult:
    """Return a case of three passes whose interval leaves two digits."""
    backend = ("gloo", "mpi")[index]
    case = (make_primitive_case(make_primitive(("torch", "functional")[index]), index=index)
            if primitive else make_case(index=index, backend=backend))
    item = in_passes(case, *[time_s] * 3)
    assert item.statistics is not None
    return replace(item, statistics=replace(
        item.statistics, ci_low_s=0.6 * time_s, ci_high_s=1.4 * time_s))


def results_of(*, primitive: bool) -> Results:
    found = make_results(tuple(timed(at, time_s, primitive)
                               for at, time_s in enumerate(TIMES.values())))
    return replace(found, plan=replace(found.plan, passes=3))


@pytest.mark.parametrize("primitive", [False, True], ids=["collective", "primitive"])
def test_a_time_is_the_same_text_everywhere(primitive: bool) -> None:
    results = results_of(primitive=primitive)
    run, side = Run("run", results, MemorySamples(results)), cases_of(Side("a", (results,)))
    ranked = recommend([run], TopicOptions())
    compared = [[comparison_table(compare(side, side, ("a", "b"), in_launch=in_launch),
                                  full=True)]
                for in_launch in (False, True)]
    for tables in (brief_tables_of(results), tables_of(results), recommend_tables(ranked),
                   *compared):
        assert set(TIMES) <= times_in(tables)


def test_a_column_has_the_unit_that_all_of_its_times_have() -> None:
    cells = (Range(9e-4, 1.2e-3), WithInterval(2.76e-3, 1.7e-3, 3.9e-3), 5e-3, "failed", None)
    table = Table("t", (Column("time", "time", Show.US, "p50, us"),),
                  (Group("", tuple(Row((cell,)) for cell in cells)),))
    (column,) = table.without_empty().columns
    assert (column.show, column.unit) == (Show.MS, "p50, ms")
    mixed = replace(table, groups=(*table.groups, Group("", (Row((4e-5,)),)))).without_empty()
    assert mixed.columns[0].unit == "p50" and mixed.without_empty() == mixed
    assert [mixed.texts(row)[0] for row in mixed.rows] == [
        "0.90..1.20 ms", "2.8 ms", "5 ms", "failed", "-", "40 us"]


def test_no_ratio_is_below_one_where_the_lowest_median_is_behind_by_pairs() -> None:
    first = in_passes(make_case(backend="gloo"), 1.0, 2.0, 9.0)
    second = in_passes(make_case(index=1, backend="mpi"), 2.1, 2.2, 2.3)
    results = make_results((first, second))
    ranked = recommend([Run("run", results, MemorySamples(results))], TopicOptions())
    (rival,) = ranked.rankings[0].rivals
    assert ranked.rankings[0].time_s > rival.time_s
    assert rival.paired.ratio == pytest.approx((9 / 2.1 / 2.2 / 2.3 * 2) ** (1 / 3))
    (table,), (chart,) = recommend_tables(ranked), recommend_charts(ranked)
    assert next(one for one in table.columns if one.name == "ratio").unit == "by pairs"
    assert [row.cells[2] for row in table.rows] == [1, rival.paired.ratio]
    assert "fastest" not in chart.x.title and "by pairs" in chart.x.title
    assert chart.reference == 1

"""Tables of cases from declared metrics: a kind names columns, and what rows have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce.metric import Metric, Records, Show, Values
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, in_summary_units
from hpcbench.views import columns
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Row,
    Table,
    backend_text,
    batch_text,
    distinct,
    flag_cell,
    like_median,
    timed_text,
)

if TYPE_CHECKING:
    from hpcbench.statistics.overlap import OverPasses


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column that is no metric by itself, and its cell of a case with these values."""

    column: Column
    of: Callable[[CaseResult, Values], Cell]


def of_case(column: Column, of: Callable[[CaseResult], Cell]) -> ShownColumn:
    """Return a column whose cell follows from the case alone."""
    return ShownColumn(column, lambda item, _: of(item))


TIME = of_case(columns.TIME, lambda item: columns.median_cell(item.statistics))
INTERVAL = of_case(columns.INTERVAL, lambda item: columns.interval_cell(item.statistics))
P95 = of_case(Column("p95_s", "p95", Show.US, "us", better="less"), lambda item: like_median(
    item.statistics.p95_s if item.statistics else None, columns.median_cell(item.statistics)))
WRONG = of_case(columns.WRONG, columns.wrong_cell)
N = of_case(columns.N, lambda item: columns.n_cell(item.statistics))
STATUS = of_case(columns.STATUS, lambda item: item.status)
LAUNCHES = of_case(columns.LAUNCHES, columns.launches_cell)
FLAGS = of_case(columns.FLAGS, flag_cell)
OUTCOME = (N, STATUS, LAUNCHES, FLAGS)


def passes_column(
    column: Column, name: str,
    cell: Callable[[OverPasses | None], Cell] = columns.over_passes_cell,
) -> ShownColumn:
    """Return a column of a number over passes (`metrics_over_passes`): its median, and its
    range, not an interval, which the column's unit names."""
    return ShownColumn(column, lambda _, values: cell(values.get(f"{name}_passes")))


def metric_column(one: Metric, **more: Any) -> ShownColumn:
    """Return the column of a metric with attributes of `Column` that metrics do not have."""
    return ShownColumn(replace(column_of(one), **more), partial(cell_of, one))


def column_of(column: Metric | ShownColumn) -> Column:
    """Return a metric's column; what it is planned as needs no meaning there, and a missing value
    has a sign of its own."""
    if isinstance(column, ShownColumn):
        return column.column
    is_measured = column.better is not None or column.has_digits_of_median or column.apart
    return Column(column.name, column.title, column.show, column.unit,
                  column.text.partition("; NaN")[0] if is_measured else "", column.better,
                  column.optional)


def cell_of(column: Metric | ShownColumn, item: CaseResult, values: Values) -> Cell:
    """Return a cell; times and rates have the digits of the median that they follow from."""
    if isinstance(column, ShownColumn):
        return column.of(item, values)
    value: Any = column.value(item, values)
    return like_median(value, columns.median_cell(item.statistics)) if (
        column.has_digits_of_median) else value


def result_tables(
    title: str, items: Iterable[CaseResult], derived: Records,
    shown: Sequence[Metric | ShownColumn], where: Callable[[CaseResult], str],
    order: Callable[[CaseResult], Any] = lambda item: 0,
) -> Iterator[Table]:
    """Yield a block's table: a group of rows for each place and way of timing, in this order."""
    groups = grouped(((where(item), timed_text(item)), item) for item in items
                     if item.status in columns.TABLED)
    if groups:
        yield Table(title, tuple(map(column_of, shown)), tuple(
            Group(name, tuple(Row(
                tuple(cell_of(one, item, derived.get(item.case.case_id, {})) for one in shown),
                item.status, item.case.case_id) for item in sorted(of_group, key=order)), timed)
            for (name, timed), of_group in groups.items()))


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column of a plan: the cell of one case, and that of several in one row (None: all in a row
    have the same). A row of several leaves out the column that has no ``title`` there; one with the
    column's own title is shown likewise."""

    column: Column
    of: Callable[[Case], Cell]
    together: Callable[[Sequence[Case]], Cell] | None = None
    title: str = ""


def planned_as(name: str) -> Callable[[Case], Any]:
    """Return the cell that is the workload's attribute of that name."""
    return lambda case: getattr(case.workload, name)


PLACE = (
    PlannedColumn(Column("backend", "backend"), backend_text),
    PlannedColumn(Column("device", "device"), lambda case: case.device),
    PlannedColumn(Column("ranks", "ranks", Show.COUNT), lambda case: case.world_size))


def several(of: Callable[[Case], object]) -> Callable[[Sequence[Case]], Cell]:
    return lambda cases: distinct(map(of, cases)) or None


def plan_table(
    title: str, cases: Sequence[Case], shown: Sequence[PlannedColumn], *, listed: bool,
) -> Table:
    """Return a row for each case, or for those that are equal in all columns without ``together``.
    """
    if listed:
        return Table(title, (
            Column("index", "#", Show.COUNT), *(one.column for one in shown), *columns.COST),
            (Group("", tuple(Row(
                (case.index, *(one.of(case) for one in shown), samples, needs, estimate or None),
                case_id=case.case_id) for case in cases
                for samples, needs, estimate in [columns.cost_cells([case])])),))
    keys = [one for one in shown if one.together is None]
    kept = [one for one in shown if one.together is None or one.title]
    rows = grouped(((*(one.of(case) for one in keys), batch_text(case), case.needs), case)
                   for case in cases)
    return Table(title, (
        Column("cases", "cases", Show.COUNT),
        *(one.column if one.title in ("", one.column.title) else
          Column(one.title, one.title, optional=True) for one in kept), *columns.COST),
        (Group("", tuple(Row((len(alike), *(one.together(alike) if one.together else
                                            one.of(alike[0]) for one in kept),
                              *columns.cost_cells(alike))) for alike in rows.values())),))


def metric_row(
    metrics: Iterable[Metric], item: CaseResult, values: Values | None,
) -> dict[str, Any]:
    """Return the fields of the summaries that the metrics of a case are."""
    return in_summary_units({one.name: one.value(item, values) for one in metrics
                             if one.is_scalar})


def fields_of(metrics: Iterable[Metric]) -> tuple[str, ...]:
    """Return the names of the fields of the summaries that metrics are."""
    return tuple(in_summary_units(dict.fromkeys(one.name for one in metrics if one.is_scalar)))

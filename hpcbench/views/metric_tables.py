"""Tables of cases from declared metrics, and figures from declared aspects: a kind names columns
and aspects; here is what rows, and the lines of one figure, have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcbench.plan.case import PROGRAM_KIND, Case
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import OF_PROGRAMS
from hpcbench.reduce.metric import Metric, Records, Show, Values
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, in_summary_units, vary
from hpcbench.views import columns
from hpcbench.views.chart import file_name
from hpcbench.views.table import (
    RANGE,
    Cell,
    Column,
    Group,
    Row,
    Table,
    backend_text,
    batch_text,
    device_type,
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
    one: Metric, cell: Callable[[OverPasses | None], Cell] = columns.over_passes_cell, **more: Any,
) -> ShownColumn:
    """Return the column of a number over passes (`metrics_over_passes`), with attributes of
    `Column`: its median, and its range, not an interval, which the column's unit names."""
    column = column_of(one)
    ranged = cell is columns.over_passes_cell
    unit = ", ".join(filter(None, (column.unit, RANGE if ranged else "")))
    return ShownColumn(replace(column, **{"unit": unit, **more}),
                       lambda _, values: cell(values.get(f"{one.name}_passes")))


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


def told_apart(
    shown: Sequence[Metric | ShownColumn], groups: Iterable[Iterable[CaseResult]],
) -> tuple[Metric | ShownColumn, ...]:
    """Return the columns with one more before the results: the words of its label that tell a case
    from others of its group, where a brief table has no other column that does."""
    kept = [(one, column_of(one)) for one in shown]
    settings = [one for one, column in kept if column.better is None and not column.detail]
    words: dict[str, str] = {}
    for items in groups:
        planned = ((replace(item, status="ok", statistics=None, timing=None), item)
                   for item in items)
        alike = grouped((tuple(cell_of(one, bare, {}) for one in settings), item)
                        for bare, item in planned)
        for same in (same for same in alike.values() if len(same) > 1):
            own = vary(item.case.label.split() for item in same)[1]
            words |= {item.case.case_id: " ".join(of) for item, of in zip(same, own, strict=True)}
    at = next((at for at, (_, column) in enumerate(kept) if column.better), len(kept))
    return (*shown[:at], of_case(Column("with", "with", optional=True), lambda item: words.get(
        item.case.case_id, "")), *shown[at:])


def result_tables(
    title: str, items: Iterable[CaseResult], derived: Records,
    shown: Sequence[Metric | ShownColumn], where: Callable[[CaseResult], str],
    order: Callable[[CaseResult], Any] = lambda item: 0,
) -> Iterator[Table]:
    """Yield a block's table: a group of rows for each place and way of timing, in this order."""
    groups = grouped(((where(item), timed_text(item)), item) for item in items
                     if item.status in columns.TABLED)
    if groups:
        shown = told_apart(shown, groups.values())
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


def _stated_rate(name: str, title: str, show: Show) -> ShownColumn:
    """Return the column of what a program states that a call moves or computes, over its time."""
    rate = next(one for one in OF_PROGRAMS if one.name == f"call_{name}_per_s")
    return of_case(
        Column(name, title, show, show.value, f"{name} that the program states of a call / time "
               "p50", "more", optional=True),
        lambda item: like_median(rate.value(item, {}), columns.median_cell(item.statistics))
        if item.case.kind == PROGRAM_KIND else None)


_OF_ANY = (
    *(of_case(column, cell) for column, cell in zip(columns.CASE, (
        lambda item: columns.case_words(item.case), lambda item: backend_text(item.case),
        device_type, lambda item: item.case.world_size), strict=True)),
    TIME, INTERVAL, _stated_rate("bytes", "bandwidth", Show.GB_PER_S),
    _stated_rate("flops", "compute", Show.TFLOP_PER_S), *OUTCOME)


def any_results(title: str, items: Iterable[CaseResult]) -> Iterator[Table]:
    """Yield a table with a row for each case, of any kind, that ran; nothing if none ran."""
    return result_tables(title, items, {}, _OF_ANY, where=lambda _: "")


def metric_row(
    metrics: Iterable[Metric], item: CaseResult, values: Values | None,
) -> dict[str, Any]:
    """Return the fields of the summaries that the metrics of a case are."""
    return in_summary_units({one.name: one.value(item, values) for one in metrics
                             if one.is_scalar})


def fields_of(metrics: Iterable[Metric]) -> tuple[str, ...]:
    """Return the names of the fields of the summaries that metrics are."""
    return tuple(in_summary_units(dict.fromkeys(one.name for one in metrics if one.is_scalar)))


@dataclass(frozen=True, slots=True)
class Aspect:
    """One way in which cases differ, in words; titles leave out the ``usual`` text. ``place`` is
    that in titles, 0: not there. ``is_list``: words; those that all cases have are shared."""

    text: Callable[[CaseResult], str]
    place: int = 0
    usual: str = ""
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """Cases that one figure compares: ``subtitle`` has what they share, the label of a line what
    distinguishes it from its neighbours."""

    name: str
    subtitle: str
    file_stem: str
    lines: tuple[tuple[str, tuple[CaseResult, ...]], ...]

    @property
    def items(self) -> tuple[CaseResult, ...]:
        return tuple(item for _, items in self.lines for item in items)

    @property
    def case_ids(self) -> tuple[str, ...]:
        return tuple(item.case.case_id for item in self.items)


Key = tuple[str, ...]
Lines = Mapping[Key, Sequence[CaseResult]]


def figures(
    items: Iterable[CaseResult], aspects: Sequence[Aspect], name: Callable[[CaseResult], str],
    x: Callable[[CaseResult], Any], most: Callable[[int], int],
) -> Iterator[Figure]:
    """Yield the figures of timed cases. ``aspects``: the first split figures first, the last stay
    in one figure. Cases that differ in ``x`` only are one line; ``most``: lines by number of xs."""
    by_name: dict[str, dict[Key, list[CaseResult]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if item.statistics is not None:
            by_name[name(item)][tuple(one.text(item) for one in aspects)].append(item)
    for title, lines in by_name.items():
        for facet, keys in _facets(list(lines), lines, (), x, most):
            yield _figure(title, facet, {key: lines[key] for key in keys}, aspects, x)


def _facets(
    keys: list[Key], lines: Lines, facet: Key, x: Callable[[CaseResult], Any],
    most: Callable[[int], int],
) -> list[tuple[Key, list[Key]]]:
    """Return (what was split by, keys) of figures that are small enough to read."""
    if len(keys) <= most(len({x(item) for key in keys for item in lines[key]})):
        return [(facet, keys)]
    at, _ = vary(map(enumerate, keys))[1][0][0]
    return [part for text, alike in grouped((key[at], key) for key in keys).items()
            for part in _facets(alike, lines, (*facet, text), x, most)]


def _figure(
    name: str, facet: Key, lines: Lines, aspects: Sequence[Aspect], x: Callable[[CaseResult], Any],
) -> Figure:
    same, own = vary(map(enumerate, lines))
    shared, differing = dict(same), [at for at, _ in own[0]]
    common = {at: vary(key[at].split() for key in lines)[0]
              for at in differing if aspects[at].is_list}
    titled = sorted((one.place, at) for at, one in enumerate(aspects) if one.place and at in shared)
    words = [shared[at] for _, at in titled if shared[at] not in ("", aspects[at].usual)]
    more = [part for part in facet if part and part not in words]
    more += [word for at in common for word in sorted(common[at])]
    ends = [key[-1] for key in lines]
    return Figure(name, ", ".join([*words, *more]), file_name(
        "-".join(filter(None, (name, *facet))), allowed="-_."), tuple(
        (" ".join(word for at in reversed(differing) for word in key[at].split()
                  if word not in common.get(at, ())), tuple(sorted(cases, key=x)))
        for key, cases in sorted(lines.items(), key=lambda line: (
            ends.index(line[0][-1]), line[1][0].case.world_size))))

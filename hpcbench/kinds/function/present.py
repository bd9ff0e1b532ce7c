"""The presenter of functions: a table of each block, a chart of each comparison, fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hpcbench.kinds.function.derive import METRICS, RATES, SPEEDUP, call_of
from hpcbench.kinds.function.plan import FunctionCall
from hpcbench.reduce.metric import Records, Values
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural
from hpcbench.views import columns, metric_tables, table
from hpcbench.views.chart import PLAIN, Axis, Bar, BarChart, BarSection, Chart, Look, file_name
from hpcbench.views.presenter import Presenter, Words

Items = Sequence[CaseResult]
MOST_BARS = 24
FUNCTION = metric_tables.of_case(table.Column("function", "function"),
                                 lambda item: call_of(item).function)
TYPE = metric_tables.of_case(table.Column("dtype", "type"), lambda item: call_of(item).dtype)
RESULTS = (TYPE, metric_tables.TIME, metric_tables.INTERVAL, *RATES,
           metric_tables.passes_column(SPEEDUP), metric_tables.WRONG, *metric_tables.OUTCOME)
DEFINITION = (
    "functions: per rank = flops or bytes that the function states of a call on a rank / time p50;",
    "  t_p = median time of pass p, t_p(baseline) that of the baseline at the same arguments that "
    "all have")


class FunctionPresenter(Presenter[FunctionCall, Values]):
    """Presents functions."""

    fields = columns.names_of(SPEEDUP.name)

    def listing(self) -> Iterator[table.Line]:
        yield table.Line("functions of a Python file (kind function)", "title")
        yield table.Line("  each function marked @hpcbench.benchmark: hpcbench run FILE.py")

    def words(self, works: Sequence[FunctionCall]) -> Words:
        names = dict.fromkeys(work.function for work in works)
        return Words(what=[", ".join(names)], types=[work.dtype for work in works])

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[table.Table]:
        """Yield a table; its first columns are the arguments that any of its functions has."""
        names = dict.fromkeys(name for item in items if item.status in columns.TABLED
                              for name, _ in call_of(item).arguments)
        own = (metric_tables.of_case(
            table.Column(f"argument_{name}", name, optional=True, named=True),
            partial(_argument, name)) for name in names)
        return metric_tables.result_tables(title, items, derived, (FUNCTION, *own, *RESULTS),
                                           _place)

    def overviews(self, items: Items,
                  derived: Records) -> Iterator[table.Table | Chart | table.Line]:
        """Yield the meanings of the columns, and a chart for each comparison."""
        yield from map(table.Line, DEFINITION)
        timed = [item for item in items if item.statistics is not None]
        for task, of_task in grouped((call_of(item).task_name, item) for item in timed).items():
            yield _chart(task, of_task[:MOST_BARS], len(of_task))

    def row(self, item: CaseResult, record: Values | None) -> Mapping[str, object]:
        return {"arguments": call_of(item).shown, "compare": call_of(item).compare or None,
                **columns.ends_of(SPEEDUP.name, (record or {}).get(f"{SPEEDUP.name}_passes"))}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> Mapping[str, object]:
        names = dict.fromkeys((*metric_tables.fields_of(METRICS), *self.fields))
        shown = [{"case_id": item.case.case_id, **{name: row[name] for name in names}}
                 for item, row in zip(items, rows, strict=True)]
        return {"functions": shown} if shown else {}


def _place(item: CaseResult) -> str:
    ranks = plural(item.case.world_size, "rank")
    return f"{table.backend_text(item.case)} ({table.device_type(item)})  {ranks}"


def _problem(item: CaseResult) -> str:
    """Return the place, and the arguments and dtype that functions of the comparison share."""
    work = call_of(item)
    shared = [f"{name}={value}" for name, value in work.shown.items() if name in work.shared]
    return "  ".join((_place(item), " ".join((*shared, work.dtype))))


def _argument(name: str, item: CaseResult) -> table.Cell:
    arguments = call_of(item).shown
    return str(arguments[name]) if name in arguments else None


def _chart(task: str, drawn: Items, count: int) -> BarChart:
    sections = grouped((_problem(item), _bar(item)) for item in drawn)
    more = (f"The first {len(drawn)} of {count}.",) if count > len(drawn) else ()
    return BarChart(
        f"{task}: time of a call", "median of the timed samples", file_name(f"functions-{task}"),
        more, tuple(item.case.case_id for item in drawn), Axis("time p50", table.Show.MS, "ms"), (),
        tuple(BarSection(place, tuple(bars)) for place, bars in sections.items()),
        (), whisker="95 % interval of the median")


def _bar(item: CaseResult) -> Bar:
    assert item.statistics is not None
    work = call_of(item)
    own = [f"{name}={value}" for name, value in work.shown.items() if name not in work.shared]
    ends = columns.interval_cell(item.statistics)
    return Bar(" ".join((work.function, *own)), (), ((item.statistics.median_s, Look("", PLAIN)),),
               ends if isinstance(ends, table.Range) else None, case_id=item.case.case_id)

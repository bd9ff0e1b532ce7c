"""The presenter of functions: a table of each block, a chart of each comparison, fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.function.derive import FunctionRecord, call_of
from hpcbench.kinds.function.plan import FunctionCall
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural, to_gb_per_s, to_tflop_per_s
from hpcbench.views import columns
from hpcbench.views.chart import PLAIN, Axis, Bar, BarChart, BarSection, Chart, Look, file_name
from hpcbench.views.presenter import Presenter, Words
from hpcbench.views.table import (
    Cell,
    Column,
    Group,
    Line,
    Range,
    Row,
    Show,
    Table,
    backend_text,
    device_type,
    flag_cell,
    timed_text,
)

Items = Sequence[CaseResult]
Records = Mapping[str, FunctionRecord]
MOST_BARS = 24
_RATES = (
    Column("rank_tflops", "per rank", Show.TFLOP_PER_S, "TFLOP/s", "flops of a call over time "
           "p50, mean of the ranks", "more", optional=True),
    Column("rank_bandwidth", "per rank", Show.GB_PER_S, "GB/s", "bytes of a call over time p50, "
           "mean of the ranks", "more", optional=True),
    Column("busbw", "busbw", Show.GB_PER_S, "GB/s", "as nccl-tests computes it", "more",
           optional=True),
    Column("speedup", "speed-up", Show.RATIO, "", "time p50 of the baseline over this one", "more",
           optional=True))
_END = (columns.WRONG, columns.N, columns.STATUS, columns.LAUNCHES, columns.FLAGS)
_NOTHING = FunctionRecord()
DEFINITION = (
    "functions: per rank = flops or bytes that the function states of a call on a rank / time p50;",
    "  speed-up = time p50 of the baseline / time p50, at the same arguments that all have")


class FunctionPresenter(Presenter[FunctionCall, FunctionRecord]):
    """Presents functions."""

    fields = ("function", "arguments", "compare", "file_sha256", "rank_tflop_per_s",
              "rank_gb_per_s", *columns.names_of("speedup_over_baseline"))
    in_every_summary = False

    def listing(self) -> Iterator[Line]:
        yield Line("functions of a Python file (kind function)", "title")
        yield Line("  each function marked @hpcbench.benchmark: hpcbench run FILE.py")

    def words(self, works: Sequence[FunctionCall]) -> Words:
        names = dict.fromkeys(work.function for work in works)
        return Words(what=[", ".join(names)], types=[work.dtype for work in works])

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        """Yield a table; its first columns are the arguments that any of its functions has."""
        ran = [item for item in items if item.status in columns.TABLED]
        if not ran:
            return
        names = tuple(dict.fromkeys(
            name for item in ran for name, _ in call_of(item).arguments))
        own = tuple(Column(f"argument_{name}", name, optional=True) for name in names)
        places = grouped(((_place(item), timed_text(item)), item) for item in ran)
        yield Table(
            title, (Column("function", "function"), *own, Column("dtype", "type"), columns.TIME,
                    columns.INTERVAL, *_RATES, *_END),
            tuple(Group(place, tuple(_row(item, derived, names) for item in same), timed)
                  for (place, timed), same in places.items()))

    def overviews(self, items: Items, derived: Records) -> Iterator[Table | Chart | Line]:
        """Yield the meanings of the columns, and a chart for each comparison."""
        yield from map(Line, DEFINITION)
        timed = [item for item in items if item.statistics is not None]
        for task, same in grouped((call_of(item).task_name, item) for item in timed).items():
            yield _chart(task, same[:MOST_BARS], len(same))

    def row(self, item: CaseResult, record: FunctionRecord | None) -> Mapping[str, object]:
        work, known = call_of(item), record or _NOTHING
        return {
            "function": work.function, "compare": work.compare or None,
            "arguments": work.shown, "file_sha256": work.sha256,
            "rank_tflop_per_s": known.rank_flops_per_s and to_tflop_per_s(known.rank_flops_per_s),
            "rank_gb_per_s": known.rank_bytes_per_s and to_gb_per_s(known.rank_bytes_per_s),
            **columns.ends_of("speedup_over_baseline", known.speedup)}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> Mapping[str, object]:
        found = [{"case_id": item.case.case_id, **{name: row[name] for name in self.fields}}
                 for item, row in zip(items, rows, strict=True)]
        return {"functions": found} if found else {}


def _place(item: CaseResult) -> str:
    ranks = plural(item.case.world_size, "rank")
    return f"{backend_text(item.case)} ({device_type(item)})  {ranks}"


def _problem(item: CaseResult) -> str:
    """Return the place, and the arguments and dtype that functions of the comparison share."""
    work = call_of(item)
    shared = [f"{name}={value}" for name, value in work.shown.items() if name in work.shared]
    return "  ".join((_place(item), " ".join((*shared, work.dtype))))


def _row(item: CaseResult, derived: Records, names: Sequence[str]) -> Row:
    work, record = call_of(item), derived.get(item.case.case_id, _NOTHING)
    arguments = work.shown
    own: list[Cell] = [str(arguments[name]) if name in arguments else None for name in names]
    return Row((
        work.function, *own, work.dtype, columns.median_cell(item.statistics),
        columns.interval_cell(item.statistics), record.rank_flops_per_s, record.rank_bytes_per_s,
        record.busbw_bytes_per_s, columns.over_passes_cell(record.speedup),
        columns.wrong_cell(item), columns.n_cell(item.statistics), item.status,
        columns.launches_cell(item), flag_cell(item)), item.status, item.case.case_id)


def _chart(task: str, drawn: Items, count: int) -> BarChart:
    sections = grouped((_problem(item), _bar(item)) for item in drawn)
    more = (f"The first {len(drawn)} of {count}.",) if count > len(drawn) else ()
    return BarChart(
        f"{task}: time of a call", "median of the timed samples", file_name(f"functions-{task}"),
        more, tuple(item.case.case_id for item in drawn), Axis("time p50", Show.MS, "ms"), (),
        tuple(BarSection(place, tuple(bars)) for place, bars in sections.items()),
        (), whisker="95 % interval of the median")


def _bar(item: CaseResult) -> Bar:
    assert item.statistics is not None
    work = call_of(item)
    own = [f"{name}={value}" for name, value in work.shown.items() if name not in work.shared]
    ends = columns.interval_cell(item.statistics)
    return Bar(" ".join((work.function, *own)), (), ((item.statistics.median_s, Look("", PLAIN)),),
               ends if isinstance(ends, Range) else None, case_id=item.case.case_id)

"""The presenter of tests of the machine: tables, charts and fields of each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcbench.kinds.hardware import derive
from hpcbench.kinds.hardware.plan.gemm import gemm_of
from hpcbench.kinds.hardware.plan.pairs import pairs_of
from hpcbench.kinds.hardware.plan.planner import TESTS
from hpcbench.kinds.hardware.plan.test import HardwareWork, storage_of, stream_of, work_of
from hpcbench.records import dataclass
from hpcbench.reduce.metric import Metric, Records, Values
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import ROOFLINE
from hpcbench.units import grouped, plural, size_text, to_gb_per_s, to_tflop_per_s
from hpcbench.views import chart, columns
from hpcbench.views.labels import distinct_names
from hpcbench.views.metric_tables import (
    INTERVAL,
    OUTCOME,
    TIME,
    WRONG,
    ShownColumn,
    cell_of,
    column_of,
    metric_row,
    of_case,
    result_tables,
    told_apart,
)
from hpcbench.views.presenter import Presenter
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
    env_text,
    timed_text,
)

Items = Sequence[CaseResult]
Fields = Mapping[str, Metric | Callable[[CaseResult, Values], Any]]
"""Field of the summaries -> the metric that it is in their units, or what gives its value."""
ROOFLINE_OF = "matrix products"
_DECLARED = chart.Look("declared peak of all ranks", "#000000", dotted=True)
_ALL_RANKS = chart.Look("all ranks together", chart.PLAIN)
_BEST = chart.Look("measured peak of its type", chart.DARK)
_OTHER = chart.Look("other shapes", chart.PALE)


def _where(item: CaseResult) -> str:
    """Return the device, the number of ranks, and the backend with its variables."""
    return f"{device_type(item)}  {plural(item.case.world_size, 'rank')}  {backend_text(item.case)}"


def _or_none(one: Metric) -> ShownColumn:
    """Return a column of plain values, without the median's digits; empty texts and 0 are None."""
    return ShownColumn(column_of(one), lambda item, values: one.value(item, values) or None)


def _own(values: Values) -> tuple[float, ...]:
    return values.get(derive.RANK_RATES.name) or ()


def _is_peak(_: CaseResult, values: Values) -> bool:
    return bool(values.get(derive.IS_PEAK.name))


def _own_range(item: CaseResult, values: Values) -> Cell:
    own = _own(values)
    return Range(min(own), max(own)) if own else None


def _timed(rates: Sequence[Metric]) -> tuple[ShownColumn, ...]:
    """Return the columns of a test's time and its rates."""
    show = rates[0].show
    return (TIME, INTERVAL, *map(_or_none, rates), ShownColumn(Column(
        "own", "own", show, show.value, "slowest to fastest rank", "more"), _own_range))


_CLOCK = ShownColumn(
    Column("clock", "clock", meaning="whose time the rates are by, where not the host's",
           optional=True),
    lambda _, values: derive.DEVICE if values.get(
        derive.RATE_CLOCK.name) == derive.DEVICE else None)
_END = (WRONG, *OUTCOME)


@dataclass(frozen=True, slots=True)
class _Rates:
    """Presents a test that has a rate of each rank: gemm, stream and storage.

    ``shown`` are the columns of its table; ``drawn``: title, subtitle, name of the file and note
    of the chart, ``bar`` makes its bars, ``place`` names their sections."""

    definitions: tuple[str, ...]
    fields: Fields
    shown: tuple[Metric | ShownColumn, ...]
    drawn: tuple[str, str, str, str]
    bar: Callable[[CaseResult, Values], chart.Bar]
    show: Show = Show.GB_PER_S
    place: Callable[[CaseResult], str] = _where
    looks: tuple[chart.Look, ...] = (_ALL_RANKS,)

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        places = dict.fromkeys(map(_files, items))
        notes = tuple(Line(f"files in {folder}" + (f" ({system})" if system else ""), "quiet")
                      for folder, system in places if folder)
        for table in result_tables(title, items, derived, self.shown, _where):
            yield replace(table, notes=notes)

    def charts(self, items: Items, derived: Records) -> Iterator[chart.BarChart]:
        """Yield the rates, a bar a case; lines across the bars of a place are declared peaks."""
        timed = [item for item in items if item.statistics is not None]
        if not timed:
            return
        title, subtitle, stem, note = self.drawn
        sections = []
        for name, alike in grouped((self.place(item), item) for item in timed).items():
            values = [derived.get(item.case.case_id, {}) for item in alike]
            peaks = dict.fromkeys(one.get(derive.DECLARED.name) for one in values)
            sections.append(chart.BarSection(
                name, tuple(map(self.bar, alike, values)),
                tuple((peak, _DECLARED) for peak in peaks if peak)))
        yield chart.BarChart(
            title, subtitle, stem, (note,), tuple(item.case.case_id for item in timed),
            chart.Axis("rate", self.show, self.show.value), (), tuple(sections),
            (*self.looks, *[_DECLARED] * any(one.lines for one in sections)))


def _product_bar(item: CaseResult, values: Values) -> chart.Bar:
    look = _BEST if values.get(derive.IS_PEAK.name) else _OTHER
    return chart.Bar(_extents(item), (), ((values.get(derive.RANK_FLOPS.name) or 0.0, look),))


_GEMM = _Rates(
    definitions=(
        "gemm: per rank = 2 m n k / time p50, or / the device's own time where the column clock "
        "says device,",
        "  in TFLOP/s (1e12), while all ranks multiply; all ranks = per rank x ranks;",
        "  own = slowest to fastest rank, each in its own times; peak = the best of its type here"),
    fields={
        **{f"gemm_{one.title}": one for one in derive.EXTENTS},
        "gemm_shape": lambda item, _: gemm_of(item.case).shape,
        "gemm_right": lambda item, _: gemm_of(item.case).right or gemm_of(item.case).dtype,
        "gemm_fast_accumulation": lambda item, _: gemm_of(item.case).fast_accumulation,
        "rank_tflop_per_s": derive.RANK_FLOPS, "all_ranks_tflop_per_s": derive.ALL_FLOPS,
        "own_tflop_per_s": lambda _, values: [*map(to_tflop_per_s, _own(values))],
        "is_peak": _is_peak,
        "rate_clock": derive.RATE_CLOCK, **{one.name: one for one in ROOFLINE}},
    shown=(
        of_case(Column("type", "type"), lambda item: gemm_of(item.case).types), *derive.EXTENTS,
        of_case(Column("shape", "model", optional=True),
                lambda item: gemm_of(item.case).shape or None),
        *_timed(derive.FLOPS), _CLOCK, ShownColumn(
            Column("peak", "peak", meaning="the best of its type, device and ranks", optional=True),
            lambda _, values: "peak" if values.get(derive.IS_PEAK.name) else None), *_END),
    drawn=("matrix products", "TFLOP/s of a rank while all ranks multiply", "hardware-gemm",
           "Bar: 2 m n k over the median time, on a GPU over the device's own."),
    bar=_product_bar, show=Show.TFLOP_PER_S, looks=(_BEST, _OTHER),
    place=lambda item: f"{gemm_of(item.case).types}, {_where(item)}")


def _kernel_bar(item: CaseResult, values: Values) -> chart.Bar:
    work, threads = stream_of(item.case), derive.THREADS.value(item, values)
    label = f"{work.kernel} {work.dtype} {work.memory}".rstrip()
    return chart.Bar(f"{label}, {plural(threads, 'thread')}" if threads else label, (),
               ((values.get(derive.ALL_BYTES.name) or 0.0, _ALL_RANKS),))


def _own_gb_per_s(item: CaseResult, values: Values) -> list[float]:
    return [*map(to_gb_per_s, _own(values))]


_STREAM = _Rates(
    definitions=(
        "stream: per rank = bytes that a rank moves / time p50, or / the device's own time where "
        "the column clock says device,",
        "  all ranks at once; copy and scale move two arrays, add and triad three;",
        "  array = bytes of one; own = slowest to fastest rank, each in its own times;",
        "  of best = of the best kernel; of declared = per rank over "
        "hardware.memory_bandwidth_gb_per_s"),
    fields={
        "stream_kernel": derive.KERNEL, "stream_memory": derive.MEMORY,
        **{one.name: one for one in (
            derive.NUMA_NODE, derive.THREADS, derive.ARRAY, derive.LAST_CACHES)},
        "rank_gb_per_s": derive.RANK_BYTES, "all_ranks_gb_per_s": derive.ALL_BYTES,
        "own_gb_per_s": _own_gb_per_s, "of_declared_memory": derive.OF_DECLARED,
        "of_best_stream": derive.OF_BEST, "is_peak": _is_peak, "rate_clock": derive.RATE_CLOCK},
    shown=(
        derive.KERNEL, of_case(Column("type", "type"), lambda item: stream_of(item.case).dtype),
        _or_none(derive.MEMORY), _or_none(derive.THREADS), derive.NUMA_NODE, derive.ARRAY,
        *_timed(derive.BYTES), _CLOCK, derive.OF_BEST,
        derive.OF_DECLARED, *_END),
    drawn=("memory bandwidth", "GB/s of all ranks together", "hardware-stream",
           "Bar: bytes that all ranks move over the median time, on a GPU over the device's own."),
    bar=_kernel_bar)


def _files(item: CaseResult) -> tuple[str | None, str | None]:
    """Return the folder of the first rank's files, and the type of its file system."""
    reported = derive.first_reported(item, "storage")
    return reported.get("folder"), reported.get("file_system")


def _file_bytes(item: CaseResult) -> int:
    return storage_of(item.case).size_bytes


def _files_bar(item: CaseResult, values: Values) -> chart.Bar:
    cache = derive.PAGE_CACHE.value(item, values)
    return chart.Bar(f"{storage_of(item.case).access}{f' ({cache})' if cache else ''}", (),
               ((values.get(derive.ALL_BYTES.name) or 0.0, _ALL_RANKS),))


_STORAGE = _Rates(
    definitions=(
        "storage: per rank = bytes of a rank's call / time p50, all ranks at once; writes end with "
        "fsync;",
        "  cache: cold where no read found its data in the page cache, warm where all did"),
    fields={
        "storage_access": derive.ACCESS, "file_bytes": lambda item, _: _file_bytes(item),
        "folder": lambda item, _: _files(item)[0], "file_system": lambda item, _: _files(item)[1],
        "cache": derive.PAGE_CACHE, "storage_rank_gb_per_s": derive.RANK_BYTES,
        "storage_all_ranks_gb_per_s": derive.ALL_BYTES, "storage_own_gb_per_s": _own_gb_per_s},
    shown=(
        derive.ACCESS, of_case(Column("size", "a rank's file", Show.SIZE, "bytes"), _file_bytes),
        derive.PAGE_CACHE, *_timed(derive.BYTES), *_END),
    drawn=("storage", "GB/s of all ranks together", "hardware-storage",
           "Bar: bytes of all ranks over the median time. Writes end with fsync."),
    bar=_files_bar)


def _links(values: Values) -> tuple[derive.Distance, ...]:
    return (values.get(derive.PAIRS.name) or derive.PairsRecord()).distances


def _each(name: str) -> Callable[[CaseResult, Values], list[Any]]:
    """Return the list of a figure of the links of each distance."""
    return lambda _, values: [getattr(one, name) for one in _links(values)]


class _Pairs:
    """How messages between every two ranks are presented."""

    definitions = (
        "pairs: a link is one rank with one other, by the clock of the first; one way latency = "
        "round trip / 2;",
        "  both at once: the time of one exchange; bandwidth = messages x size / the time until "
        "they are acknowledged,",
        "  each way; medians over samples; worst: the ranks with the longest latency or the least "
        "bandwidth;",
        "  times are the host's: a latency holds what torch takes to start each message "
        "(batch_isend_irecv)")
    fields: Fields = {
        **{f"pairs_{one.name}": one for one in (
            derive.WHAT, derive.DIRECTION, derive.AT_ONCE, derive.CACHE)},
        "message_bytes": derive.SIZE, "messages": derive.MESSAGES,
        "distances": _each("name"), "links": _each("links"),
        **{f"link_{name}": _each(name) for name in ("least", "median", "greatest")},
        "worst_link": lambda _, values: [*map(_worst, _links(values))]}

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        """Yield a table of latencies and one of bandwidths: a row for each distance of a case."""
        tabled = [item for item in items if item.status in columns.TABLED]
        for what, alike in grouped((pairs_of(item.case).what, item) for item in tabled).items():
            places = grouped(((_where(item), timed_text(item)), item) for item in alike)
            call = told_apart(_CALL, places.values())
            yield Table(f"{title} {what}", (
                *map(column_of, call), *_link_columns(what), *map(column_of, _CALL_END)), tuple(
                Group(place, tuple(row for item in of_place for row in _pair_rows(
                    call, item, derived.get(item.case.case_id, {}))), timed)
                for (place, timed), of_place in places.items()))

    def charts(self, items: Items, derived: Records) -> Iterator[chart.HeatMap]:
        for item in items:
            pairs = derived.get(item.case.case_id, {}).get(derive.PAIRS.name)
            if pairs and pairs.matrix:
                yield _heat_map(item, pairs)


_BESIDE = {"latency": ", with what torch takes on the host to start a message"}
"""Measurement -> the note on its number."""
_WIDE = 10.0
_LOOKS = {"latency": (Show.US, "us"), "bandwidth": (Show.GB_PER_S, "GB/s")}
"""Measurement -> format and unit."""
_CALL: tuple[Metric | ShownColumn, ...] = (
    derive.DIRECTION, of_case(Column("at_once", "pairs"), lambda item: _together(
        at_once=pairs_of(item.case).at_once)),
    derive.SIZE, derive.MESSAGES, of_case(
        Column("cache", "cache", meaning="cold: each message lies where no cache holds it; warm: "
               "all lie in the same place"), lambda item: pairs_of(item.case).cache))
_CALL_END: tuple[Metric | ShownColumn, ...] = (TIME, *_END)


def _link_columns(what: str) -> tuple[Column, ...]:
    show, unit = _LOOKS[what]
    better = "less" if what == "latency" else "more"
    return (
        Column("distance", "distance"), Column("links", "links", Show.COUNT),
        Column("median", what, show, unit, f"median over links{_BESIDE.get(what, '')}", better),
        Column("range", "least to greatest", show, unit, "over links", better),
        Column("worst", "worst link", meaning="the rank that measured, and the other one"))


def _pair_rows(
    before: Sequence[Metric | ShownColumn], item: CaseResult, values: Values,
) -> Iterator[Row]:
    """Yield a row for each distance; one without figures where there is none."""
    of_links: list[tuple[Cell, ...]] = [
        (one.name, one.links, one.median, Range(one.least, one.greatest), _worst(one))
        for one in _links(values)]
    call, end = (tuple(cell_of(one, item, values) for one in shown) for shown in (
        before, _CALL_END))
    for cells in of_links or [(None,) * 5]:
        yield Row((*call, *cells, *end), item.status, item.case.case_id)


def _together(*, at_once: bool) -> str:
    return "at once" if at_once else "one by one"


def _worst(one: derive.Distance) -> str:
    return f"{one.worst_from} to {one.worst_to}"


def _heat_map(item: CaseResult, pairs: derive.PairsRecord) -> chart.HeatMap:
    """Return the matrix of a case as colours; a rank and itself have none."""
    work, case = pairs_of(item.case), item.case
    values = np.array([[np.nan if value is None else value for value in line]
                       for line in pairs.matrix], dtype=np.float64)
    limits = Range(float(np.nanmin(values)), float(np.nanmax(values)))
    show, unit = _LOOKS[work.what]
    wide = chart.is_wide([limits], _WIDE)
    parts = (case.backend, device_type(item), plural(case.world_size, "rank"), work.direction,
             f"pairs {_together(at_once=work.at_once)}", size_text(work.message_bytes),
             f"cache {work.cache}", env_text(case))
    return chart.HeatMap(
        title=f"pairs: {work.what} between every two ranks",
        subtitle=", ".join(filter(None, parts)),
        file_stem=chart.file_name("-".join(("hardware-pairs", work.what, case.case_id))),
        notes=("Each cell: the median by the clock of the row's rank.",),
        case_ids=(case.case_id,), x=chart.Axis("other rank"), y=chart.Axis("rank that measured"),
        rows=tuple(range(case.world_size)), values=values, n_columns=case.world_size, step=1,
        colour=chart.Axis(work.what, show, f"{unit}, log scale" if wide else unit,
                    chart.Scale.LOG if wide else chart.Scale.LINEAR),
        limits=limits, outside=(False, False), spans=(), span_title="", breaks=())


def _rooflines(items: Items, derived: Records) -> list[chart.Shown]:
    shown = [(item, roofline) for item in items
             if (roofline := derived.get(item.case.case_id, {}).get(derive.BOUND_OF.name))]
    titles = distinct_names([(f"{gemm_of(item.case).types} {_extents(item)}, "
                          f"{plural(item.case.world_size, 'rank')}",
                          (backend_text(item.case), device_type(item))) for item, _ in shown])
    return [chart.Shown(title, item.case.case_id, roofline)
            for title, (item, roofline) in zip(titles, shown, strict=True)]


def _extents(item: CaseResult) -> str:
    work = gemm_of(item.case)
    return str(work.m) if work.m == work.n == work.k else f"{work.m}x{work.n}x{work.k}"


_TESTS: Mapping[str, _Rates | _Pairs] = {
    "gemm": _GEMM, "stream": _STREAM, "pairs": _Pairs(), "storage": _STORAGE}
_COMMON = ("case_id", "device", "world_size", "dtype", "env", "n", "median_s", "p95_s", "ci_low_s",
           "ci_high_s", "ci_reliable", "mode", "fold")


def _field(
    one: Metric | Callable[[CaseResult, Values], Any], item: CaseResult, values: Values,
) -> Any:
    return next(iter(metric_row([one], item, values).values())) if isinstance(
        one, Metric) else one(item, values)


def _by_test(items: Items) -> dict[str, list[CaseResult]]:
    return grouped((work_of(item.case).test, item) for item in items)


class HardwarePresenter(Presenter[HardwareWork, Values]):
    """Presents tests of the machine."""

    fields = ("test", *dict.fromkeys(field for test in _TESTS.values() for field in test.fields))

    def listing(self) -> Iterator[Line]:
        yield Line("tests of the machine (kind hardware)", "title")
        for test in TESTS.values():
            yield Line(f"  {test.name:<20}{test.meaning}")

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        for test, same in _by_test(items).items():
            yield from _TESTS[test].tables(f"{title}: {test}", same, derived)

    def overviews(self, items: Items, derived: Records) -> Iterator[Table | chart.Chart | Line]:
        for test, of_test in _by_test(items).items():
            yield from map(Line, _TESTS[test].definitions)
            yield from _TESTS[test].charts(of_test, derived)
        yield from chart.rooflines_shown(ROOFLINE_OF, _rooflines(items, derived))

    def row(self, item: CaseResult, record: Values | None) -> dict[str, Any]:
        test = work_of(item.case).test
        return {"test": test, **{field: _field(one, item, record or {})
                                 for field, one in _TESTS[test].fields.items()}}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        """Return ``hardware``: the ok rows by test; nothing of a run without such cases."""
        if not items:
            return {}
        return {"hardware": {test: [
            {field: row[field] for field in (*_COMMON, *_TESTS[test].fields)} for row in rows
            if row["test"] == test and row["status"] == "ok"] for test in _by_test(items)}}

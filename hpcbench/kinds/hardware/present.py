"""The presenter of tests of the machine: tables, charts and fields of each test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcbench.kinds.hardware.derive import (
    DEVICE,
    NOTHING,
    Distance,
    GemmRecord,
    HardwareRecord,
    PairsRecord,
    StorageRecord,
    StreamRecord,
)
from hpcbench.kinds.hardware.plan.gemm import gemm_of
from hpcbench.kinds.hardware.plan.pairs import pairs_of
from hpcbench.kinds.hardware.plan.planner import TESTS
from hpcbench.kinds.hardware.plan.test import HardwareWork, storage_of, stream_of, work_of
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import ROOFLINE_FIELDS, roofline_values
from hpcbench.units import grouped, plural, size_text, to_gb_per_s, to_tflop_per_s
from hpcbench.views import columns
from hpcbench.views.chart import (
    DARK,
    PALE,
    PLAIN,
    Axis,
    Bar,
    BarChart,
    BarSection,
    Chart,
    HeatMap,
    Look,
    Scale,
    Shown,
    file_name,
    is_wide,
    rooflines_shown,
)
from hpcbench.views.labels import distinct_names
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
    flag_cell,
    timed_text,
)

Items = Sequence[CaseResult]
Records = Mapping[str, HardwareRecord]
ROOFLINE_OF = "matrix products"
_CLOCK = Column("clock", "clock", meaning="whose time the rates are by, where not the host's",
                optional=True)
_END = (columns.WRONG, columns.N, columns.STATUS, columns.LAUNCHES, columns.FLAGS)
_DECLARED = Look("declared peak of all ranks", "#000000", dotted=True)
_ALL_RANKS = Look("all ranks together", PLAIN)
_BEST, _OTHER = Look("measured peak of its type", DARK), Look("other shapes", PALE)


def _end_cells(item: CaseResult) -> tuple[Cell, ...]:
    return (columns.wrong_cell(item), columns.n_cell(item.statistics), item.status,
            columns.launches_cell(item), flag_cell(item))


def _record(item: CaseResult, derived: Records) -> HardwareRecord:
    return derived.get(item.case.case_id, NOTHING)


def _where(item: CaseResult) -> str:
    """Return the device, the number of ranks, and the backend with its variables."""
    return f"{device_type(item)}  {plural(item.case.world_size, 'rank')}  {backend_text(item.case)}"


def _clock_cell(clock: str | None) -> str | None:
    return clock if clock == DEVICE else None


def _by_place(items: Items, rows: Callable[[CaseResult], Iterable[Row]]) -> tuple[Group, ...]:
    """Return a group of rows for each device, number of ranks and backend; none if none ran."""
    places = grouped(((_where(item), timed_text(item)), item) for item in items
                     if item.status in columns.TABLED)
    return tuple(Group(place, tuple(row for item in same for row in rows(item)), timed)
                 for (place, timed), same in places.items())


class _Rates:
    """Presents a test that has a rate of each rank: gemm, stream and storage.

    ``columns`` stand before the time and are filled by `cells`, ``more`` stand behind the rates
    and are filled by `more_cells`. ``fields`` are those of the summaries, ``rate_fields`` among
    them the rates of a rank, of all ranks and each rank's own; ``chart`` has title, subtitle, name
    of the file and note of the chart.
    """

    definitions: tuple[str, ...]
    fields: tuple[str, ...]
    rate_fields: tuple[str, str, str]
    columns: tuple[Column, ...]
    more: tuple[Column, ...] = ()
    chart: tuple[str, str, str, str]
    show, suffix = Show.GB_PER_S, ""
    looks: tuple[Look, ...] = (_ALL_RANKS,)

    def cells(self, item: CaseResult, record: HardwareRecord) -> tuple[Cell, ...]:
        raise NotImplementedError

    def more_cells(self, record: HardwareRecord) -> tuple[Cell, ...]:
        return ()

    def notes(self, items: Items, derived: Records) -> Iterable[Line]:
        return ()

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        if groups := _by_place(items, lambda item: [self._row(item, _record(item, derived))]):
            rates = tuple(Column(f"{name}{self.suffix}", text, self.show, self.show.value, meaning,
                                 "more") for name, text, meaning in (
                ("rank", "per rank", "of each rank, all at once"),
                ("all", "all ranks", "all ranks together"),
                ("own", "own", "slowest to fastest rank")))
            yield Table(title, (*self.columns, columns.TIME, columns.INTERVAL, *rates, *self.more,
                                *_END), groups, notes=tuple(self.notes(items, derived)))

    def _row(self, item: CaseResult, record: HardwareRecord) -> Row:
        own = record.rank_rates
        return Row((
            *self.cells(item, record), columns.median_cell(item.statistics),
            columns.interval_cell(item.statistics), *record.rates,
            Range(min(own), max(own)) if own else None, *self.more_cells(record),
            *_end_cells(item)), item.status, item.case.case_id)

    def bar(self, item: CaseResult, record: HardwareRecord) -> Bar:
        raise NotImplementedError

    def section(self, item: CaseResult) -> str:
        return _where(item)

    def charts(self, items: Items, derived: Records) -> Iterator[BarChart]:
        """Yield the rates, a bar a case; lines across the bars of a place are declared peaks."""
        timed = [item for item in items if item.statistics is not None]
        if not timed:
            return
        title, subtitle, stem, note = self.chart
        sections = []
        for name, same in grouped((self.section(item), item) for item in timed).items():
            records = [_record(item, derived) for item in same]
            peaks = dict.fromkeys(one.stream.declared_bytes_per_s for one in records if one.stream)
            sections.append(BarSection(
                name, tuple(map(self.bar, same, records)),
                tuple((peak, _DECLARED) for peak in peaks if peak)))
        yield BarChart(
            title, subtitle, stem, (note,), tuple(item.case.case_id for item in timed),
            Axis("rate", self.show, self.show.value), (), tuple(sections),
            (*self.looks, *[_DECLARED] * any(one.lines for one in sections)))

    def row(self, item: CaseResult, record: HardwareRecord) -> dict[str, Any]:
        to = to_tflop_per_s if self.show is Show.TFLOP_PER_S else to_gb_per_s
        rank, together = (rate and to(rate) for rate in record.rates)
        return dict(zip(self.rate_fields, (rank, together, [*map(to, record.rank_rates)]),
                        strict=True))


class _Gemm(_Rates):
    definitions = (
        "gemm: per rank = 2 m n k / time p50, or / the device's own time where the column clock "
        "says device,",
        "  in TFLOP/s (1e12), while all ranks multiply; all ranks = per rank x ranks;",
        "  own = slowest to fastest rank, each in its own times; peak = the best of its type here")
    rate_fields = ("rank_tflop_per_s", "all_ranks_tflop_per_s", "own_tflop_per_s")
    fields = ("gemm_m", "gemm_n", "gemm_k", "gemm_shape", "gemm_right", "gemm_fast_accumulation",
              *rate_fields, "is_peak", "rate_clock", *ROOFLINE_FIELDS)
    columns = (Column("type", "type"), *(Column(name, name, Show.COUNT) for name in "mnk"),
               Column("shape", "model", optional=True))
    more = (_CLOCK, Column("peak", "peak", meaning="the best of its type, device and ranks",
                           optional=True))
    chart = ("matrix products", "TFLOP/s of a rank while all ranks multiply", "hardware-gemm",
             "Bar: 2 m n k over the median time, on a GPU over the device's own.")
    show, suffix = Show.TFLOP_PER_S, "_flops"
    looks = (_BEST, _OTHER)

    def cells(self, item: CaseResult, record: HardwareRecord) -> tuple[Cell, ...]:
        work = gemm_of(item.case)
        return work.types, work.m, work.n, work.k, work.shape or None

    def more_cells(self, record: HardwareRecord) -> tuple[Cell, ...]:
        known = record.gemm or GemmRecord()
        return _clock_cell(known.clock), "peak" if known.is_peak else None

    def section(self, item: CaseResult) -> str:
        return f"{gemm_of(item.case).types}, {_where(item)}"

    def bar(self, item: CaseResult, record: HardwareRecord) -> Bar:
        known = record.gemm or GemmRecord()
        look = _BEST if known.is_peak else _OTHER
        return Bar(_extents(item), (), ((known.rank_flops_per_s or 0.0, look),))

    def row(self, item: CaseResult, record: HardwareRecord) -> dict[str, Any]:
        work, known = gemm_of(item.case), record.gemm or GemmRecord()
        return {
            "gemm_m": work.m, "gemm_n": work.n, "gemm_k": work.k, "gemm_shape": work.shape,
            "gemm_right": work.right or work.dtype,
            "gemm_fast_accumulation": work.fast_accumulation, **super().row(item, record),
            "is_peak": known.is_peak, "rate_clock": known.clock, **roofline_values(known.roofline)}


class _Stream(_Rates):
    definitions = (
        "stream: per rank = bytes that a rank moves / time p50, or / the device's own time where "
        "the column clock says device,",
        "  all ranks at once; copy and scale move two arrays, add and triad three;",
        "  array = bytes of one; own = slowest to fastest rank, each in its own times;",
        "  of best = of the best kernel; of declared = per rank over "
        "hardware.memory_bandwidth_gb_per_s")
    rate_fields = ("rank_gb_per_s", "all_ranks_gb_per_s", "own_gb_per_s")
    fields = ("stream_kernel", "stream_memory", "numa_node", "threads", "array_bytes",
              "cache_bytes", *rate_fields, "of_declared_memory", "of_best_stream", "rate_clock")
    columns = (
        Column("kernel", "kernel"), Column("type", "type"),
        Column("memory", "memory", optional=True),
        Column("threads", "threads", Show.COUNT, optional=True),
        Column("numa", "NUMA node", Show.COUNT, optional=True),
        Column("array", "array", Show.SIZE, "bytes"))
    more = (
        _CLOCK,
        Column("of_best", "of best", Show.WHOLE_PERCENT, "%", "of the best kernel here", "more",
               optional=True),
        Column("of_declared", "of declared", Show.WHOLE_PERCENT, "%",
               "of hardware.memory_bandwidth_gb_per_s", "more", optional=True))
    chart = ("memory bandwidth", "GB/s of all ranks together", "hardware-stream",
             "Bar: bytes that all ranks move over the median time, on a GPU over the device's own.")

    def cells(self, item: CaseResult, record: HardwareRecord) -> tuple[Cell, ...]:
        work, known = stream_of(item.case), record.stream or StreamRecord()
        return (work.kernel, work.dtype, work.memory or None, known.threads or None,
                work.numa_node if work.numa_node >= 0 else None, known.array_bytes)

    def more_cells(self, record: HardwareRecord) -> tuple[Cell, ...]:
        known = record.stream or StreamRecord()
        return _clock_cell(known.clock), known.of_best, known.of_declared

    def bar(self, item: CaseResult, record: HardwareRecord) -> Bar:
        work, known = stream_of(item.case), record.stream or StreamRecord()
        threads = f", {plural(known.threads, 'thread')}" if known.threads else ""
        label = f"{work.kernel} {work.dtype} {work.memory}".rstrip()
        return Bar(f"{label}{threads}", (), ((known.all_ranks_bytes_per_s or 0.0, _ALL_RANKS),))

    def row(self, item: CaseResult, record: HardwareRecord) -> dict[str, Any]:
        work, known = stream_of(item.case), record.stream or StreamRecord()
        return {
            "stream_kernel": work.kernel, "stream_memory": work.memory,
            "numa_node": work.numa_node if work.numa_node >= 0 else None,
            "threads": known.threads, "array_bytes": known.array_bytes,
            "cache_bytes": known.cache_bytes, **super().row(item, record),
            "of_declared_memory": known.of_declared, "of_best_stream": known.of_best,
            "rate_clock": known.clock}


class _Storage(_Rates):
    definitions = (
        "storage: per rank = bytes of a rank's call / time p50, all ranks at once; writes end with "
        "fsync;",
        "  cache: cold where no read found its data in the page cache, warm where all did")
    rate_fields = ("storage_rank_gb_per_s", "storage_all_ranks_gb_per_s", "storage_own_gb_per_s")
    fields = ("storage_access", "file_bytes", "folder", "file_system", "cache", *rate_fields)
    columns = (Column("access", "access"), Column("size", "a rank's file", Show.SIZE, "bytes"),
               Column("cache", "cache", optional=True))
    chart = ("storage", "GB/s of all ranks together", "hardware-storage",
             "Bar: bytes of all ranks over the median time. Writes end with fsync.")

    def cells(self, item: CaseResult, record: HardwareRecord) -> tuple[Cell, ...]:
        work, known = storage_of(item.case), record.storage or StorageRecord()
        return work.access, work.size_bytes, known.cache

    def notes(self, items: Items, derived: Records) -> Iterator[Line]:
        """Yield each folder with the type of its file system."""
        found = (_record(item, derived).storage for item in items)
        places = dict.fromkeys((one.folder, one.file_system) for one in found if one and one.folder)
        for folder, system in places:
            yield Line(f"files in {folder}" + (f" ({system})" if system else ""), "quiet")

    def bar(self, item: CaseResult, record: HardwareRecord) -> Bar:
        known = record.storage or StorageRecord()
        cache = f" ({known.cache})" if known.cache else ""
        return Bar(f"{storage_of(item.case).access}{cache}", (),
                   ((known.all_ranks_bytes_per_s or 0.0, _ALL_RANKS),))

    def row(self, item: CaseResult, record: HardwareRecord) -> dict[str, Any]:
        work, known = storage_of(item.case), record.storage or StorageRecord()
        return {"storage_access": work.access, "file_bytes": work.size_bytes,
                "folder": known.folder, "file_system": known.file_system, "cache": known.cache,
                **super().row(item, record)}


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
    fields = ("pairs_what", "pairs_direction", "pairs_at_once", "pairs_cache", "message_bytes",
              "messages", "distances", "links", "link_least", "link_median", "link_greatest",
              "worst_link")

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        """Yield a table of latencies and one of bandwidths: a row for each distance of a case."""
        for what, same in grouped((pairs_of(item.case).what, item) for item in items).items():
            if groups := _by_place(same, lambda item: _pair_rows(item, _record(item, derived))):
                yield Table(f"{title} {what}", _pair_columns(what), groups)

    def charts(self, items: Items, derived: Records) -> Iterator[HeatMap]:
        for item in items:
            known = _record(item, derived).pairs
            if known and known.matrix:
                yield _heat_map(item, known)

    def row(self, item: CaseResult, record: HardwareRecord) -> dict[str, Any]:
        """Return the values of ``fields``; those of links are lists, a value a distance."""
        work, links = pairs_of(item.case), (record.pairs or PairsRecord()).distances
        return {
            "pairs_what": work.what, "pairs_direction": work.direction,
            "pairs_at_once": work.at_once, "pairs_cache": work.cache,
            "message_bytes": work.message_bytes, "messages": work.messages,
            "distances": [one.name for one in links], "links": [one.links for one in links],
            "link_least": [one.least for one in links],
            "link_median": [one.median for one in links],
            "link_greatest": [one.greatest for one in links],
            "worst_link": [_worst(one) for one in links]}


_BESIDE = {"latency": ", with what torch takes on the host to start a message"}
"""Measurement -> the note on its number."""
_WIDE = 10.0
_LOOKS = {"latency": (Show.US, "us"), "bandwidth": (Show.GB_PER_S, "GB/s")}
"""Measurement -> format and unit."""


def _pair_columns(what: str) -> tuple[Column, ...]:
    show, unit = _LOOKS[what]
    better = "less" if what == "latency" else "more"
    return (
        Column("direction", "direction"), Column("at_once", "pairs"),
        Column("size", "size", Show.SIZE), Column("messages", "messages", Show.COUNT),
        Column("cache", "cache", meaning="cold: each message lies where no cache holds it; warm: "
               "all lie in the same place"),
        Column("distance", "distance"), Column("links", "links", Show.COUNT),
        Column("median", what, show, unit, f"median over links{_BESIDE.get(what, '')}", better),
        Column("range", "least to greatest", show, unit, "over links", better),
        Column("worst", "worst link", meaning="the rank that measured, and the other one"),
        columns.TIME, *_END)


def _pair_rows(item: CaseResult, record: HardwareRecord) -> Iterator[Row]:
    """Yield a row for each distance; one without figures where there is none."""
    work, links = pairs_of(item.case), (record.pairs or PairsRecord()).distances
    of_links: list[tuple[Cell, ...]] = [
        (one.name, one.links, one.median, Range(one.least, one.greatest), _worst(one))
        for one in links]
    for cells in of_links or [(None,) * 5]:
        yield Row((work.direction, _together(at_once=work.at_once), work.message_bytes,
                   work.messages, work.cache, *cells, columns.median_cell(item.statistics),
                   *_end_cells(item)), item.status, item.case.case_id)


def _together(*, at_once: bool) -> str:
    return "at once" if at_once else "one by one"


def _worst(one: Distance) -> str:
    return f"{one.worst_from} to {one.worst_to}"


def _heat_map(item: CaseResult, known: PairsRecord) -> HeatMap:
    """Return the matrix of a case as colours; a rank and itself have none."""
    work, case = pairs_of(item.case), item.case
    values = np.array([[np.nan if value is None else value for value in line]
                       for line in known.matrix], dtype=np.float64)
    limits = Range(float(np.nanmin(values)), float(np.nanmax(values)))
    show, unit = _LOOKS[work.what]
    wide = is_wide([limits], _WIDE)
    parts = (case.backend, device_type(item), plural(case.world_size, "rank"), work.direction,
             f"pairs {_together(at_once=work.at_once)}", size_text(work.message_bytes),
             f"cache {work.cache}", env_text(case))
    return HeatMap(
        title=f"pairs: {work.what} between every two ranks",
        subtitle=", ".join(filter(None, parts)),
        file_stem=file_name("-".join(("hardware-pairs", work.what, case.case_id))),
        notes=("Each cell: the median by the clock of the row's rank.",),
        case_ids=(case.case_id,), x=Axis("other rank"), y=Axis("rank that measured"),
        rows=tuple(range(case.world_size)), values=values, n_columns=case.world_size, step=1,
        colour=Axis(work.what, show, f"{unit}, log scale" if wide else unit,
                    Scale.LOG if wide else Scale.LINEAR),
        limits=limits, outside=(False, False), spans=(), span_title="", breaks=())


def _rooflines(items: Items, derived: Records) -> list[Shown]:
    found = [(item, record.gemm.roofline) for item in items
             if (record := _record(item, derived)).gemm]
    shown = [(item, roofline) for item, roofline in found if roofline is not None]
    titles = distinct_names([(f"{gemm_of(item.case).types} {_extents(item)}, "
                          f"{plural(item.case.world_size, 'rank')}",
                          (backend_text(item.case), device_type(item))) for item, _ in shown])
    return [Shown(title, item.case.case_id, roofline)
            for title, (item, roofline) in zip(titles, shown, strict=True)]


def _extents(item: CaseResult) -> str:
    work = gemm_of(item.case)
    return str(work.m) if work.m == work.n == work.k else f"{work.m}x{work.n}x{work.k}"


_TESTS: Mapping[str, _Rates | _Pairs] = {
    "gemm": _Gemm(), "stream": _Stream(), "pairs": _Pairs(), "storage": _Storage()}
_COMMON = ("case_id", "device", "world_size", "dtype", "env", "n", "median_s", "p95_s", "ci_low_s",
           "ci_high_s", "ci_reliable", "mode", "fold")


def _by_test(items: Items) -> dict[str, list[CaseResult]]:
    return grouped((work_of(item.case).test, item) for item in items)


class HardwarePresenter(Presenter[HardwareWork, HardwareRecord]):
    """Presents tests of the machine."""

    in_every_summary = False
    fields = ("test", *dict.fromkeys(field for test in _TESTS.values() for field in test.fields))

    def listing(self) -> Iterator[Line]:
        yield Line("tests of the machine (kind hardware)", "title")
        for test in TESTS.values():
            yield Line(f"  {test.name:<20}{test.meaning}")

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        for test, same in _by_test(items).items():
            yield from _TESTS[test].tables(f"{title}: {test}", same, derived)

    def overviews(self, items: Items, derived: Records) -> Iterator[Table | Chart | Line]:
        for test, same in _by_test(items).items():
            yield from map(Line, _TESTS[test].definitions)
            yield from _TESTS[test].charts(same, derived)
        yield from rooflines_shown(ROOFLINE_OF, _rooflines(items, derived))

    def row(self, item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
        test = work_of(item.case).test
        return {"test": test, **_TESTS[test].row(item, record or NOTHING)}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        """Return ``hardware``: the ok rows by test; nothing of a run without such cases."""
        if not items:
            return {}
        return {"hardware": {test: [
            {field: row[field] for field in (*_COMMON, *_TESTS[test].fields)} for row in rows
            if row["test"] == test and row["status"] == "ok"] for test in _by_test(items)}}

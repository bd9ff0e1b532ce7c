"""Tables and charts of memory bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.hardware.derive.deriver import HardwareRecord
from hpcbench.kinds.hardware.derive.stream import StreamRecord
from hpcbench.kinds.hardware.plan.stream import stream_of
from hpcbench.kinds.hardware.present.common import (
    CLOCK,
    bandwidth_chart,
    clock_cell,
    own_range,
    table_of,
)
from hpcbench.reduce.results import CaseResult
from hpcbench.units import plural, to_gb_per_s
from hpcbench.views import columns
from hpcbench.views.chart import Bar, BarChart, Look
from hpcbench.views.table import Column, Row, Show, Table
from hpcbench.views.words import flag_cell

Records = Mapping[str, HardwareRecord]
DEFINITIONS = (
    "stream: rank = bytes that a rank moves / time p50, or / the device's own time where the "
    "column clock says device,",
    "  all ranks at once; copy and scale move two arrays, add and triad three;",
    "  array = bytes of one; own = slowest to fastest rank, each in its own times;",
    "  of best = of the best kernel; of declared = rank over hardware.memory_bandwidth_gb_per_s")
FIELDS = ("stream_kernel", "stream_memory", "numa_node", "threads", "array_bytes", "cache_bytes",
          "rank_gb_per_s", "all_ranks_gb_per_s", "own_gb_per_s", "of_declared_memory",
          "of_best_stream", "rate_clock")
_COLUMNS = (
    Column("kernel", "kernel"), Column("type", "type"), Column("memory", "memory", optional=True),
    Column("threads", "threads", Show.COUNT, optional=True),
    Column("numa", "NUMA node", Show.COUNT, optional=True),
    Column("array", "array", Show.SIZE, "bytes"), columns.TIME, columns.INTERVAL,
    Column("rank", "rank", Show.GB_PER_S, "GB/s", "of each rank, all at once", "more"),
    Column("all", "all ranks", Show.GB_PER_S, "GB/s", "all ranks together", "more"),
    Column("own", "own", Show.GB_PER_S, "GB/s", "slowest to fastest rank", "more"),
    CLOCK,
    Column("of_best", "of best", Show.WHOLE_PERCENT, "%", "of the best kernel here", "more",
           optional=True),
    Column("of_declared", "of declared", Show.WHOLE_PERCENT, "%",
           "of hardware.memory_bandwidth_gb_per_s", "more", optional=True),
    columns.WRONG, columns.N, columns.STATUS, columns.LAUNCHES, columns.FLAGS)
NOTHING = StreamRecord()


def tables(title: str, items: Sequence[CaseResult], derived: Records) -> Iterator[Table]:
    """Yield one table: a group of rows for each device and number of ranks."""
    return table_of(title, _COLUMNS, items,
                    lambda item: _row(item, derived.get(item.case.case_id)))


def charts(items: Sequence[CaseResult], derived: Records) -> Iterator[BarChart]:
    """Yield the rates of all ranks, a bar a kernel."""
    return bandwidth_chart(
        "memory bandwidth", "hardware-stream",
        "Bar: bytes that all ranks move over the median time, on a GPU over the device's own.",
        items,
        lambda item, look: _bar(item, derived, look),
        lambda item: _known(item, derived).declared_bytes_per_s)


def row(item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
    """Return the values of FIELDS."""
    work, known = stream_of(item.case), (record and record.stream) or NOTHING
    return {
        "stream_kernel": work.kernel, "stream_memory": work.memory,
        "numa_node": work.numa_node if work.numa_node >= 0 else None, "threads": known.threads,
        "array_bytes": known.array_bytes, "cache_bytes": known.cache_bytes,
        "rank_gb_per_s": known.rank_bytes_per_s and to_gb_per_s(known.rank_bytes_per_s),
        "all_ranks_gb_per_s": (
            known.all_ranks_bytes_per_s and to_gb_per_s(known.all_ranks_bytes_per_s)),
        "own_gb_per_s": [to_gb_per_s(rate) for rate in (record.rank_rates if record else ())],
        "of_declared_memory": known.of_declared, "of_best_stream": known.of_best,
        "rate_clock": known.clock}


def _row(item: CaseResult, record: HardwareRecord | None) -> Row:
    work, known = stream_of(item.case), (record and record.stream) or NOTHING
    return Row((
        work.kernel, work.dtype, work.memory or None, known.threads or None,
        work.numa_node if work.numa_node >= 0 else None, known.array_bytes,
        columns.median_cell(item.statistics), columns.interval_cell(item.statistics),
        known.rank_bytes_per_s, known.all_ranks_bytes_per_s, own_range(record),
        clock_cell(known.clock),
        known.of_best, known.of_declared,
        columns.wrong_cell(item), columns.n_cell(item.statistics), item.status,
        columns.launches_cell(item), flag_cell(item)), item.status, item.case.case_id)


def _bar(item: CaseResult, derived: Records, look: Look) -> Bar:
    work, known = stream_of(item.case), _known(item, derived)
    threads = f", {plural(known.threads, 'thread')}" if known.threads else ""
    label = f"{work.kernel} {work.dtype} {work.memory}".rstrip()
    return Bar(f"{label}{threads}", (), ((known.all_ranks_bytes_per_s or 0.0, look),))


def _known(item: CaseResult, derived: Records) -> StreamRecord:
    record = derived.get(item.case.case_id)
    return (record and record.stream) or NOTHING

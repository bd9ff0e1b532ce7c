"""Tables and charts of matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcbench.kinds.hardware.derive.deriver import HardwareRecord
from hpcbench.kinds.hardware.derive.gemm import GemmRecord
from hpcbench.kinds.hardware.plan.gemm import gemm_of
from hpcbench.kinds.hardware.present.common import CLOCK, clock_cell, own_range, table_of, where
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import ROOFLINE_FIELDS, roofline_values
from hpcbench.units import grouped, plural, to_tflop_per_s
from hpcbench.views import columns
from hpcbench.views.chart import COLOURS, Axis, Bar, BarChart, BarSection, Look, Shown
from hpcbench.views.table import Column, Row, Show, Table
from hpcbench.views.words import backend_text, device_type, flag_cell, told_apart

Records = Mapping[str, HardwareRecord]
DEFINITIONS = (
    "gemm: rank = 2 m n k / time p50, or / the device's own time where the column clock says "
    "device,",
    "  in TFLOP/s (1e12), while all ranks multiply; all ranks = rank x ranks;",
    "  own = slowest to fastest rank, each in its own times; peak = the best of its type here")
FIELDS = ("gemm_m", "gemm_n", "gemm_k", "gemm_shape", "gemm_right",
          "gemm_fast_accumulation", "rank_tflop_per_s", "all_ranks_tflop_per_s",
          "own_tflop_per_s", "is_peak", "rate_clock", *ROOFLINE_FIELDS)
ROOFLINE_OF = "matrix products"
_COLUMNS = (
    Column("type", "type"), *(Column(name, name, Show.COUNT) for name in ("m", "n", "k")),
    Column("shape", "model", optional=True), columns.TIME, columns.INTERVAL,
    Column("rank_flops", "rank", Show.TFLOP_PER_S, "TFLOP/s", "of each rank, all at once", "more"),
    Column("all_flops", "all ranks", Show.TFLOP_PER_S, "TFLOP/s", "all ranks together", "more"),
    Column("own_flops", "own", Show.TFLOP_PER_S, "TFLOP/s", "slowest to fastest rank", "more"),
    CLOCK, Column("peak", "peak", meaning="the best of its type, device and ranks", optional=True),
    columns.WRONG, columns.N, columns.STATUS, columns.LAUNCHES, columns.FLAGS)
_BEST, _OTHER = Look("measured peak of its type", COLOURS[2]), Look("other shapes", COLOURS[0])
NOTHING = GemmRecord()


def tables(title: str, items: Sequence[CaseResult], derived: Records) -> Iterator[Table]:
    """Yield one table: a group of rows for each device and number of ranks."""
    return table_of(title, _COLUMNS, items,
                    lambda item: _row(item, derived.get(item.case.case_id)))


def charts(items: Sequence[CaseResult], derived: Records) -> Iterator[BarChart]:
    """Yield the rates, a bar a case, in a section for each type."""
    timed = [item for item in items if item.statistics is not None]
    if not timed:
        return
    sections = grouped((f"{gemm_of(item.case).types}, {where(item)}", item) for item in timed)
    yield BarChart(
        "matrix products", "TFLOP/s of a rank while all ranks multiply", "hardware-gemm",
        ("Bar: 2 m n k over the median time, on a GPU over the device's own.",),
        tuple(item.case.case_id for item in timed), Axis("rate", Show.TFLOP_PER_S, "TFLOP/s"), (),
        tuple(BarSection(name, tuple(_bar(item, derived) for item in same))
              for name, same in sections.items()), (_BEST, _OTHER))


def row(item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
    """Return the values of FIELDS."""
    work, known = gemm_of(item.case), (record and record.gemm) or NOTHING
    return {
        "gemm_m": work.m, "gemm_n": work.n, "gemm_k": work.k, "gemm_shape": work.shape,
        "gemm_right": work.right or work.dtype, "gemm_fast_accumulation": work.fast_accumulation,
        "rank_tflop_per_s": known.rank_flops_per_s and to_tflop_per_s(known.rank_flops_per_s),
        "all_ranks_tflop_per_s": (
            known.all_ranks_flops_per_s and to_tflop_per_s(known.all_ranks_flops_per_s)),
        "own_tflop_per_s": [to_tflop_per_s(rate) for rate in (record.rank_rates if record else ())],
        "is_peak": known.is_peak, "rate_clock": known.clock, **roofline_values(known.roofline)}


def rooflines(items: Sequence[CaseResult], derived: Records) -> list[Shown]:
    """Return what binds each product, in the order of cases."""
    found = [(item, record.gemm.roofline) for item in items
             if (record := derived.get(item.case.case_id)) and record.gemm]
    shown = [(item, roofline) for item, roofline in found if roofline is not None]
    titles = told_apart([(f"{gemm_of(item.case).types} {_extents(item)}, "
                          f"{plural(item.case.world_size, 'rank')}",
                          (backend_text(item.case), device_type(item))) for item, _ in shown])
    return [Shown(title, item.case.case_id, roofline)
            for title, (item, roofline) in zip(titles, shown, strict=True)]


def _row(item: CaseResult, record: HardwareRecord | None) -> Row:
    work, known = gemm_of(item.case), (record and record.gemm) or NOTHING
    return Row((
        work.types, work.m, work.n, work.k, work.shape or None,
        columns.median_cell(item.statistics), columns.interval_cell(item.statistics),
        known.rank_flops_per_s, known.all_ranks_flops_per_s,
        own_range(record), clock_cell(known.clock), "peak" if known.is_peak else None,
        columns.wrong_cell(item), columns.n_cell(item.statistics), item.status,
        columns.launches_cell(item), flag_cell(item)), item.status, item.case.case_id)


def _bar(item: CaseResult, derived: Records) -> Bar:
    record = derived.get(item.case.case_id)
    known = (record and record.gemm) or NOTHING
    look = _BEST if known.is_peak else _OTHER
    return Bar(_extents(item), (), ((known.rank_flops_per_s or 0.0, look),))


def _extents(item: CaseResult) -> str:
    work = gemm_of(item.case)
    return str(work.m) if work.m == work.n == work.k else f"{work.m}x{work.n}x{work.k}"

"""The tables of a plan's and of a block's primitives, and what their columns mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hpcbench.kinds.primitive.derive.partners import (
    NOTHING,
    Options,
    PrimitiveRecord,
    common_options,
    parts_first,
)
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped, plural
from hpcbench.views import columns
from hpcbench.views.roofline import Shown
from hpcbench.views.table import Cell, Column, Group, Line, Row, Show, Table
from hpcbench.views.words import (
    backend_text,
    batch_text,
    device_memory_text,
    device_type,
    distinct,
    env_text,
    flag_cell,
    mode_text,
    options_text,
    span,
    timed_text,
    told_apart,
)

DEFINITIONS = (
    "rank = TFLOP/s (1e12) of the rank that has most to do, all ranks = of all together, from time "
    "p50;",
    "  of gemm = rank over the best product of its type in this run (kind hardware); of peak: over "
    "hardware.peak_flops;",
    "  busbw of comm_only = its collectives' sizes x nccl-tests' factors / time p50",
    "exposed = t - t(compute_only); overlap = (t(compute_only) + t(comm_only) - t) / the shorter "
    "of these two,",
    "  100 % where all of it is hidden, negative where it is slower than one after the other;",
    "  x longest = t / the longer of the two, 1 is perfect; x torch = t(torch) / t, above 1 is "
    "faster than torch",
    "  (all of the same problem in the same pass; shown is the median over passes, and from the "
    "least to the greatest;",
    f"  {columns.CANNOT_TELL}: the 95 % interval over passes holds opposite answers, see "
    "method.md)",
)
_WHO = (Column("primitive", "primitive"), Column("implementation", "implementation"))
_WHERE = (Column("backend", "backend"), Column("device", "device"),
          Column("ranks", "ranks", Show.COUNT), Column("type", "type"),
          *(Column(name, name, Show.COUNT) for name in ("m", "n", "k")))
_CASE_COLUMNS = (
    Column("index", "#", Show.COUNT), *_WHO, Column("order", "order"),
    Column("options", "options", optional=True), *_WHERE, Column("model", "model", optional=True),
    Column("flops", "flops", Show.GFLOP, "1e9", "of one call, on the rank with most", "less",
           optional=True),
    Column("wire", "wire", Show.COUNT, "B", "of one call, on the rank with most", "less",
           optional=True), *columns.COST)
_GROUP_COLUMNS = (Column("cases", "cases", Show.COUNT), *_WHO,
                  Column("orders", "orders", optional=True), *_WHERE, *columns.COST)
_RESULT_COLUMNS = (
    Column("implementation", "implementation"), Column("order", "order"),
    Column("options", "options", optional=True), columns.TIME, columns.INTERVAL,
    Column("rank_flops", "rank", Show.TFLOP_PER_S, "TFLOP/s", "the rank with most to do", "more"),
    Column("all_flops", "all ranks", Show.TFLOP_PER_S, "TFLOP/s", "all ranks together", "more"),
    Column("of_measured", "of gemm", Show.WHOLE_PERCENT, "%",
           "rank, of the best product of its type in this run", "more", optional=True),
    Column("of_declared", "of peak", Show.WHOLE_PERCENT, "%", "rank, of hardware.peak_flops",
           "more", optional=True),
    Column("busbw", "busbw", Show.GB_PER_S, "GB/s", "bus bandwidth of comm_only", "more"),
    Column("exposed", "exposed", Show.US, "us", "t - t(compute_only)", "less"),
    Column("overlap", "overlap", Show.WHOLE_PERCENT, "%", "of the shorter part", "more"),
    Column("times_longest", "x longest", Show.RATIO, "", "t / the longer part", "less"),
    Column("speedup", "x torch", Show.RATIO, "", "t(torch) / t", "more"),
    columns.WRONG, columns.N, columns.STATUS, columns.LAUNCHES, columns.FLAGS)
Records = Mapping[str, PrimitiveRecord]


def problem_text(work: Primitive) -> str:
    """Return ``m=64 n=64 k=32``, and what model it comes from, if it comes from one."""
    return f"m={work.m} n={work.n} k={work.k} {work.shape}".rstrip()


def plan_table(title: str, cases: Sequence[Case], *, listed: bool) -> Table:
    """Return a row for each case, or for each implementation on each backend."""
    if listed:
        return Table(title, _CASE_COLUMNS, (Group("", tuple(map(_case_row, cases))),))
    groups = grouped((
        (case.workload.name, primitive_of(case).implementation, case.backend, case.env,
         case.device, case.world_size, batch_text(case), case.needs), case) for case in cases)
    return Table(title, _GROUP_COLUMNS, (Group("", tuple(map(_group_row, groups.values()))),))


def _case_row(case: Case) -> Row:
    work = primitive_of(case)
    return Row((
        case.index, work.primitive, work.implementation, work.order, options_text(work.options),
        *_where_cells([case]), work.shape, work.flops or None, work.wire_bytes or None,
        *columns.cost_cells([case])), case_id=case.case_id)


def _group_row(cases: Sequence[Case]) -> Row:
    works = [primitive_of(case) for case in cases]
    return Row((
        len(cases), works[0].primitive, works[0].implementation,
        distinct(work.order for work in works), *_where_cells(cases), *columns.cost_cells(cases)))


def _where_cells(cases: Sequence[Case]) -> tuple[Cell, ...]:
    first, works = cases[0], [primitive_of(case) for case in cases]
    return (backend_text(first), first.device, first.world_size,
            distinct(work.dtype for work in works),
            *(span(getattr(work, name) for work in works) for name in ("m", "n", "k")))


def result_tables(title: str, items: Sequence[CaseResult], derived: Records) -> Iterator[Table]:
    """Yield one block's table: a group of rows per problem, backend, device, ranks and mode."""
    orders = list(dict.fromkeys(primitive_of(item.case).order for item in items))
    groups = grouped(((_group_title(item), timed_text(item)), item) for item in items
                     if item.status in columns.TABLED)
    for group in groups.values():
        group.sort(key=lambda item: (
            orders.index(primitive_of(item.case).order), parts_first(item)))
    if groups:
        yield Table(title, _RESULT_COLUMNS, tuple(
            _group(*names, group, derived) for names, group in groups.items()),
            notes=tuple(_not_compared(
                _record(item, derived) for group in groups.values() for item in group)))


def _group(
    title: str, timed: str, group: Sequence[CaseResult], derived: Records,
) -> Group:
    common = common_options(group)
    rows = (_row(item, common, _of_order(item, group), _record(item, derived)) for item in group)
    return Group(f"{title}  {options_text(sorted(common))}".rstrip(), tuple(rows), timed)


def _record(item: CaseResult, derived: Records) -> PrimitiveRecord:
    return derived.get(item.case.case_id, NOTHING)


def _of_order(item: CaseResult, group: Sequence[CaseResult]) -> Options:
    """Return the options that all rows of a row's order have: an order may decide an option."""
    return common_options([other for other in group
                            if primitive_of(other.case).order == primitive_of(item.case).order])


def _group_title(item: CaseResult) -> str:
    case, work = item.case, primitive_of(item.case)
    parts = (work.primitive, f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), work.dtype, problem_text(work),
             device_memory_text(item), env_text(case))
    return "  ".join(part for part in parts if part)


def _row(item: CaseResult, common: Options, of_order: Options, record: PrimitiveRecord) -> Row:
    work, stats, flops = primitive_of(item.case), item.statistics, record.flops
    return Row((
        work.implementation,
        f"{work.order} {options_text(sorted(of_order - common))}".rstrip(),
        options_text([option for option in work.options if option not in common | of_order]),
        columns.median_cell(stats), columns.interval_cell(stats),
        flops.busiest_rank_flops_per_s if flops else None,
        flops.all_ranks_flops_per_s if flops else None,
        record.of_measured_product, record.of_declared_product,
        record.communication.busbw_bytes_per_s if record.communication else None,
        columns.middle_cell(record.exposed_s),
        columns.over_passes_cell(record.efficiency),
        columns.middle_cell(record.times_longest),
        columns.over_passes_cell(record.speedup), columns.wrong_cell(item),
        columns.n_cell(stats), item.status, columns.launches_cell(item), flag_cell(item)),
        item.status, item.case.case_id)


def rooflines(items: Sequence[CaseResult], derived: Records) -> list[Shown]:
    """Return what binds each case, in the order of cases."""
    found = [(item, _record(item, derived).roofline) for item in items]
    shown = [(item, roofline) for item, roofline in found if roofline is not None]
    titles = told_apart([(_short_title(item), _details(item)) for item, _ in shown])
    return [Shown(title, item.case.case_id, roofline)
            for title, (item, roofline) in zip(titles, shown, strict=True)]


def _short_title(item: CaseResult) -> str:
    work = primitive_of(item.case)
    return (f"{work.primitive} {work.implementation} {work.order} {work.m}x{work.n}x{work.k} "
            f"{work.dtype} {plural(item.case.world_size, 'rank')}")


def _details(item: CaseResult) -> tuple[str, ...]:
    """Return what else may tell a case from others with the same title."""
    options = (options_text([option]) for option in primitive_of(item.case).options)
    return (*options, backend_text(item.case), device_type(item), mode_text(item))


def _not_compared(records: Iterator[PrimitiveRecord]) -> Iterator[Line]:
    """Yield why rows have no comparison."""
    counts = Counter(reason for record in records for reason in record.missing)
    for reason, count in counts.items():
        yield Line(f"{plural(count, 'row')} not compared: {reason}", "quiet")

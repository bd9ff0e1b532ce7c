"""The results tables of primitives, and what their columns mean."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from hpcbench.kinds.primitive.derive.partners import (
    NOTHING,
    Options,
    PrimitiveRecord,
    common_options,
    parts_first,
)
from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.kinds.primitive.present.words import problem_text
from hpcbench.reduce.results import CaseResult
from hpcbench.views.columns import (
    FLAGS,
    INTERVAL,
    STATUS,
    TABLED,
    TIME,
    WRONG,
    N,
    interval_cell,
    median_cell,
    n_cell,
    over_passes_cell,
    wrong_cell,
)
from hpcbench.views.table import Column, Group, Line, Row, Show, Table
from hpcbench.views.timing import flag_text, fold_of
from hpcbench.views.words import device_memory_text, device_type, env_text, options_text, plural

DEFINITIONS = (
    "rank = TFLOP/s (1e12) of the rank that has most to do, all ranks = of all together, from time "
    "p50;",
    "  busbw of comm_only = its collectives' sizes x nccl-tests' factors / time p50",
    "exposed = t - t(compute_only); overlap = (t(compute_only) + t(comm_only) - t) / the shorter "
    "of these two,",
    "  100 % where all of it is hidden, negative where it is slower than one after the other;",
    "  x longest = t / the longer of the two, 1 is perfect; x torch = t(torch) / t, above 1 is "
    "faster than torch",
    "  (all of the same problem in the same pass; shown is the median over passes, and from the "
    "least to the greatest)",
)
COLUMNS = (
    Column("implementation", "implementation"), Column("order", "order"),
    Column("options", "options", optional=True), TIME, INTERVAL,
    Column("rank_flops", "rank", Show.TFLOP_PER_S, "TFLOP/s", "the rank with most to do", "more"),
    Column("all_flops", "all ranks", Show.TFLOP_PER_S, "TFLOP/s", "all ranks together", "more"),
    Column("busbw", "busbw", Show.GB_PER_S, "GB/s", "bus bandwidth of comm_only", "more"),
    Column("exposed", "exposed", Show.US, "us", "t - t(compute_only)", "less"),
    Column("overlap", "overlap", Show.WHOLE_PERCENT, "%", "of the shorter part", "more"),
    Column("times_longest", "x longest", Show.RATIO, "", "t / the longer part", "less"),
    Column("speedup", "x torch", Show.RATIO, "", "t(torch) / t", "more"),
    WRONG, N, STATUS, FLAGS,
)
Records = Mapping[str, PrimitiveRecord]


def definitions(items: Sequence[CaseResult], derived: Records) -> Sequence[str]:
    """Return what rates and comparisons are."""
    return DEFINITIONS


def result_tables(title: str, items: Sequence[CaseResult], derived: Records) -> Iterator[Table]:
    """Yield one block's table: a group of rows per problem, backend, device, ranks and mode."""
    orders = list(dict.fromkeys(primitive_of(item.case).order for item in items))
    groups: dict[str, list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.status in TABLED:
            groups[_group_title(item)].append(item)
    for group in groups.values():
        group.sort(key=lambda item: (
            orders.index(primitive_of(item.case).order), parts_first(item)))
    if groups:
        yield Table(title, COLUMNS, tuple(
            _group(name, group, derived) for name, group in groups.items()),
            notes=tuple(_not_compared(
                _record(item, derived) for group in groups.values() for item in group)))


def _group(title: str, group: Sequence[CaseResult], derived: Records) -> Group:
    common = common_options(group)
    rows = (_row(item, common, _of_order(item, group), _record(item, derived)) for item in group)
    return Group(f"{title}  {options_text(sorted(common))}".rstrip(), tuple(rows))


def _record(item: CaseResult, derived: Records) -> PrimitiveRecord:
    return derived.get(item.case.case_id, NOTHING)


def _of_order(item: CaseResult, group: Sequence[CaseResult]) -> Options:
    """Return the options that all rows of a row's order have: an order may decide an option."""
    return common_options([other for other in group
                            if primitive_of(other.case).order == primitive_of(item.case).order])


def _group_title(item: CaseResult) -> str:
    case, work = item.case, primitive_of(item.case)
    parts = (work.primitive, f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), f"{case.mode}, fold {fold_of(item)}",
             work.dtype, problem_text(work), device_memory_text(item), env_text(case))
    return "  ".join(part for part in parts if part)


def _row(item: CaseResult, common: Options, of_order: Options, record: PrimitiveRecord) -> Row:
    work, stats, flops = primitive_of(item.case), item.statistics, record.flops
    return Row((
        work.implementation,
        f"{work.order} {options_text(sorted(of_order - common))}".rstrip(),
        options_text([option for option in work.options if option not in common | of_order]),
        median_cell(stats), interval_cell(stats),
        flops.busiest_rank_flops_per_s if flops else None,
        flops.all_ranks_flops_per_s if flops else None,
        record.communication.busbw_bytes_per_s if record.communication else None,
        record.exposed_s.median if record.exposed_s else None,
        over_passes_cell(record.efficiency),
        record.times_longest.median if record.times_longest else None,
        over_passes_cell(record.speedup), wrong_cell(item), n_cell(stats), item.status,
        flag_text(item)), item.status, item.case.case_id)


def _not_compared(records: Iterator[PrimitiveRecord]) -> Iterator[Line]:
    """Yield why rows have no comparison."""
    counts = Counter(reason for record in records for reason in record.missing)
    for reason, count in counts.items():
        yield Line(f"{plural(count, 'row')} not compared: {reason}", "quiet")

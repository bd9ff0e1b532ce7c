"""The results tables of primitives, and what their columns mean."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.text import Text

from hpcbench.kinds.primitive.derive.partners import (
    NOTHING,
    Comparison,
    Options,
    common_options,
    parts_first,
)
from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.reduce.results import CaseResult
from hpcbench.report.tables import STYLES, TABLED, wrong_cell
from hpcbench.report.text import (
    MISSING,
    Column,
    column_widths,
    device_memory_text,
    device_type,
    env_text,
    format_gb_per_s,
    format_number,
    format_us,
    header_lines,
    options_text,
    plural,
    problem_text,
    row_line,
)
from hpcbench.report.timing import flag_cell, fold_of, interval_cell
from hpcbench.statistics.overlap import OverPasses
from hpcbench.units import to_tflop_per_s

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
    Column("implementation", words=True), Column("order", words=True),
    Column("options", words=True), Column("time p50", "(us)"), Column("CI", "+-%"),
    Column("rank", "(TFLOP/s)"), Column("all ranks", "(TFLOP/s)"), Column("busbw", "(GB/s)"),
    Column("exposed", "(us)"), Column("overlap", "%"), Column("x longest"), Column("x torch"),
    Column("#wrong"), Column("n"), Column("status", words=True), Column("flags", words=True),
)
_IF_ANY = ("options", "flags")
"""Columns that are left out where no row has anything in them."""
Comparisons = Mapping[str, Comparison]


def primitive_lines(
    name: str, items: Sequence[CaseResult], comparisons: Comparisons
) -> Iterator[Text]:
    """Yield one block's table: a group of rows per problem, backend, device, ranks and mode."""
    groups: dict[str, list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.status in TABLED:
            groups[_group_title(item)].append(item)
    if not groups:
        return
    common = {title: common_options(group) for title, group in groups.items()}
    orders = _in_order_of_appearance(items)
    listed = [(title, item) for title, group in groups.items()
              for item in sorted(group, key=lambda item: (
                  orders.index(primitive_of(item.case).order), parts_first(item)))]
    columns, rows = _shown([
        _row(item, common[title], _of_order(item, groups[title]),
             comparisons.get(item.case.case_id, NOTHING)) for title, item in listed])
    widths = column_widths(columns, rows)
    yield Text()
    yield Text(f"block {name}", style="bold")
    for line in header_lines(columns, widths):
        yield Text(line, style="dim")
    last = ""
    for (title, item), row in zip(listed, rows, strict=True):
        if title != last:
            options = options_text(sorted(common[title]))
            yield Text(f"{title}  {options}".rstrip(), style="cyan")
        yield Text(row_line(columns, widths, row), style=STYLES[item.status])
        last = title
    yield from _missing_lines([comparisons.get(item.case.case_id, NOTHING) for _, item in listed])


def _of_order(item: CaseResult, group: Sequence[CaseResult]) -> Options:
    """Return the options that all rows of a row's order have: an order may decide an option."""
    return common_options([other for other in group
                            if primitive_of(other.case).order == primitive_of(item.case).order])


def _in_order_of_appearance(items: Sequence[CaseResult]) -> list[str]:
    return list(dict.fromkeys(primitive_of(item.case).order for item in items))


def _shown(rows: Sequence[list[str]]) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows without those of _IF_ANY that are empty."""
    kept = [at for at, column in enumerate(COLUMNS)
            if column.title not in _IF_ANY or any(row[at] for row in rows)]
    return [COLUMNS[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _group_title(item: CaseResult) -> str:
    case, work = item.case, primitive_of(item.case)
    parts = (work.primitive, f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), f"{case.mode}, fold {fold_of(item)}",
             work.dtype, problem_text(work), device_memory_text(item), env_text(case))
    return "  ".join(part for part in parts if part)


def _row(
    item: CaseResult, common: Options, of_order: Options, told: Comparison
) -> list[str]:
    work, stats, flops = primitive_of(item.case), item.statistics, told.flops
    busbw = told.communication.busbw_bytes_per_s if told.communication else None
    return [
        work.implementation,
        f"{work.order} {options_text(sorted(of_order - common))}".rstrip(),
        options_text([option for option in work.options if option not in common | of_order]),
        format_us(stats.median_s if stats else None), interval_cell(stats),
        _tflops_cell(flops.busiest_rank_flops_per_s if flops else None),
        _tflops_cell(flops.all_ranks_flops_per_s if flops else None), format_gb_per_s(busbw),
        format_us(told.exposed_s.median if told.exposed_s else None),
        range_cell(told.efficiency, lambda value: str(round(100 * value))),
        f"{told.times_longest.median:.2f}" if told.times_longest else MISSING,
        range_cell(told.speedup, lambda value: f"{value:.2f}"),
        wrong_cell(item), str(stats.n) if stats else MISSING, item.status, flag_cell(item),
    ]


def range_cell(found: OverPasses | None, show: Callable[[float], str]) -> str:
    """Return ``0.45 (0.30..0.61)``: the median over passes, and their range if they differ."""
    if found is None:
        return MISSING
    middle, least, greatest = map(show, (found.median, found.least, found.greatest))
    return middle if least == greatest else f"{middle} ({least}..{greatest})"


def _tflops_cell(flops_per_s: float | None) -> str:
    return MISSING if flops_per_s is None else format_number(to_tflop_per_s(flops_per_s))


def _missing_lines(comparisons: Sequence[Comparison]) -> Iterator[Text]:
    """Yield why rows have no comparison."""
    counts = Counter(reason for told in comparisons for reason in told.missing)
    for reason, count in counts.items():
        yield Text(f"  {plural(count, 'row')} not compared: {reason}", style="dim")

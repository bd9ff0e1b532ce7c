"""The results tables of primitives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.text import Text

from hpcbench.reduce.results import CaseResult
from hpcbench.report.primitive_plan import options_text
from hpcbench.report.tables import STYLES, TABLED
from hpcbench.report.text import (
    MISSING,
    Column,
    column_widths,
    device_type,
    env_text,
    format_us,
    header_lines,
    plural,
    problem_text,
    row_line,
    without_empty,
)
from hpcbench.report.timing import flag_cell, fold_of, interval_cell

COLUMNS = (
    Column("implementation", words=True), Column("order", words=True),
    Column("options", words=True), Column("time p50", "(us)"), Column("CI", "+-%"),
    Column("#wrong"), Column("n"), Column("status", words=True), Column("flags", words=True),
)


def primitive_lines(name: str, items: Sequence[CaseResult]) -> Iterator[Text]:
    """Yield one block's table: a group of rows per problem, backend, device, ranks and mode."""
    groups: dict[str, list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.status in TABLED:
            groups[_group_title(item)].append(item)
    if not groups:
        return
    rows = [_row(item) for group in groups.values() for item in group]
    columns, rows = without_empty(COLUMNS, rows)
    widths = column_widths(columns, rows)
    lines = iter(rows)
    yield Text()
    yield Text(f"block {name}", style="bold")
    for line in header_lines(columns, widths):
        yield Text(line, style="dim")
    for title, group in groups.items():
        yield Text(title, style="cyan")
        for item in group:
            yield Text(row_line(columns, widths, next(lines)), style=STYLES[item.status])


def _group_title(item: CaseResult) -> str:
    case, work = item.case, item.case.primitive
    parts = (work.primitive, f"{case.backend} ({device_type(item)})",
             plural(case.world_size, "rank"), f"{case.mode}, fold {fold_of(item)}",
             work.dtype, problem_text(work), env_text(case))
    return "  ".join(part for part in parts if part)


def _row(item: CaseResult) -> list[str]:
    work, stats = item.case.primitive, item.statistics
    return [
        work.implementation, work.order, options_text(work),
        format_us(stats.median_s if stats else None), interval_cell(stats),
        MISSING if item.n_wrong is None else str(item.n_wrong),
        str(stats.n) if stats else MISSING, item.status, flag_cell(item),
    ]

"""Tables of cases of any kind: what every case has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.views.columns import (
    COST,
    FLAGS,
    INTERVAL,
    STATUS,
    TABLED,
    TIME,
    N,
    cost_cells,
    interval_cell,
    median_cell,
    n_cell,
)
from hpcbench.views.table import Cell, Column, Group, Row, Show, Table
from hpcbench.views.timing import flag_text
from hpcbench.views.words import backend_text, device_type

_CASE = (Column("case", "case"), Column("backend", "backend"), Column("device", "device"),
         Column("ranks", "ranks", Show.COUNT))


def any_plan(title: str, cases: Sequence[Case]) -> Table:
    """Return a row for each case."""
    rows = (Row((case.index, *_cells(case, case.device), *cost_cells([case])),
                case_id=case.case_id) for case in cases)
    return Table(title, (Column("index", "#", Show.COUNT), *_CASE, *COST),
                 (Group("", tuple(rows)),))


def any_results(title: str, items: Sequence[CaseResult]) -> Iterator[Table]:
    """Yield a table with a row for each case that ran; nothing if none ran."""
    rows = tuple(_result_row(item) for item in items if item.status in TABLED)
    if rows:
        yield Table(title, (*_CASE, TIME, INTERVAL, N, STATUS, FLAGS), (Group("", rows),))


def _result_row(item: CaseResult) -> Row:
    stats = item.statistics
    return Row((*_cells(item.case, device_type(item)), median_cell(stats), interval_cell(stats),
                n_cell(stats), item.status, flag_text(item)), item.status, item.case.case_id)


def _cells(case: Case, device: str) -> tuple[Cell, ...]:
    words = case.workload.words(case.world_size)
    return " ".join(words), backend_text(case), device, case.world_size

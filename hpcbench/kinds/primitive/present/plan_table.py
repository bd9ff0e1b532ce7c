"""The tables of a plan's primitives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.plan.case import Case
from hpcbench.views.columns import COST, cost_cells
from hpcbench.views.table import Column, Group, Row, Show, Table
from hpcbench.views.timing import batch_text
from hpcbench.views.words import backend_text, distinct, options_text, span

_PROBLEM = (Column("ranks", "ranks", Show.COUNT), Column("type", "type"),
            *(Column(name, name, Show.COUNT) for name in ("m", "n", "k")))
_CASE_COLUMNS = (
    Column("index", "#", Show.COUNT), Column("primitive", "primitive"),
    Column("implementation", "implementation"), Column("order", "order"),
    Column("options", "options", optional=True), Column("backend", "backend"),
    Column("device", "device"), *_PROBLEM, Column("model", "model", optional=True),
    Column("flops", "flops", Show.GFLOP, "1e9", "of one call, on the rank with most", "less",
           optional=True),
    Column("wire", "wire", Show.COUNT, "B", "of one call, on the rank with most", "less",
           optional=True), *COST,
)
_GROUP_COLUMNS = (
    Column("cases", "cases", Show.COUNT), Column("primitive", "primitive"),
    Column("implementation", "implementation"), Column("orders", "orders", optional=True),
    Column("backend", "backend"), Column("device", "device"), *_PROBLEM, *COST,
)


def plan_table(title: str, cases: Sequence[Case], *, listed: bool) -> Table:
    """Return a row for each case, or for each implementation on each backend."""
    if listed:
        return Table(title, _CASE_COLUMNS, (Group("", tuple(map(_case_row, cases))),))
    groups: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.workload.name, primitive_of(case).implementation, case.backend, case.env,
               case.device, case.world_size, batch_text(case), case.needs].append(case)
    return Table(title, _GROUP_COLUMNS, (Group("", tuple(map(_group_row, groups.values()))),))


def _case_row(case: Case) -> Row:
    work = primitive_of(case)
    return Row((
        case.index, work.primitive, work.implementation, work.order,
        options_text(work.options), backend_text(case), case.device, case.world_size, work.dtype,
        work.m, work.n, work.k, work.shape, work.flops or None, work.wire_bytes or None,
        *cost_cells([case])), case_id=case.case_id)


def _group_row(cases: Sequence[Case]) -> Row:
    first, works = cases[0], [primitive_of(case) for case in cases]
    return Row((
        len(cases), works[0].primitive, works[0].implementation,
        distinct(work.order for work in works), backend_text(first), first.device,
        first.world_size, distinct(work.dtype for work in works),
        *(span(getattr(work, name) for work in works) for name in ("m", "n", "k")),
        *cost_cells(cases)))

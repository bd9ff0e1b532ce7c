"""The tables of a plan's collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.kinds.collective.present.words import form_text, place_word, size_range, type_word
from hpcbench.plan.case import Case
from hpcbench.views.columns import COST, cost_cells
from hpcbench.views.table import Column, Group, Row, Show, Table
from hpcbench.views.timing import batch_text
from hpcbench.views.words import backend_text, distinct

_CASE_COLUMNS = (
    Column("index", "#", Show.COUNT), Column("collective", "collective"),
    Column("backend", "backend"), Column("device", "device"),
    Column("ranks", "ranks", Show.COUNT), Column("type", "type", optional=True),
    Column("redop", "redop", optional=True), Column("root", "root", Show.COUNT, optional=True),
    Column("place", "place", optional=True), Column("size", "size", Show.COUNT, "B"),
    Column("count", "count", Show.COUNT, "elem"), *COST,
)
_GROUP_COLUMNS = (
    Column("cases", "cases", Show.COUNT), Column("collective", "collective"),
    Column("backend", "backend"), Column("device", "device"),
    Column("ranks", "ranks", Show.COUNT), Column("types", "types", optional=True),
    Column("redops", "redops", optional=True), Column("sizes", "sizes", optional=True), *COST,
)


def plan_table(title: str, cases: Sequence[Case], *, listed: bool) -> Table:
    """Return a row for each case, or for each collective on each backend."""
    if listed:
        return Table(title, _CASE_COLUMNS, (Group("", tuple(map(_case_row, cases))),))
    groups: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        groups[_collective(case), backend_text(case), case.device, case.world_size,
               batch_text(case), case.needs].append(case)
    return Table(title, _GROUP_COLUMNS, (Group("", tuple(map(_group_row, groups.values()))),))


def _case_row(case: Case) -> Row:
    work = collective_of(case)
    samples, needs, estimate = cost_cells([case])
    return Row((
        case.index, _collective(case), backend_text(case), case.device, case.world_size,
        type_word(work), work.op, work.root, place_word(work), work.size_bytes, work.count,
        samples, needs, estimate or None), case_id=case.case_id)


def _group_row(cases: Sequence[Case]) -> Row:
    first, works = cases[0], [collective_of(case) for case in cases]
    return Row((
        len(cases), _collective(first), backend_text(first), first.device, first.world_size,
        distinct(map(type_word, works)) or None, distinct(work.op for work in works) or None,
        size_range(works) or None, *cost_cells(cases)))


def _collective(case: Case) -> str:
    work = collective_of(case)
    form = form_text(work)
    return f"{work.collective} ({form})" if form else work.collective

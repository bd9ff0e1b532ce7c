"""The rows of a plan's table that are about primitives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.plan.case import Case
from hpcbench.report.text import (
    MISSING,
    Column,
    distinct,
    env_text,
    format_number,
    options_text,
    span_text,
)
from hpcbench.report.timing import batch_text, samples_text
from hpcbench.units import format_seconds

_PROBLEM = (Column("ranks"), Column("type", words=True), Column("m"), Column("n"), Column("k"))
_COST = (Column("samples", words=True), Column("needs", words=True),
         Column("estimate", "(a pass)"))
CASE_COLUMNS = (
    Column("#"), Column("primitive", words=True), Column("implementation", words=True),
    Column("order", words=True), Column("options", words=True), Column("backend", words=True),
    Column("device", words=True), *_PROBLEM, Column("model", words=True),
    Column("flops", "(1e9)"), Column("wire", "(B)"), *_COST,
)
"""Flops and bytes are one call's, of the rank that has most to do."""
GROUP_COLUMNS = (
    Column("cases"), Column("primitive", words=True), Column("implementation", words=True),
    Column("orders", words=True), Column("backend", words=True), Column("device", words=True),
    *_PROBLEM, *_COST,
)
Table = tuple[Sequence[Column], list[list[str]]]


def case_rows(cases: Sequence[Case]) -> Table:
    """Return the columns, and a row for each case."""
    return CASE_COLUMNS, [_case_row(case) for case in cases]


def group_rows(cases: Sequence[Case]) -> Table:
    """Return the columns, and a row for each implementation on each backend."""
    groups: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.workload.name, primitive_of(case).implementation, case.backend, case.env,
               case.device, case.world_size, batch_text(case), case.needs].append(case)
    return GROUP_COLUMNS, [_group_row(group) for group in groups.values()]


def _case_row(case: Case) -> list[str]:
    work = primitive_of(case)
    return [
        str(case.index), work.primitive, work.implementation, work.order,
        options_text(work.options), _backend(case), case.device, str(case.world_size), work.dtype,
        str(work.m), str(work.n), str(work.k), work.shape,
        format_number(work.flops / 1e9) if work.flops else MISSING,
        str(work.wire_bytes) if work.wire_bytes else MISSING, *_cost([case])]


def _group_row(cases: Sequence[Case]) -> list[str]:
    first, works = cases[0], [primitive_of(case) for case in cases]
    return [
        str(len(cases)), primitive_of(first).primitive, primitive_of(first).implementation,
        distinct(work.order for work in works), _backend(first), first.device,
        str(first.world_size), distinct(work.dtype for work in works),
        *(span_text(getattr(work, name) for work in works) for name in ("m", "n", "k")),
        *_cost(cases)]


def _cost(cases: Sequence[Case]) -> list[str]:
    return [f"{samples_text(cases)} {batch_text(cases[0])}", ",".join(cases[0].needs) or MISSING,
            format_seconds(sum(case.estimate_s for case in cases) or 0.0)]


def _backend(case: Case) -> str:
    return f"{case.backend} {env_text(case)}".rstrip()

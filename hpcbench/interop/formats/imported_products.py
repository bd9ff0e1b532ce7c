"""Rows of DDLB as cases of primitives: the same problem, solved by the same implementation.

DDLB's options have the meaning that `config.dialects.ddlb` gives them in sweep files: the whole
weight on every rank, nccl where no backend is named."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpcbench.errors import UsageError
from hpcbench.interop.formats.imported_rows import (
    DTYPES,
    Gathered,
    RowPlace,
    UserFacts,
    mean_of,
    needed,
)
from hpcbench.interop.formats.lint import BrokenRule
from hpcbench.interop.formats.tables import ProductRow, ProductTable
from hpcbench.kinds.primitive.plan.implementations import (
    ALIASES,
    ELSEWHERE,
    TP_COLUMNWISE,
    TP_ROWWISE,
)
from hpcbench.kinds.primitive.plan.planner import make_workload
from hpcbench.kinds.primitive.plan.spec import ImplementationSpec, PrimitiveSpec, Problem
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.plan.points import Option
from hpcbench.plan.support import BACKEND_TRAITS

PROGRAM = "DDLB"
KIND = "primitive"
PRIMITIVES: Mapping[str, tuple[PrimitiveSpec, Mapping[str, Option]]] = {
    TP_COLUMNWISE.name: (TP_COLUMNWISE, {"weight": "replicated"}),
    TP_ROWWISE.name: (TP_ROWWISE, {})}
"""DDLB's primitives, with the options of ours that match its measurement."""
UNKNOWN_PART = "compute_only"
MOST_FLOPS = 2**62
_OPTION = re.compile(r"\s*(\w+)=([^,]*)(?:,|$)")


def take_products(table: ProductTable, given: UserFacts, gathered: Gathered) -> None:
    """Add the rows of a table. Raises UsageError for a fact that nobody gives."""
    where = f"{table.path}:{table.rows[0].line}"
    if not given.primitive:
        raise needed(where, "which primitive", f"--primitive {' or '.join(PRIMITIVES)}")
    if given.primitive not in PRIMITIVES:
        raise UsageError(f"--primitive {given.primitive}: DDLB has {', '.join(PRIMITIVES)}")
    gathered.programs[PROGRAM] = None
    for row in table.rows:
        ranks = given.ranks or row.ranks
        if not ranks:
            raise needed(f"{table.path}:{row.line}", "how many ranks", "--ranks N")
        if row.passed is False:
            gathered.doubt(BrokenRule("wrong", table.path, row.line, f"{row.implementation}: "
                                      "validation failed"), "note")
        _take_row(row, given, ranks, gathered)


def _take_row(row: ProductRow, given: UserFacts, ranks: int, gathered: Gathered) -> None:
    spec, fixed = PRIMITIVES[given.primitive]
    options = dict(_options(row))
    backend = str(options.pop("backend", given.backend or "nccl"))
    if backend == "cuda":  # nvFuser's own copies, which no process group makes
        backend, options["communicator"] = "nccl", "cuda"
    order = str(options.pop("order", spec.orders[0]))
    why = _unfit(row, spec, order, backend, options)
    if why:
        gathered.left_out[why] += 1
        return
    problem = Problem(row.m, row.n, row.k, DTYPES[row.dtype], ranks, order, {**fixed, **options})
    product, misfit = _workload(spec, _name(row), problem)
    if misfit or product.total_flops > MOST_FLOPS:
        gathered.left_out[misfit or "extents that no machine has"] += 1
        return
    n_wrong = None if row.passed is None else int(not row.passed)
    mode = "barrier_start" if row.is_lined_up else "pipelined"
    place = RowPlace(PROGRAM, KIND, spec.name, backend, ranks, mode)
    gathered.add(place, product, mean_of(row.mean_ms.value * 1e-3, row.line, n_wrong=n_wrong))


def _workload(spec: PrimitiveSpec, name: str, problem: Problem) -> tuple[Primitive, str | None]:
    """Return the workload, with the work of the primitive, and why the problem has none, or None.

    The calls of plug-ins' implementations are not known here, whether they are installed or not."""
    return make_workload(spec, ImplementationSpec(
        ALIASES.get(name, name), "", {}, calls=None if name in ALIASES else ()), problem)


def _name(row: ProductRow) -> str:
    """Return the implementation of ``pytorch (backend=nccl, order=AG_before)``."""
    return row.implementation.partition(" (")[0]


def _options(row: ProductRow) -> Iterator[tuple[str, Option]]:
    """Yield a row's options, by its label where there is no column of them."""
    text = row.option or row.implementation.partition(" (")[2].rstrip(")")
    for name, value in _OPTION.findall(text):
        is_number = value.isdecimal() and len(value) < 10
        yield name, int(value) if is_number else {"True": True, "False": False}.get(value, value)


def _unfit(
    row: ProductRow, spec: PrimitiveSpec, order: str, backend: str, options: Mapping[str, Option],
) -> str:
    """Return why a row is no case of ours, or nothing."""
    name = _name(row)
    if name == UNKNOWN_PART:
        return f"{name}: the file does not say whether it is sharded"
    if name not in ALIASES and name not in ELSEWHERE:
        return f"an implementation that hpcbench does not know: {name[:40]}"
    if row.dtype not in DTYPES:
        return f"element type {row.dtype[:40]}"
    if backend not in BACKEND_TRAITS:
        return f"backend {backend[:40]}"
    if order not in spec.orders:
        return f"{spec.name} has no order {order[:40]}"
    elsewhere = ELSEWHERE.get(name, {})
    for key, value in options.items():
        if key not in elsewhere or not elsewhere[key].allows(value):
            return f"an option that hpcbench does not know: {key[:40]}={str(value)[:40]}"
    return "" if row.mean_ms.value > 0 else "no time"

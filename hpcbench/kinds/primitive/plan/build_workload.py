"""A point of a sweep over primitives becomes a workload, or a reason to skip it."""

from __future__ import annotations

from dataclasses import replace

from hpcbench.config.names import FLOATING_DTYPES
from hpcbench.kinds.primitive.plan.spec import ImplementationSpec, PrimitiveSpec, Problem, Work
from hpcbench.kinds.primitive.plan.usable import check_reason, check_work
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.plan.options import Values, in_order


def options_of(primitive: PrimitiveSpec, implementation: ImplementationSpec) -> dict[str, Values]:
    """Return every option that a point of this pair has."""
    return {**primitive.options, **implementation.options}


def make_workload(
    primitive: PrimitiveSpec, implementation: ImplementationSpec, problem: Problem,
    shape: str = "",
) -> tuple[Primitive, str | None]:
    """Return the workload of a problem with all its options, and why it can run nowhere, or None.

    The work of a problem that does not fit is counted as 0. Raises TypeError or ValueError if a
    function of a specification does not return what it must.
    """
    skip = _unsuited(primitive, implementation, problem)
    check_reason(skip)
    work = Work(0, 0, ()) if skip else _work(primitive, implementation, problem)
    calls = tuple(dict.fromkeys(traffic.collective for traffic in work.traffic))
    if calls and implementation.calls is not None:
        calls = implementation.calls
    return replace(
        absent_workload(primitive, implementation.name, problem, shape),
        flops=work.flops, total_flops=work.total_flops,
        size_bytes=sum(traffic.size_bytes for traffic in work.traffic),
        wire_bytes=sum(traffic.wire_bytes for traffic in work.traffic), calls=calls,
        devices=implementation.devices, modules=implementation.modules,
        compiles=implementation.compiles), skip


def absent_workload(primitive: PrimitiveSpec, name: str, problem: Problem, shape: str) -> Primitive:
    """Return the workload of an implementation that is not there."""
    return Primitive(
        primitive=primitive.name, implementation=name, order=problem.order,
        options=in_order(problem.options), dtype=problem.dtype, m=problem.m, n=problem.n,
        k=problem.k, shape=shape, flops=0, total_flops=0, size_bytes=0, wire_bytes=0, calls=())


def _unsuited(
    primitive: PrimitiveSpec, implementation: ImplementationSpec, problem: Problem,
) -> str | None:
    pair = (primitive.name, problem.order)
    if implementation.orders is not None and pair not in implementation.orders:
        return f"{implementation.name} has no order {problem.order} of {primitive.name}"
    if problem.dtype not in FLOATING_DTYPES:
        return f"matrix products are of floating dtypes, not of {problem.dtype}"
    return primitive.unfit(problem) or implementation.unfit(primitive.name, problem)


def _work(
    primitive: PrimitiveSpec, implementation: ImplementationSpec, problem: Problem,
) -> Work:
    """Return what the implementation does: it is credited with nothing else."""
    whole = problem.options.get("size") == "unsharded"
    work = primitive.unsharded(problem) if whole else primitive.work(problem)
    check_work(work)
    if whole or implementation.part == "both":
        return work
    if implementation.part == "compute":
        return Work(work.flops, work.total_flops, ())
    return Work(0, 0, work.traffic)

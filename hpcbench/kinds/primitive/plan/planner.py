"""The planner of primitives: points of a block become cases, or skips with their reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpcbench.config.block import Block
from hpcbench.config.names import FLOATING_DTYPES
from hpcbench.kinds.kind import Planner
from hpcbench.kinds.primitive.plan.block import PrimitiveBlock
from hpcbench.kinds.primitive.plan.demands import device_bytes, host_bytes, reference_flops
from hpcbench.kinds.primitive.plan.points import PrimitivePoint, block_problems, primitive_points
from hpcbench.kinds.primitive.plan.registry import Registry, is_ours, load_registry
from hpcbench.kinds.primitive.plan.shapes import Shape, joined_origins
from hpcbench.kinds.primitive.plan.spec import ImplementationSpec, PrimitiveSpec, Problem, Work
from hpcbench.kinds.primitive.plan.usable import check_reason, check_variables, check_work
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.plan.assemble import Draft, assemble, least_calls, too_large
from hpcbench.plan.case import Case
from hpcbench.plan.estimate import ALPHA_S, FLOPS_PER_S, bytes_per_s, device_kind, setup_s
from hpcbench.plan.options import in_order
from hpcbench.plan.points import COMMON_AXES, PlanRequest, listed_lengths, number_of_sets
from hpcbench.plan.support import resolve_device, unfit_world, unsupported
from hpcbench.plan.workload import Workload

if TYPE_CHECKING:
    from hpcbench.config.schema import Config, Hardware

_AXES = ("primitive", "m", "n", "k", "model", "layer", "tokens", "degree", "order", *COMMON_AXES)


class PrimitivePlanner(Planner):
    """Plans primitives; the registry of implementations is loaded once."""

    @cached_property
    def _registry(self) -> Registry:
        return load_registry()

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the number of values of each axis; of implementations that of their sets."""
        assert isinstance(block, PrimitiveBlock)
        return {**listed_lengths(block, _AXES),
                "implementations": number_of_sets(block.implementations),
                **{f"options.{name}": len(values) for name, values in block.options.items()}}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the case of every point."""
        assert isinstance(block, PrimitiveBlock)
        for point in primitive_points(title, block, job, self._registry):
            yield _case(title, block, job, point)

    def problems(self, block: Block) -> Iterator[str]:
        """Yield unknown primitives, implementations, orders, options and values."""
        assert isinstance(block, PrimitiveBlock)
        return block_problems(block, self._registry)

    def workload_from_json(self, data: Mapping[str, Any]) -> Primitive:
        """Rebuild a primitive; earlier versions stored the paths of its modules, too."""
        kept = {name: value for name, value in data.items() if name not in ("inputs", "runner")}
        options = tuple((str(name), value) for name, value in data["options"])
        several = {name: tuple(data[name]) for name in ("calls", "devices", "modules")}
        several |= {name: tuple(data.get(name, ()))  # earlier versions have none
                    for name in ("variables", "capability")}
        return Primitive(**{**kept, **several, "options": options})

    def merged(self, same: Sequence[Workload]) -> Workload:
        """Return the first; one that several models lead to is named after them all."""
        works = [work for work in same if isinstance(work, Primitive)]
        return replace(works[0], shape=joined_origins(work.shape for work in works))


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
        _uncounted(primitive, implementation.name, problem, shape),
        flops=work.flops, total_flops=work.total_flops,
        size_bytes=sum(traffic.size_bytes for traffic in work.traffic),
        wire_bytes=sum(traffic.wire_bytes for traffic in work.traffic), calls=calls,
        devices=implementation.devices, modules=implementation.modules,
        compiles=implementation.compiles, connects=implementation.connects,
        peers=implementation.reads_peers, capability=implementation.least_capability), skip


def _case(title: str, block: PrimitiveBlock, job: PlanRequest, point: PrimitivePoint) -> Case:
    """Return the case of a point, with the variables that its implementation needs."""
    work, reason = _workload(point)
    given, least = dict(point.common.env), 0
    try:
        env = _variables(point) if reason is None else {}
        least = _least_multiprocessors(point, {**env, **given}) if reason is None else 0
    except Exception as error:  # as in `_workload`
        env, reason = {}, _plugin_error(error)
    common = point.common._replace(env=tuple(sorted({**env, **given}.items())))
    own = env.keys() - given.keys()
    work = replace(work, variables=tuple(sorted(own)), multiprocessors=least)
    return assemble(title, block, job, common, _draft(point, job, work, reason))


def _draft(
    point: PrimitivePoint, job: PlanRequest, work: Primitive, reason: str | None,
) -> Draft:
    """Return what a primitive adds to a point; ``reason``: why it can run nowhere, or None."""
    common = point.common
    device, hardware = resolve_device(common.backend, common.device), job.config.hardware
    memory = device_bytes(work, common.world_size)
    host = host_bytes(work, common.world_size, validate=common.validate)
    calls = least_calls(common, job.config)
    return Draft(
        workload=work, device=device, validate=common.validate, memory_bytes=memory,
        host_bytes=host,
        skip=(unfit_world(common.backend, common.world_size, job.world_size) or reason
              or _unsupported(point, work, device) or too_large(memory, host, device, hardware)),
        estimate_s=_estimate_s(work, device, common.world_size, calls, common.validate, hardware),
        identity=_identity(work, point.shape))


def _workload(point: PrimitivePoint) -> tuple[Primitive, str | None]:
    """Return the workload of a point, and why it can run nowhere, or None."""
    spec, shape, implementation = point.primitive, point.shape, point.implementation
    problem = _problem(point)
    if isinstance(implementation, str):
        return _uncounted(spec, implementation, problem, shape.origin), point.absent
    reason = shape.misfit
    if not reason:
        try:
            return make_workload(spec, implementation, problem, shape.origin)
        except Exception as error:  # a plug-in's formulas can raise; it costs only its cases
            if is_ours(spec) and is_ours(implementation):
                raise
            reason = _plugin_error(error)
    return _uncounted(spec, implementation.name, problem, shape.origin), reason


def _problem(point: PrimitivePoint) -> Problem:
    shape, common = point.shape, point.common
    return Problem(shape.m, shape.n, shape.k, common.dtype, common.world_size, point.order,
                   dict(point.options))


def _variables(point: PrimitivePoint) -> Mapping[str, str]:
    """Return the variables that an implementation needs. Raises TypeError where it is wrong."""
    if isinstance(point.implementation, str):
        return {}
    env = point.implementation.env(point.primitive.name, _problem(point))
    check_variables(env)
    return env


def _least_multiprocessors(point: PrimitivePoint, variables: Mapping[str, str]) -> int:
    """Return how many an implementation needs. Raises TypeError where it returns no number."""
    if isinstance(point.implementation, str):
        return 0
    least = point.implementation.least_multiprocessors(variables)
    if type(least) is not int:
        raise TypeError(f"least_multiprocessors returned {least!r}, no whole number")
    return least


def _plugin_error(error: Exception) -> str:
    return f"its plug-in cannot plan it: {type(error).__name__}: {error}"


def _uncounted(primitive: PrimitiveSpec, name: str, problem: Problem, shape: str) -> Primitive:
    """Return the workload with no work: all that there is of what is not installed."""
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


def _unsupported(point: PrimitivePoint, work: Primitive, device: str) -> str | None:
    """Return why the device or the backend cannot do what the implementation calls, or None."""
    implementation = point.implementation
    if not isinstance(implementation, str):
        if device != "auto" and device not in implementation.devices:
            return (f"{work.implementation} runs on {' or '.join(implementation.devices)} only, "
                    f"not on {device}")
        if point.common.cuda_graph and implementation.uncaptured:
            return f"cuda_graph: {implementation.uncaptured}"
    return (_other_library(point.implementation, point.common.backend)
            or unsupported(point.common.backend, device, work.collective_calls()))


def _other_library(implementation: ImplementationSpec | str, backend: str) -> str | None:
    """Return why an implementation cannot stand for a backend, or None."""
    library = backend.partition("/")[0]
    if (isinstance(implementation, str) or implementation.backends is None
            or library in implementation.backends):
        return None
    return (f"{implementation.name} runs with {' or '.join(implementation.backends)} only, "
            f"not with {backend}")


def _estimate_s(
    work: Primitive, device: str, ranks: int, calls: int, validate: bool, hardware: Hardware,
) -> float:
    """Return the assumed seconds of one case: products, wire, and the reference on the CPU."""
    kind = device_kind(device)
    call_s = (work.flops / FLOPS_PER_S[kind] + len(work.calls) * ALPHA_S[kind]
              + work.wire_bytes / bytes_per_s(kind, hardware, ranks))
    check_s = reference_flops(work, ranks) / FLOPS_PER_S["cpu"] if validate else 0.0
    return setup_s(work, kind) + calls * call_s + check_s


def _identity(work: Primitive, shape: Shape) -> dict[str, Any]:
    """Return what makes it this primitive; what follows from that is left out.

    A misfit has no shape of its own: its origin keeps it from passing for a case that has one.
    """
    kept = ("primitive", "implementation", "order", "dtype", "m", "n", "k")
    return {"kind": "primitive", **{name: getattr(work, name) for name in kept},
            "options": dict(work.options), **({"misfit": shape.origin} if shape.misfit else {})}

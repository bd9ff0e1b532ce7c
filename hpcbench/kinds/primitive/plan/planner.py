"""The planner of primitives: shapes, implementations and their options, multiplied out to cases.

Which names and options there are is known here and not before: plug-ins add to them. A function of
a file is one more implementation of its primitive."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbench.config.axes import BACKENDS, FLOATING_DTYPES, is_backend, library_of, unknown_name
from hpcbench.config.section import Block, OptionAxes
from hpcbench.errors import ConfigError
from hpcbench.kinds.primitive.block import PrimitiveBlock
from hpcbench.kinds.primitive.plan.demands import device_bytes, host_bytes, reference_flops
from hpcbench.kinds.primitive.plan.implementations import (
    AXES_OF_POINTS,
    PrimitiveRegistry,
    installed,
    is_ours,
    load_registry,
)
from hpcbench.kinds.primitive.plan.spec import (
    LAYERS,
    ImplementationSpec,
    PrimitiveSpec,
    Problem,
    Shape,
    Work,
    options_of,
    shapes,
)
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.operations.functions import DeclaredFunction, FunctionFile, Value
from hpcbench.operations.loads import MATRIX, ByteMatrix, read_matrix
from hpcbench.operations.models import PLAIN
from hpcbench.plan import points
from hpcbench.plan.case import Case, Planner, PlanRequest
from hpcbench.plan.order import ALPHA_S, FLOPS_PER_S, bytes_per_s, device_kind, setup_s
from hpcbench.plan.points import Option, Values
from hpcbench.plan.support import resolve_device, unfit_world, unsupported

if TYPE_CHECKING:
    from hpcbench.config.schema import Config, Hardware


class PrimitivePoint(NamedTuple):
    """One value of every axis. ``implementation`` is a name if ``absent`` is why there is none."""

    common: points.CommonPoint
    primitive: PrimitiveSpec
    shape: Shape
    implementation: ImplementationSpec | str
    absent: str
    order: str
    options: tuple[tuple[str, points.Option], ...]
    file: str = ""
    matrix: ByteMatrix | None = None


_Choice = tuple[ImplementationSpec | str, str, str, tuple[tuple[str, points.Option], ...]]
"""The fields from ``implementation`` to ``options`` of a point."""


def primitive_points(
    title: str, block: PrimitiveBlock, job: PlanRequest, registry: PrimitiveRegistry,
) -> Iterator[PrimitivePoint]:
    """Yield the points of a block. Raises ConfigError that lists every unknown name or value,
    FileError for a table that is none."""
    problems = dict.fromkeys(block_problems(block, registry))
    if problems:
        raise ConfigError(*(f"benchmarks: {title}: {problem}" for problem in problems))
    matrix = read_matrix(block.matrix) if block.matrix else None
    sizes = [job.world_size if size == "all" else int(size) for size in block.world_size]
    inner = points.measurements(block, job.config)
    for spec in (registry.primitives[name] for name in block.primitive):
        for shape_on, dtype, device, env, ranks in product(
                shapes(block, spec), block.dtype, block.device, points.environments(block), sizes):
            for own, (implementation, absent, order, options) in _choices(block, spec, registry):
                backends = block.backend if own is None else (str(own),)
                for backend, measured in product(backends, inner):
                    yield PrimitivePoint(
                        points.CommonPoint(dtype, backend, device, env, ranks, *measured), spec,
                        shape_on(ranks), implementation, absent, order, options,
                        block.matrix or "", matrix)


def _choices(
    block: PrimitiveBlock, primitive: PrimitiveSpec, registry: PrimitiveRegistry,
) -> Iterator[tuple[points.Option | None, _Choice]]:
    """Yield each way to do a primitive, with its backend: None where the block's backends apply."""
    for name, sets in block.implementations.items():
        spec = registry.implementation(name, primitive.name)
        absent = registry.absent(name, primitive.name)
        why = f"no {name} of {primitive.name}: {absent}" if absent else ""
        allowed = (options_of(primitive, spec) if spec else
                   {**primitive.options, **registry.elsewhere.get(name, {})})
        for axes in sets:
            own = {key: tuple(map(values.canonical, axes.get(
                       key, block.options.get(key, (values.default,)))))
                   for key, values in allowed.items()}
            for order, backend, values in product(
                    _orders(block, axes, primitive), axes.get("backend", (None,)),
                    product(*own.values())):
                options = {**dict(zip(own, values, strict=True)),
                           **primitive.decided.get(order, {})}
                yield backend, (spec or registry.aliases.get(name, name), why, order,
                                tuple(options.items()))


def block_problems(block: PrimitiveBlock, registry: PrimitiveRegistry) -> Iterator[str]:
    for name in block.primitive:
        if name not in registry.primitives:
            yield f"primitive: {unknown_name(name, registry.primitives)}"
    primitives = [registry.primitives[name] for name in block.primitive
                  if name in registry.primitives]
    for name in block.implementations:
        if not registry.is_known(name):
            yield (f"implementations.{name}: {unknown_name(name, registry.names())}"
                   f"{registry.broken_text()}")
    if not primitives:
        return
    yield from _bad_shapes(block, primitives)
    every: dict[str, list[points.Values]] = {}
    for name, sets in block.implementations.items():
        where = f"implementations.{name}"
        if not registry.is_known(name):
            continue
        allowed = registry.options(name, primitives)
        for option, values in allowed.items():
            every.setdefault(option, []).extend(values)
        for axes in sets:
            yield from _bad_options(where, axes, allowed, primitives)
            yield from (f"{where}: {problem}" for primitive in primitives
                        for problem in _contradictions(block, axes, primitive))
    yield from _bad_options("options", block.options, every, primitives, of_points=False)
    yield from _bad_orders("order", block.order or (), primitives)


def _bad_shapes(block: PrimitiveBlock, primitives: Sequence[PrimitiveSpec]) -> Iterator[str]:
    for key, allowed in (("model", PLAIN), ("layer", LAYERS)):
        yield from (f"{key}: {unknown_name(name, allowed)}" for name in getattr(block, key) or ()
                    if name not in allowed)
    if block.model is not None:
        yield from (f"model: {primitive.name} takes its shape from no layer; give m, n and k"
                    for primitive in primitives if not primitive.layers)


def _bad_options(
    where: str, axes: OptionAxes | Mapping[str, tuple[points.Option, ...]],
    allowed: Mapping[str, Sequence[points.Values]], primitives: Sequence[PrimitiveSpec], *,
    of_points: bool = True,
) -> Iterator[str]:
    for option, values in axes.items():
        if of_points and option == "order":
            yield from _bad_orders(f"{where}.order", values, primitives)
        elif of_points and option == "backend":
            yield from (f"{where}.backend: {unknown_name(value, BACKENDS)}"
                        for value in values if not is_backend(value))
        elif option not in allowed:
            names = [*allowed, *(AXES_OF_POINTS if of_points else ())]
            yield f"{where}: {unknown_name(option, names)}"
        else:
            yield from (f"{where}.{option}: {points.wanted(value, allowed[option])}"
                        for value in values
                        if not all(item.allows(value) for item in allowed[option]))


def _contradictions(
    block: PrimitiveBlock, axes: OptionAxes, primitive: PrimitiveSpec,
) -> Iterator[str]:
    """Yield the options that all orders of a set decide otherwise than they are given."""
    orders = _orders(block, axes, primitive)
    given = {**block.options, **axes}
    for option, value in primitive.decided.get(orders[0], {}).items():
        decided = [primitive.decided.get(order, {}).get(option) for order in orders]
        if option in given and None not in decided and not set(decided) & set(given[option]):
            yield (f"{option} can only be {value} where the order is {' or '.join(orders)}; "
                   "leave it out, or give another order")


def _orders(block: PrimitiveBlock, axes: OptionAxes, primitive: PrimitiveSpec) -> list[str]:
    """Return a set's orders of a primitive; its first if none of them is its own."""
    given = [str(order) for order in axes.get("order", block.order or ())]
    return [order for order in given if order in primitive.orders] or [primitive.orders[0]]


def _bad_orders(
    where: str, orders: Sequence[points.Option], primitives: Sequence[PrimitiveSpec],
) -> Iterator[str]:
    known = dict.fromkeys(order for primitive in primitives for order in primitive.orders)
    yield from (f"{where}: {unknown_name(order, known)}" for order in orders if order not in known)


_IDENTITY = ("primitive", "implementation", "order", "dtype", "m", "n", "k")
"""Fields that identify a primitive, beside its options; the rest follows from these."""
_AXES = ("primitive", "m", "n", "k", "model", "layer", "tokens", "degree", "order",
         *points.COMMON_AXES)


class PrimitivePlanner(Planner):
    """Plans primitives; the registry of implementations is loaded once."""

    @cached_property
    def _registry(self) -> PrimitiveRegistry:
        return load_registry()

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        assert isinstance(block, PrimitiveBlock)
        return {**points.listed_lengths(block, _AXES),
                "implementations": points.number_of_sets(block.implementations),
                **{f"options.{name}": len(values) for name, values in block.options.items()}}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        assert isinstance(block, PrimitiveBlock)
        for point in primitive_points(title, block, job, self._registry):
            yield _case(title, block, job, point)

    def problems(self, block: Block) -> Iterator[str]:
        assert isinstance(block, PrimitiveBlock)
        return block_problems(block, self._registry)

    def workload_from_json(self, data: Mapping[str, Any]) -> Primitive:
        """Rebuild a primitive; earlier versions stored the paths of its modules, too."""
        kept: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in data.items() if name not in ("inputs", "runner")}
        for name in ("options", "loads"):
            kept[name] = tuple((str(key), value) for key, value in data.get(name, ()))
        return Primitive(**kept)


def make_workload(
    primitive: PrimitiveSpec, implementation: ImplementationSpec, problem: Problem,
    shape: str = "",
) -> tuple[Primitive, str | None]:
    """Return the workload of a problem with all its options, and why it can run nowhere, or None.

    The work of a problem that does not fit is counted as 0."""
    skip = _unsuited(primitive, implementation, problem)
    work = Work(0, 0, ()) if skip else _work(primitive, implementation, problem)
    if work.traffic and implementation.traffic:
        work = replace(work, traffic=implementation.traffic(problem))
    calls = tuple(dict.fromkeys(traffic.collective for traffic in work.traffic))
    if calls and implementation.calls is not None:
        calls = implementation.calls
    return replace(
        _uncounted(primitive, implementation.name, problem, shape),
        flops=work.flops, total_flops=work.total_flops,
        size_bytes=sum(traffic.size_bytes for traffic in work.traffic),
        wire_bytes=sum(traffic.wire_bytes for traffic in work.traffic), calls=calls,
        loads=work.loads,
        devices=implementation.devices, modules=implementation.modules,
        compiles=implementation.compiles, connects=implementation.connects,
        peers=implementation.reads_peers, capability=implementation.least_capability), skip


def with_file(
    registry: PrimitiveRegistry, spec: ImplementationSpec,
) -> PrimitiveRegistry:
    """Return the registry with one more implementation, from a file."""
    return replace(registry, implementations={**registry.implementations, spec.name: [spec]})


def cases_of_file(
    title: str, block: PrimitiveBlock, job: PlanRequest, spec: ImplementationSpec,
    file: FunctionFile,
) -> Iterator[Case]:
    """Yield the cases of a block in which one implementation is a function of a file.

    Raises ConfigError if the function has the name of an implementation."""
    registry = installed()
    if registry.is_known(spec.name):
        raise ConfigError(f"file: {file.path}: {spec.name} is an implementation of hpcbench; give "
                          "the function another name")
    for point in primitive_points(title, block, job, with_file(registry, spec)):
        yield _case(title, block, job, point, file if point.implementation is spec else None)


def _case(
    title: str, block: PrimitiveBlock, job: PlanRequest, point: PrimitivePoint,
    file: FunctionFile | None = None,
) -> Case:
    """Return the case of a point, with the variables that its implementation needs."""
    work, reason = _workload(point)
    if file is not None:
        work = replace(work, file=file.path, sha256=file.sha256)
    if point.matrix and ("load", MATRIX) in point.options:
        work = replace(work, matrix=point.file, matrix_sha256=point.matrix.sha256)
    given = dict(point.common.env)
    env: Mapping[str, str] = {}
    least = 0
    try:
        if reason is None:
            env, least = _requirements(point, given)
    except Exception as error:  # as in `_workload`
        reason = _plugin_error(error)
    common = point.common._replace(env=tuple(sorted({**env, **given}.items())))
    own = env.keys() - given.keys()
    work = replace(work, variables=tuple(sorted(own)), multiprocessors=least)
    return points.assemble(title, block, job, common, _draft(point, job, work, reason))


def _draft(
    point: PrimitivePoint, job: PlanRequest, work: Primitive, reason: str | None,
) -> points.Draft:
    common = point.common
    device, hardware = resolve_device(common.backend, common.device), job.config.hardware
    memory = device_bytes(work, common.world_size)
    host = host_bytes(work, common.world_size, validate=common.validate)
    calls = points.least_calls(common, job.config)
    return points.Draft(
        workload=work, device=device, validate=common.validate, memory_bytes=memory,
        host_bytes=host,
        skip=(unfit_world(common.backend, common.world_size, job.world_size) or reason
              or _unsupported(point, work, device)
              or points.too_large(memory, host, device, hardware)),
        estimate_s=_estimate_s(work, device, common.world_size, calls, common.validate, hardware),
        # a misfit has no shape of its own: its origin keeps it from passing for a case that has one
        identity={
            "kind": "primitive", **{name: getattr(work, name) for name in _IDENTITY},
            "options": dict(work.options),
            **({"misfit": point.shape.origin} if point.shape.misfit else {}),
            **({"sha256": work.sha256} if work.file else {}),
            **({"matrix": work.matrix_sha256} if work.matrix else {})})


def _workload(point: PrimitivePoint) -> tuple[Primitive, str | None]:
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
                   dict(point.options), point.matrix)


def _requirements(point: PrimitivePoint, given: Mapping[str, str]) -> tuple[Mapping[str, str], int]:
    """Return the variables that an implementation needs, and how many multiprocessors."""
    if isinstance(point.implementation, str):
        return {}, 0
    env = point.implementation.env(point.primitive.name, _problem(point))
    return env, point.implementation.least_multiprocessors({**env, **given})


def _plugin_error(error: Exception) -> str:
    return f"its plug-in cannot plan it: {type(error).__name__}: {error}"


def _uncounted(primitive: PrimitiveSpec, name: str, problem: Problem, shape: str) -> Primitive:
    """Return a workload with no work, of an implementation that is not installed."""
    return Primitive(
        primitive=primitive.name, implementation=name, order=problem.order,
        options=points.in_order(problem.options), dtype=problem.dtype, m=problem.m, n=problem.n,
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
    """Return the work of the implementation: it is credited with nothing else."""
    whole = problem.options.get("size") == "unsharded"
    work = primitive.unsharded(problem) if whole else primitive.work(problem)
    if whole or implementation.part == "both":
        return work
    if implementation.part == "compute":
        return Work(work.flops, work.total_flops, ())
    return Work(0, 0, work.traffic)


def _unsupported(point: PrimitivePoint, work: Primitive, device: str) -> str | None:
    implementation = point.implementation
    if not isinstance(implementation, str):
        if device != "auto" and device not in implementation.devices:
            return (f"{work.implementation} runs on {' or '.join(implementation.devices)} only, "
                    f"not on {device}")
        if point.common.mode == "pipelined" and work.loads:
            return "phases of a call are stamped: take mode isolated or barrier_start"
        if point.common.cuda_graph and implementation.uncaptured:
            return f"cuda_graph: {implementation.uncaptured}"
        backends, library = implementation.backends, library_of(point.common.backend, device)
        if backends is not None and library not in backends:
            return (f"{implementation.name} runs with {' or '.join(backends)} only, not with "
                    f"{point.common.backend}")
    return unsupported(point.common.backend, device, work.features.calls)


def _estimate_s(
    work: Primitive, device: str, ranks: int, calls: int, validate: bool, hardware: Hardware,
) -> float:
    """Return the assumed seconds of one case: products, wire, and the reference on the CPU."""
    kind = device_kind(device)
    call_s = (work.flops / FLOPS_PER_S[kind] + len(work.calls) * ALPHA_S[kind]
              + work.wire_bytes / bytes_per_s(kind, hardware, ranks))
    check_s = reference_flops(work, ranks) / FLOPS_PER_S["cpu"] if validate else 0.0
    return setup_s(work, kind) + calls * call_s + check_s


def catalogue() -> dict[str, dict[str, Any]]:
    registry = load_registry()
    return {
        "primitives": {name: {
            "meaning": spec.meaning, "orders": list(spec.orders),
            "options": points.described(spec.options),
        } for name, spec in registry.primitives.items()},
        "implementations": {name: _implementation(name, registry) for name in registry.names()
                            if name not in registry.aliases},
    }


def _implementation(name: str, registry: PrimitiveRegistry) -> dict[str, Any]:
    specs = registry.implementations.get(name, ())
    return {
        "meaning": "; ".join(spec.meaning for spec in specs),
        "aliases": [other for other, known in registry.aliases.items() if known == name],
        "primitives": [primitive for primitive in registry.primitives
                       if registry.implementation(name, primitive) is not None],
        "devices": sorted({device for spec in specs for device in spec.devices}),
        "options": {option: facts for spec in specs
                    for option, facts in points.described(spec.options).items()},
    }


_PROBLEM = ("m", "n", "k", "model", "layer", "tokens", "degree", "order")
"""Axes of a function compared with primitives that are keys of the primitives' block."""


class PrimitiveHost:
    """Makes cases of a function that is compared with a primitive."""

    title = "primitive"

    @property
    def names(self) -> Collection[str]:
        return installed().primitives

    def cases(
        self, title: str, block: Block, job: PlanRequest, func: DeclaredFunction,
        file: FunctionFile,
    ) -> Iterator[Case]:
        """Yield the cases of the function, and of the implementations beside it."""
        primitive = installed().primitives[func.compare]
        if func.points:
            raise ConfigError(f"{file.place(func)}: points: a function compared with a primitive "
                              "has axes only")
        own = {name: _option_values(name, values, func, file) for name, values in func.axes.items()
               if name not in _PROBLEM and name not in primitive.options}
        spec = ImplementationSpec(
            func.name, f"{file.title}:{func.line}", {func.compare: file.path}, options={
                name: Values(values[0], values) for name, values in own.items()})
        common = block.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={
            "kind", "file", "function"})
        raw = {**common, "kind": "primitive", "primitive": func.compare, "implementations": {
            func.name: {name: list(values) for name, values in own.items()},
            **{name: {} for name in func.beside or ("torch",)}},
            "options": {name: list(func.axes[name]) for name in primitive.options
                        if name in func.axes},
            **{name: list(func.axes[name]) for name in _PROBLEM if name in func.axes}}
        yield from cases_of_file(f"{title}-{func.compare}", PrimitiveBlock.of_plain(
            raw, file.place(func)), job, spec, file)


def _option_values(
    name: str, values: Sequence[Value], func: DeclaredFunction, file: FunctionFile,
) -> tuple[Option, ...]:
    """Return the values of an option of an implementation. Raises ConfigError for others."""
    plain = tuple(value for value in values if isinstance(value, (str, int)))
    if len(plain) != len(values) or name not in func.parameters:
        raise ConfigError(f"{file.place(func)}: {name}: of a primitive it must be a parameter of "
                          "the function, and text, a whole number, True or False")
    return plain

"""The points of a block of primitives: shapes, implementations and their options, multiplied out.

Which names and options there are is known here and not before: plug-ins add to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from hpcbench.config.implementations import OptionAxes
from hpcbench.config.names import BACKENDS, unknown_name
from hpcbench.errors import ConfigError
from hpcbench.kinds.primitive.plan.block import PrimitiveBlock
from hpcbench.kinds.primitive.plan.registry import Registry
from hpcbench.kinds.primitive.plan.shapes import Shape, shapes
from hpcbench.kinds.primitive.plan.spec import LAYERS, ImplementationSpec, PrimitiveSpec, options_of
from hpcbench.kinds.primitive.plan.usable import AXES_OF_POINTS
from hpcbench.operations.models import MODELS
from hpcbench.plan.options import Option, Values, wanted
from hpcbench.plan.points import CommonPoint, PlanRequest, environments, measurements


class PrimitivePoint(NamedTuple):
    """One value of every axis. ``implementation`` is a name where ``absent`` says why it is not."""

    common: CommonPoint
    primitive: PrimitiveSpec
    shape: Shape
    implementation: ImplementationSpec | str
    absent: str
    order: str
    options: tuple[tuple[str, Option], ...]


_Choice = tuple[ImplementationSpec | str, str, str, tuple[tuple[str, Option], ...]]
"""The fields from ``implementation`` to ``options`` of a point."""


def primitive_points(
    title: str, block: PrimitiveBlock, job: PlanRequest, registry: Registry,
) -> Iterator[PrimitivePoint]:
    """Yield the points of a block. Raises ConfigError that lists every unknown name or value."""
    problems = dict.fromkeys(block_problems(block, registry))
    if problems:
        raise ConfigError("\n".join(f"benchmarks: {title}: {problem}" for problem in problems))
    sizes = [job.world_size if size == "all" else int(size) for size in block.world_size]
    inner = measurements(block, job.config)
    for spec in (registry.primitives[name] for name in block.primitive):
        for shape_on, dtype, device, env, ranks in product(
                shapes(block, spec), block.dtype, block.device, environments(block), sizes):
            for own, (implementation, absent, order, options) in _choices(block, spec, registry):
                backends = block.backend if own is None else (str(own),)
                for backend, measured in product(backends, inner):
                    yield PrimitivePoint(
                        CommonPoint(dtype, backend, device, env, ranks, *measured), spec,
                        shape_on(ranks), implementation, absent, order, options)


def _choices(
    block: PrimitiveBlock, primitive: PrimitiveSpec, registry: Registry,
) -> Iterator[tuple[Option | None, _Choice]]:
    """Yield each way to do a primitive, with its backend: None where the block's backends apply."""
    for name, sets in block.implementations.items():
        spec = registry.implementation(name, primitive.name)
        absent = registry.absent(name, primitive.name)
        why = f"no {name} of {primitive.name}: {absent}" if absent else ""
        known = (options_of(primitive, spec) if spec else
                 {**primitive.options, **registry.elsewhere.get(name, {})})
        for axes in sets:
            own = {key: axes.get(key, block.options.get(key, (values.default,)))
                   for key, values in known.items()}
            for order, backend, values in product(
                    _orders(block, axes, primitive), axes.get("backend", (None,)),
                    product(*own.values())):
                options = {**dict(zip(own, values, strict=True)),
                           **primitive.decided.get(order, {})}
                yield backend, (spec or registry.aliases.get(name, name), why, order,
                                tuple(options.items()))


def block_problems(block: PrimitiveBlock, registry: Registry) -> Iterator[str]:
    """Yield what names nothing: primitives, implementations, orders, options, values."""
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
    every: dict[str, list[Values]] = {}
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
    for key, known in (("model", MODELS), ("layer", LAYERS)):
        yield from (f"{key}: {unknown_name(name, known)}" for name in getattr(block, key) or ()
                    if name not in known)
    if block.model is not None:
        yield from (f"model: {primitive.name} takes its shape from no layer; give m, n and k"
                    for primitive in primitives if not primitive.layers)


def _bad_options(
    where: str, axes: OptionAxes | Mapping[str, tuple[Option, ...]],
    allowed: Mapping[str, Sequence[Values]], primitives: Sequence[PrimitiveSpec], *,
    of_points: bool = True,
) -> Iterator[str]:
    for option, values in axes.items():
        if of_points and option == "order":
            yield from _bad_orders(f"{where}.order", values, primitives)
        elif of_points and option == "backend":
            yield from (f"{where}.backend: {unknown_name(value, BACKENDS)}"
                        for value in values if value not in BACKENDS)
        elif option not in allowed:
            names = [*allowed, *(AXES_OF_POINTS if of_points else ())]
            yield f"{where}: {unknown_name(option, names)}"
        else:
            yield from (f"{where}.{option}: {wanted(value, allowed[option])}" for value in values
                        if not all(item.allows(value) for item in allowed[option]))


def _contradictions(
    block: PrimitiveBlock, axes: OptionAxes, primitive: PrimitiveSpec,
) -> Iterator[str]:
    """Yield the options that no order of a set can have as they are given.

    In a sweep over several orders an option means those that leave a choice of it.
    """
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
    where: str, orders: Sequence[Option], primitives: Sequence[PrimitiveSpec],
) -> Iterator[str]:
    known = dict.fromkeys(order for primitive in primitives for order in primitive.orders)
    yield from (f"{where}: {unknown_name(order, known)}" for order in orders if order not in known)

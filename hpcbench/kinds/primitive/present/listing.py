"""What `hpcbench list` says of primitives: what there is, who does it, and why nobody does."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.kinds.primitive.plan.registry import Registry, load_registry
from hpcbench.kinds.primitive.plan.spec import LAYERS, ImplementationSpec
from hpcbench.units import grouped
from hpcbench.views.table import MISSING, Column, Group, Line, Row, Table
from hpcbench.views.words import listed_more, option_lines


def listing() -> Iterator[Line | Table]:
    """Yield what `primitive_lines` says of all that is installed."""
    return primitive_lines(load_registry())


def primitive_lines(registry: Registry) -> Iterator[Line | Table]:
    """Yield the primitives, their implementations, the matrix of both, models and plug-ins."""
    yield Line("primitives", "title")
    for name, spec in registry.primitives.items():
        yield Line(f"  {name:<20}{spec.meaning}")
        yield listed_more("orders", ", ".join(spec.orders))
        yield from option_lines(spec.options)
        if spec.layers:
            yield listed_more("shape from", ", ".join(spec.layers))
    yield Line("")
    yield Line("implementations", "title")
    for name in registry.names():
        yield from _implementation(name, registry)
    yield Line("")
    yield Line("which implementation has which primitive, and in which orders if not in all",
               "title")
    yield from _matrix(registry)
    yield Line("")
    yield Line("layers of models that give shapes", "title")
    yield Line(f"  {', '.join(LAYERS)}")
    yield from _plugins(registry)


def cells(registry: Registry) -> dict[str, dict[str, str]]:
    """Return implementation -> primitive -> ``yes``, the orders that it has, or ``-``.

    Names of other tools for our implementations are left out.
    """
    names = [name for name in registry.names() if name not in registry.aliases]
    return {name: {primitive: _cell(registry.implementation(name, primitive), primitive, registry)
                   for primitive in registry.primitives} for name in names}


def reasons(registry: Registry) -> dict[tuple[str, str], str]:
    """Return (implementation, primitive) -> why there is none, for every empty cell."""
    return {(name, primitive): registry.absent(name, primitive) or ""
            for name, row in cells(registry).items()
            for primitive, cell in row.items() if cell == MISSING}


def _cell(spec: ImplementationSpec | None, primitive: str, registry: Registry) -> str:
    if spec is None:
        return MISSING
    if spec.orders is None:
        return "yes"
    every = registry.primitives[primitive].orders
    own = [order for order in every if (primitive, order) in spec.orders]
    return "yes" if len(own) == len(every) else ", ".join(own)


def _implementation(name: str, registry: Registry) -> Iterator[Line]:
    if name in registry.aliases:
        yield Line(f"  {name:<20}another name of {registry.aliases[name]}")
        return
    specs = registry.implementations.get(name, ())
    for spec in specs:
        yield Line(f"  {name:<20}{spec.meaning}")
        yield from option_lines(spec.options)
        if set(spec.devices) != {"cpu", "cuda"}:
            yield listed_more("devices", ", ".join(spec.devices))
    if not specs:
        yield Line(f"  {name:<20}none here: a plug-in can bring it", "quiet")
        yield from option_lines(registry.elsewhere[name])


def _matrix(registry: Registry) -> Iterator[Line | Table]:
    table = cells(registry)
    columns = tuple(Column(name, name) for name in ("", *registry.primitives))
    rows = tuple(Row((name, *row.values())) for name, row in table.items())
    yield Table("", columns, (Group("", rows),))
    missing = grouped(((name, reason), primitive)
                      for (name, primitive), reason in reasons(registry).items())
    for (name, reason), primitives in missing.items():
        everywhere = len(primitives) == len(registry.primitives)
        where = name if everywhere else f"{name} of {', '.join(primitives)}"
        yield Line(f"  no {where}: {reason}", "quiet")


def _plugins(registry: Registry) -> Iterator[Line]:
    if not registry.plugins:
        return
    yield Line("")
    yield Line("plug-ins", "title")
    for plugin in registry.plugins:
        problem = plugin.problem and f"cannot be used: {plugin.problem}"
        yield Line(f"  {plugin.name:<20}{plugin.origin}: {problem or '; '.join(plugin.offers)}",
                   "warning" if plugin.problem else "plain")

"""What `hpcbench list` says of primitives: what there is, who does it, and why nobody does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from rich.text import Text

from hpcbench.kinds.primitive.plan.model_shapes import LAYERS
from hpcbench.kinds.primitive.plan.registry import Registry
from hpcbench.kinds.primitive.plan.spec import ImplementationSpec
from hpcbench.plan.options import Values
from hpcbench.report.text import MISSING, Column, column_widths, row_line


def primitive_lines(registry: Registry) -> Iterator[Text]:
    """Yield the primitives, their implementations, the matrix of both, models and plug-ins."""
    yield Text("primitives", style="bold")
    for name, spec in registry.primitives.items():
        yield Text(f"  {name:<20}{spec.meaning}")
        yield _more("orders", ", ".join(spec.orders))
        yield from option_lines(spec.options)
        if spec.layers:
            yield _more("shape from", ", ".join(spec.layers))
    yield Text()
    yield Text("implementations", style="bold")
    for name in registry.names():
        yield from _implementation(name, registry)
    yield Text()
    yield Text("which implementation has which primitive, and in which orders if not in all",
               style="bold")
    yield from _matrix(registry)
    yield Text()
    yield Text("layers of models that give shapes", style="bold")
    yield Text(f"  {', '.join(LAYERS)}")
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


def _implementation(name: str, registry: Registry) -> Iterator[Text]:
    if name in registry.aliases:
        yield Text(f"  {name:<20}another name of {registry.aliases[name]}")
        return
    specs = registry.implementations.get(name, ())
    for spec in specs:
        yield Text(f"  {name:<20}{spec.meaning}")
        yield from option_lines(spec.options)
        if set(spec.devices) != {"cpu", "cuda"}:
            yield _more("devices", ", ".join(spec.devices))
    if not specs:
        yield Text(f"  {name:<20}none here: a plug-in can bring it", style="dim")
        yield from option_lines(registry.elsewhere[name])


def option_lines(options: Mapping[str, Values]) -> Iterator[Text]:
    """Yield a line for each option: what it may be, and what it is if nothing is said."""
    for name, values in options.items():
        allowed = (", ".join(_plain(item) for item in values.allowed) if values.allowed else
                   f"a number from {values.least}")
        yield _more(f"option {name}", f"{allowed}; default {_plain(values.default)}")


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _more(title: str, text: str) -> Text:
    return Text(f"{'':<22}{title}: {text}", style="dim")


def _matrix(registry: Registry) -> Iterator[Text]:
    table = cells(registry)
    columns = [Column("", words=True), *(Column(name, words=True) for name in registry.primitives)]
    rows = [[name, *row.values()] for name, row in table.items()]
    widths = column_widths(columns, rows)
    for row in ([column.title for column in columns], *rows):
        yield Text(f"  {row_line(columns, widths, row)}")
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (name, primitive), reason in reasons(registry).items():
        grouped[name, reason].append(primitive)
    for (name, reason), primitives in grouped.items():
        everywhere = len(primitives) == len(registry.primitives)
        where = name if everywhere else f"{name} of {', '.join(primitives)}"
        yield Text(f"  no {where}: {reason}", style="dim")


def _plugins(registry: Registry) -> Iterator[Text]:
    if not registry.plugins:
        return
    yield Text()
    yield Text("plug-ins", style="bold")
    for plugin in registry.plugins:
        told = plugin.problem and f"cannot be used: {plugin.problem}"
        yield Text(f"  {plugin.name:<20}{plugin.origin}: {told or '; '.join(plugin.offers)}",
                   style="yellow" if plugin.problem else "")

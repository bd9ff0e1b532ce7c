"""Whether a plan can use what a plug-in offers, and what its functions return.

Plug-ins are other people's code, and Python checks no types: an error must be reported
where it enters, because later it would end the plan of everything else.

Which primitives and implementations there are: ours, and those of plug-ins (docs/plugins.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcbench.config.axes import BACKENDS, quote, unknown_name
from hpcbench.entry_points import Offer, offers
from hpcbench.kinds.primitive.plan.implementations import (
    ALIASES,
    ELSEWHERE,
    IMPLEMENTATIONS,
    PACKAGES,
    PRIMITIVES,
)
from hpcbench.kinds.primitive.plan.spec import LAYERS, ImplementationSpec, PrimitiveSpec, Work
from hpcbench.operations.collectives import collectives
from hpcbench.plan.points import Values
from hpcbench.units import grouped

AXES_OF_POINTS = ("backend", "order")
"""Keys of a set of options that are axes of every implementation; no option has such a name."""
_DEVICES = ("cpu", "cuda", "mps")
_LIBRARIES = tuple(dict.fromkeys(name.partition("/")[0] for name in BACKENDS))


class _Wanted(NamedTuple):
    """What a field must be, in words, and whether a value is."""

    words: str
    is_met: Callable[[object], bool]


def unusable(spec: object) -> str | None:
    """Return why what a plug-in offers cannot be used, or None."""
    if not isinstance(spec, (PrimitiveSpec, ImplementationSpec)):
        return f"offers a {type(spec).__name__}, no PrimitiveSpec or ImplementationSpec"
    return next((f"{spec.name}: {problem}" for problem in _problems(spec)), None)


def check_work(work: object) -> None:
    """Raise TypeError or ValueError if this is no `Work` of known collectives and whole numbers."""
    if not isinstance(work, Work):
        raise TypeError(f"work returned {type(work).__name__}, no Work")
    counts = [(name, getattr(work, name)) for name in ("flops", "total_flops")]
    for traffic in work.traffic:
        if traffic.collective not in collectives():
            raise ValueError(unknown_name(traffic.collective, collectives()))
        counts += [(name, getattr(traffic, name)) for name in ("size_bytes", "wire_bytes")]
    for name, count in counts:
        if type(count) is not int or count < 0:
            raise TypeError(f"{name} is {count!r}, no whole number from 0")


def check_reason(reason: object) -> None:
    """Raise TypeError if a function ``unfit`` must not return this."""
    if reason is not None and not isinstance(reason, str):
        raise TypeError(f"unfit returned {reason!r}, neither text nor None")


def check_variables(variables: object) -> None:
    """Raise TypeError if these are no environment variables."""
    if not isinstance(variables, Mapping) or not all(
            isinstance(text, str) for item in variables.items() for text in item):
        raise TypeError(f"env returned {variables!r}, no mapping of text to text")


def _problems(spec: PrimitiveSpec | ImplementationSpec) -> Iterator[str]:
    wanted = _OF_PRIMITIVES if isinstance(spec, PrimitiveSpec) else _OF_IMPLEMENTATIONS
    for name in (field.name for field in fields(spec)):
        if not wanted[name].is_met(getattr(spec, name)):
            yield f"{name} must be {wanted[name].words}"
    paths = (("inputs", spec.inputs),) if isinstance(spec, PrimitiveSpec) else (
        ("runners", path) for path in spec.runners.values())
    yield from (f"{name}: {quote(path)} is not written as module:class" for name, path in paths
                if not isinstance(path, str) or not all(path.partition(":")))
    yield from (f"an option cannot be named {name}: that is an axis of every implementation"
                for name in AXES_OF_POINTS if name in spec.options)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_option(value: object) -> bool:
    return type(value) in (str, int, bool)


def _is_anything(value: object) -> bool:
    return True


def _is_values(value: object) -> bool:
    return (isinstance(value, Values) and isinstance(value.allowed, tuple)
            and type(value.least) is int and all(map(_is_option, value.allowed))
            and value.allows(value.default))


def _mapping(of: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return whether a value is a mapping of text to what ``of`` accepts."""
    return lambda value: isinstance(value, Mapping) and all(
        _is_text(key) and of(item) for key, item in value.items())


def _tuple(of: Callable[[object], bool], least: int = 0) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and len(value) >= least and all(map(of, value))


def _one_of(names: tuple[str, ...]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and value in names


def _are_pairs(value: object) -> bool:
    return value is None or isinstance(value, frozenset) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_text, pair)) for pair in value)


def _are_calls(value: object) -> bool:
    return value is None or _tuple(_one_of(tuple(collectives())))(value)


def _are_libraries(value: object) -> bool:
    return value is None or _tuple(_one_of(_LIBRARIES), least=1)(value)


_TEXT = _Wanted("text, not empty", _is_text)
_FUNCTION = _Wanted("a function", callable)
_SWITCH = _Wanted("True or False", lambda value: isinstance(value, bool))
_OPTIONS = _Wanted("a mapping of names to Values whose default is one of them",
                   _mapping(_is_values))
_COMMON = {"name": _TEXT, "meaning": _TEXT, "options": _OPTIONS, "unfit": _FUNCTION}
_OF_PRIMITIVES: Mapping[str, _Wanted] = MappingProxyType({
    **_COMMON, "work": _FUNCTION, "unsharded": _FUNCTION, "divides_layer": _SWITCH,
    "orders": _Wanted("a tuple of text, not empty", _tuple(_is_text, least=1)),
    "inputs": _Wanted("module:class", _is_anything),  # checked by a rule of its own
    "layers": _Wanted(f"a tuple of {', '.join(LAYERS)}", _tuple(_one_of(LAYERS))),
    "decided": _Wanted("a mapping of orders to options", _mapping(_mapping(_is_option))),
})
_OF_IMPLEMENTATIONS: Mapping[str, _Wanted] = MappingProxyType({
    **_COMMON, "compiles": _SWITCH, "connects": _SWITCH, "overlaps": _SWITCH,
    "reads_peers": _SWITCH,
    "uncaptured": _Wanted("text", lambda value: isinstance(value, str)),
    "runners": _Wanted("a mapping of primitives to module:class", _mapping(_is_anything)),
    "absent": _Wanted("a mapping of primitives to text", _mapping(_is_text)),
    "part": _Wanted("both, compute or communicate", _one_of(("both", "compute", "communicate"))),
    "orders": _Wanted("None or a frozenset of (primitive, order)", _are_pairs),
    "calls": _Wanted(f"None or a tuple of {', '.join(collectives())}", _are_calls),
    "devices": _Wanted(f"a tuple of {', '.join(_DEVICES)}", _tuple(_one_of(_DEVICES), least=1)),
    "backends": _Wanted(f"None or a tuple of {', '.join(_LIBRARIES)}", _are_libraries),
    "modules": _Wanted("a tuple of text", _tuple(_is_text)), "env": _FUNCTION,
    "least_multiprocessors": _FUNCTION,
    "least_capability": _Wanted(
        "(major, minor), or () for any", lambda value: value == () or isinstance(
            value, tuple) and len(value) == 2 and all(type(part) is int for part in value)),
})


NOBODY = "nobody has written it"
ENTRY_POINTS = "hpcbench.primitives"
"""The group of entry points; each is a PrimitiveSpec, an ImplementationSpec, or a list of them."""
Spec = PrimitiveSpec | ImplementationSpec
_OURS: tuple[Spec, ...] = (*PRIMITIVES, *IMPLEMENTATIONS)


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point: its name, its distribution and version, and what it offers, in words.

    ``problem`` is why it offers nothing, or empty.
    """

    name: str
    origin: str
    offers: tuple[str, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Registry:
    """Everything that can be named in a block of primitives, by name.

    ``aliases`` are other tools' names of implementations, ``elsewhere`` the implementations with
    their options that only a plug-in can bring.
    """

    primitives: Mapping[str, PrimitiveSpec]
    implementations: Mapping[str, tuple[ImplementationSpec, ...]]
    aliases: Mapping[str, str]
    elsewhere: Mapping[str, Mapping[str, Values]]
    plugins: tuple[Plugin, ...] = ()

    def is_known(self, name: str) -> bool:
        """Return whether somebody offers an implementation of this name, or another tool has it."""
        return self.aliases.get(name, name) in self.implementations or name in self.elsewhere

    def names(self) -> list[str]:
        """Return the names of all implementations."""
        return list(dict.fromkeys([*self.implementations, *self.aliases, *self.elsewhere]))

    def broken_text(self) -> str:
        """Return which plug-ins could not be loaded, for the end of a message; else nothing."""
        problems = [f"{item.name}: {item.problem}" for item in self.plugins if item.problem]
        return f"; plug-ins that cannot be used: {'; '.join(problems)}" if problems else ""

    def options(
        self, name: str, primitives: Sequence[PrimitiveSpec],
    ) -> dict[str, list[Values]]:
        """Return what each option may be in one of the primitives."""
        specs = ((primitive, self.implementation(name, primitive.name)) for primitive in primitives)
        return grouped(
            (option, values) for primitive, spec in specs for option, values in {
                **primitive.options,
                **(spec.options if spec else self.elsewhere.get(name, {}))}.items())

    def implementation(self, name: str, primitive: str) -> ImplementationSpec | None:
        """Return what implements a primitive under a name: ours, else a plug-in's, else None."""
        specs = self.implementations.get(self.aliases.get(name, name), ())
        return next((spec for spec in specs if primitive in spec.runners), None)

    def classes(self, primitive: str, implementation: str) -> tuple[str, str] | None:
        """Return ``module:class`` of the inputs and of what runs; None if it is not installed."""
        spec = self.implementation(implementation, primitive)
        if spec is None or primitive not in self.primitives:
            return None
        return self.primitives[primitive].inputs, spec.runners[primitive]

    def absent(self, name: str, primitive: str) -> str | None:
        """Return why a known implementation has none of this primitive; None if it has one."""
        if self.implementation(name, primitive):
            return None
        specs = self.implementations.get(self.aliases.get(name, name), ())
        reasons = [spec.absent[primitive] for spec in specs if primitive in spec.absent]
        if reasons or specs or (name, primitive) not in PACKAGES:
            return reasons[0] if reasons else NOBODY
        package = PACKAGES[name, primitive]
        return (f"the plug-in {package} gives it: pip install ./plugins/{package} in a checkout of "
                "hpcbench (docs/plugins.md)")


def load_registry() -> Registry:
    """Return our own and every plug-in's."""
    specs = list(_OURS)
    plugins = tuple(_added(offer, specs) for offer in offers(ENTRY_POINTS))
    implementations: dict[str, tuple[ImplementationSpec, ...]] = {}
    for spec in specs:
        if isinstance(spec, ImplementationSpec):
            implementations[spec.name] = (*implementations.get(spec.name, ()), spec)
    return Registry({spec.name: spec for spec in specs if isinstance(spec, PrimitiveSpec)},
                    implementations, ALIASES, ELSEWHERE, plugins)


@cache
def installed() -> Registry:
    """Return the same as `load_registry`, read once: for processes that only run cases."""
    return load_registry()


def is_ours(spec: Spec) -> bool:
    """Return whether a specification is of this package, not a plug-in's."""
    return any(spec is own for own in _OURS)


def _added(offer: Offer, specs: list[Spec]) -> Plugin:
    """Add what a plug-in offers: all of it, or nothing if any of it is wrong."""
    offered = offer.value if isinstance(offer.value, (list, tuple)) else (offer.value,)
    problem = offer.problem or _problem(offered, specs)
    if problem:
        return Plugin(offer.name, offer.origin, (), problem)
    specs += offered
    return Plugin(offer.name, offer.origin, tuple(
        f"primitive {spec.name}" if isinstance(spec, PrimitiveSpec) else
        f"{spec.name} of {', '.join(spec.runners)}" for spec in offered))


def _problem(offered: Sequence[Any], specs: Sequence[Spec]) -> str:
    """Return why one of several things cannot be added after those before it, or nothing."""
    for at, spec in enumerate(offered):
        problem = unusable(spec) or _taken(spec, [*specs, *offered[:at]])
        if problem:
            return problem
    return ""


def _taken(spec: Spec, others: Sequence[Spec]) -> str | None:
    """Return why a name cannot be used, or None; several may do different primitives under one."""
    if isinstance(spec, PrimitiveSpec):
        return (f"there is a primitive {spec.name} already" if any(
            isinstance(other, PrimitiveSpec) and other.name == spec.name for other in others)
            else None)
    if spec.name in ALIASES:
        real = ALIASES[spec.name]
        return f"{spec.name} is another name of {real}; offer it as {real}"
    twice = sorted({name for other in others if isinstance(other, ImplementationSpec)
                    and other.name == spec.name for name in other.runners} & set(spec.runners))
    return f"there is a {spec.name} of {', '.join(twice)} already" if twice else None

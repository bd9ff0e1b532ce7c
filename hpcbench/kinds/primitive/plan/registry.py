"""Which primitives and implementations there are: ours, and those of plug-ins (docs/plugins.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hpcbench.entry_points import Offer, offers
from hpcbench.kinds.primitive.plan.implementations import (
    ALIASES,
    ELSEWHERE,
    IMPLEMENTATIONS,
    PACKAGES,
)
from hpcbench.kinds.primitive.plan.primitives import PRIMITIVES
from hpcbench.kinds.primitive.plan.spec import ImplementationSpec, PrimitiveSpec
from hpcbench.kinds.primitive.plan.usable import unusable
from hpcbench.plan.options import Values
from hpcbench.units import grouped

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

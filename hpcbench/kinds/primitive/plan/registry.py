"""Which primitives and implementations there are: ours, and those of plug-ins (docs/plugins.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from hpcbench.kinds.primitive.plan.implementations import (
    ALIASES,
    ELSEWHERE,
    IMPLEMENTATIONS,
    PACKAGES,
    PRIMITIVES,
)
from hpcbench.kinds.primitive.plan.spec import ImplementationSpec, PrimitiveSpec
from hpcbench.plan.points import Values
from hpcbench.registry import Offer
from hpcbench.registry import Registry as Named
from hpcbench.units import grouped

AXES_OF_POINTS = ("backend", "order")
"""Keys of a set of options that are axes of every implementation; no option has such a name."""
NOBODY = "nobody has written it"
ENTRY_POINTS = "hpcbench.primitives"
"""The group of entry points; each is a PrimitiveSpec, an ImplementationSpec, or a list of them."""
Spec = PrimitiveSpec | ImplementationSpec
_OURS: tuple[Spec, ...] = (*PRIMITIVES, *IMPLEMENTATIONS)


@dataclass(frozen=True, slots=True)
class Registry:
    """Everything that can be named in a block of primitives, by name.

    ``aliases`` are other tools' names of implementations, ``elsewhere`` the implementations with
    their options that only a plug-in can bring.
    """

    primitives: Mapping[str, PrimitiveSpec]
    implementations: Mapping[str, Sequence[ImplementationSpec]]
    aliases: Mapping[str, str]
    elsewhere: Mapping[str, Mapping[str, Values]]
    plugins: tuple[Offer[Spec], ...] = ()

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
    found = Named[Spec]("{}", _OURS, ENTRY_POINTS, (PrimitiveSpec, ImplementationSpec),
                        names=_names)
    specs = tuple(found.values())
    return Registry(
        {spec.name: spec for spec in specs if isinstance(spec, PrimitiveSpec)},
        grouped((ALIASES.get(spec.name, spec.name), spec) for spec in specs
                if isinstance(spec, ImplementationSpec)),
        ALIASES, ELSEWHERE, found.offers)


def _names(spec: Spec) -> list[str]:
    """Return what a specification is of; several may do different primitives under one name."""
    if isinstance(spec, PrimitiveSpec):
        return [f"primitive {spec.name}"]
    name = ALIASES.get(spec.name, spec.name)
    return [f"{name} of {primitive}" for primitive in spec.runners]


@cache
def installed() -> Registry:
    """Return the same as `load_registry`, read once: for processes that only run cases."""
    return load_registry()


def is_ours(spec: Spec) -> bool:
    """Return whether a specification is of this package, not a plug-in's."""
    return any(spec is own for own in _OURS)

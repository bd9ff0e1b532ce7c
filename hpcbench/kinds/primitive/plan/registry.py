"""Which primitives and implementations there are: ours, and those of plug-ins (docs/plugins.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hpcbench.entry_points import Offer, offers
from hpcbench.kinds.primitive.plan.implementations import ALIASES, ELSEWHERE, IMPLEMENTATIONS
from hpcbench.kinds.primitive.plan.primitives import (
    dp_allreduce,
    ep_all_to_all,
    tp_columnwise,
    tp_mlp,
    tp_rowwise,
)
from hpcbench.kinds.primitive.plan.spec import ImplementationSpec, PrimitiveSpec
from hpcbench.kinds.primitive.plan.usable import unusable
from hpcbench.plan.options import Values

NO_PLUGIN = "no plug-in that is installed here offers it: see docs/plugins.md"
NOBODY = "nobody has written it"
ENTRY_POINTS = "hpcbench.primitives"
"""The group of entry points; each is a PrimitiveSpec, an ImplementationSpec, or a list of them."""
PRIMITIVES = tuple(module.SPEC for module in (
    tp_columnwise, tp_rowwise, tp_mlp, dp_allreduce, ep_all_to_all))


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
        values_of: dict[str, list[Values]] = {}
        for primitive in primitives:
            spec = self.implementation(name, primitive.name)
            own = spec.options if spec else self.elsewhere.get(name, {})
            for option, values in {**primitive.options, **own}.items():
                values_of.setdefault(option, []).append(values)
        return values_of

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
        return reasons[0] if reasons else NOBODY if specs else NO_PLUGIN


def load_registry() -> Registry:
    """Return our own and every plug-in's."""
    table = _Table({}, {})
    for spec in (*PRIMITIVES, *IMPLEMENTATIONS):
        table.add(spec)
    plugins = tuple(_added(offer, table) for offer in offers(ENTRY_POINTS))
    return Registry(
        table.primitives, {name: tuple(specs) for name, specs in table.implementations.items()},
        ALIASES, ELSEWHERE, plugins)


@cache
def installed() -> Registry:
    """Return the same as `load_registry`, read once: for processes that only run cases."""
    return load_registry()


def is_ours(spec: PrimitiveSpec | ImplementationSpec) -> bool:
    """Return whether a specification is of this package, not a plug-in's."""
    return any(spec is own for own in (*PRIMITIVES, *IMPLEMENTATIONS))


@dataclass(frozen=True, slots=True)
class _Table:
    """What there is so far; an implementation's name may stand for several primitives' specs."""

    primitives: dict[str, PrimitiveSpec]
    implementations: dict[str, list[ImplementationSpec]]

    def copy(self) -> _Table:
        """Return one that can be added to without changing this one."""
        return _Table(dict(self.primitives),
                      {name: list(specs) for name, specs in self.implementations.items()})

    def add(self, spec: PrimitiveSpec | ImplementationSpec) -> None:
        """Add a specification whose name is not `taken`."""
        if isinstance(spec, PrimitiveSpec):
            self.primitives[spec.name] = spec
        else:
            self.implementations.setdefault(spec.name, []).append(spec)

    def taken(self, spec: PrimitiveSpec | ImplementationSpec) -> str | None:
        """Return why its name cannot be used, or None."""
        if isinstance(spec, PrimitiveSpec):
            return (f"there is a primitive {spec.name} already" if spec.name in self.primitives
                    else None)
        if spec.name in ALIASES:
            real = ALIASES[spec.name]
            return f"{spec.name} is another name of {real}; offer it as {real}"
        others = self.implementations.get(spec.name, [])
        twice = sorted({name for other in others for name in other.runners} & set(spec.runners))
        return f"there is a {spec.name} of {', '.join(twice)} already" if twice else None


def _added(offer: Offer, table: _Table) -> Plugin:
    """Put what a plug-in offers into the table: all of it, or nothing if any of it is wrong."""
    offered = offer.value
    specs = tuple(offered) if isinstance(offered, (list, tuple)) else (offered,)
    problem = offer.problem or _problem(specs, table)
    if problem:
        return Plugin(offer.name, offer.origin, (), problem)
    for spec in specs:
        table.add(spec)
    return Plugin(offer.name, offer.origin, tuple(_offer(spec) for spec in specs))


def _problem(specs: Sequence[Any], table: _Table) -> str:
    """Return why one of several things cannot be added after those before it, or nothing."""
    trial = table.copy()
    for spec in specs:
        problem = unusable(spec) or trial.taken(spec)
        if problem:
            return problem
        trial.add(spec)
    return ""


def _offer(spec: PrimitiveSpec | ImplementationSpec) -> str:
    if isinstance(spec, PrimitiveSpec):
        return f"primitive {spec.name}"
    return f"{spec.name} of {', '.join(spec.runners)}"

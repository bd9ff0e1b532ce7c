"""Which primitives and implementations there are: ours, and those of plug-ins (docs/plugins.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from hpcbench.errors import ConfigError
from hpcbench.plan.primitives import (
    dp_allreduce,
    ep_all_to_all,
    tp_columnwise,
    tp_mlp,
    tp_rowwise,
)
from hpcbench.plan.primitives.implementations import ALIASES, ELSEWHERE, IMPLEMENTATIONS
from hpcbench.plan.primitives.spec import ImplementationSpec, PrimitiveSpec, Values

ENTRY_POINTS = "hpcbench.primitives"
"""The group of entry points; each is a PrimitiveSpec, an ImplementationSpec, or a list of them."""
PRIMITIVES = tuple(module.SPEC for module in (
    tp_columnwise, tp_rowwise, tp_mlp, dp_allreduce, ep_all_to_all))


@dataclass(frozen=True, slots=True)
class Registry:
    """Everything that can be named in a block of primitives, by name.

    ``aliases`` are other tools' names of implementations, ``elsewhere`` the implementations with
    their options that only a plug-in can bring; ``broken`` are plug-ins that could not be loaded,
    with the reason.
    """

    primitives: Mapping[str, PrimitiveSpec]
    implementations: Mapping[str, tuple[ImplementationSpec, ...]]
    aliases: Mapping[str, str]
    elsewhere: Mapping[str, Mapping[str, Values]]
    broken: Mapping[str, str]

    def is_known(self, name: str) -> bool:
        """Return whether somebody offers an implementation of this name, or another tool has it."""
        return self.aliases.get(name, name) in self.implementations or name in self.elsewhere

    def names(self) -> list[str]:
        """Return the names of all implementations."""
        return list(dict.fromkeys([*self.implementations, *self.aliases, *self.elsewhere]))

    def broken_text(self) -> str:
        """Return which plug-ins could not be loaded, for the end of a message; else nothing."""
        said = [f"{name}: {reason}" for name, reason in self.broken.items()]
        return f"; plug-ins that cannot be loaded: {'; '.join(said)}" if said else ""

    def options(
        self, name: str, primitives: Sequence[PrimitiveSpec],
    ) -> dict[str, list[Values]]:
        """Return what each option may be in one of the primitives."""
        found: dict[str, list[Values]] = {}
        for primitive in primitives:
            spec = self.implementation(name, primitive.name)
            own = spec.options if spec else self.elsewhere.get(name, {})
            for option, values in {**primitive.options, **own}.items():
                found.setdefault(option, []).append(values)
        return found

    def implementation(self, name: str, primitive: str) -> ImplementationSpec | None:
        """Return what implements a primitive under a name: ours, else a plug-in's, else None."""
        specs = self.implementations.get(self.aliases.get(name, name), ())
        return next((spec for spec in specs if primitive in spec.runners), None)


def load_registry() -> Registry:
    """Return our own and every plug-in's. Raises ConfigError if two plug-ins take one name."""
    broken: dict[str, str] = {}
    found = [*PRIMITIVES, *IMPLEMENTATIONS, *_plugins(broken)]
    primitives: dict[str, PrimitiveSpec] = {}
    implementations: dict[str, list[ImplementationSpec]] = {}
    for spec in found:
        if isinstance(spec, PrimitiveSpec):
            if spec.name in primitives:
                raise ConfigError(f"two primitives are named {spec.name}; uninstall one plug-in")
            primitives[spec.name] = spec
        else:
            others = implementations.setdefault(spec.name, [])
            twice = sorted({name for other in others for name in other.runners} & set(spec.runners))
            if twice:
                raise ConfigError(f"two implementations of {twice[0]} are named {spec.name}; "
                                  "uninstall one plug-in")
            others.append(spec)
    return Registry(primitives, {name: tuple(specs) for name, specs in implementations.items()},
                    ALIASES, ELSEWHERE, broken)


def _plugins(broken: dict[str, str]) -> Iterator[PrimitiveSpec | ImplementationSpec]:
    """Yield what plug-ins offer; one that cannot be loaded is put into ``broken``."""
    for point in entry_points(group=ENTRY_POINTS):
        try:
            offered = point.load()
        except Exception as error:  # a plug-in's import can raise anything; it costs only itself
            broken[point.name] = f"{type(error).__name__}: {error}"
            continue
        for spec in offered if isinstance(offered, (list, tuple)) else (offered,):
            if isinstance(spec, (PrimitiveSpec, ImplementationSpec)):
                yield spec
            else:
                broken[point.name] = f"offers a {type(spec).__name__}, no specification"

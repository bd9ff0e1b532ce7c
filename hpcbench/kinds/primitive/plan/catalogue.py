"""What sweep files can name of primitives."""

from __future__ import annotations

from typing import Any

from hpcbench.kinds.primitive.plan.registry import Registry, load_registry
from hpcbench.plan.options import described


def catalogue() -> dict[str, dict[str, Any]]:
    """Return the primitives and the implementations, with their options."""
    registry = load_registry()
    return {
        "primitives": {name: {
            "meaning": spec.meaning, "orders": list(spec.orders),
            "options": described(spec.options),
        } for name, spec in registry.primitives.items()},
        "implementations": {name: _implementation(name, registry) for name in registry.names()
                            if name not in registry.aliases},
    }


def _implementation(name: str, registry: Registry) -> dict[str, Any]:
    """Return the meaning, primitives, devices and options; all are empty of one of a plug-in."""
    specs = registry.implementations.get(name, ())
    return {
        "meaning": "; ".join(spec.meaning for spec in specs),
        "aliases": [other for other, known in registry.aliases.items() if known == name],
        "primitives": [primitive for primitive in registry.primitives
                       if registry.implementation(name, primitive) is not None],
        "devices": sorted({device for spec in specs for device in spec.devices}),
        "options": {option: facts for spec in specs
                    for option, facts in described(spec.options).items()},
    }

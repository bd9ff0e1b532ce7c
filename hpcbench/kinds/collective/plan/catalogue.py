"""What sweep files can name of collectives."""

from __future__ import annotations

from typing import Any

from hpcbench.operations.collectives import collectives


def catalogue() -> dict[str, dict[str, Any]]:
    """Return the collectives: their other names, whether they reduce, and who offers them."""
    return {"collectives": {name: {
        "aliases": list(spec.aliases), "has_op": spec.has_op, "has_root": spec.has_root,
        "least_ranks": spec.min_world_size, "backends": list(spec.backends) or None,
    } for name, spec in collectives().items()}}

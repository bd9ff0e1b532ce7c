"""A kind that is asked for by name, of which the sweep file has no block, runs one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcbench.config.axes import as_tuple
from hpcbench.config.schema import block_classes
from hpcbench.kinds.registry import kind_aliases


def add_own_block(raw: dict[str, Any], named: object) -> None:
    """Add the block that a kind offers (`Block.own`) where a raw file has none of that kind.

    A line in ``notes`` says so. What names no kind is left for the check of the file.
    """
    kind, blocks = _kind(named), raw.get("benchmarks")
    owner = block_classes().get(kind)
    if owner is None or not owner.own or not isinstance(blocks, list):
        return
    if any(isinstance(block, Mapping) and _kind(block.get("kind")) == kind for block in blocks):
        return
    raw["benchmarks"] = [*blocks, {"kind": kind, "name": f"own-{kind}", **owner.own}]
    raw["notes"] = [*as_tuple(raw.get("notes", ())),
                    f"no block of the file is of kind {kind}: one that the kind offers is run"]


def _kind(named: object) -> str:
    return kind_aliases().get(str(named), str(named))

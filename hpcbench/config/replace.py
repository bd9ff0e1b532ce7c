"""Flags and keys that name what is to run instead of what the blocks of a file name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.config.axes import as_tuple
from hpcbench.config.block import Replaceable
from hpcbench.config.schema import block_classes
from hpcbench.kinds.registry import kind_aliases

REPLACING = ("model", "strategy")
"""Keys of the file, and flags, whose names take the place of those in blocks."""


def replace_names(raw: dict[str, Any], by: str) -> None:
    """Put the names that a raw file has under ``by`` in place of those in its blocks.

    A block that names them all keeps its other names no longer, and everything else. In other
    blocks the keys that described what was named are left out, too. Each such block gets a line in
    ``notes``. What is no name is left for the check of the file.
    """
    names, blocks = as_tuple(raw.get(by, ())), raw.get("benchmarks")
    named = names and all(isinstance(name, str) for name in names)
    if not named or not isinstance(blocks, list):
        return
    notes = []
    for number, block in enumerate(blocks):
        if place := _place(block, by):
            notes += [f"benchmarks[{number}]: {line}" for line in _replace(block, place, names)]
    if notes:
        raw["notes"] = [*as_tuple(raw.get("notes", ())), *notes]


def _place(block: Any, by: str) -> Replaceable | None:
    """Return where a raw block has such names; None where its kind has none, or is unknown."""
    kind = str(block.get("kind")) if isinstance(block, Mapping) else ""
    owner = block_classes().get(kind_aliases().get(kind, kind))
    place = owner.replaceable.get(by) if owner else None
    return place if place and place.key in block else None


def _replace(block: dict[str, Any], place: Replaceable, names: tuple[str, ...]) -> Iterator[str]:
    """Replace the names of one block; yield what is lost by it."""
    given = block[place.key]
    with_options = isinstance(given, Mapping)
    before = [str(name) for name in (given if with_options else as_tuple(given))]
    block[place.key] = ({name: given.get(name, {}) for name in names} if with_options
                        else list(names))
    if set(names) <= set(before):
        return
    meaningless = (key for key, lacking in place.lacking.items() if lacking.issuperset(names))
    described = [(key, block.pop(key, None)) for key in (*place.described_by, *meaningless)]
    lost = [f"{key} {value}" for key, value in described if value is not None]
    yield (f"{place.key} {', '.join(names)} instead of {', '.join(before)}"
           + (f"; without {', '.join(lost)}, which described that" if lost else ""))[:500]

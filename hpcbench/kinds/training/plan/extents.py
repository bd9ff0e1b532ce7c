"""Other extents of a named model: what follows from those that are given, and near ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.kinds.training.plan.model_file import whole_shape
from hpcbench.operations.models import ModelShape

NEIGHBOURS = 64
"""Values on either side that are tried instead of one: among so many is a multiple of NF4_BLOCK."""


def with_extents(name: str, **extents: int | None) -> ModelShape | str:
    """Return the named model with these extents (fields of `ModelShape`), or why there is none.

    None follows the model: heads stay as many; with ``hidden`` the extent of a head, if it is no
    own one, and the inner extent change in proportion, with ``heads`` those of keys and values.
    Experts and latents stay as they are. Raises KeyError."""
    whole = whole_shape(name)
    changed = {key: value for key, value in extents.items() if value is not None}
    if zero := next((key for key, value in changed.items() if value < 1), None):
        return f"{zero}={changed[zero]} is less than 1"
    changes: dict[str, Any] = {**changed}
    shape = replace(whole, **changes)
    kv_heads = changed.get("kv_heads") or proportional_kv_heads(whole, shape.heads)
    inner = changed.get("inner") or proportional_inner(whole, shape.hidden)
    if not (shape.head_extent or shape.latent) and (
            reason := _undivided_heads(name, shape, "heads" in changed)):
        return reason
    if kv_heads is None:
        sharing = whole.heads // whole.kv_heads
        return (f"heads={shape.heads} is not a multiple of {sharing}, the heads that share keys "
                f"and values in {name}")
    if shape.heads % kv_heads:
        return f"kv_heads={kv_heads} does not divide {shape.heads} heads"
    if inner is None:
        return f"hidden={shape.hidden} leaves no whole inner extent in the proportion of {name}"
    return replace(shape, kv_heads=kv_heads, inner=inner)


def named_extents(name: str, extents: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the extents that labels name beside layers and tokens, which they always name.

    A smaller vocabulary is not named: older labels are without it. Raises KeyError."""
    whole, found = whole_shape(name), []
    if extents["heads"] != whole.heads:
        found.append("heads")
    if extents["kv_heads"] != proportional_kv_heads(whole, extents["heads"]):
        found.append("kv_heads")
    if extents["inner"] != proportional_inner(whole, extents["hidden"]):
        found.append("inner")
    if extents["vocab"] > whole.vocab:
        found.append("vocab")
    return tuple((key, extents[key]) for key in found)


def proportional_kv_heads(whole: ModelShape, heads: int) -> int | None:
    sharing = whole.heads // whole.kv_heads
    return None if heads % sharing else heads // sharing


def proportional_inner(whole: ModelShape, hidden: int) -> int | None:
    return None if whole.inner * hidden % whole.hidden else whole.inner * hidden // whole.hidden


def _undivided_heads(name: str, shape: ModelShape, are_set: bool) -> str | None:
    unit = 2 if shape.built.positions == "rotary" else 1  # which turn pairs of elements
    if shape.hidden % (shape.heads * unit) == 0:
        return None
    which = f"{shape.heads} heads" if are_set else f"the {shape.heads} heads of {name}"
    pairs = " of an even extent, which rotary positions need" * (unit > 1)
    return f"hidden={shape.hidden} cannot be divided among {which}{pairs}"


def neighbours(name: str, given: Mapping[str, int]) -> Iterator[tuple[str, int, Sequence[int]]]:
    """Yield the given extents of a model, and those that follow from them: key, value, and other
    values in ascending order, which need not suit. Raises KeyError."""
    whole = whole_shape(name)
    hidden, heads = given.get("hidden", whole.hidden), given.get("heads", whole.heads)
    follow: dict[str, int] = {}
    if "hidden" in given:
        follow = {"heads": heads, "inner": max(whole.inner * hidden // whole.hidden, 1)}
    if "heads" in given:
        follow["kv_heads"] = max(whole.kv_heads * heads // whole.heads, 1)
    divided = {"heads": hidden, "kv_heads": heads}
    for key, value in {**given, **follow, **given}.items():
        yield key, value, divisors(divided[key]) if key in divided else steps(
            value, heads if key == "hidden" else 1)


def steps(value: int, step: int = 1) -> Sequence[int]:
    """Return multiples of ``step`` around a value, from 1 on."""
    nearest = value // step
    return range(max(nearest - NEIGHBOURS, 1) * step, (nearest + NEIGHBOURS + 1) * step, step)


def divisors(number: int) -> Sequence[int]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})

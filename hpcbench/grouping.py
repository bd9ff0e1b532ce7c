"""Values put together by what they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from hpcbench.units import rank_list

Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, in the order in which they come."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def by_value(values: Mapping[int, Value]) -> dict[Value, list[int]]:
    """Return the ranks that have each value, of values by rank."""
    return grouped((value, rank) for rank, value in values.items())


def in_parts(values: Sequence[Value], most: int) -> Iterator[tuple[str, Sequence[Value]]]:
    """Yield parts of at most so many values, each with how its name ends: ``-1``, ``-2``.

    The name of what is not split ends as it is.
    """
    for number, first in enumerate(range(0, len(values), most), 1):
        yield f"-{number}" * (len(values) > most), values[first:first + most]


def equal_groups(world_size: int, groups: int, stride: int = 1) -> tuple[range, ...]:
    """Return the ranks of each of ``groups`` equal groups, whose ranks are ``stride`` apart.

    Groups that lie between each other's ranks fill a span of ranks; spans follow one another. Of 8
    ranks 4 groups of stride 2 are (0, 2), (1, 3), (4, 6) and (5, 7); of stride 1, pairs; of stride
    4, (0, 4), (1, 5) and so on. ``stride`` divides ``groups``, which divide ``world_size``.
    """
    span = max(world_size // groups, 1) * stride
    return tuple(range(first, first + span, stride) for start in range(0, world_size, span)
                 for first in range(start, start + stride))


def on_ranks(groups: Mapping[Value, Iterable[int]]) -> str:
    """Return ``200 on rank 0, 2-3, 199 on rank 1``."""
    return ", ".join(f"{value} on rank {rank_list(ranks)}" for value, ranks in groups.items())

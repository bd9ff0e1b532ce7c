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


def on_ranks(groups: Mapping[Value, Iterable[int]]) -> str:
    """Return ``200 on rank 0, 2-3, 199 on rank 1``."""
    return ", ".join(f"{value} on rank {rank_list(ranks)}" for value, ranks in groups.items())

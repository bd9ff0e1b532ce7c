"""Rounds in which every rank meets every other one once: the circle method.

One rank stays in its place while the others go round; opposite places are a pair. An odd number of
ranks is filled up by nobody: who would meet nobody sits the round out.
"""

from __future__ import annotations

from typing import NamedTuple

Pair = tuple[int, int]
"""Two ranks, the lower one first."""


class Slot(NamedTuple):
    """Pairs that are measured at the same time, and the round that they are of."""

    round: int
    pairs: tuple[Pair, ...]


def rounds(ranks: int) -> tuple[tuple[Pair, ...], ...]:
    """Return the pairs of each round, disjoint within it; every pair is in exactly one round."""
    places = ranks + ranks % 2
    return tuple(tuple(sorted(
        pair for pair in _facing(places, number) if pair[1] < ranks))
        for number in range(places - 1)) if ranks > 1 else ()


def _facing(places: int, number: int) -> list[Pair]:
    """Return the pairs of opposite places in a round."""
    around = places - 1
    circle = [around, *((number + step) % around for step in range(around))]
    halves = zip(circle[:places // 2], reversed(circle[places // 2:]), strict=True)
    return [(min(pair), max(pair)) for pair in halves]


def slots(ranks: int, *, at_once: bool) -> tuple[Slot, ...]:
    """Return the pairs of a round together, or one by one, in the order they are measured."""
    numbered = enumerate(rounds(ranks))
    if at_once:
        return tuple(Slot(number, pairs) for number, pairs in numbered)
    return tuple(Slot(number, (pair,)) for number, pairs in numbered for pair in pairs)


def peer_in(pairs: tuple[Pair, ...], rank: int) -> int | None:
    """Return who meets a rank, None if nobody does."""
    return next((pair[pair[0] == rank] for pair in pairs if rank in pair), None)


def phase_name(number: int) -> str:
    """Return the phase of a round, which holds what a rank measured in it."""
    return f"round_{number + 1}"

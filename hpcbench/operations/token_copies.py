"""The copies of tokens that go from rank to rank by a routing, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench.operations.loads import DEDUPS, AnyRouting, ExpertTraffic, Routing

Integers = npt.NDArray[np.int64]


class TokenCopies(NamedTuple):
    """Copies of one rank's tokens for another, in the order in which they are sent.

    ``token`` is that of each copy. ``copy``, ``expert`` and ``choice`` are of each pair of a copy
    and an expert that works on it: the expert's number on its rank, and which of the token's
    experts it is."""

    token: Integers
    copy: Integers
    expert: Integers
    choice: Integers


class ExpertTables:
    """The experts of each rank's tokens."""

    def __init__(self, routing: AnyRouting) -> None:
        self._routing = routing
        if isinstance(routing, Routing):
            self._starts = np.asarray(routing.starts)
            self._sets = np.asarray(routing.sets, dtype=np.int64)

    def of(self, rank: int) -> Integers:
        """Return the experts of a rank's tokens, (tokens, most of a token); -1: it has fewer."""
        routing = self._routing
        if isinstance(routing, Routing):
            numbers = np.arange(rank, routing.ranks * routing.tokens, routing.ranks)
            found: Integers = self._sets[np.searchsorted(self._starts, numbers, side="right") - 1]
            return found
        counts, each = np.asarray(routing.cells[rank]), routing.experts // routing.ranks
        receivers = np.repeat(np.arange(routing.ranks), counts)
        copies = np.arange(len(receivers)) - np.repeat(counts.cumsum() - counts, counts)
        most = max(-(-len(receivers) // routing.tokens), 1)
        line: Integers = np.full(most * routing.tokens, -1)
        line[:len(receivers)] = receivers * each + (rank + copies) % each
        table: Integers = line.reshape(most, routing.tokens).T
        return table


def within(table: Integers, capacity: int) -> Integers:
    """Return a ``table`` of a rank's tokens in which an expert has the first so many of them; -1
    where it had more. 0: it has all."""
    if not capacity:
        return table
    flat = table.flatten()
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    earlier = np.arange(len(flat)) - np.searchsorted(ordered, ordered)
    flat[order[earlier >= capacity]] = -1
    return flat.reshape(table.shape)


def traffic_within(
    routing: Routing, capacity: int,
) -> tuple[Mapping[str, ExpertTraffic], tuple[int, ...]]:
    """Return copies from rank to rank by `loads.DEDUPS`, and tokens of each expert, `within` a
    capacity."""
    tables, counts = ExpertTables(routing), np.zeros(routing.experts, np.int64)
    rows: dict[str, list[list[int]]] = {dedup: [] for dedup in DEDUPS}
    for sender in range(routing.ranks):
        table = within(tables.of(sender), capacity)
        token, choice = np.nonzero(table >= 0)
        expert = table[token, choice]
        counts += np.bincount(expert, minlength=routing.experts)
        pairs = expert // (routing.experts // routing.ranks)
        once = np.unique(token * routing.ranks + pairs) % routing.ranks
        for dedup, receivers in zip(DEDUPS, (once, pairs), strict=True):
            rows[dedup].append(np.bincount(receivers, minlength=routing.ranks).tolist())
    return ({dedup: ExpertTraffic.of_rows(own) for dedup, own in rows.items()},
            tuple(counts.tolist()))


def copies_to(table: Integers, receiver: int, experts_each: int, dedup: str) -> TokenCopies:
    """Return the copies that a rank whose tokens have the experts of a ``table`` sends to another.

    Each rank has so many experts; ``dedup`` is one of `loads.DEDUPS`."""
    token, choice = np.nonzero(table // experts_each == receiver)
    expert = table[token, choice] % experts_each
    if dedup == "expert":
        return TokenCopies(token, np.arange(len(token)), expert, choice)
    kept, copy = np.unique(token, return_inverse=True)
    return TokenCopies(kept, copy, expert, choice)

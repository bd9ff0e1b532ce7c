"""What overlap_bare.py measures for each order, and how overlap_bound.py names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PRODUCT, AGAIN, SOCKETS, MESSAGES, REDUCE_SCATTER, ALL_REDUCE = (
    "product", "product again", "sockets", "gloo messages", "gloo reduce_scatter",
    "gloo all_reduce")
FREE, FREE_BY_GLOO = "together, nothing awaited", "together by gloo"


def in_pieces(pieces: int) -> str:
    """Return the name of the product alone in pieces."""
    return f"product, {pieces} pieces"


def overlapped(pieces: int) -> str:
    """Return the name of what overlaps them as an implementation has to."""
    return f"overlapped, {pieces} pieces"


def free_by_gloo(pieces: int) -> str:
    """Return the name of the product beside so many collectives of gloo that need none of it."""
    return f"{FREE_BY_GLOO}, {pieces} pieces"


def overlapped_by_gloo(pieces: int) -> str:
    """Return the name of what overlaps them by gloo; p2p_ring does so with one piece."""
    return f"overlapped by gloo, {pieces} piece{'s' * (pieces > 1)}"


@dataclass(frozen=True)
class Variants:
    """The variants of an order: parts alone, and what is done at once by sockets and by gloo."""

    alone: Sequence[str]
    pieces: Sequence[int]
    pieces_by_gloo: Sequence[int]
    sent_part: int
    """A rank sends one of so many parts of its rows."""
    communication: str
    """What stands for the communication in "the longer part": torch's own collective."""
    pieces_free: Sequence[int] = ()

    @property
    def by_sockets(self) -> Sequence[str]:
        """Return what is done at once by sockets."""
        return FREE, *map(overlapped, self.pieces)

    @property
    def by_gloo(self) -> Sequence[str]:
        """Return what is done at once by gloo."""
        return (FREE_BY_GLOO, *map(free_by_gloo, self.pieces_free),
                *map(overlapped_by_gloo, self.pieces_by_gloo))

    @property
    def with_result(self) -> Sequence[str]:
        """Return what overlaps as an implementation has to, and so has a result."""
        return (*map(overlapped, self.pieces), *map(overlapped_by_gloo, self.pieces_by_gloo))

    @property
    def names(self) -> Sequence[str]:
        """Return all, in the order in which they are shown."""
        return (PRODUCT, AGAIN, *map(in_pieces, self.pieces), *self.alone, *self.by_sockets,
                *self.by_gloo)


SCATTER = Variants((SOCKETS, MESSAGES, REDUCE_SCATTER), (2, 4), (1, 2), 2, REDUCE_SCATTER)
SUMS = Variants((SOCKETS, ALL_REDUCE), (4, 8), (2, 4, 8), 1, ALL_REDUCE, (4, 8))
ORDERS: Mapping[str, Variants] = {"RS_after": SCATTER, "AR_after": SUMS}

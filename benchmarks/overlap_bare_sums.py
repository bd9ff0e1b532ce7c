"""AR_after as calls of overlap_bare.py: both ranks form the sum of all rows of their products.

By gloo it is an all_reduce. By sockets each rank sends all it made and adds what arrives: with
two ranks as many bytes as gloo's ring sends. A piece is some rows, as chunked_pipeline cuts them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from overlap_bare_calls import Calls, finish, operands
from overlap_peer import Peer
from overlap_variants import (
    AGAIN,
    ALL_REDUCE,
    FREE,
    FREE_BY_GLOO,
    PRODUCT,
    SOCKETS,
    SUMS,
    free_by_gloo,
    in_pieces,
    overlapped,
    overlapped_by_gloo,
)


class Sums(Calls):
    """The calls of AR_after."""

    def __init__(self, extents: tuple[int, int, int], peer: Peer, rank: int) -> None:
        m, n, k = extents
        columns, weights = operands(m, n, k)
        self._product, arrived, self._zeros = torch.zeros(3, m, n)
        super().__init__(SUMS, peer, self._zeros, arrived)
        self._columns, self._weight = columns[rank].clone(), weights[rank].clone()
        self._expected = columns[0] @ weights[0] + columns[1] @ weights[1]
        alone = partial(self._multiply, 1)
        self.by_name = {
            PRODUCT: alone, AGAIN: alone, SOCKETS: self._exchange,
            ALL_REDUCE: partial(self._all_reduce, 1),
            FREE: partial(self._exchange, alone), FREE_BY_GLOO: partial(self._all_reduce, 1, alone),
            **{in_pieces(pieces): partial(self._multiply, pieces) for pieces in SUMS.pieces},
            **{overlapped(pieces): partial(self._overlap, pieces) for pieces in SUMS.pieces},
            **{free_by_gloo(pieces): partial(self._all_reduce, pieces, alone)
               for pieces in SUMS.pieces_free},
            **{overlapped_by_gloo(pieces): partial(self._by_gloo, pieces)
               for pieces in SUMS.pieces_by_gloo}}

    def check(self) -> None:
        """Overlap in each way once; raise ValueError if a result is wrong."""
        self._check((self._product, self._arrived), self._product, self._expected)

    def _multiply(self, pieces: int, ready: Callable[[torch.Tensor], object] = id) -> None:
        """Multiply piece by piece, each of which is then ready."""
        for rows, piece in zip(self._columns.chunk(pieces), self._product.chunk(pieces),
                               strict=True):
            torch.mm(rows, self._weight, out=piece)
            ready(piece)

    def _overlap(self, pieces: int) -> None:
        """Send each piece when it is made, and add what arrived to it once it has left."""
        arriving = self._arrived.chunk(pieces)
        self._peer.receive(arriving)
        self._multiply(pieces, self._peer.send)
        for arrived, total in zip(arriving, self._product.chunk(pieces), strict=True):
            self._peer.finish_sending(1)
            self._peer.finish_one()
            total.add_(arrived)

    def _all_reduce(self, pieces: int, meanwhile: Callable[[], object] | None = None) -> None:
        """Sum up zeros in so many collectives, and do something that needs none of it."""
        works: list[Any] = [dist.all_reduce(piece, async_op=True)
                            for piece in self._zeros.chunk(pieces)]
        if meanwhile is not None:
            meanwhile()
        finish(works)

    def _by_gloo(self, pieces: int) -> None:
        """Sum up each piece when it is made, as chunked_pipeline does."""
        works: list[Any] = []
        self._multiply(pieces, lambda piece: works.append(dist.all_reduce(piece, async_op=True)))
        finish(works)

"""RS_after as calls of overlap_bare.py: half of the rows is sent, as many arrive and are added.

The other rank owns half of the rows of the product, m / 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from overlap_bare_calls import Calls, finish, operands
from overlap_peer import Peer
from overlap_variants import (
    AGAIN,
    FREE,
    FREE_BY_GLOO,
    MESSAGES,
    PRODUCT,
    REDUCE_SCATTER,
    SCATTER,
    SOCKETS,
    in_pieces,
    overlapped,
    overlapped_by_gloo,
)


@dataclass(frozen=True)
class Buffers:
    """What a rank multiplies, sends and receives; ``theirs`` and ``mine`` are halves of C."""

    columns_of_theirs: torch.Tensor
    columns_of_mine: torch.Tensor
    weight: torch.Tensor
    theirs: torch.Tensor
    mine: torch.Tensor
    arrived: torch.Tensor
    expected: torch.Tensor

    @classmethod
    def of(cls, rank: int, m: int, n: int, k: int) -> Buffers:
        """Return those of a rank."""
        columns, weights = operands(m, n, k)
        rows = columns[rank].chunk(2)
        half = slice(rank * m // 2, (rank + 1) * m // 2)
        expected = sum(columns[each, half] @ weights[each] for each in range(2))
        assert isinstance(expected, torch.Tensor)
        return cls(rows[1 - rank].clone(), rows[rank].clone(), weights[rank].clone(),
                   *torch.zeros(3, m // 2, n), expected)


def _pieces(half: torch.Tensor, pieces: int) -> Sequence[torch.Tensor]:
    """Return the memory of a half of C as so many pieces, each with some of its columns."""
    return half.view(pieces, len(half), -1).unbind()


class Scatter(Calls):
    """The calls of RS_after."""

    def __init__(self, extents: tuple[int, int, int], peer: Peer, rank: int) -> None:
        self._own = own = Buffers.of(rank, *extents)
        super().__init__(SCATTER, peer, own.theirs, own.arrived)
        self._other = 1 - rank
        whole = torch.cat((own.columns_of_theirs, own.columns_of_mine))
        made = torch.empty(len(whole), own.mine.shape[1])
        both = torch.cat((own.theirs, own.mine))
        alone = partial(torch.mm, whole, own.weight, out=made)
        self.by_name = {
            PRODUCT: alone, AGAIN: alone, SOCKETS: self._exchange, MESSAGES: self._messages,
            REDUCE_SCATTER: partial(dist.reduce_scatter_tensor, torch.empty_like(own.mine), both),
            FREE: partial(self._exchange, alone), FREE_BY_GLOO: partial(self._messages, alone),
            **{in_pieces(pieces): partial(self._multiply, pieces) for pieces in SCATTER.pieces},
            **{overlapped(pieces): partial(self._overlap, pieces) for pieces in SCATTER.pieces},
            **{overlapped_by_gloo(pieces): partial(self._by_gloo, pieces)
               for pieces in SCATTER.pieces_by_gloo}}

    def check(self) -> None:
        """Overlap in each way once; raise ValueError if a result is wrong."""
        own = self._own
        self._check((own.mine, own.theirs, own.arrived), own.mine, own.expected)

    def _multiply(self, pieces: int, ready: Callable[[torch.Tensor], object] = id) -> None:
        """Multiply the other's rows piece by piece, each of which is then ready, and own rows.

        A piece is some columns of C: cut by rows, each would read and pack all of the weight.
        """
        own = self._own
        for weight, piece in zip(own.weight.chunk(pieces, 1), _pieces(own.theirs, pieces),
                                 strict=True):
            torch.mm(own.columns_of_theirs, weight, out=piece)
            ready(piece)
        torch.mm(own.columns_of_mine, own.weight, out=own.mine)

    def _overlap(self, pieces: int) -> None:
        """Send each piece when it is made, and add what arrived to the own rows."""
        arriving = _pieces(self._own.arrived, pieces)
        self._peer.receive(arriving)
        self._multiply(pieces, self._peer.send)
        for arrived, total in zip(arriving, self._own.mine.chunk(pieces, 1), strict=True):
            self._peer.finish_one()
            total.add_(arrived)
        self._peer.finish_sending(pieces)

    def _messages(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Do as `_exchange` does, by gloo's messages."""
        works = (dist.irecv(self._own.arrived, self._other),
                 dist.isend(self._own.theirs, self._other))
        if meanwhile is not None:
            meanwhile()
        finish(works)

    def _by_gloo(self, pieces: int) -> None:
        """Do as `_overlap` does, by gloo's messages."""
        arriving = _pieces(self._own.arrived, pieces)
        receives: list[Any] = [dist.irecv(piece, self._other) for piece in arriving]
        sends: list[Any] = []
        self._multiply(pieces, lambda piece: sends.append(dist.isend(piece, self._other)))
        for work, arrived, total in zip(receives, arriving, self._own.mine.chunk(pieces, 1),
                                        strict=True):
            work.wait()
            total.add_(arrived)
        finish(sends)

"""Implementation ``p2p_ring``: a block is multiplied while its successor travels round a ring.

Each rank sends to the next one and receives from the one before. What travels under which product
is in each class; a message is awaited before what it brings is used, and before what it carries
is overwritten. With backend mpi a large message moves only while MPI is called, so there little
of it overlaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.workloads.primitives.implementations.base import AnyInputs, Implementation
from hpcbench.workloads.primitives.inputs.tp_columnwise import Columnwise as ColumnwiseInputs


class _Ring(Implementation[AnyInputs]):
    """What all have in common: the neighbours, and whose block passes when."""

    def owner(self, hops: int) -> int:
        """Return whose block is here after this many hops."""
        return (self.rank - hops) % self.ranks

    def hop(self, sent: torch.Tensor, received: torch.Tensor) -> list[dist.P2POp]:
        """Return the two messages that pass a block on and bring the next one."""
        place = self.inputs.place
        after = place.global_rank((self.rank + 1) % self.ranks)
        before = place.global_rank((self.rank - 1) % self.ranks)
        return [dist.P2POp(dist.isend, sent, after, self.group),
                dist.P2POp(dist.irecv, received, before, self.group)]


def _start(messages: Sequence[dist.P2POp]) -> Sequence[Any]:
    """Start messages that were made once; there may be none, which torch refuses."""
    return dist.batch_isend_irecv(list(messages)) if messages else ()


def _finish(started: Sequence[Any]) -> None:
    for work in started:
        work.wait()


class Columnwise(_Ring[ColumnwiseInputs]):
    """Blocks of A are passed on, and multiplied as they pass; or those of C, as they are made."""

    def __init__(self, inputs: ColumnwiseInputs) -> None:
        super().__init__(inputs)
        rows, columns = inputs.rows.shape[0], inputs.weight.shape[1]
        self.output = self.empty(inputs.spec.m, columns)
        self._placed = self.output.view(self.ranks, rows, columns)
        if inputs.gather_first:
            passing = [self.empty(rows, inputs.spec.k) for _ in range(min(2, self.ranks - 1))]
            self._blocks = [inputs.rows, *(passing[hops % 2] for hops in range(self.ranks - 1))]
            self._hops = [self.hop(*pair) for pair in zip(
                self._blocks, self._blocks[1:], strict=False)]
        else:
            self._rows = inputs.rows.tensor_split(self.ranks)
            self._hops = [list(self._hops_of_step(step)) for step in range(2 * self.ranks - 1)]

    def _hops_of_step(self, step: int) -> Iterator[dist.P2POp]:
        """Yield what travels under a step: a piece made in step p hops in steps p + 1 and on."""
        pieces = [block.tensor_split(self.ranks) for block in self._placed]
        for piece in range(self.ranks):
            hops = step - 1 - piece
            if 0 <= hops < self.ranks - 1:
                yield from self.hop(pieces[self.owner(hops)][piece],
                                    pieces[self.owner(hops + 1)][piece])

    def run(self) -> None:
        """Pass on and multiply, in the order asked for."""
        if self.inputs.gather_first:
            self._gather_first()
        else:
            self._multiply_first()

    def _gather_first(self) -> None:
        for hops, block in enumerate(self._blocks):
            travelling = _start(self._hops[hops] if hops < self.ranks - 1 else ())
            torch.mm(block, self.inputs.weight, out=self._placed[self.owner(hops)])
            _finish(travelling)

    def _multiply_first(self) -> None:
        """Cut the own rows into as many pieces as ranks; under each product the others' hop."""
        made = self._placed[self.rank].tensor_split(self.ranks)
        for step, hops in enumerate(self._hops):
            travelling = _start(hops)
            if step < self.ranks:
                torch.mm(self._rows[step], self.inputs.weight, out=made[step])
            _finish(travelling)

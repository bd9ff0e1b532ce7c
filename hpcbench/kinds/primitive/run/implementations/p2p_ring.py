"""Implementation ``p2p_ring``: a block is multiplied while its successor travels round a ring.

Each rank sends to the next one and receives from the one before. Each class defines which block
travels under which product; a message is awaited before the data that it brings are used, and
before those that it carries are overwritten. With backend mpi a large message moves only while MPI
is called, so there little of it overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.kinds.primitive.run import inputs as rank_inputs
from hpcbench.kinds.primitive.run.implementations.base import AnyInputs, Implementation
from hpcbench.operations.place import finish, receiving, sending, start


class _Ring(Implementation[AnyInputs]):
    """The base of all: the neighbours, and whose block passes when."""

    def owner(self, hops: int) -> int:
        """Return whose block is here after this many hops."""
        return (self.rank - hops) % self.ranks

    def alternating(self, rows: int, columns: int) -> list[torch.Tensor]:
        """Return a buffer for each hop: two that take turns."""
        spare = [self.empty(rows, columns) for _ in range(min(2, self.ranks - 1))]
        return [spare[hop % 2] for hop in range(self.ranks - 1)]

    def hop(self, sent: torch.Tensor, received: torch.Tensor) -> list[dist.P2POp]:
        """Return the two messages that bring the next block and pass this one on.

        The receive must be first. gloo sends its peer the permission to send in the stream of its
        own data. Behind a large message it would come late, and the link would work one way only.
        """
        place = self.inputs.place
        return [receiving(place, (self.rank - 1) % self.ranks, received),
                sending(place, (self.rank + 1) % self.ranks, sent)]


class Columnwise(_Ring[rank_inputs.ColumnwiseInputs]):
    """Blocks of A are passed on, and multiplied as they pass; or those of C, as they are made."""

    def __init__(self, inputs: rank_inputs.ColumnwiseInputs) -> None:
        super().__init__(inputs)
        rows, columns = inputs.rows.shape[0], inputs.weight.shape[1]
        self.output = self.empty(inputs.spec.m, columns)
        self._placed = self.output.view(self.ranks, rows, columns)
        if inputs.gather_first:
            self._blocks = [inputs.rows, *self.alternating(rows, inputs.spec.k)]
            self._hops = [self.hop(*pair) for pair in zip(
                self._blocks, self._blocks[1:], strict=False)]
        else:
            self._rows = inputs.rows.tensor_split(self.ranks)
            self._hops = [list(self._hops_of_step(step)) for step in range(2 * self.ranks - 1)]

    def _hops_of_step(self, step: int) -> Iterator[dist.P2POp]:
        """Yield the messages under a step: a piece made in step p hops in steps p + 1 and on."""
        pieces = [block.tensor_split(self.ranks) for block in self._placed]
        for piece in range(self.ranks):
            hops = step - 1 - piece
            if 0 <= hops < self.ranks - 1:
                yield from self.hop(pieces[self.owner(hops)][piece],
                                    pieces[self.owner(hops + 1)][piece])

    def run(self) -> None:
        if self.inputs.gather_first:
            self._gather_first()
        else:
            self._multiply_first()

    def _gather_first(self) -> None:
        for hops, block in enumerate(self._blocks):
            travelling = start(self._hops[hops] if hops < self.ranks - 1 else ())
            torch.mm(block, self.inputs.weight, out=self._placed[self.owner(hops)])
            finish(travelling)

    def _multiply_first(self) -> None:
        """Cut the own rows into as many pieces as ranks; under each product the others' hop."""
        made = self._placed[self.rank].tensor_split(self.ranks)
        for step, hops in enumerate(self._hops):
            travelling = start(hops)
            if step < self.ranks:
                torch.mm(self._rows[step], self.inputs.weight, out=made[step])
            finish(travelling)


class Rowwise(_Ring[rank_inputs.RowwiseInputs]):
    """The sum of a block of C travels round, and each rank adds its product when it comes.

    A block starts behind its owner and ends with it; while the sum of one travels, the product
    of the next is formed."""

    def __init__(self, inputs: rank_inputs.RowwiseInputs) -> None:
        super().__init__(inputs)
        rows, n = inputs.spec.m // self.ranks, inputs.spec.n
        self.output = self.empty(rows, n)
        self._columns = [inputs.columns.chunk(self.ranks)[self.owner(step + 1)]
                         for step in range(self.ranks)]
        self._sums = [*self.alternating(rows, n), self.output]
        self._arrived = self.empty(rows, n)
        self._hops = [self.hop(total, self._arrived) for total in self._sums[:-1]]

    def run(self) -> None:
        travelling: Sequence[Any] = ()
        for step, (columns, total) in enumerate(zip(self._columns, self._sums, strict=True)):
            torch.mm(columns, self.inputs.weight, out=total)
            finish(travelling)
            if step:
                total.add_(self._arrived)
            travelling = start(self._hops[step] if step < self.ranks - 1 else ())


class Mlp(_Ring[rank_inputs.MlpInputs]):
    """Tokens travel round as in Columnwise, sums of results one step behind as in Rowwise.

    The own block is the first that is there and the last whose sum comes: its first product is
    formed while the tokens make their first hop, its second while the sums make their last."""

    def __init__(self, inputs: rank_inputs.MlpInputs) -> None:
        super().__init__(inputs)
        rows, k = inputs.tokens.shape
        self.output = self.empty(rows, k)
        self._hidden = self.empty(rows, inputs.up.shape[1])
        self._own_hidden = self.empty(rows, inputs.up.shape[1])
        self._tokens = [inputs.tokens, *self.alternating(rows, k)]
        self._sums = self.alternating(rows, k)
        self._arrived = self.empty(rows, k)
        self._hops = [list(self._hops_of_step(step)) for step in range(self.ranks + 1)]

    def _hops_of_step(self, step: int) -> Iterator[dist.P2POp]:
        """Yield the messages under a step: the next step's tokens, the last one's sums."""
        if step < self.ranks - 1:
            yield from self.hop(self._tokens[step], self._tokens[step + 1])
        if step >= 2:
            yield from self.hop(self._sums[step - 2], self._arrived)

    def run(self) -> None:
        for step, tokens in enumerate(self._tokens):
            travelling = start(self._hops[step])
            self._multiply(step, tokens)
            finish(travelling)
            if step >= 2:
                self._sums[step - 1].add_(self._arrived)
        travelling = start(self._hops[self.ranks])
        torch.mm(self._own_hidden, self.inputs.down, out=self.output)
        finish(travelling)
        if travelling:
            self.output.add_(self._arrived)

    def _multiply(self, step: int, tokens: torch.Tensor) -> None:
        """Take the own tokens, of step 0, through one product, all others through both."""
        hidden = self._hidden if step else self._own_hidden
        torch.mm(tokens, self.inputs.up, out=hidden)
        self.inputs.activate(hidden)
        if step:
            torch.mm(hidden, self.inputs.down, out=self._sums[step - 1])

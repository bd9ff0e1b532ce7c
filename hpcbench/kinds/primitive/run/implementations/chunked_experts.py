"""Implementation ``chunked_pipeline`` of ep_all_to_all: experts multiply while tokens travel."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hpcbench.kinds.primitive.run import inputs as given
from hpcbench.kinds.primitive.run.implementations.chunked_pipeline import Chunked


class Experts(Chunked[given.Experts]):
    """Of the tokens for each expert one chunk is sent, and the results of another sent back.

    One all_to_all reads the parts for all ranks from one piece of memory. So a chunk's tokens are
    copied together, and its results to where they belong, during the other chunks' messages.
    """

    def __init__(self, inputs: given.Experts) -> None:
        super().__init__(inputs)
        k, n = inputs.spec.k, inputs.spec.n
        self.output = self.empty(inputs.tokens.shape[0], n)
        self._received = self._cut(inputs.received)
        self._counts = self._cut(inputs.counts)
        self._own = _pieces(inputs.tokens, inputs.counts, self._counts)
        self._placed = _pieces(self.output, inputs.counts, self._counts)
        self._sent = [self.empty(sum(counts), k) for counts in self._counts]
        self._returned = [self.empty(sum(counts), n) for counts in self._counts]
        self._arrived = [self.empty(sum(counts), k) for counts in self._received]
        self._made = [self.empty(sum(counts), n) for counts in self._received]

    def _cut(self, counts: list[int]) -> list[list[int]]:
        """Return how many of each rank's tokens are in each chunk; they differ by one at most."""
        return [[count * (chunk + 1) // self.chunks - count * chunk // self.chunks
                 for count in counts] for chunk in range(self.chunks)]

    def run(self) -> None:
        """Dispatch, multiply and combine, each of another chunk at the same time."""
        arriving, returning = self._dispatch(0), []
        for chunk in range(self.chunks):
            arriving.wait()
            if chunk + 1 < self.chunks:
                arriving = self._dispatch(chunk + 1)
            torch.mm(self._arrived[chunk], self.inputs.weight, out=self._made[chunk])
            returning.append(self._combine(chunk))
            if chunk:
                self._place(chunk - 1, returning[chunk - 1])
        self._place(self.chunks - 1, returning[-1])

    def _dispatch(self, chunk: int) -> Any:
        torch.cat(self._own[chunk], out=self._sent[chunk])
        return dist.all_to_all_single(
            self._arrived[chunk], self._sent[chunk], self._received[chunk], self._counts[chunk],
            group=self.group, async_op=True)

    def _combine(self, chunk: int) -> Any:
        return dist.all_to_all_single(
            self._returned[chunk], self._made[chunk], self._counts[chunk], self._received[chunk],
            group=self.group, async_op=True)

    def _place(self, chunk: int, returning: Any) -> None:
        returning.wait()
        for results, placed in zip(self._returned[chunk].split(self._counts[chunk]),
                                   self._placed[chunk], strict=True):
            placed.copy_(results)


def _pieces(
    rows: torch.Tensor, counts: list[int], chunks: list[list[int]],
) -> list[list[torch.Tensor]]:
    """Return of each chunk its rows for each rank; ``rows`` are sorted by rank."""
    by_rank = [part.split([chunk[rank] for chunk in chunks])
               for rank, part in enumerate(rows.split(counts))]
    return [list(pieces) for pieces in zip(*by_rank, strict=True)]

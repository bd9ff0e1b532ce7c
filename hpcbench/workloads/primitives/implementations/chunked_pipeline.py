"""Implementation ``chunked_pipeline``: one chunk is communicated while another is multiplied.

Collectives are started with ``async_op=True``: gloo's run on its own threads, NCCL's on its own
stream. Backend mpi's are complete when they are started (`backends.mpi_group`), so nothing
overlaps there and chunks only cost.

A rank's rows are cut, so that a chunk of all ranks is one contiguous message and, where its
results may lie together, one product.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.workloads.calls import all_gather_tensor, reduce_scatter_tensor
from hpcbench.workloads.primitives.implementations.base import AnyInputs, Implementation
from hpcbench.workloads.primitives.implementations.blocks import multiply_blocks
from hpcbench.workloads.primitives.inputs.dp_allreduce import Gradients as GradientsInputs
from hpcbench.workloads.primitives.inputs.ep_all_to_all import Experts as ExpertsInputs
from hpcbench.workloads.primitives.inputs.tp_columnwise import Columnwise as ColumnwiseInputs
from hpcbench.workloads.primitives.inputs.tp_mlp import Mlp as MlpInputs
from hpcbench.workloads.primitives.inputs.tp_rowwise import Rowwise as RowwiseInputs


class _Chunked(Implementation[AnyInputs]):
    """What all have in common: the number of chunks."""

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        self.chunks = int(inputs.spec.option("chunks"))

    def blocks(self, rows: torch.Tensor) -> torch.Tensor:
        """Return all ranks' rows one below the other as (ranks, chunks, rows, columns)."""
        return rows.view(self.ranks, self.chunks, -1, rows.shape[1])


def _wait(started: Iterable[Any]) -> None:
    for work in started:
        work.wait()


class Columnwise(_Chunked[ColumnwiseInputs]):
    """A chunk of A is gathered while another is multiplied, or one of C while another is made."""

    def __init__(self, inputs: ColumnwiseInputs) -> None:
        super().__init__(inputs)
        columns, rows = inputs.weight.shape[1], inputs.rows.shape[0] // self.chunks
        self._rows = inputs.rows.view(self.chunks, rows, -1)
        self.output = self.empty(inputs.spec.m, columns)
        self._between = (
            self.empty(self.chunks, self.ranks, rows, inputs.spec.k) if inputs.gather_first else
            self.empty(self.chunks, rows, columns))

    def run(self) -> None:
        """Gather and multiply, in the order asked for."""
        if self.inputs.gather_first:
            self._gather_first()
        else:
            self._multiply_first()

    def _gather_first(self) -> None:
        """Start all gathers at once, so that the next one never waits for a product to end.

        NCCL does them one after the other, gloo two at a time, and a pair of ranks has one stream:
        the first chunk comes hardly later (docs/performance.md has what it gains).
        """
        placed = self.blocks(self.output)
        arriving = [self._gather_rows(chunk) for chunk in range(self.chunks)]
        for chunk, gathered in enumerate(arriving):
            gathered.wait()
            multiply_blocks(self._between[chunk], self.inputs.weight, placed[:, chunk])

    def _gather_rows(self, chunk: int) -> Any:
        return all_gather_tensor(self._between[chunk].flatten(0, 1), self._rows[chunk],
                                 group=self.group, async_op=True)

    def _multiply_first(self) -> None:
        """Gather into a list: the chunks of different ranks lie apart in C."""
        placed, leaving = self.blocks(self.output), []
        for chunk, (rows, own) in enumerate(zip(self._rows, self._between, strict=True)):
            torch.mm(rows, self.inputs.weight, out=own)
            leaving.append(dist.all_gather(list(placed[:, chunk]), own, group=self.group,
                                           async_op=True))
        _wait(leaving)


class Rowwise(_Chunked[RowwiseInputs]):
    """A chunk of C, as many rows of every rank's part, is reduced while the next is multiplied."""

    def __init__(self, inputs: RowwiseInputs) -> None:
        super().__init__(inputs)
        m, n, ranks = inputs.spec.m, inputs.spec.n, self.ranks
        self.output = self.empty(m // ranks if inputs.scatter else m, n)
        self._placed = self.output.view(self.chunks, -1, n)
        if inputs.scatter:
            self._partial = self.empty(self.chunks, ranks, m // ranks // self.chunks, n)

    def run(self) -> None:
        """Multiply, and reduce, in turn."""
        if self.inputs.scatter:
            self._scatter()
        else:
            self._reduce()

    def _scatter(self) -> None:
        columns, leaving = self.blocks(self.inputs.columns), []
        for chunk, partial in enumerate(self._partial):
            multiply_blocks(columns[:, chunk], self.inputs.weight, partial)
            leaving.append(reduce_scatter_tensor(self._placed[chunk], partial.flatten(0, 1),
                                                 group=self.group, async_op=True))
        _wait(leaving)

    def _reduce(self) -> None:
        leaving = []
        for columns, placed in zip(self.inputs.columns.chunk(self.chunks), self._placed,
                                   strict=True):
            torch.mm(columns, self.inputs.weight, out=placed)
            leaving.append(dist.all_reduce(placed, group=self.group, async_op=True))
        _wait(leaving)


class Mlp(_Chunked[MlpInputs]):
    """A chunk is gathered, and another one reduced, while one goes through both products."""

    def __init__(self, inputs: MlpInputs) -> None:
        super().__init__(inputs)
        m, k = inputs.spec.m, inputs.spec.k
        self.output = self.empty(*inputs.tokens.shape)
        self._placed = self.output.view(self.chunks, -1, k)
        self._hidden = self.empty(m // self.chunks, inputs.up.shape[1])
        self._tokens = inputs.tokens.view(self.chunks, -1, k)
        if inputs.sequence_parallel:
            self._gathered = self.empty(self.chunks, m // self.chunks, k)
            self._partial = self.empty(self.chunks, m // self.chunks, k)

    def run(self) -> None:
        """Gather where tokens are divided, multiply twice, and reduce, in turn."""
        if self.inputs.sequence_parallel:
            self._gather_and_scatter()
        else:
            self._reduce()

    def _gather_and_scatter(self) -> None:
        arriving, leaving = self._gather(0), []
        for chunk in range(self.chunks):
            arriving.wait()
            if chunk + 1 < self.chunks:
                arriving = self._gather(chunk + 1)
            self._multiply(self._gathered[chunk], self._partial[chunk])
            leaving.append(reduce_scatter_tensor(self._placed[chunk], self._partial[chunk],
                                                 group=self.group, async_op=True))
        _wait(leaving)

    def _gather(self, chunk: int) -> Any:
        return all_gather_tensor(self._gathered[chunk], self._tokens[chunk], group=self.group,
                                 async_op=True)

    def _reduce(self) -> None:
        leaving = []
        for tokens, placed in zip(self._tokens, self._placed, strict=True):
            self._multiply(tokens, placed)
            leaving.append(dist.all_reduce(placed, group=self.group, async_op=True))
        _wait(leaving)

    def _multiply(self, tokens: torch.Tensor, partial: torch.Tensor) -> None:
        torch.mm(tokens, self.inputs.up, out=self._hidden)
        self.inputs.activate(self._hidden)
        torch.mm(self._hidden, self.inputs.down, out=partial)


class Gradients(_Chunked[GradientsInputs]):
    """A chunk is a bucket of layers, reduced while the next layers' gradients are made."""

    def __init__(self, inputs: GradientsInputs) -> None:
        super().__init__(inputs)
        self.output = self.empty(inputs.layers, inputs.spec.n, inputs.spec.k)
        self._buckets = self.output.chunk(self.chunks)
        self._gradients = inputs.gradients.mT.chunk(self.chunks)

    def run(self) -> None:
        """Multiply, and reduce, bucket by bucket."""
        leaving = []
        for gradients, bucket in zip(self._gradients, self._buckets, strict=True):
            for transposed, weight in zip(gradients, bucket, strict=True):
                torch.mm(transposed, self.inputs.tokens, out=weight)
            leaving.append(dist.all_reduce(bucket, group=self.group, async_op=True))
        _wait(leaving)


class Experts(_Chunked[ExpertsInputs]):
    """Of the tokens for each expert one chunk is sent, and the results of another sent back.

    One all_to_all takes what is for different ranks from one piece of memory, so a chunk's tokens
    are copied together, and its results to where they belong, under the other chunks' messages.
    """

    def __init__(self, inputs: ExpertsInputs) -> None:
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

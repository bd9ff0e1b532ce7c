"""Implementation ``chunked_pipeline``: one chunk is communicated while another is multiplied.

Collectives are started with ``async_op=True``: gloo's run on its own threads, NCCL's on its own
stream. Backend mpi's are complete when they are started (`backends.mpi_group`), so nothing
overlaps there and chunks only cost. Where `by_messages` holds, the parts of a chunk are sent from
each rank to each instead, and each adds up its sums.

A rank's rows are cut, or by messages the columns of a weight that is larger. A chunk of all ranks
is then one contiguous message and, where its results may lie together, one product. Experts
multiply while tokens travel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.kinds.primitive.run import inputs as rank_inputs
from hpcbench.kinds.primitive.run.implementations import base
from hpcbench.operations.data import all_gather_tensor, reduce_scatter_tensor
from hpcbench.operations.place import finish


class Chunked(base.Implementation[base.AnyInputs]):
    """The base of all: the number of chunks, and whether messages carry them."""

    def __init__(self, inputs: base.AnyInputs) -> None:
        super().__init__(inputs)
        self.chunks = int(inputs.spec.option("chunks"))
        self.by_messages = base.by_messages(inputs.place)

    def blocks(self, rows: torch.Tensor) -> torch.Tensor:
        """Return all ranks' rows one below the other as (chunks, ranks, rows, columns)."""
        return rows.view(self.ranks, self.chunks, -1, rows.shape[1]).transpose(0, 1)

    def to_all(self, chunks: torch.Tensor) -> torch.Tensor:
        """Return chunks of which every rank gets the same as (chunks, ranks, ...)."""
        return chunks.unsqueeze(1).expand(-1, self.ranks, *chunks.shape[1:])

    def add_arriving(
        self, started: Sequence[Sequence[Any]], arrived: Iterable[torch.Tensor],
        totals: Iterable[torch.Tensor],
    ) -> None:
        """Add to the rank's own part of each chunk those of the others, as they come."""
        for works, blocks, total in zip(started, arrived, totals, strict=True):
            finish(works)
            for block in (*blocks[:self.rank], *blocks[self.rank + 1:]):
                total.add_(block)

    def reduce_each(
        self, starts: Iterable[torch.Tensor], results: Iterable[torch.Tensor],
        multiply: Callable[[torch.Tensor, torch.Tensor], object],
    ) -> None:
        """Multiply chunk by chunk; each result is reduced while the next one is made."""
        leaving = []
        for start, result in zip(starts, results, strict=True):
            multiply(start, result)
            leaving.append(dist.all_reduce(result, group=self.group, async_op=True))
        finish(leaving)


class Columnwise(Chunked[rank_inputs.ColumnwiseInputs]):
    """A chunk of A is gathered while another is multiplied, or one of C while another is made."""

    def __init__(self, inputs: rank_inputs.ColumnwiseInputs) -> None:
        super().__init__(inputs)
        columns, rows = inputs.weight.shape[1], inputs.rows.shape[0] // self.chunks
        self._rows = inputs.rows.view(self.chunks, rows, -1)
        self.output = self.empty(inputs.spec.m, columns)
        self._placed = self.blocks(self.output)
        if inputs.gather_first:
            self._sent = self._rows
            self._gathered = self.empty(self.chunks, self.ranks, rows, inputs.spec.k)
        else:
            self._sent = (self._placed[:, self.rank] if self.by_messages else
                          self.empty(self.chunks, rows, columns))
            self._gathered = self._placed
        if self.by_messages:
            self._exchange = base.Exchange(inputs.place, self.to_all(self._sent), self._gathered)

    def run(self) -> None:
        if self.inputs.gather_first:
            self._gather_first()
        elif self.by_messages:
            self._multiply_and_send()
        else:
            self._multiply_first()

    def _gather_first(self) -> None:
        """Start to gather all chunks, and multiply the own rows under the first of them.

        So none waits for a product to end. NCCL does them one after the other, and a pair of
        ranks has one stream: the first chunk comes hardly later (benchmarks/results/overlap.md)."""
        arriving, leaving = self._gather()
        torch.mm(self.inputs.rows, self.inputs.weight,
                 out=self.output.chunk(self.ranks)[self.rank])
        for started, gathered, placed in zip(arriving, self._gathered, self._placed, strict=True):
            finish(started)
            _multiply_others(gathered, self.inputs.weight, placed, self.rank)
        finish(leaving)

    def _gather(self) -> tuple[list[Sequence[Any]], Sequence[Any]]:
        """Return the requests that bring each chunk, and the others to wait for."""
        if self.by_messages:
            return self._exchange.receive(), self._exchange.send_all()
        return [[all_gather_tensor(gathered.flatten(0, 1), rows, group=self.group, async_op=True)]
                for gathered, rows in zip(self._gathered, self._rows, strict=True)], ()

    def _multiply_and_send(self) -> None:
        started = [*chain.from_iterable(self._exchange.receive())]
        for chunk, (rows, own) in enumerate(zip(self._rows, self._sent, strict=True)):
            torch.mm(rows, self.inputs.weight, out=own)
            started.extend(self._exchange.send(chunk))
        finish(started)

    def _multiply_first(self) -> None:
        """Gather into a list: the chunks of different ranks lie apart in C."""
        leaving = []
        for rows, own, gathered in zip(self._rows, self._sent, self._gathered, strict=True):
            torch.mm(rows, self.inputs.weight, out=own)
            leaving.append(dist.all_gather(list(gathered), own, group=self.group, async_op=True))
        finish(leaving)


class Rowwise(Chunked[rank_inputs.RowwiseInputs]):
    """A chunk of C, as many rows of every rank's part, is reduced while the next is multiplied.

    By messages the sum is formed where it belongs, and the own rows are multiplied last, under
    the last chunk's. There a chunk may be as many columns of C instead."""

    def __init__(self, inputs: rank_inputs.RowwiseInputs) -> None:
        super().__init__(inputs)
        m, n, ranks = inputs.spec.m, inputs.spec.n, self.ranks
        rows = m // ranks if inputs.scatter else m
        self.output = self.empty(rows, n)
        self._placed: Sequence[torch.Tensor] = self.output.chunk(self.chunks)
        self._weights: Sequence[torch.Tensor] = [inputs.weight] * self.chunks
        if inputs.scatter:
            self._columns = [*self.blocks(inputs.columns)]
            if self.by_messages and n > rows:
                self._cut_columns()
            self._partial = [self.empty(ranks, *placed.shape) for placed in self._placed]
        if inputs.scatter and self.by_messages:
            self._arrived = [self.empty(*partial.shape) for partial in self._partial]
            self._exchange = base.Exchange(inputs.place, self._partial, self._arrived)

    def _cut_columns(self) -> None:
        """Make a chunk of columns of the weight instead of rows.

        A BLAS packs both operands anew for each product. Cut by rows, the weight is packed in
        every chunk; cut by columns, the rows are. A rank's rows are the smaller ones here."""
        self._columns = [self.inputs.columns.view(self.ranks, len(self.output), -1)] * self.chunks
        self._weights = self.inputs.weight.tensor_split(self.chunks, dim=1)
        self._placed = self.output.tensor_split(self.chunks, dim=1)

    def run(self) -> None:
        if not self.inputs.scatter:
            self.reduce_each(self.inputs.columns.chunk(self.chunks), self._placed, self._multiply)
        elif self.by_messages:
            self._send_and_add()
        else:
            self._scatter()

    def _send_and_add(self) -> None:
        leaving: list[Any] = []
        arriving = self._exchange.receive()
        for chunk, partial in enumerate(self._partial):
            _multiply_others(self._columns[chunk], self._weights[chunk], partial, self.rank)
            leaving.extend(self._exchange.send(chunk))
        torch.mm(self.inputs.columns.chunk(self.ranks)[self.rank], self.inputs.weight,
                 out=self.output)
        self.add_arriving(arriving, self._arrived, self._placed)
        finish(leaving)

    def _scatter(self) -> None:
        leaving: list[Any] = []
        for columns, partial, placed in zip(self._columns, self._partial, self._placed,
                                            strict=True):
            _multiply_blocks(columns, self.inputs.weight, partial)
            leaving.append(reduce_scatter_tensor(placed, partial.flatten(0, 1), group=self.group,
                                                 async_op=True))
        finish(leaving)

    def _multiply(self, columns: torch.Tensor, partial: torch.Tensor) -> None:
        torch.mm(columns, self.inputs.weight, out=partial)


class Mlp(Chunked[rank_inputs.MlpInputs]):
    """A chunk is gathered, and another one reduced, while one goes through both products.

    By messages the own tokens are the first in the first product, while the first chunk comes. They
    are the last in the second product, while the last chunk's sums come."""

    def __init__(self, inputs: rank_inputs.MlpInputs) -> None:
        super().__init__(inputs)
        m, k, rows = inputs.spec.m, inputs.spec.k, inputs.tokens.shape[0] // self.chunks
        self.output = self.empty(*inputs.tokens.shape)
        self._placed = self.output.view(self.chunks, -1, k)
        self._tokens = inputs.tokens.view(self.chunks, -1, k)
        self._hidden = self.empty(m // self.chunks, inputs.up.shape[1])
        if inputs.sequence_parallel:
            self._gathered = self.empty(self.chunks, self.ranks, rows, k)
            self._partial = self.empty(self.chunks, self.ranks, rows, k)
        if inputs.sequence_parallel and self.by_messages:
            self._own_hidden = self.empty(inputs.tokens.shape[0], inputs.up.shape[1])
            self._arrived = self.empty(*self._partial.shape)
            self._tokens_exchange = base.Exchange(
                inputs.place, self.to_all(self._tokens), self._gathered)
            self._sums_exchange = base.Exchange(inputs.place, self._partial, self._arrived)

    def run(self) -> None:
        if not self.inputs.sequence_parallel:
            self.reduce_each(self._tokens, self._placed, self._multiply)
        elif self.by_messages:
            self._exchange_and_add()
        else:
            self._gather_and_scatter()

    def _exchange_and_add(self) -> None:
        arriving, sums = self._tokens_exchange.receive(), self._sums_exchange.receive()
        leaving = [*self._tokens_exchange.send_all()]
        self._enter(self.inputs.tokens, self._own_hidden)
        hidden = self._hidden.view(self.ranks, -1, self._hidden.shape[1])
        for chunk, started in enumerate(arriving):
            finish(started)
            _multiply_others(self._gathered[chunk], self.inputs.up, hidden, self.rank)
            self.inputs.activate(self._hidden)
            _multiply_others(hidden, self.inputs.down, self._partial[chunk], self.rank)
            leaving.extend(self._sums_exchange.send(chunk))
        torch.mm(self._own_hidden, self.inputs.down, out=self.output)
        self.add_arriving(sums, self._arrived, self._placed)
        finish(leaving)

    def _gather_and_scatter(self) -> None:
        arriving, leaving = self._gather(0), []
        for chunk in range(self.chunks):
            arriving.wait()
            if chunk + 1 < self.chunks:
                arriving = self._gather(chunk + 1)
            partial = self._partial[chunk].flatten(0, 1)
            self._multiply(self._gathered[chunk].flatten(0, 1), partial)
            leaving.append(reduce_scatter_tensor(self._placed[chunk], partial, group=self.group,
                                                 async_op=True))
        finish(leaving)

    def _gather(self, chunk: int) -> Any:
        return all_gather_tensor(self._gathered[chunk].flatten(0, 1), self._tokens[chunk],
                                 group=self.group, async_op=True)

    def _multiply(self, tokens: torch.Tensor, partial: torch.Tensor) -> None:
        self._enter(tokens, self._hidden)
        torch.mm(self._hidden, self.inputs.down, out=partial)

    def _enter(self, tokens: torch.Tensor, hidden: torch.Tensor) -> None:
        torch.mm(tokens, self.inputs.up, out=hidden)
        self.inputs.activate(hidden)


class Gradients(Chunked[rank_inputs.GradientInputs]):
    """A chunk is a bucket of layers, reduced while the next layers' gradients are made."""

    def __init__(self, inputs: rank_inputs.GradientInputs) -> None:
        super().__init__(inputs)
        self.output = self.empty(inputs.layers, inputs.spec.n, inputs.spec.k)
        self._buckets = self.output.chunk(self.chunks)
        self._gradients = inputs.gradients.mT.chunk(self.chunks)

    def run(self) -> None:
        self.reduce_each(self._gradients, self._buckets, self._multiply)

    def _multiply(self, gradients: torch.Tensor, bucket: torch.Tensor) -> None:
        for transposed, weight in zip(gradients, bucket, strict=True):
            torch.mm(transposed, self.inputs.tokens, out=weight)


def _multiply_blocks(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """Set ``out[b]`` to ``left[b] @ right``: (blocks, rows, k) by (k, n) to (blocks, rows, n).

    Blocks that lie one behind the other are one matrix. Others go to a batched product, which
    takes strided memory: one kernel on a GPU, one product a block on a CPU."""
    if left.is_contiguous() and out.is_contiguous():
        torch.mm(left.flatten(0, 1), right, out=out.flatten(0, 1))
    else:
        torch.bmm(left, right.expand(left.shape[0], -1, -1), out=out)


def _multiply_others(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, own: int,
) -> None:
    """Do as `_multiply_blocks`, for all blocks but ``own``: those before it, and those after it."""
    for others in (slice(own), slice(own + 1, None)):
        if len(left[others]):
            _multiply_blocks(left[others], right, out[others])


class Experts(Chunked[rank_inputs.ExpertInputs]):
    """One chunk of the tokens for each expert is sent, and the results of another sent back.

    One all_to_all reads the parts for all ranks from one piece of memory. So a chunk's tokens are
    copied together, and its results to where they belong, during the other chunks' messages."""

    def __init__(self, inputs: rank_inputs.ExpertInputs) -> None:
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
    """Return the rows of each chunk for each rank; ``rows`` are sorted by rank."""
    by_rank = [part.split([chunk[rank] for chunk in chunks])
               for rank, part in enumerate(rows.split(counts))]
    return [list(pieces) for pieces in zip(*by_rank, strict=True)]

"""Implementations of `plan.dispatch`: ways there and back; what experts do is the same in all.

A call stamps when tokens have arrived, when the experts are done, and when results are back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.backends.groups import open_lines
from hpcbench.errors import CaseError
from hpcbench.kinds.primitive.plan.workload import PHASES
from hpcbench.kinds.primitive.run.dispatch_inputs import WAYS, DispatchInputs, router_weights
from hpcbench.kinds.primitive.run.implementations.base import Implementation
from hpcbench.operations.data import all_gather_tensor, reduce_scatter_tensor

_NAN_BYTE = 0x7F
"""NaN of e4m3."""


class Stamps:
    """Moments of each call, on a GPU by events, which are read when all is done."""

    def __init__(self, device: torch.device) -> None:
        self._calls: list[list[Any]] = []
        self._on_gpu = device.type == "cuda"

    def begin(self) -> None:
        self._calls.append([])
        self.stamp()

    def stamp(self) -> None:
        self._calls[-1].append(self._now())

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def durations_ns(self) -> list[list[int]]:
        """Return the durations of each phase, one a call."""
        if self._on_gpu:
            torch.cuda.synchronize()
        calls = [[int(since.elapsed_time(at) * 1e6) if self._on_gpu else at - since
                  for since, at in pairwise(call)] for call in self._calls]
        return [list(phase) for phase in zip(*calls, strict=True)]


class Dispatching(Implementation[DispatchInputs]):
    """Tokens to experts, experts, results back; subclasses define `dispatch` and `combine`.

    ``sent`` are the copies of this rank's tokens by receiver, ``arriving`` those that it gets by
    sender, in whose order the rows of `dispatch`'s result are."""

    def __init__(self, inputs: DispatchInputs) -> None:
        super().__init__(inputs)
        self._buffers: list[torch.Tensor] = []
        own = inputs.tables.of(self.rank)
        self.sent = [inputs.copies(own, receiver) for receiver in range(self.ranks)]
        self.arriving = [inputs.copies(inputs.tables.of(sender), self.rank)
                         for sender in range(self.ranks)]
        self.sends, self.receives = ([len(one.token) for one in side]
                                     for side in (self.sent, self.arriving))
        self._way_back = WAYS[inputs.wire.combine]
        self._experts = self._made_experts()
        self._stamps = Stamps(inputs.place.device)
        self.output = torch.empty(0, dtype=inputs.dtype, device=inputs.place.device)

    def run(self) -> None:
        self._stamps.begin()
        arrived = self.dispatch()
        self._stamps.stamp()
        results = self._experts(arrived.view(WAYS[self.inputs.wire.dispatch]))
        self._stamps.stamp()
        self.output = self.combine(results)
        self._stamps.stamp()

    def dispatch(self) -> torch.Tensor:
        """Return the tokens that arrive, one row a copy; fp8 as bytes."""
        raise NotImplementedError

    def combine(self, results: torch.Tensor) -> torch.Tensor:
        """Return the sums of this rank's tokens, of one row a copy in the order of `dispatch`."""
        raise NotImplementedError

    def report(self) -> dict[str, Any]:
        return {"phases": {"names": list(PHASES), "ns": self._stamps.durations_ns()}}

    def restore(self) -> None:
        """Wipe the last result and all that arrives; torch cannot fill fp8."""
        self.output.fill_(float("nan"))
        for buffer in self._buffers:
            buffer.fill_(_NAN_BYTE if buffer.dtype == torch.uint8 else float("nan"))

    def buffer(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """Return rows of such elements, which are wiped before each call."""
        made = torch.empty((rows, like.shape[1]), dtype=like.dtype, device=like.device)
        self._buffers.append(made)
        return made

    def here(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.inputs.here(torch.cat(list(parts)))

    @property
    def tokens(self) -> torch.Tensor:
        """Return this rank's tokens as they are sent: fp8, which gloo has not, as bytes."""
        tokens = self.inputs.tokens
        return tokens.view(torch.uint8) if tokens.dtype == torch.float8_e4m3fn else tokens

    def _made_experts(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return what the experts of this rank do with all rows that arrive."""
        inputs, first = self.inputs, self.rank * self.inputs.experts_each
        offsets = [sum(self.receives[:sender]) for sender in range(self.ranks)]
        rows = torch.cat([one.copy + offset for one, offset in
                          zip(self.arriving, offsets, strict=True)])
        experts, factors = (torch.cat([getattr(one, name) for one in self.arriving])
                            for name in ("expert", "factor"))
        if inputs.product == "none":
            scale = torch.zeros(sum(self.receives), dtype=inputs.accumulator).index_add_(
                0, rows, factors * inputs.scale(first + experts))
            return _Scaling(inputs.here(scale[:, None]), self._way_back)
        work = [tuple(map(inputs.here, (
            rows[own := experts == expert], factors[own][:, None],
            *inputs.weights_of(first + expert)))) for expert in range(inputs.experts_each)]
        return _Products(work, inputs, self._way_back)

    def added(self, returned: torch.Tensor, token: torch.Tensor,
              weight: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums of the rows that came back, by token."""
        inputs = self.inputs
        sums = torch.zeros(inputs.tokens.shape, dtype=inputs.accumulator,
                           device=returned.device)
        return sums.index_add_(0, token, returned.to(inputs.accumulator) * weight).to(inputs.dtype)


class _Scaling:
    """Each row times a number: its experts' own, weighted."""

    def __init__(self, scale: torch.Tensor, way_back: torch.dtype) -> None:
        self._scale, self._way_back = scale, way_back

    def __call__(self, arrived: torch.Tensor) -> torch.Tensor:
        return (arrived.to(self._scale.dtype) * self._scale).to(self._way_back)


class _Products:
    """relu(x W1) W2 of each expert's rows, one expert after the other, weighted and added."""

    def __init__(self, work: Sequence[tuple[torch.Tensor, ...]], inputs: DispatchInputs,
                 way_back: torch.dtype) -> None:
        self._work, self._inputs, self._way_back = work, inputs, way_back

    def __call__(self, arrived: torch.Tensor) -> torch.Tensor:
        inputs = self._inputs
        sums = torch.zeros(arrived.shape, dtype=inputs.accumulator, device=arrived.device)
        tokens = arrived.to(inputs.dtype)
        for rows, factor, up, down in self._work:
            result = (tokens[rows] @ up).relu_() @ down
            sums.index_add_(0, rows, result.to(inputs.accumulator) * factor)
        return sums.to(self._way_back)


class Direct(Dispatching):
    """One all_to_all_single each way."""

    def __init__(self, inputs: DispatchInputs) -> None:
        super().__init__(inputs)
        self._order = self.here([one.token for one in self.sent])
        self._weight = self.here([one.weight for one in self.sent])[:, None]
        self._out = self.buffer(len(self._order), self.tokens)
        self._arrived = self.buffer(sum(self.receives), self.tokens)
        self._returned = self.buffer(len(self._order), self.tokens.new_empty(
            0, inputs.spec.k, dtype=self._way_back))

    def dispatch(self) -> torch.Tensor:
        torch.index_select(self.tokens, 0, self._order, out=self._out)
        return self.there(self._arrived, self._out)

    def combine(self, results: torch.Tensor) -> torch.Tensor:
        return self.added(self.back(self._returned, results), self._order, self._weight)

    def there(self, arrived: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Send rows by receiver; return those that come, by sender."""
        dist.all_to_all_single(arrived, out, self.receives, self.sends, group=self.group)
        return arrived

    def back(self, returned: torch.Tensor, results: torch.Tensor) -> torch.Tensor:
        """Send rows by sender back; return those that come, by receiver."""
        dist.all_to_all_single(returned, results, self.sends, self.receives, group=self.group)
        return returned


class Hierarchical(Direct):
    """Among the ranks of a node to the one with the receiver's number in its node, then between
    nodes to the receiver; the way back is the same backwards."""

    def __init__(self, inputs: DispatchInputs) -> None:
        super().__init__(inputs)
        place = inputs.place
        size = int(inputs.spec.option("node_ranks")) or min(place.local_size, self.ranks)
        if self.ranks % size:
            raise CaseError(f"{self.ranks} ranks cannot be divided into nodes of {size}")
        nodes = range(0, self.ranks, size)
        self._inner = self._group([range(first, first + size) for first in nodes])
        self._outer = self._group([range(own, self.ranks, size) for own in range(size)])
        node, own = divmod(self.rank, size)
        tables = [inputs.tables.of(node * size + sender) for sender in range(size)]
        passing = [[len(inputs.copies(table, first + own).token) for first in nodes]
                   for table in tables]  # of each rank of this node, to each node
        by_number = [first + number for number in range(size) for first in nodes]
        self._first = self.here([_blocks(self.sends, by_number)])
        self._sent = [sum(self.sends[number::size]) for number in range(size)]
        self._passed = [sum(row) for row in passing]
        flat = [count for row in passing for count in row]
        self._second = self.here([_blocks(flat, [
            sender * len(nodes) + to for to in range(len(nodes)) for sender in range(size)])])
        self._leaving = [sum(row[to] for row in passing) for to in range(len(nodes))]
        self._entering = [sum(self.receives[first:first + size]) for first in nodes]

    def close(self) -> None:
        for group in (self._inner, self._outer):
            dist.destroy_process_group(group)

    def _group(self, lines: Sequence[range]) -> Any:
        place = self.inputs.place
        return open_lines(place.group, [[place.global_rank(rank) for rank in line]
                                        for line in lines], place.number)

    def there(self, arrived: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        passed = out.new_empty(sum(self._passed), out.shape[1])
        dist.all_to_all_single(passed, out[self._first], self._passed, self._sent,
                               group=self._inner)
        dist.all_to_all_single(arrived, passed[self._second], self._entering, self._leaving,
                               group=self._outer)
        return arrived

    def back(self, returned: torch.Tensor, results: torch.Tensor) -> torch.Tensor:
        passed = results.new_empty(sum(self._passed), results.shape[1])
        dist.all_to_all_single(passed, results, self._leaving, self._entering, group=self._outer)
        ordered = torch.empty_like(passed)
        ordered[self._second] = passed
        own = torch.empty_like(returned)
        dist.all_to_all_single(own, ordered, self._sent, self._passed, group=self._inner)
        returned[self._first] = own
        return returned


def _blocks(counts: Sequence[int], order: Sequence[int]) -> torch.Tensor:
    """Return the rows of blocks of so many rows each, taken in this order of blocks."""
    firsts = [sum(counts[:block]) for block in range(len(counts))]
    return torch.cat([torch.arange(firsts[block], firsts[block] + counts[block])
                      for block in order])


class Gathered(Dispatching):
    """An all_gather of all tokens, of which a rank takes those of its experts, and a
    reduce_scatter of the results for all tokens."""

    def __init__(self, inputs: DispatchInputs) -> None:
        super().__init__(inputs)
        inputs.additions = self.ranks
        tokens = len(inputs.tokens)
        self._rows = self.here([one.token + sender * tokens
                                for sender, one in enumerate(self.arriving)])
        self._all = self.buffer(tokens * self.ranks, self.tokens)
        self._own = self.buffer(tokens, self.tokens.new_empty(
            0, inputs.spec.k, dtype=self._way_back))

    def dispatch(self) -> torch.Tensor:
        all_gather_tensor(self._all, self.tokens, group=self.group)
        return self._all[self._rows]

    def combine(self, results: torch.Tensor) -> torch.Tensor:
        partial = results.new_zeros(len(self._all), results.shape[1])
        partial[self._rows] = results
        reduce_scatter_tensor(self._own, partial, group=self.group)
        return self._own.to(self.inputs.dtype)


class AddedByLibrary(Dispatching):
    """A library's dispatch, the experts, and its combine, which adds up what ranks return. Rows
    arrive in no known order, with their experts' numbers on the rank, or -1, and the router's
    weights."""

    def __init__(self, inputs: DispatchInputs) -> None:
        super().__init__(inputs)
        table = inputs.table(self.rank)
        self.choices = inputs.here(table)
        self.weights = inputs.here(router_weights(table.shape[1], torch.float32).expand(
            table.shape).contiguous())
        self._local = [tuple(map(inputs.here, (inputs.scale(torch.tensor(expert)), *(
            inputs.weights_of(expert) if inputs.product == "mlp" else ()))))
            for expert in range(self.rank * inputs.experts_each,
                                (self.rank + 1) * inputs.experts_each)]

    def sums(self, arrived: torch.Tensor, choices: torch.Tensor,
             weights: torch.Tensor) -> torch.Tensor:
        """Return of each row the weighted sum of what its experts here make of it."""
        self._stamps.stamp()
        sums = torch.zeros(arrived.shape, dtype=torch.float32, device=arrived.device)
        for expert, (scale, *products) in enumerate(self._local):
            row, choice = (choices == expert).nonzero(as_tuple=True)
            result = arrived[row]
            for up, down in zip(products[::2], products[1::2], strict=True):
                result = (result @ up).relu_() @ down
            factor = weights[row, choice, None] * (1 if products else scale)
            sums.index_add_(0, row, result.float() * factor)
        self._stamps.stamp()
        return sums.to(arrived.dtype)


class DeepEp(AddedByLibrary):
    """DeepEP's ElasticBuffer (dd758ca of 2026-07)."""

    def __init__(self, inputs: DispatchInputs) -> None:
        super().__init__(inputs)
        tokens, top_k = self.choices.shape
        self._buffer = import_module("deep_ep").ElasticBuffer(
            self.group, num_max_tokens_per_rank=tokens, hidden=inputs.spec.k, num_topk=top_k,
            explicitly_destroy=True)

    def run(self) -> None:
        self._stamps.begin()
        arrived, choices, weights, handle, _ = self._buffer.dispatch(
            self.inputs.tokens, topk_idx=self.choices, topk_weights=self.weights,
            num_experts=self.inputs.routing.experts)
        self.output = self._buffer.combine(self.sums(arrived, choices, weights), handle)[0]
        self._stamps.stamp()

    def close(self) -> None:
        self._buffer.destroy()


class NcclEp(AddedByLibrary):
    """NCCL EP's high-throughput algorithm, by nccl4py (NVIDIA/nccl 5067397 of 2026-06).

    Buffers have room for all tokens of all ranks, as that version wants it; the first rows are
    those that arrive. The routing is told in each call, as a router would."""

    def __init__(self, inputs: DispatchInputs) -> None:
        super().__init__(inputs)
        library = import_module("nccl.ep")
        (tokens, top_k), hidden = self.choices.shape, inputs.spec.k
        rows = tokens * self.ranks
        self._communicator = import_module("nccl.ep.interop.torch").get_nccl_comm_from_group(
            self.group)
        self._ep = library.Group.create(self._communicator, library.GroupConfig(
            algorithm=library.Algorithm.HIGH_THROUGHPUT, num_experts=inputs.routing.experts,
            max_dispatch_tokens_per_rank=tokens, max_recv_tokens_per_rank=rows,
            max_token_bytes=hidden * self.tokens.element_size()))
        self._arrived = self.buffer(rows, self.tokens)
        self._arrived_weights = self.weights.new_empty(rows, top_k)
        self._arrived_choices = self.choices.new_empty(rows, top_k)
        self.output = torch.empty_like(self.tokens)
        self._told, sent, weights, got, *beside, added = map(library.Tensor, (
            self.choices, self.tokens, self.weights, self._arrived, self._arrived_weights,
            self._arrived_choices, self.output))
        self._there = (library.DispatchInputs(tokens=sent, topk_weights=weights),
                       library.DispatchOutputs(tokens=got, topk_weights=beside[0],
                                               topk_idx=beside[1]))
        self._back = library.CombineInputs(tokens=got), library.CombineOutputs(tokens=added)
        self._handle = self._ep.create_handle(library.Layout.FLAT, self._told,
                                              stream=self._stream)

    @property
    def _stream(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    def run(self) -> None:
        self._stamps.begin()
        self._handle.update(self._told, stream=self._stream)
        self._handle.dispatch(*self._there, stream=self._stream)
        here = slice(sum(self.receives))
        self._arrived[here] = self.sums(self._arrived[here], self._arrived_choices[here],
                                        self._arrived_weights[here])
        self._handle.combine(*self._back, stream=self._stream)
        self._stamps.stamp()

    def close(self) -> None:
        self._handle.destroy()
        self._ep.destroy()
        self._communicator.destroy()

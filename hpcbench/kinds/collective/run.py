"""The collectives as a worker runs them; `operations.collectives` has a row for each.

Where the parts differ in size (the ``split`` axis), the backend's own form with lists of parts or
of sizes is called. Inside torch, gloo and nccl may run several simpler operations for it; nothing
is put together here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hpcbench.backends.devices import cache_bytes
from hpcbench.errors import CaseError
from hpcbench.kinds.collective.plan import ISSUE, Collective
from hpcbench.measurement.runner import Runner
from hpcbench.operations import data
from hpcbench.operations.collectives import DTYPE_BYTES, cold_bytes, part_counts
from hpcbench.operations.loads import planned_matrix
from hpcbench.operations.place import Buffers, DirectCalls, Place
from hpcbench.plan.workload import Workload
from hpcbench.registry import load


class Operation:
    """One collective on its own buffers; subclasses allocate in ``__init__`` and define ``issue``,
    or ``run``, if it cannot be issued apart from waiting for it.

    ``source`` is what this rank starts from, ``buffer`` what an in-place form restores from it,
    ``output`` what is checked against ``expected`` if this rank ``has_result``. ``root`` is the
    global rank of the root, which is rank 0 of the group where the collective has none."""

    source: torch.Tensor
    output: torch.Tensor
    expected: torch.Tensor
    has_result = True
    given: torch.Tensor | None = None
    """The tensor that a direct call reads, where that is not ``output`` (`call_directly`)."""

    def __init__(self, spec: Collective, place: Place) -> None:
        self.spec = spec
        self.place = place
        self.dtype = data.DTYPES[spec.dtype]
        self.poison = data.poison(self.dtype)
        exact = spec.op != "avg" or data.average_is_exact(place.world_size, self.dtype)
        self._ulps = 0 if exact else data.AVG_ULPS
        self.name = spec.collective
        self.root = place.global_rank(int(spec.root or 0))
        self.is_root = place.number == self.root

    def prepare(self) -> None:
        """Make the next call start from the same inputs and an output that is not yet right."""
        data.wipe(self.output)

    def issue(self, *, async_op: bool) -> Any:
        """Issue the collective. With ``async_op`` return an object with a method ``wait``."""
        raise CaseError(f"{self.name} cannot be issued apart from waiting for it")

    def run(self) -> None:
        """Issue the collective; on return it is complete, or ordered on the current stream."""
        self.issue(async_op=False)

    def corrupt_output(self) -> None:
        """Flip one bit of the output, for tests of the check."""
        data.flip(self.output)

    def check(self) -> data.Mismatch | None:
        """Compare the buffer that was just timed with the expected result, if there is one."""
        if not self.has_result:
            return None
        return data.compare(self.output, self.expected, ulps=self._ulps)

    def empty(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=self.dtype, device=self.place.device)

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.place.device)


def reduce_op(name: str | None) -> dist.ReduceOp:
    return {
        "sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
        "max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG, "band": dist.ReduceOp.BAND,
        "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR,
    }[str(name)]


class Started(NamedTuple):
    """Messages that were started together."""

    messages: list[Any]

    def wait(self) -> None:
        for message in self.messages:
            message.wait()


class Asynchronous:
    """A collective that is issued, then waited for; how long issuing takes is recorded."""

    def __init__(self, operation: Operation) -> None:
        self.name, self.place = operation.name, operation.place
        self.prepare, self.check = operation.prepare, operation.check
        self.corrupt_output = operation.corrupt_output
        self._issue = operation.issue
        self._issue_ns: list[int] = []

    def run(self) -> None:
        began_ns = time.perf_counter_ns()
        work = self._issue(async_op=True)
        self._issue_ns.append(time.perf_counter_ns() - began_ns)
        if work is not None:  # torch returns None to a rank that has no part in the call
            work.wait()

    def answer(self) -> dict[str, Any]:
        """Return how long each call took to return."""
        return {"phases": {"names": [ISSUE], "ns": [self._issue_ns]}}

    def close(self) -> None:
        """Do nothing: nothing was opened."""


class Rotation:
    """Sets of buffers, each an operation; a call is one of the set that was used longest ago.

    All are restored when all have been used, the next one first. So what a call touches was last
    touched one set short of a round ago, and nothing is restored right before a call."""

    def __init__(self, sets: Sequence[Operation]) -> None:
        self.sets = sets
        self.name, self.place = sets[0].name, sets[0].place
        self._calls = [one.run for one in sets]
        self._at = -1
        self._used = len(sets)

    def prepare(self) -> None:
        """Restore all sets if the next call would find one that was used."""
        if self._used >= len(self.sets):
            self.restore()

    def restore(self) -> None:
        for step in range(1, len(self.sets) + 1):
            self.sets[(self._at + step) % len(self.sets)].prepare()
        self._used = 0

    def run(self) -> None:
        self._at = (self._at + 1) % len(self._calls)
        self._used += 1
        self._calls[self._at]()

    def corrupt_output(self) -> None:
        self.sets[self._at].corrupt_output()

    def check(self) -> data.Mismatch | None:
        return self.sets[self._at].check()


def call_directly(operation: Operation, calls: DirectCalls) -> None:
    """Make the operation a library's own call; restoring and checking stay the same."""
    spec = operation.spec
    buffers = Buffers(source=operation.given, output=operation.output, op=spec.op or "",
                      root=int(spec.root or 0))
    operation.run = calls.prepared(spec.collective, buffers)  # type: ignore[method-assign, assignment]


class Reduction(Operation):
    """A reduction of all ranks' buffers in place, of ``count`` elements each."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        self.op = reduce_op(spec.op)
        self.source = self.on_device(self.contribution())
        self.output = self.empty(spec.count)

    def contribution(self) -> torch.Tensor:
        return data.contributed(self.place.rank, self.place.world_size, str(self.spec.op),
                                self.spec.count, self.dtype, self.place.numbers)

    def expect(self) -> None:
        """Make the expected result; a rank that has none need not call this."""
        self.expected = self.on_device(data.reduced(
            self.place.world_size, str(self.spec.op), 0, self.spec.count, self.dtype,
            self.place.numbers))

    def prepare(self) -> None:
        self.output.copy_(self.source)


class AllReduce(Reduction):
    """torch.distributed.all_reduce, which has only the in-place form; direct calls have both.

    Out of place the call reads ``source`` itself, which must be the same after it."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        self.expect()
        self.keeps_input = spec.in_place is False
        if self.keeps_input:
            self.given = self.source

    def prepare(self) -> None:
        if self.keeps_input:
            data.wipe(self.output)
        else:
            self.output.copy_(self.source)

    def check(self) -> data.Mismatch | None:
        """Compare the output; out of place, also the input with what it was."""
        if (wrong := super().check()) or not self.keeps_input:
            return wrong
        return data.compare(self.source, self.on_device(self.contribution()))

    def issue(self, *, async_op: bool) -> Any:
        return dist.all_reduce(self.output, self.op, group=self.place.group, async_op=async_op)


class AllGather(Operation):
    """All-gather into one tensor: every rank ends with all ranks' parts, in rank order.

    In place, the part to send is the rank's own slot of the output, as in nccl-tests."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        counts = part_counts(spec.split, place.world_size, spec.count)
        parts = [data.moved(rank, 0, count, self.dtype)
                 for rank, count in zip(place.numbers, counts, strict=True)]
        self.expected = self.on_device(torch.cat(parts))
        self.source = self.on_device(parts[place.rank])
        self.output = self.empty(sum(counts))
        self.parts = list(self.output.split(counts))
        self.part = self.parts[place.rank] if spec.in_place else self.source
        self.given = None if spec.in_place else self.source

    def prepare(self) -> None:
        """Wipe the output; in place, put this rank's part back into its slot."""
        data.wipe(self.output)
        if self.spec.in_place:
            self.part.copy_(self.source)

    def issue(self, *, async_op: bool) -> Any:
        return data.all_gather_tensor(self.output, self.part, group=self.place.group,
                                      async_op=async_op)


class UnevenAllGather(AllGather):
    """torch.distributed.all_gather: rank r gives part r to all."""

    def issue(self, *, async_op: bool) -> Any:
        return dist.all_gather(self.parts, self.source, group=self.place.group, async_op=async_op)


class ReduceScatter(Operation):
    """Reduce-scatter of one tensor: rank r ends with part r of the reduction.

    In place, the result is written to the rank's own slot of the input, as in nccl-tests."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        counts = part_counts(spec.split, place.world_size, spec.count)
        op, start, own = str(spec.op), sum(counts[:place.rank]), counts[place.rank]
        self.op = reduce_op(op)
        self.source = self.on_device(
            data.contributed(place.rank, place.world_size, op, sum(counts), self.dtype,
                             place.numbers))
        self.expected = self.on_device(
            data.reduced(place.world_size, op, start, own, self.dtype, place.numbers))
        self.input = self.empty(sum(counts)) if spec.in_place else self.source
        self.given = self.input
        self.parts = list(self.input.split(counts))
        self.output = self.parts[place.rank] if spec.in_place else self.empty(own)

    def prepare(self) -> None:
        if self.spec.in_place:
            self.input.copy_(self.source)
        else:
            data.wipe(self.output)

    def issue(self, *, async_op: bool) -> Any:
        return data.reduce_scatter_tensor(self.output, self.input, self.op, group=self.place.group,
                                          async_op=async_op)


class UnevenReduceScatter(ReduceScatter):
    """torch.distributed.reduce_scatter: rank r is left with part r of the reduction."""

    def issue(self, *, async_op: bool) -> Any:
        return dist.reduce_scatter(self.output, self.parts, self.op, group=self.place.group,
                                   async_op=async_op)


class AllToAll(Operation):
    """torch.distributed.all_to_all_single: part d of rank s ends as part s of rank d."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        rows = _exchanged(spec, place.world_size)
        self.sent = rows[place.rank]
        self.received = [row[place.rank] for row in rows]
        parts = [data.moved(rank, sum(row[:place.rank]), row[place.rank], self.dtype)
                 for rank, row in zip(place.numbers, rows, strict=True)]
        self.expected = self.on_device(torch.cat(parts))
        self.source = self.on_device(data.moved(place.number, 0, sum(self.sent), self.dtype))
        self.given = self.source
        self.output = self.empty(sum(self.received))

    def issue(self, *, async_op: bool) -> Any:
        return dist.all_to_all_single(self.output, self.source, group=self.place.group,
                                      async_op=async_op)


def _exchanged(spec: Collective, ranks: int) -> list[list[int]]:
    """Return the elements that each rank sends to each. Raises CaseError for another table."""
    if not spec.matrix:
        return [part_counts(spec.split, ranks, spec.count, spec.dtype)] * ranks
    element = DTYPE_BYTES[spec.dtype]
    return [[cell // element for cell in row]
            for row in planned_matrix(spec.matrix, spec.sha256).of(ranks)]


class UnevenAllToAll(AllToAll):
    """The same with sizes: every rank sends part d of its buffer to rank d."""

    def issue(self, *, async_op: bool) -> Any:
        return dist.all_to_all_single(self.output, self.source, self.received, self.sent,
                                      group=self.place.group, async_op=async_op)


class Broadcast(Operation):
    """torch.distributed.broadcast of ``count`` elements; it has only the in-place form."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        self.expected = self.on_device(data.moved(self.root, 0, spec.count, self.dtype))
        self.output = self.empty(spec.count)

    def prepare(self) -> None:
        """Give the root its data, and every other rank anything but that."""
        if self.is_root:
            self.output.copy_(self.expected)
        else:
            data.wipe(self.output)

    def issue(self, *, async_op: bool) -> Any:
        return dist.broadcast(self.output, self.root, group=self.place.group, async_op=async_op)


class Reduce(Reduction):
    """torch.distributed.reduce, which has only the in-place form.

    Checked at the root: the contents of other ranks' buffers afterwards are not defined."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        self.has_result = self.is_root
        if self.is_root:
            self.expect()

    def issue(self, *, async_op: bool) -> Any:
        return dist.reduce(self.output, self.root, self.op, group=self.place.group,
                           async_op=async_op)


class Gather(Operation):
    """torch.distributed.gather; ``count`` elements from each rank, checked at the root."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        self.source = self.on_device(data.moved(place.number, 0, spec.count, self.dtype))
        self.given = self.source
        self.output, self.parts = self.empty(0), None
        self.has_result = self.is_root
        if self.is_root:
            parts = [data.moved(rank, 0, spec.count, self.dtype) for rank in place.numbers]
            self.expected = self.on_device(torch.cat(parts))
            self.output = self.empty(spec.count * place.world_size)
            self.parts = list(self.output.split(spec.count))

    def issue(self, *, async_op: bool) -> Any:
        return dist.gather(self.source, self.parts, self.root, group=self.place.group,
                           async_op=async_op)


class Scatter(Operation):
    """torch.distributed.scatter; ``count`` elements to each rank, the root's own included."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        start, total = place.rank * spec.count, place.world_size * spec.count
        self.parts = None
        if self.is_root:
            self.source = self.on_device(data.moved(self.root, 0, total, self.dtype))
            self.given = self.source
            self.parts = list(self.source.split(spec.count))
        self.expected = self.on_device(data.moved(self.root, start, spec.count, self.dtype))
        self.output = self.empty(spec.count)

    def issue(self, *, async_op: bool) -> Any:
        return dist.scatter(self.output, self.parts, self.root, group=self.place.group,
                            async_op=async_op)


class SendRecv(Operation):
    """A ring: every rank sends to the next and receives from the one before, as nccl-tests.

    ``count`` elements travel at the same time; at least 2 ranks."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        following = place.global_rank((place.rank + 1) % place.world_size)
        preceding = place.global_rank((place.rank - 1) % place.world_size)
        self.source = self.on_device(data.moved(place.number, 0, spec.count, self.dtype))
        self.expected = self.on_device(data.moved(preceding, 0, spec.count, self.dtype))
        self.output = self.empty(spec.count)
        self.given = self.source
        # The receive first: gloo's permission to send travels behind a rank's own data.
        self.exchange = [] if isinstance(place.group, DirectCalls) else [
            dist.P2POp(dist.irecv, self.output, preceding, group=place.group),
            dist.P2POp(dist.isend, self.source, following, group=place.group),
        ]

    def run(self) -> None:
        for request in self._start():
            request.wait()

    def issue(self, *, async_op: bool) -> Any:
        return Started(self._start())

    def _start(self) -> list[Any]:
        """Start both in one batch; torch has no batch for a plug-in that is itself the group."""
        if getattr(self.place.group, "_device_types", True):
            return list(dist.batch_isend_irecv(self.exchange))
        return [item.op(item.tensor, item.peer, group=item.group) for item in self.exchange]


class Barrier(Operation):
    """torch.distributed.barrier: nothing to prepare and nothing to check (the plan states it)."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        self.output, self.has_result = self.empty(0), False

    def issue(self, *, async_op: bool) -> Any:
        """Wait for all ranks of the group under test: none leaves before all have entered."""
        return dist.barrier(group=self.place.group, device_ids=self.place.device_ids,
                            async_op=async_op)


class CollectiveRunner(Runner):
    """Opens collectives; which class runs which is in its row."""

    def open(
        self, work: Workload, place: Place, *, validate: bool,
    ) -> Operation | Rotation | Asynchronous:
        """Allocate the collective on this rank. Raises CaseError if it is not installed."""
        assert isinstance(work, Collective)
        traits = work.traits
        path = traits.operation if work.split == "even" else traits.uneven_operation
        if traits.problem:
            raise CaseError(f"{traits.problem}; install its plug-in on every node")
        try:
            operation: type[Operation] = load(path, __package__)
        except (ImportError, AttributeError) as error:
            raise CaseError(f"{path} of {work.collective} cannot be loaded: {error}") from error
        if work.buffers == "cold":
            sets = work.sets(cold_bytes(cache_bytes(place.device)))
            return Rotation([_opened(operation, work, place) for _ in range(sets)])
        opened = _opened(operation, work, place)
        return Asynchronous(opened) if work.asynchronous else opened


def _opened(operation: type[Operation], work: Collective, place: Place) -> Operation:
    """Return the collective on buffers of its own, called as the group calls it."""
    opened = operation(work, place)
    if isinstance(place.group, DirectCalls):
        call_directly(opened, place.group)
    elif operation.run is Operation.run:  # without a frame of ours between the stamps
        opened.run = partial(opened.issue, async_op=False)  # type: ignore[method-assign]
    return opened

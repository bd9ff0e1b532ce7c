"""The runner of recorded jobs: each rank issues its calls in order, and waits at the end for all.

Calls in flight share one buffer to give and one to get of each dtype, all zeros, so their results
prove nothing. A check repeats each form of a call alone, with operands whose result is known."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.backends.groups import open_lines
from hpcbench.errors import CaseError, FileError
from hpcbench.kinds.replay import plan
from hpcbench.kinds.replay.plan import Replay
from hpcbench.measurement.loop import wait_until
from hpcbench.measurement.runner import Runner
from hpcbench.operations import data
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload

_SPIN_NS = 100_000
"""The last of a gap is spun: a sleep ends up to 50 us late."""
Issue = Callable[..., Any]
"""Issues a call, with ``async_op``; returns an object with a method ``wait``, or None."""


class PreparedCall:
    """One form of a call on this rank: its views of the shared buffers, and its check."""

    def __init__(self, form: plan.Form, place: Place, group: Any,
                 buffers: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.form, self.place, self.group = form, place, group
        self.position = form.ranks.index(place.number)
        gives, gets = form.elements(self.position)
        self.given, self.got = buffers[0][:gives], buffers[1][:gets]
        self.root = form.ranks[form.root]
        self.issue: Issue = getattr(self, f"_{form.collective}")()

    def _all_reduce(self) -> Issue:
        return partial(dist.all_reduce, self.got, _reduction(self.form.op), group=self.group)

    def _reduce(self) -> Issue:
        return partial(dist.reduce, self.got, self.root, _reduction(self.form.op),
                       group=self.group)

    def _broadcast(self) -> Issue:
        return partial(dist.broadcast, self.got, self.root, group=self.group)

    def _all_gather(self) -> Issue:
        if self._is_even():
            return partial(data.all_gather_tensor, self.got, self.given, group=self.group)
        return partial(dist.all_gather, list(self.got.split(self.form.parts)), self.given,
                       group=self.group)

    def _reduce_scatter(self) -> Issue:
        op = _reduction(self.form.op)
        if self._is_even():
            return partial(data.reduce_scatter_tensor, self.got, self.given, op, group=self.group)
        return partial(dist.reduce_scatter, self.got, list(self.given.split(self.form.parts)), op,
                       group=self.group)

    def _all_to_all(self) -> Issue:
        rows = self.form.rows
        splits = ([row[self.position] for row in rows], [*rows[self.position]]) if rows else ()
        return partial(dist.all_to_all_single, self.got, self.given, *splits, group=self.group)

    def _gather(self) -> Issue:
        parts = list(self.got.split(self.form.parts)) if self._is_root() else None
        return partial(dist.gather, self.given, parts, self.root, group=self.group)

    def _scatter(self) -> Issue:
        parts = list(self.given.split(self.form.parts)) if self._is_root() else None
        return partial(dist.scatter, self.got, parts, self.root, group=self.group)

    def _barrier(self) -> Issue:
        return partial(dist.barrier, group=self.group, device_ids=self.place.device_ids)

    def _send_recv(self) -> Issue:
        assert self.form.pair is not None
        sender, receiver = self.form.callers
        if self.place.number == sender:
            start = partial(dist.isend, self.given, receiver, group=self.group)
        else:
            start = partial(dist.irecv, self.got, sender, group=self.group)
        return lambda async_op: start()

    def _is_even(self) -> bool:
        return len({*self.form.parts}) == 1

    def _is_root(self) -> bool:
        return self.position == self.form.root

    def check(self, *, corrupt: bool = False) -> data.Mismatch | None:
        """Call it with known operands and a wiped output; return the mismatch. Collective."""
        form = self.form
        dtype = data.DTYPES[form.dtype]
        data.wipe(self.got)
        self._set_operands(dtype)
        if work := self.issue(async_op=True):
            work.wait()
        if corrupt and self.got.numel():
            data.wipe(self.got[-1:])
        expected = self._expected(dtype)
        if expected is None:
            return None
        exact = form.op != "avg" or data.average_is_exact(len(form.ranks), dtype)
        return data.compare(self.got, expected.to(self.got.device),
                            ulps=0 if exact else data.AVG_ULPS)

    def _set_operands(self, dtype: torch.dtype) -> None:
        form, number = self.form, self.place.number
        if form.op is not None:  # reductions in place start from what they give
            into = self.given if form.collective == "reduce_scatter" else self.got
            into.copy_(data.contributed(self.position, len(form.ranks), form.op, into.numel(),
                                        dtype, self._first()))
        elif form.collective == "broadcast" and self._is_root():
            self.got.copy_(data.moved(number, 0, self.got.numel(), dtype))
        else:
            self.given.copy_(data.moved(number, 0, self.given.numel(), dtype))

    def _expected(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the expected data of this rank, or None where it gets nothing."""
        form, count = self.form, self.got.numel()
        if not count or (form.collective == "reduce" and not self._is_root()):
            return None
        before = sum(form.parts[:self.position])
        if form.op is not None:
            start = before if form.collective == "reduce_scatter" else 0
            return data.reduced(len(form.ranks), form.op, start, count, dtype, self._first())
        if form.pair is not None:
            return data.moved(form.callers[0], 0, count, dtype)
        if form.collective == "broadcast":
            return data.moved(self.root, 0, count, dtype)
        if form.collective == "scatter":
            return data.moved(self.root, before, count, dtype)
        if form.collective == "all_to_all":
            rows = form.rows or (form.parts,) * len(form.ranks)
            return torch.cat([data.moved(rank, sum(row[:self.position]), row[self.position], dtype)
                              for rank, row in zip(form.ranks, rows, strict=True)])
        return torch.cat([data.moved(rank, 0, part, dtype)
                          for rank, part in zip(form.ranks, form.parts, strict=True)])

    def _first(self) -> int:
        """Return the number that data of a reduction are derived from: other groups' differ."""
        return self.form.ranks[0]


def _reduction(name: str | None) -> dist.ReduceOp:
    return {
        "sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
        "max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG,
    }[str(name)]


class OrderedCalls:
    """The calls of this rank, ready to be issued."""

    name = "replay"

    def __init__(self, sequence: plan.CallSequence, place: Place) -> None:
        self.place = place
        self._opened = _communicators(sequence, place)
        self._buffers = _buffers(sequence, place)
        self._forms = {number: PreparedCall(form, place, self._opened[form.group, form.ranks],
                                        self._buffers[form.dtype])
                       for number, form in enumerate(sequence.forms)
                       if place.number in form.callers}
        own = sequence.ranks[place.number]
        self._calls = [(self._forms[form].issue, gap)
                       for form, gap in zip(own.forms, own.gap_ns, strict=True)]
        self._in_flight = plan.most_in_flight(sequence)
        self._corrupt = False

    def prepare(self) -> None:
        """Restore the zeros, which no number of reductions changes."""
        for pair in self._buffers.values():
            for buffer in pair:
                buffer.zero_()

    def run(self) -> None:
        """Issue each call once its gap after the issue before is over; then wait for all."""
        started, limit, now_ns = deque[Any](), self._in_flight, time.perf_counter_ns
        issued_ns = now_ns()
        for issue, gap_ns in self._calls:
            if len(started) >= limit and (oldest := started.popleft()) is not None:
                oldest.wait()
            if gap_ns:
                wait_until(issued_ns + gap_ns, now_ns, _SPIN_NS)
            issued_ns = now_ns()
            started.append(issue(async_op=True))
        for work in started:
            if work is not None:  # torch returns None to a rank that has no part in the call
                work.wait()

    def corrupt_output(self) -> None:
        """Make the next check find a wrong result, for tests of the check."""
        self._corrupt = True

    def check(self) -> data.Mismatch | None:
        """Call each form once, one after another, on known operands; return the first mismatch.

        All ranks go through the forms in one order."""
        found = [form.check(corrupt=self._corrupt) for form in self._forms.values()]
        self._corrupt = False
        return next(filter(None, found), None)

    def answer(self) -> dict[str, Any]:
        return {"in_flight": self._in_flight}

    def close(self) -> None:
        """Drop the buffers, and close the communicators beside the group under test."""
        del self._calls, self._forms, self._buffers
        for group in {id(one): one for one in self._opened.values()
                      if one is not self.place.group}.values():
            dist.destroy_process_group(group)


def _communicators(
    sequence: plan.CallSequence, place: Place,
) -> Mapping[tuple[int, tuple[int, ...]], Any]:
    """Return the group of each recorded one that has this rank. Collective.

    The first of all ranks is the group under test."""
    communicators, is_free = dict[tuple[int, tuple[int, ...]], Any](), True
    for opened, lines in plan.divisions_of(sequence, place.world_size):
        if is_free and len(lines) == 1:
            group, is_free = place.group, False
        else:
            group = open_lines(place.group, lines, place.number)
        communicators |= {one: group for one in opened if place.number in one[1]}
    return communicators


def _buffers(
    sequence: plan.CallSequence, place: Place,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    elements = plan.buffer_elements(sequence, place.number)
    return {name: (torch.zeros(gives, dtype=data.DTYPES[name], device=place.device),
                   torch.zeros(gets, dtype=data.DTYPES[name], device=place.device))
            for name, (gives, gets) in elements.items()}


class ReplayRunner(Runner):
    """Opens recorded jobs; each rank reads the record."""

    def open(self, work: Workload, place: Place, *, validate: bool) -> OrderedCalls:
        """Allocate the calls of this rank. Raises CaseError for another record than planned."""
        assert isinstance(work, Replay)
        try:
            read = plan.read_record(work.file)
        except FileError as error:
            raise CaseError(f"{error}; it must be there on every node") from error
        if read.sha256 != work.sha256:
            raise CaseError(f"{work.file} has changed since the plan was made")
        return OrderedCalls(plan.sequence_of(read.record, work.request(place.world_size)),
                            place)

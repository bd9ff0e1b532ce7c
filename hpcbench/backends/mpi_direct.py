"""Backend ``mpi/direct``: collectives of mpi4py on the tensors' own memory, no torch in between.

What a call works on is fixed when a case is set up. So the call that is timed is one call of
mpi4py, which reads two addresses and calls MPI. Moved data are bytes, as in `mpi_group`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from mpi4py import MPI

from hpcbench.backends.mpi_buffers import (
    Counting,
    Message,
    Staging,
    as_elements,
    counting_of,
)
from hpcbench.operations.lane import Buffers

_OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}
_TAG = 9
Prepared = Callable[[], object]


class DirectGroup:
    """The ranks of a communicator, by whose calls collectives are made; no group of torch's."""

    staging = Staging(cuda=False, reason="mpi/direct works on the host's memory only")

    def __init__(self, comm: Any, counting: Counting | None = None) -> None:
        self.comm = comm
        self.counting = counting or counting_of(MPI)
        self._makers: dict[str, Callable[[Buffers], Prepared]] = {
            "all_reduce": self._all_reduce, "all_gather": self._all_gather,
            "reduce_scatter": self._reduce_scatter, "all_to_all": self._all_to_all,
            "broadcast": self._broadcast, "reduce": self._reduce, "gather": self._gather,
            "scatter": self._scatter, "send_recv": self._send_recv, "barrier": self._barrier}

    def prepared(self, collective: str, buffers: Buffers) -> Prepared:
        """Return the call of MPI, ready to be made again and again."""
        return self._makers[collective](buffers)

    def _all_reduce(self, of: Buffers) -> Prepared:
        outputs = self.counting.pieces(_there(of.output))
        sources = ([MPI.IN_PLACE] * len(outputs) if of.source is None
                   else self.counting.pieces(of.source))
        return _in_turn([partial(self.comm.Allreduce, source, output, _OPS[of.op])
                         for source, output in zip(sources, outputs, strict=True)])

    def _all_gather(self, of: Buffers) -> Prepared:
        source = MPI.IN_PLACE if of.source is None else self.counting.as_bytes(of.source)
        return partial(self.comm.Allgather, source, self._for_all(of.output))

    def _reduce_scatter(self, of: Buffers) -> Prepared:
        whole, own, op = _there(of.source), _there(of.output), _OPS[of.op]
        if whole.numel() <= self.counting.most:
            return partial(self.comm.Reduce_scatter_block, as_elements(whole), as_elements(own), op)
        rank = self.comm.Get_rank()  # one part after another, as MpiGroup._reduce_in_turn
        return _in_turn([
            partial(self.comm.Reduce, piece, result if root == rank else None, op, root)
            for root, part in enumerate(whole.view(-1).split(own.numel()))
            for piece, result in zip(self.counting.pieces(part), self.counting.pieces(own),
                                     strict=True)])

    def _all_to_all(self, of: Buffers) -> Prepared:
        return partial(self.comm.Alltoall, self._for_all(of.source), self._for_all(of.output))

    def _broadcast(self, of: Buffers) -> Prepared:
        return partial(self.comm.Bcast, self.counting.as_bytes(_there(of.output)), of.root)

    def _reduce(self, of: Buffers) -> Prepared:
        is_root = self.comm.Get_rank() == of.root
        return _in_turn([
            partial(self.comm.Reduce, *((MPI.IN_PLACE, own) if is_root else (own, None)),
                    _OPS[of.op], of.root) for own in self.counting.pieces(_there(of.output))])

    def _gather(self, of: Buffers) -> Prepared:
        is_root = self.comm.Get_rank() == of.root
        return partial(self.comm.Gather, self.counting.as_bytes(_there(of.source)),
                       self._for_all(of.output) if is_root else None, of.root)

    def _scatter(self, of: Buffers) -> Prepared:
        source = None if of.source is None else self._for_all(of.source)
        return partial(self.comm.Scatter, source, self.counting.as_bytes(_there(of.output)),
                       of.root)

    def _send_recv(self, of: Buffers) -> Prepared:
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        return partial(
            self.comm.Sendrecv, self.counting.as_bytes(_there(of.source)), (rank + 1) % size, _TAG,
            self.counting.as_bytes(_there(of.output)), (rank - 1) % size, _TAG)

    def _for_all(self, tensor: torch.Tensor | None) -> Message:
        """Return the message of equal parts for all ranks."""
        return self.counting.as_bytes(_there(tensor), self.comm.Get_size())

    def _barrier(self, of: Buffers) -> Prepared:
        prepared: Prepared = self.comm.Barrier
        return prepared


def _in_turn(calls: Sequence[Prepared]) -> Prepared:
    """Return the one call, or what makes one after another."""
    if len(calls) == 1:
        return calls[0]

    def every() -> None:
        for call in calls:
            call()

    return every


def _there(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return a tensor that the collective has on this rank."""
    assert tensor is not None
    return tensor

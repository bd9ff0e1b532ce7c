"""A torch process group whose collectives are MPI's, over an mpi4py communicator.

torch reserves the name ``mpi``; this one is ``mpi4py`` in torch. MPI gets the tensors' own memory,
CUDA memory too if it is CUDA-aware; else they are staged through the host (never run with CUDA).
Every collective **blocks**, also under ``async_op=True``, and has no time limit; only send and
receive return early. Lists of tensors go through one contiguous buffer, as gloo's do; so do tensors
that are not contiguous, and a reduce_scatter whose output lies in its input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcbench.backends.mpi_buffers import (
    Counting,
    Message,
    MpiRequest,
    Staging,
    as_elements,
    counting_of,
    deal,
    mpi_op,
    overlap,
    put_back,
    staging_of,
)
from hpcbench.backends.python_group import FinishedWork, PythonGroup, Tensors, register

MPI4PY = "mpi4py"


class MpiGroup(PythonGroup):
    """The collectives; arguments and results are those of torch's ProcessGroup of the same name."""

    BACKEND = MPI4PY

    def __init__(
        self, comm: Any, staging: Staging, counting: Counting | None = None, *,
        owned: bool = False,
    ) -> None:
        """``owned``: free the communicator when the group is shut down."""
        super().__init__(comm.Get_rank(), comm.Get_size())
        self.comm = comm
        self.staging = staging
        self.counting = counting or counting_of(MPI)
        self._owned = owned

    def shutdown(self) -> None:
        """Free the communicator if it is this group's own; all ranks of the group call it."""
        if self._owned:
            self._owned = False
            self.comm.Free()

    def allreduce(self, tensors: Tensors, opts: Any = None) -> FinishedWork:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        for tensor in tensors:
            whole = self.staging.send_buffer(tensor)
            for piece in self.counting.pieces(whole):
                self.comm.Allreduce(MPI.IN_PLACE, piece, mpi_op(op, tensor.dtype))
            self._give(whole, tensor, op)
        return FinishedWork(tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> FinishedWork:
        op, root = opts.reduceOp, opts.rootRank
        for tensor in tensors:
            whole = self.staging.send_buffer(tensor)
            for piece in self.counting.pieces(whole):
                ends = (MPI.IN_PLACE, piece) if self._rank == root else (piece, None)
                self.comm.Reduce(*ends, mpi_op(op, tensor.dtype), root)
            if self._rank == root:
                self._give(whole, tensor, op)
        return FinishedWork(tensors)

    def broadcast(self, tensors: Tensors, opts: Any) -> FinishedWork:
        for tensor in tensors:
            is_root = self._rank == opts.rootRank
            whole = self.staging.send_buffer(tensor) if is_root else self.staging.room(tensor)
            self.comm.Bcast(self.counting.as_bytes(whole), opts.rootRank)
            if not is_root:
                put_back(whole, tensor)
        return FinishedWork(tensors)

    def _allgather_base(
        self, output: torch.Tensor, part: torch.Tensor, opts: Any = None,
    ) -> FinishedWork:
        """Gather equal parts into one tensor; in place if ``part`` is this rank's slot of it."""
        whole, own = self.staging.room(output), self.staging.send_buffer(part)
        if own.data_ptr() == whole.data_ptr() + self._rank * own.nbytes:
            self.comm.Allgather(MPI.IN_PLACE, self._for_all(whole))
        else:
            self.comm.Allgather(
                self.counting.as_bytes(own.clone() if overlap(own, whole) else own),
                self._for_all(whole))
        put_back(whole, output)
        return FinishedWork([output])

    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None,
    ) -> FinishedWork:
        for parts, own in zip(outputs, inputs, strict=True):
            gathered = self.staging.room_for(parts)
            self.comm.Allgatherv(self.counting.as_bytes(self.staging.send_buffer(own)),
                                 self.counting.parted(gathered, parts))
            deal(gathered, parts)
        return FinishedWork([part for parts in outputs for part in parts])

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None,
    ) -> FinishedWork:
        for output, part in zip(outputs, inputs, strict=True):
            self._allgather_base(output, part)
        return FinishedWork(outputs)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None,
    ) -> FinishedWork:
        """Gather several tensors; ``outputs`` is a list of tensors by rank."""
        return self.allgather([list(of_rank) for of_rank in zip(*outputs, strict=True)], inputs)

    def _reduce_scatter_base(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None,
    ) -> FinishedWork:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        own, whole = self.staging.room(output), self.staging.send_buffer(source)
        kept = torch.empty_like(own) if overlap(own, whole) else own
        if whole.numel() > self.counting.most:
            self._reduce_in_turn(whole.view(-1).split(kept.numel()), kept, op)
        else:
            self.comm.Reduce_scatter_block(
                as_elements(whole), as_elements(kept), mpi_op(op, output.dtype))
        self._give(kept, output, op)
        return FinishedWork([output])

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None,
    ) -> FinishedWork:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        for output, parts in zip(outputs, inputs, strict=True):
            own, counts = self.staging.room(output), [part.numel() for part in parts]
            joined = self.staging.joined(parts)
            if joined.numel() > self.counting.most:
                self._reduce_in_turn(joined.split(counts), own, op)
            else:
                self.comm.Reduce_scatter(as_elements(joined), as_elements(own), counts,
                                         mpi_op(op, output.dtype))
            self._give(own, output, op)
        return FinishedWork(outputs)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None,
    ) -> FinishedWork:
        for output, source in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, source, opts)
        return FinishedWork(outputs)

    def alltoall_base(
        self, output: torch.Tensor, source: torch.Tensor, output_splits: Sequence[int],
        input_splits: Sequence[int], opts: Any = None,
    ) -> FinishedWork:
        whole, sent = self.staging.room(output), self.staging.send_buffer(source)
        if output_splits or input_splits:
            self.comm.Alltoallv(self._split(sent, input_splits), self._split(whole, output_splits))
        else:
            self.comm.Alltoall(self._for_all(sent), self._for_all(whole))
        put_back(whole, output)
        return FinishedWork([output])

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> FinishedWork:
        received = self.staging.room_for(outputs)
        self.comm.Alltoallv(self.counting.parted(self.staging.joined(inputs), inputs),
                            self.counting.parted(received, outputs))
        deal(received, outputs)
        return FinishedWork(outputs)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> FinishedWork:
        for number, own in enumerate(inputs):
            message = self.counting.as_bytes(self.staging.send_buffer(own))
            if self._rank != opts.rootRank:
                self.comm.Gatherv(message, None, opts.rootRank)
                continue
            gathered = self.staging.room_for(outputs[number])
            self.comm.Gatherv(message, self.counting.parted(gathered, outputs[number]),
                              opts.rootRank)
            deal(gathered, outputs[number])
        return FinishedWork([part for parts in outputs for part in parts])

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> FinishedWork:
        for number, output in enumerate(outputs):
            own, message = self.staging.room(output), None
            if self._rank == opts.rootRank:
                parts = inputs[number]
                message = self.counting.parted(self.staging.joined(parts), parts)
            self.comm.Scatterv(message, self.counting.as_bytes(own), opts.rootRank)
            put_back(own, output)
        return FinishedWork(outputs)

    def barrier(self, opts: Any = None) -> FinishedWork:
        self.comm.Barrier()
        return FinishedWork([])

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> MpiRequest:
        (tensor,) = tensors
        whole = self.staging.send_buffer(tensor)
        return MpiRequest(
            self.comm.Isend(self.counting.as_bytes(whole), destination, tag), whole)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> MpiRequest:
        (tensor,) = tensors
        whole = self.staging.room(tensor)
        return MpiRequest(self.comm.Irecv(self.counting.as_bytes(whole), source, tag), whole,
                          None if whole is tensor else tensor)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> MpiRequest:
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def _for_all(self, tensor: torch.Tensor) -> Message:
        return self.counting.as_bytes(tensor, self._size)

    def _reduce_in_turn(
        self, parts: Sequence[torch.Tensor], own: torch.Tensor, op: Any,
    ) -> None:
        """Reduce each rank's part to it, one after another, for more numbers than MPI counts.

        Open MPI 5.0.11 ends Reduce_scatter with MPI_ERR_OTHER there, though no part is so long."""
        for root, part in enumerate(parts):
            results = self.counting.pieces(own) if root == self._rank else None
            for at, piece in enumerate(self.counting.pieces(part)):
                self.comm.Reduce(piece, results[at] if results else None,
                                 mpi_op(op, own.dtype), root)

    def _give(self, reduced: torch.Tensor, tensor: torch.Tensor, op: Any) -> None:
        """Give ``tensor`` the result of a reduction; MPI has none that divides."""
        if op == dist.ReduceOp.AVG:
            reduced.detach().div_(self._size)
        put_back(reduced, tensor)

    def _split(self, tensor: torch.Tensor, rows: Sequence[int]) -> Message:
        """Return the message of parts of ``rows`` rows each, as many for each rank if not given."""
        length = tensor.shape[0]
        row_bytes = tensor.nbytes // length if length else 0
        chosen = rows or [length // self._size] * self._size
        return self.counting.as_parts(tensor, (row_bytes * count for count in chosen))


def register_mpi() -> None:
    """Make ``mpi4py`` known to torch.distributed.

    ``pg_options`` of ``new_group`` and ``init_process_group`` is the communicator of exactly the
    group's ranks, in order, which the caller frees. Without one the default group's is divided if
    that is an mpi4py group; MPI.COMM_WORLD serves the first group."""
    register(MPI4PY, _open)


def _open(options: Any, comm: Any) -> MpiGroup:
    """Return the group that torch asks for. Raises ValueError if ``comm`` is not its size."""
    rank, size = options.group_rank, options.group_size
    owned = comm is None
    if owned:
        default = dist.group.WORLD if dist.is_initialized() else None
        if default is not None and not isinstance(default, MpiGroup):
            raise ValueError("mpi4py needs the communicator of the group's ranks as pg_options")
        world = MPI.COMM_WORLD if default is None else default.comm
        ranks, chosen = list(options.global_ranks_in_group), world.Get_group()
        comm = world.Create_group(chosen.Incl(ranks) if ranks else chosen)
    if (comm.Get_rank(), comm.Get_size()) != (rank, size):
        raise ValueError(f"the communicator is rank {comm.Get_rank()} of {comm.Get_size()}, the "
                         f"group is rank {rank} of {size}")
    return MpiGroup(comm, staging_of(MPI), owned=owned)

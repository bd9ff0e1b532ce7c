"""Tensors as MPI sees them, pending messages, and backend ``mpi/direct`` on them.

MPI is given addresses, and one that is not CUDA-aware would crash on those of GPU memory. CUDA
tensors are then staged: copied to pinned host memory and back before the call returns. Data that is
only moved goes as bytes; reductions need an MPI datatype, which few libraries have for fp16 and
none for bf16. ``mpi/direct`` prepares its buffers at set-up, so the timed call is one call of
mpi4py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from itertools import accumulate
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcbench.backends.mpi_facts import cuda_awareness
from hpcbench.backends.python_group import FinishedWork
from hpcbench.operations.place import Buffers

_INT_MAX, _LARGE_COUNT = 2**31 - 1, 2**63 - 1
_CHUNK = 2**20
"""Bytes: a larger datatype is made of chunks of this size."""
_OPS = (
    (dist.ReduceOp.SUM, MPI.SUM), (dist.ReduceOp.AVG, MPI.SUM), (dist.ReduceOp.MAX, MPI.MAX),
    (dist.ReduceOp.MIN, MPI.MIN), (dist.ReduceOp.PRODUCT, MPI.PROD), (dist.ReduceOp.BAND, MPI.BAND),
    (dist.ReduceOp.BOR, MPI.BOR), (dist.ReduceOp.BXOR, MPI.BXOR),
)  # torch compares an operation with ==, it cannot be the key of a dict
_DATATYPES = {
    torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE, torch.int8: MPI.INT8_T,
    torch.uint8: MPI.UINT8_T, torch.int16: MPI.INT16_T, torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T, torch.float16: getattr(MPI, "FLOAT16_T", MPI.DATATYPE_NULL),
    torch.bfloat16: getattr(MPI, "BFLOAT16_T", MPI.DATATYPE_NULL),
    torch.complex64: MPI.C_FLOAT_COMPLEX, torch.complex128: MPI.C_DOUBLE_COMPLEX,
}


class MpiRequest(FinishedWork):
    """A pending send or receive; complete after `wait`, which has no time limit.

    ``kept`` is MPI's buffer; ``copy_to`` gets received data if that is another tensor."""

    def __init__(
        self, request: Any, kept: torch.Tensor, copy_to: torch.Tensor | None = None,
    ) -> None:
        super().__init__([kept if copy_to is None else copy_to])
        self._request = request
        self._kept = kept
        self._copy_to = copy_to
        self._source = -1

    def wait(self, timeout: timedelta | None = None) -> bool:
        return self._is_ended_by(self._request.Wait)

    def is_completed(self) -> bool:
        return self._is_ended_by(self._request.Test)

    def get_future(self) -> Any:
        self.wait()
        return super().get_future()

    def _source_rank(self) -> int:
        return self._source

    source_rank = _source_rank

    def _is_ended_by(self, call: Callable[[Any], bool]) -> bool:
        """Return whether a call of MPI finds the request complete; then copy the received data."""
        status = MPI.Status()
        if not call(status):
            return False
        if (source := status.Get_source()) >= 0:
            self._source = source
        if self._copy_to is not None:
            self._copy_to.detach().copy_(self._kept)
            self._copy_to = None
        return True


class Message(list[Any]):
    """A message for mpi4py: an address and its layout; it keeps the tensor alive.

    An address, since mpi4py's ``__cuda_array_interface__`` has no bf16."""

    def __init__(self, tensor: torch.Tensor, *layout: Any) -> None:
        """Raises TypeError for a tensor that is neither in the host's memory nor in a GPU's."""
        if tensor.is_cuda:  # MPI knows no streams: enqueued work must be complete before it reads
            torch.cuda.current_stream(tensor.device).synchronize()
        elif not tensor.is_cpu:
            raise TypeError(f"the mpi backend takes no tensor on {tensor.device}")
        super().__init__((MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes), *layout))
        self.kept = tensor


@dataclass(frozen=True, slots=True)
class Counting:
    """How messages are counted: an MPI before 4.0 counts no more than ``most`` of a datatype.

    More bytes are counted in larger units of the same type signature; more numbers to reduce are
    several messages."""

    most: int

    def as_bytes(self, tensor: torch.Tensor, parts: int = 1) -> Message:
        """Return a contiguous tensor as a message of bytes; each of ``parts`` is counted."""
        part = tensor.nbytes // parts
        if part <= self.most:
            return Message(tensor, MPI.BYTE)
        return Message(tensor, _of_bytes(self._unit(part, part)))

    def as_parts(self, tensor: torch.Tensor, part_bytes: Iterable[int]) -> Message:
        """Return a contiguous tensor as a message with a part for each rank. Raises TypeError."""
        counts = list(part_bytes)
        unit = 1 if sum(counts) <= self.most else self._unit(gcd(*counts), sum(counts))
        counts = [count // unit for count in counts]
        return Message(tensor, counts, [0, *accumulate(counts)][:-1], _of_bytes(unit))

    def parted(self, whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> Message:
        return self.as_parts(whole, (part.nbytes for part in parts))

    def pieces(self, tensor: torch.Tensor) -> list[Message]:
        """Return a contiguous tensor as messages that MPI can reduce, mostly one of them."""
        if tensor.numel() <= self.most:
            return [as_elements(tensor)]
        power_of_two = 1 << (self.most.bit_length() - 1)
        return [*map(as_elements, tensor.detach().view(-1).split(power_of_two))]

    def _unit(self, part: int, whole: int) -> int:
        """Return a small number of bytes that divides ``part`` and counts ``whole``."""
        powers = (1 << bits for bits in range(1, self.most.bit_length()))
        for unit in (*powers, part):
            if part % unit == 0 and whole // unit <= self.most:
                return unit
        raise TypeError(f"parts of {whole} bytes in all, of which {part} divides each, are more "
                        f"than this MPI counts ({self.most}); take sizes with a larger divisor")


def counting_of(mpi: Any) -> Counting:
    """Return how ``mpi`` (mpi4py.MPI) counts: 64 bits where both it and mpi4py have MPI 4.0."""
    return Counting(_LARGE_COUNT if min(mpi.VERSION, mpi.Get_version()[0]) >= 4 else _INT_MAX)


@lru_cache(maxsize=64)
def _of_bytes(n_bytes: int) -> Any:
    if n_bytes == 1:
        return MPI.BYTE
    if n_bytes <= _CHUNK:
        return MPI.BYTE.Create_contiguous(n_bytes).Commit()
    chunks, rest = divmod(n_bytes, _CHUNK)
    return MPI.Datatype.Create_struct(
        [chunks, rest], [0, chunks * _CHUNK], [_of_bytes(_CHUNK), MPI.BYTE]).Commit()


def as_elements(tensor: torch.Tensor) -> Message:
    """Return a contiguous tensor as a message that MPI can reduce. Raises TypeError."""
    datatype = MPI.UINT8_T if tensor.dtype == torch.bool else _DATATYPES.get(tensor.dtype)
    if datatype is None or datatype == MPI.DATATYPE_NULL:
        raise TypeError(f"this MPI has no datatype to reduce {tensor.dtype} with")
    return Message(tensor, datatype)


def mpi_op(op: Any, dtype: torch.dtype) -> Any:
    """Return MPI's operation; avg is a sum, to be divided by the caller. Raises ValueError."""
    if op == dist.ReduceOp.AVG and not (
            dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"mpi averages floating dtypes only, not {dtype}")
    theirs = next((theirs for ours, theirs in _OPS if op == ours), None)
    if theirs is None:
        raise ValueError(f"MPI has no reduction {op}")
    if dtype == torch.bool:  # so that 0 and 1 give 0 or 1: or for a sum, and for a product
        return MPI.MAX if theirs == MPI.SUM else MPI.MIN if theirs == MPI.PROD else theirs
    return theirs


@dataclass(frozen=True, slots=True)
class Staging:
    """Whether CUDA tensors are staged, why, and whether CPU tensors are (for tests)."""

    cuda: bool
    reason: str
    cpu: bool = False

    def how(self, device: str) -> Mapping[str, str]:
        """Return {"how": ``direct`` or ``staged``, "reason": ...} for a kind of device."""
        if device == "cpu" and not self.cpu:
            return {"how": "direct", "reason": "the tensors are in host memory"}
        staged = self.cuda if device == "cuda" else self.cpu
        return {"how": "staged" if staged else "direct", "reason": self.reason}

    def send_buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return MPI's input: the tensor if it is contiguous and not staged, else a copy."""
        if self._staged(tensor):
            return self._host(tensor.shape, tensor).copy_(tensor.detach())
        return tensor if tensor.is_contiguous() else tensor.contiguous()

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return MPI's output buffer: the tensor if possible, else memory for `put_back`."""
        if self._staged(tensor):
            return self._host(tensor.shape, tensor)
        if tensor.is_contiguous():
            return tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    def room_for(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return one uninitialised tensor with room for all parts; `deal` hands them out."""
        count, first = sum(part.numel() for part in parts), parts[0]
        if self._staged(first):
            return self._host((count,), first)
        return torch.empty(count, dtype=first.dtype, device=first.device)

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.send_buffer(torch.cat([part.detach().reshape(-1) for part in parts]))

    def _staged(self, tensor: torch.Tensor) -> bool:
        return self.cuda if tensor.is_cuda else self.cpu

    def _host(self, shape: Iterable[int], like: torch.Tensor) -> torch.Tensor:
        # torch keeps pinned memory for the next call, so only the first one pays for it
        return torch.empty(tuple(shape), dtype=like.dtype, pin_memory=like.is_cuda)


def staging_of(mpi: Any) -> Staging:
    """Return the staging for ``mpi`` (mpi4py.MPI): CUDA tensors are staged unless it takes them."""
    awareness = cuda_awareness(mpi)
    return Staging(cuda=not awareness["aware"], reason=awareness["reason"])


def put_back(result: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy ``result`` to ``tensor`` unless MPI worked on the tensor itself."""
    if result is not tensor:
        tensor.detach().copy_(result)


def deal(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Copy each part out of the one tensor, which crosses to their device once."""
    pieces = whole.to(parts[0].device).split([part.numel() for part in parts])
    for part, piece in zip(parts, pieces, strict=True):
        part.detach().copy_(piece.view(part.shape))


def overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two contiguous tensors share memory, which MPI forbids."""
    one, other = first.data_ptr(), second.data_ptr()
    return bool(one < other + second.nbytes and other < one + first.nbytes)


_DIRECT_OPS = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN,
               "max": dist.ReduceOp.MAX, "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR,
               "bxor": dist.ReduceOp.BXOR}
_TAG = 9
Prepared = Callable[[], object]


class DirectGroup:
    """The ranks of a communicator, by whose calls collectives are made; no group of torch's."""

    staging = Staging(cuda=False, reason="mpi/direct works on the host's memory only")

    def __init__(self, comm: Any, counting: Counting | None = None) -> None:
        self.comm = comm
        self.counting = counting or counting_of(MPI)

    def prepared(self, collective: str, buffers: Buffers) -> Prepared:
        prepared: Prepared = getattr(self, f"_{collective}")(buffers)
        return prepared

    def _all_reduce(self, of: Buffers) -> Prepared:
        outputs = self.counting.pieces(_there(of.output))
        sources = ([MPI.IN_PLACE] * len(outputs) if of.source is None
                   else self.counting.pieces(of.source))
        return _in_turn([partial(self.comm.Allreduce, source, output, _direct_op(of))
                         for source, output in zip(sources, outputs, strict=True)])

    def _all_gather(self, of: Buffers) -> Prepared:
        source = MPI.IN_PLACE if of.source is None else self.counting.as_bytes(of.source)
        return partial(self.comm.Allgather, source, self._for_all(of.output))

    def _reduce_scatter(self, of: Buffers) -> Prepared:
        whole, own, op = _there(of.source), _there(of.output), _direct_op(of)
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
                    _direct_op(of),
                    of.root) for own in self.counting.pieces(_there(of.output))])

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
        return self.counting.as_bytes(_there(tensor), self.comm.Get_size())

    def _barrier(self, of: Buffers) -> Prepared:
        prepared: Prepared = self.comm.Barrier
        return prepared


def _direct_op(of: Buffers) -> Any:
    return mpi_op(_DIRECT_OPS[of.op], _there(of.output).dtype)


def _in_turn(calls: Sequence[Prepared]) -> Prepared:
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

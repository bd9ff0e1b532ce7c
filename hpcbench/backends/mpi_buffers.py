"""Tensors as MPI sees them, and messages under way that torch waits for.

Data that is only moved goes as bytes, so every dtype moves. Reductions need an MPI datatype:
Open MPI 5 and MPICH 5 have one for fp16, neither has one for bf16 (`backends.mpi_facts` asks).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcbench.backends.python_group import FinishedWork

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
}


class MpiRequest(FinishedWork):
    """A send or receive under way; it is complete after `wait`, which knows no time limit.

    ``kept`` holds what MPI reads or writes until then; ``copy_to`` gets the received data where
    that is not the caller's tensor.
    """

    def __init__(
        self, request: Any, kept: torch.Tensor, copy_to: torch.Tensor | None = None,
    ) -> None:
        super().__init__([kept if copy_to is None else copy_to])
        self._request = request
        self._kept = kept
        self._copy_to = copy_to
        self._source = -1

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the data has left, or has arrived."""
        status = MPI.Status()
        self._request.Wait(status)
        self._finish(status)
        return True

    def is_completed(self) -> bool:
        """Return whether it is complete, and let MPI make progress."""
        status = MPI.Status()
        if not self._request.Test(status):
            return False
        self._finish(status)
        return True

    def get_future(self) -> Any:
        """Wait, then return a completed future."""
        self.wait()
        return super().get_future()

    def _source_rank(self) -> int:
        """Return who sent what was received."""
        return self._source

    source_rank = _source_rank

    def _finish(self, status: Any) -> None:
        if (source := status.Get_source()) >= 0:
            self._source = source
        if self._copy_to is not None:
            self._copy_to.detach().copy_(self._kept)
            self._copy_to = None


class Message(list[Any]):
    """What mpi4py takes: memory and its layout; keeps the tensor alive, as an address does not.

    An address and not the tensor, which mpi4py would take by its ``__cuda_array_interface__``,
    because that has no bf16. Only a CUDA-aware MPI may get one of GPU memory (`mpi_staging`).
    """

    def __init__(self, tensor: torch.Tensor, *layout: Any) -> None:
        """Raises TypeError for a tensor that is neither in the host's memory nor in a GPU's."""
        if tensor.is_cuda:  # MPI knows no streams: what was enqueued must be there before it looks
            torch.cuda.current_stream(tensor.device).synchronize()
        elif not tensor.is_cpu:
            raise TypeError(f"the mpi backend takes no tensor on {tensor.device}")
        super().__init__((MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes), *layout))
        self.kept = tensor


def as_bytes(tensor: torch.Tensor) -> Message:
    """Return a contiguous tensor as a message of bytes."""
    return Message(tensor, MPI.BYTE)


def as_parts(tensor: torch.Tensor, part_bytes: Iterable[int]) -> Message:
    """Return a contiguous tensor as a message of one part for each rank, one behind the other."""
    counts = list(part_bytes)
    return Message(tensor, counts, [0, *accumulate(counts)][:-1], MPI.BYTE)


def as_elements(tensor: torch.Tensor) -> Message:
    """Return a contiguous tensor as a message that MPI can reduce. Raises TypeError."""
    datatype = MPI.UINT8_T if tensor.dtype == torch.bool else _DATATYPES.get(tensor.dtype)
    if datatype is None or datatype == MPI.DATATYPE_NULL:
        raise TypeError(f"this MPI has no datatype to reduce {tensor.dtype} with")
    return Message(tensor, datatype)


def mpi_op(op: Any, dtype: torch.dtype) -> Any:
    """Return MPI's operation; avg is a sum, to be divided by the caller. Raises ValueError."""
    if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
        raise ValueError(f"avg is defined for floating dtypes only, not for {dtype}")
    for ours, theirs in _OPS:
        if op == ours:
            return _of_booleans(theirs) if dtype == torch.bool else theirs
    raise ValueError(f"MPI has no reduction {op}")


def _of_booleans(op: Any) -> Any:
    """Return the operation on 0 and 1 whose result is 0 or 1: or for a sum, and for a product."""
    if op == MPI.SUM:
        return MPI.MAX
    return MPI.MIN if op == MPI.PROD else op

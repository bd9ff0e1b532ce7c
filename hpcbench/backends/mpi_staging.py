"""The memory that MPI works on: a tensor's own, or a copy of it in the host's (staged).

MPI is given addresses. One that is not CUDA-aware would follow the address of GPU memory and
crash. So a CUDA tensor is then copied to pinned host memory, and the result copied back before
the call returns. Staging CPU tensors, too, gives the same results: so it is tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hpcbench.backends.mpi_buffers import Message, as_parts
from hpcbench.backends.mpi_facts import cuda_awareness


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

    def taken(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what MPI reads: the tensor if it is contiguous and not staged, else a copy."""
        if self._staged(tensor):
            return self._host(tensor.shape, tensor).copy_(tensor.detach())
        return tensor if tensor.is_contiguous() else tensor.contiguous()

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what MPI fills: the tensor if it can be, else uninitialised memory of its shape.

        `put_back` gives the tensor its result.
        """
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
        """Return all parts behind one another, as MPI reads them."""
        return self.taken(torch.cat([part.detach().reshape(-1) for part in parts]))

    def _staged(self, tensor: torch.Tensor) -> bool:
        return self.cuda if tensor.is_cuda else self.cpu

    def _host(self, shape: Iterable[int], like: torch.Tensor) -> torch.Tensor:
        # torch keeps pinned memory for the next call, so only the first one pays for it
        return torch.empty(tuple(shape), dtype=like.dtype, pin_memory=like.is_cuda)


def staging_of(mpi: Any) -> Staging:
    """Return what ``mpi`` (mpi4py.MPI) needs: CUDA tensors are staged unless it takes them."""
    awareness = cuda_awareness(mpi)
    return Staging(cuda=not awareness["aware"], reason=awareness["reason"])


def put_back(result: torch.Tensor, tensor: torch.Tensor) -> None:
    """Give ``tensor`` the values of what MPI worked on in its place, if anything."""
    if result is not tensor:
        tensor.detach().copy_(result)


def deal(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Copy each part out of the one tensor, which crosses to their device once."""
    pieces = whole.to(parts[0].device).split([part.numel() for part in parts])
    for part, piece in zip(parts, pieces, strict=True):
        part.detach().copy_(piece.view(part.shape))


def parted(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> Message:
    """Return the message that is divided as ``parts`` are."""
    return as_parts(whole, (part.nbytes for part in parts))


def overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two contiguous tensors share memory, which MPI forbids."""
    one, other = first.data_ptr(), second.data_ptr()
    return bool(one < other + second.nbytes and other < one + first.nbytes)

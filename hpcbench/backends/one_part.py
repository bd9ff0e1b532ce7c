"""Parameters of a dry run that torch's ``fully_shard`` divides: this rank's part of each only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_CHUNK = "_chunk_with_empty"


@contextmanager
def one_part() -> Iterator[None]:
    """Let ``fully_shard`` make of each parameter the part of this rank only.

    torch makes those of all ranks, 370,000 of Llama-3-70B for 512 ranks, and takes one.
    """
    try:
        from torch.distributed.fsdp._fully_shard import _fsdp_param
    except ImportError:  # an older torch has it elsewhere, and takes longer
        yield
        return
    plain = getattr(_fsdp_param, _CHUNK)
    setattr(_fsdp_param, _CHUNK, _Parts)
    try:
        yield
    finally:
        setattr(_fsdp_param, _CHUNK, plain)


class _Parts:
    """What ``torch.chunk`` divides a tensor into, and empty tensors behind: made on demand."""

    def __init__(self, whole: torch.Tensor, count: int, dim: int) -> None:
        self._whole, self._count, self._dim = whole, count, dim

    def __getitem__(self, number: int) -> torch.Tensor:
        extent = self._whole.size(self._dim)
        each = -(-extent // self._count)
        first = number * each
        if first >= extent:
            return self._whole.new_empty(0)
        return self._whole.narrow(self._dim, first, min(each, extent - first))

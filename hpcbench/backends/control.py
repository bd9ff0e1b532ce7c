"""The control groups: gloo between workers, MPI between processes that are MPI's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hpcbench.measure.control import Integers


class GlooControl:
    """The default group of the workers, which is always gloo and never under test."""

    def barrier(self) -> None:
        """Return when every rank has called."""
        dist.barrier()

    def maximum(self, values: Integers) -> Integers:
        """Return the element-wise maximum over ranks."""
        agreed: Integers = values.copy()
        dist.all_reduce(torch.from_numpy(agreed), dist.ReduceOp.MAX)
        return agreed


class MpiControl:
    """A communicator of its own, apart from the one under test. Waiting in it spins."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._comm = comm
        self._max = MPI.MAX
        self.barrier = comm.Barrier

    def maximum(self, values: Integers) -> Integers:
        """Return the element-wise maximum over ranks."""
        agreed: Integers = np.empty_like(values)
        self._comm.Allreduce(values, agreed, self._max)
        return agreed

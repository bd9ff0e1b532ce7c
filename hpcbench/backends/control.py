"""The control groups: gloo between workers, memory where they share a node whose cores suffice,
MPI between processes that are MPI's own."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hpcbench.measure.allocation import granted_cores, ranks_a_core
from hpcbench.measure.control import Control, Integers
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.measure.portable import own_cores, shared_memory
from hpcbench.measure.shared_control import SharedControl, bytes_of

_NAME = "hpcbench-control"


def host_barrier(group: Any = None) -> None:
    """Return when every rank of a group of gloo has called; None is the default group.

    torch's own function first asks the driver which devices there are. One that crashes would take
    the worker of a case on the CPU along.
    """
    options = dist.BarrierOptions()
    options.device = torch.device("cpu")
    (group or dist.group.WORLD).barrier(opts=options).wait()


class GlooControl:
    """The default group of the workers, which is always gloo and never under test."""

    def barrier(self) -> None:
        """Return when every rank has called."""
        host_barrier()

    def maximum(self, values: Integers) -> Integers:
        """Return the element-wise maximum over ranks."""
        agreed: Integers = values.copy()
        dist.all_reduce(torch.from_numpy(agreed), dist.ReduceOp.MAX)
        return agreed


def control_of_node(rank: int, ranks: int, timeout_s: float) -> Control:
    """Return what lines up the ranks of a group that has one node; all call this.

    That is memory which they share, or gloo where that is not possible: where ranks have fewer
    cores than they are, since a rank that waits would take one from those it waits for, or where
    ranks do not see each other's files, as in containers of their own.
    """
    gloo = GlooControl()
    with _memory_of(rank, ranks) as (own, address):
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, (address, own_cores()))
        suffice = (ranks_a_core([cores for _, cores in told]) <= 1
                   and granted_cores(KernelFiles()) >= ranks)
        shared = _mapped(told[0][0], own, rank, ranks, timeout_s) if suffice else None
        missing = gloo.maximum(np.array([shared is None], dtype=np.int64))[0]
    return gloo if shared is None or missing else shared


def _mapped(
    address: tuple[str, str], own: int | None, rank: int, ranks: int, timeout_s: float,
) -> SharedControl | None:
    """Return the control in rank 0's memory, or None where that cannot be had."""
    fd = _opened(address, own)
    if fd is None:
        return None
    try:
        return SharedControl(fd, rank, ranks, timeout_s)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


@contextlib.contextmanager
def _memory_of(rank: int, ranks: int) -> Iterator[tuple[int | None, tuple[str, str]]]:
    """Give rank 0's descriptor of new memory, and where to find it under which name."""
    if rank:
        yield None, ("", "")
        return
    name = f"{_NAME}-{secrets.token_hex(8)}"
    try:
        fd = shared_memory(name)
    except OSError:
        yield None, ("", name)
        return
    try:
        os.ftruncate(fd, bytes_of(ranks))
        yield fd, (f"/proc/{os.getpid()}/fd/{fd}", name)
    finally:
        os.close(fd)


def _opened(address: tuple[str, str], own: int | None) -> int | None:
    """Return a descriptor of rank 0's memory; None if another file, or nothing, is at its place."""
    path, name = address
    try:
        if own is not None:
            return os.dup(own)
        is_there = name in str(Path(path).readlink())
        return os.open(path, os.O_RDWR | os.O_CLOEXEC) if is_there else None
    except OSError:
        return None


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

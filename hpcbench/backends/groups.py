"""The process group under test, by backend; the control group is another one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.backends import ucc
from hpcbench.backends.rehearsal import NAME as REHEARSAL
from hpcbench.backends.rehearsal import open_silent
from hpcbench.errors import CaseError


def open_groups(
    backend: str, timeout: timedelta, lines: Sequence[Sequence[int]], rank: int,
    device: torch.device | None = None, mpi_comm: Any = None,
) -> Any:
    """Return the group on ``backend`` (``ucc/tl/ucp`` is ucc) of that line that has ``rank``.

    All workers call this with the same ``lines``, which divide the world. ``device`` is where the
    tensors of this rank are. ``mpi_comm`` is the workers' communicator, which backend mpi works on.
    Raises CaseError if the backend must be loaded and cannot be; the probe had found that it can.
    """
    name = backend.partition("/")[0]
    own = next(number for number, ranks in enumerate(lines) if rank in ranks)
    if backend == "mpi/direct":
        from hpcbench.backends.mpi_direct import DirectGroup

        return DirectGroup(mpi_comm.Split(own))
    if name == "mpi":
        return _open_mpi(timeout, lines[own], mpi_comm.Split(own))
    if name == "ucc" and (reason := ucc.load()):
        raise CaseError(f"ucc: {reason}")
    bound = _bound(name, device)
    return [dist.new_group(list(ranks), backend=name, timeout=timeout, **bound)
            for ranks in lines][own]


def open_lines(group: Any, lines: Sequence[Sequence[int]], own: int) -> Any:
    """Return the group, on the backend of ``group``, of that line of ranks that has rank ``own``.

    All ranks of the default group call this with the same lines, which cover those of ``group``.
    """
    mine = next(number for number, ranks in enumerate(lines) if own in ranks)
    backend = dist.get_backend(group)
    if backend == "mpi4py":
        return _open_mpi(None, lines[mine], group.comm.Split(mine))
    if backend == REHEARSAL:
        group.ledger.opened.append(lines)
        return [open_silent(ranks, group.ledger, lines) for ranks in lines][mine]
    bound = _bound(backend, group.bound_device_id)
    return [dist.new_group(list(ranks), backend=backend, **bound) for ranks in lines][mine]


def _bound(backend: str, device: torch.device | None) -> dict[str, Any]:
    """Return what has NCCL (RCCL, too) connect its ranks now, on the device of this rank.

    Without, it connects at the first call, and a barrier before that takes the GPU whose number is
    the global rank modulo the GPUs it sees, which may be another rank's (documentation of
    torch.distributed.barrier). torch 2.7.0 and older, once bound, connect in the background, where
    NCCL 2.26 can hang (pytorch/pytorch#153960), unless the variable says no. An older torch than
    that has no such argument; its calls must name their device.
    """
    if backend != "nccl" or device is None or (
            "device_id" not in signature(dist.new_group).parameters):
        return {}
    os.environ.setdefault("TORCH_NCCL_USE_COMM_NONBLOCKING", "0")
    return {"device_id": device}


def _open_mpi(timeout: timedelta | None, ranks: Sequence[int], comm: Any) -> Any:
    """Return the group of these ranks on their own communicator."""
    from hpcbench.backends.mpi_group import NAME, register_mpi

    register_mpi()
    return dist.new_group(list(ranks), backend=NAME, timeout=timeout, pg_options=comm,
                          use_local_synchronization=True)

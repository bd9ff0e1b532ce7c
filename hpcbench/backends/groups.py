"""The process group under test, by backend; the control group is another one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hpcbench.backends import ucc
from hpcbench.backends.rehearsal import NAME as REHEARSAL
from hpcbench.backends.rehearsal import open_silent
from hpcbench.errors import CaseError


def open_groups(
    backend: str, timeout: timedelta, world_size: int, groups: int, rank: int, mpi_comm: Any,
) -> Any:
    """Return the own group on ``backend`` (``ucc/tl/ucp`` is backend ucc) of this ``rank``.

    The world is divided into ``groups`` equal groups of consecutive ranks; all workers call this.
    ``mpi_comm`` is their communicator, which backend mpi works on. Raises CaseError if the backend
    must be loaded and cannot be; the probe had found that it can.
    """
    name, size = backend.partition("/")[0], world_size // groups
    own, lines = rank // size, [list(range(first, first + size))
                                for first in range(0, world_size, size)]
    if backend == "mpi/direct":
        from hpcbench.backends.mpi_direct import DirectGroup

        return DirectGroup(mpi_comm.Split(own))
    if name == "mpi":
        return _open_mpi(timeout, lines[own], mpi_comm.Split(own))
    if name == "ucc" and (reason := ucc.load()):
        raise CaseError(f"ucc: {reason}")
    return [dist.new_group(ranks, backend=name, timeout=timeout) for ranks in lines][own]


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
    return [dist.new_group(list(ranks), backend=backend) for ranks in lines][mine]


def _open_mpi(timeout: timedelta | None, ranks: Sequence[int], comm: Any) -> Any:
    """Return the group of these ranks on their own communicator."""
    from hpcbench.backends.mpi_group import NAME, register_mpi

    register_mpi()
    return dist.new_group(list(ranks), backend=NAME, timeout=timeout, pg_options=comm,
                          use_local_synchronization=True)

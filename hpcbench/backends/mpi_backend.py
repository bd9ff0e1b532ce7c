"""Backend mpi in torch.distributed: its registration, and the communicator of a new group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from mpi4py import MPI

from hpcbench.backends.mpi_group import NAME, MpiGroup
from hpcbench.backends.mpi_staging import staging_of
from hpcbench.backends.python_group import register


def register_mpi() -> None:
    """Make ``mpi4py`` known to torch.distributed; again does nothing.

    ``dist.new_group(backend="mpi4py", pg_options=comm)`` and ``init_process_group`` take the
    communicator of exactly the group's ranks, in the same order, as ``pg_options``; the caller
    keeps it and frees it. Without one the default group's is divided if it is an mpi4py group
    itself, and MPI.COMM_WORLD taken for the first group of all.
    """
    register(NAME, _open)


def _open(options: Any, comm: Any) -> MpiGroup:
    """Return the group that torch asks for. Raises ValueError if ``comm`` is not its size."""
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    owned = False
    if comm is None:
        default = dist.group.WORLD if dist.is_initialized() else None
        if default is not None and not isinstance(default, MpiGroup):
            raise ValueError("mpi4py needs the communicator of the group's ranks as pg_options")
        comm, owned = _divided(MPI.COMM_WORLD if default is None else default.comm, ranks)
    if (comm.Get_rank(), comm.Get_size()) != (rank, size):
        raise ValueError(f"the communicator is rank {comm.Get_rank()} of {comm.Get_size()}, the "
                         f"group is rank {rank} of {size}")
    return MpiGroup(comm, staging_of(MPI), owned=owned)


def _divided(comm: Any, ranks: Sequence[int]) -> tuple[Any, bool]:
    """Return a new communicator of these ranks; collective over them only."""
    chosen = comm.Get_group().Incl(ranks) if ranks else comm.Get_group()
    return comm.Create_group(chosen), True

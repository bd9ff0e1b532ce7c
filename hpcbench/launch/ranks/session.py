"""How a rank finds out who it is: MPI decides; launcher variables may only contradict it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from hpcbench.errors import LaunchError, how_to_install
from hpcbench.launch.ranks.communicator import Communicator, MpiCommunicator
from hpcbench.launch.ranks.launcher_variables import announced_size, by_torchrun, lonely_fix
from hpcbench.launch.ranks.waiting import WakeupSignal
from hpcbench.measure.allocation import granted_cores, ranks_a_core, threads_of_rank
from hpcbench.measure.environment import node_identity
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.measure.portable import own_cores

_MEETING_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Topology:
    """Who this rank is. ``node`` is the same for ranks that share one machine.

    ``ranks_a_core``: how many of the node's ranks share a core, as bindings and a cgroup have it.
    ``threads``: what a worker of this rank may use of its cores (`threads_of_rank`).
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    hostname: str
    node: str
    nodes: tuple[str, ...]
    mpi: str
    ranks_a_core: float = 1.0
    threads: int = 1


class Session(NamedTuple):
    """This rank among the others: the communicator of all ranks, and its place."""

    comm: Communicator
    topology: Topology


@contextlib.contextmanager
def open_session(environ: Mapping[str, str]) -> Iterator[Session]:
    """Give the communicator of all ranks and this rank's place; MPI ends with the process.

    Raises LaunchError for a launch that MPI does not see as one job.
    """
    with WakeupSignal() as wakeup:
        comm, library = open_communicator(environ)
        check_launch(comm.size, library, environ)
        if isinstance(comm, MpiCommunicator):
            comm = comm.with_wakeup_signals(node_identity(), wakeup)
        yield Session(comm, find_topology(comm, library))


def check_launch(world_size: int, library: str, environ: Mapping[str, str]) -> None:
    """Raise LaunchError, with the fix, for N lonely ranks: their MPI does not know the launcher."""
    announced = announced_size(environ)
    if announced is None or announced[0] == world_size:
        return
    size, launcher = announced
    raise LaunchError(f"{launcher} started {size} ranks, but MPI sees {world_size} ({library}): "
                      f"{lonely_fix(launcher, library)}; see docs/launching.md")


def open_communicator(
    environ: Mapping[str, str], meeting_timeout_s: float = _MEETING_TIMEOUT_S,
) -> tuple[Communicator, str]:
    """Return the world communicator and the MPI library's name; no MPI is one rank.

    Under torchrun the ranks meet at its store, and MPI is not used. The search for the store and
    the wait for all ranks may take ``meeting_timeout_s`` each. Whoever waits in it ends when the
    launcher is gone. Raises LaunchError if several ranks were announced and there is no MPI, or
    under torchrun if they do not meet.
    """
    while_waiting = partial(_end_without, os.getppid())
    if by_torchrun(environ):
        from hpcbench.launch.ranks.store_communicator import open_store_communicator

        return open_store_communicator(while_waiting, meeting_timeout_s), "none"
    mpi = _import_mpi(environ)
    if mpi is None:
        return Communicator(), "none"
    version = mpi.Get_library_version().splitlines()[0].strip("\x00")
    library = " ".join(version.partition(",")[0].split())
    comm = mpi.COMM_WORLD.Dup()
    comm.Set_errhandler(mpi.ERRORS_RETURN)
    return MpiCommunicator(comm, while_waiting), library


def _end_without(launcher: int) -> None:
    """End this process if its parent is no longer ``launcher``."""
    if os.getppid() != launcher:
        os._exit(4)


def _import_mpi(environ: Mapping[str, str]) -> Any:
    """Import mpi4py.MPI; None if it cannot be had and nothing announced several ranks."""
    announced = announced_size(environ)
    problem = f"mpi4py is not installed: {how_to_install('run')}"
    if importlib.util.find_spec("mpi4py") is not None:
        try:
            with warnings.catch_warnings():  # check_launch says the same with its fix
                warnings.filterwarnings("ignore", message="suspicious MPI execution environment")
                from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            problem = f"mpi4py finds no MPI library: {str(error).splitlines()[0]}"
        else:
            return MPI
    if announced is not None and announced[0] > 1:
        raise LaunchError(f"{announced[1]} started {announced[0]} ranks, but {problem}")
    return None


def find_topology(comm: Communicator, library: str) -> Topology:
    """Return the place of this rank; collective. ``library`` is what the MPI calls itself."""
    cores = f"{sum(1 << core for core in own_cores()):x}"  # short: all ranks get it of all
    told: list[tuple[str, str]] = comm.allgather([node_identity(), cores])
    topology = topology_among(comm, {rank: node for rank, (node, _) in enumerate(told)}, library)
    numbers = [int(mask, 16) for node, mask in told if node == topology.node]
    masks = [[core for core in range(number.bit_length()) if number >> core & 1]
             for number in numbers]
    granted = granted_cores(KernelFiles())
    return replace(
        topology, ranks_a_core=max(ranks_a_core(masks), topology.local_size / granted),
        threads=threads_of_rank(masks[topology.local_rank], masks, granted))


def topology_among(comm: Communicator, nodes: Mapping[int, str], library: str) -> Topology:
    """Return the place of this rank among those of which the nodes are known, by rank."""
    node = nodes[comm.rank]
    same = [rank for rank, other in nodes.items() if other == node]
    return Topology(
        rank=comm.rank, world_size=comm.size, local_rank=same.index(comm.rank),
        local_size=len(same), hostname=socket.gethostname(), node=node,
        nodes=tuple(dict.fromkeys(nodes.values())), mpi=library,
    )

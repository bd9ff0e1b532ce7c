"""What the ranks of a job run on: their network, and what each rank's machine has."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbench import __version__
from hpcbench.backends.availability import RankFacts, gpu_indices
from hpcbench.backends.mpi_facts import gather_mpi_facts, no_mpi
from hpcbench.backends.tools import wanted_tools
from hpcbench.errors import ExitCode
from hpcbench.launch.ranks.address import Network, socket_variables
from hpcbench.launch.ranks.agreement import AgreedError, on_all
from hpcbench.launch.ranks.launcher_variables import by_torchrun
from hpcbench.launch.ranks.session import Session, Topology
from hpcbench.launch.workers.worker_pool import WorkerPool
from hpcbench.plan.case import Plan


@dataclass(frozen=True, slots=True)
class Machine:
    """The network of a job, and the facts of all its ranks."""

    network: Network
    ranks: tuple[RankFacts, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return each rank's host as messages name it: "" for all where there is but one."""
        names = [rank.hostname for rank in self.ranks]
        return tuple(names) if len(set(names)) > 1 else ("",) * len(names)

    def gpu_of(self, rank: int) -> int | None:
        """Return the index of a rank's GPU among those it sees, None if it has none."""
        return gpu_indices(self.ranks)[rank]

    def socket_env(self) -> Mapping[str, str]:
        """Return the variables that fix the network interface, unless the user has set them."""
        chosen = socket_variables(self.network.interface)
        return {name: value for name, value in chosen.items() if name not in os.environ}


def probe_ranks(
    session: Session, plan: Plan, pool: WorkerPool, *, allow_mixed: bool,
) -> tuple[RankFacts, ...]:
    """Return what every rank's machine has; refuse ranks whose software differs. Collective."""
    comm, topology = session
    facts = on_all(comm, "probing the machine",
                   lambda: {**pool.facts(wanted_tools(plan.cases)), "mpi": mpi_facts()})
    places = comm.allgather([topology.hostname, topology.local_rank, topology.mpi])
    mixed = None if allow_mixed else version_mix(facts, places)
    if mixed:
        raise AgreedError(mixed, ExitCode.USAGE)  # all ranks see the same facts
    return tuple(RankFacts(rank, hostname, local_rank, facts[rank])
                 for rank, (hostname, local_rank, _) in enumerate(places))


def mpi_facts() -> dict[str, Any]:
    """Return `backends.mpi_facts.gather_mpi_facts` of this process, which is an MPI rank."""
    if by_torchrun(os.environ):
        return no_mpi("torchrun started the ranks, so MPI does not know them: use mpirun or srun")
    return gather_mpi_facts()


def versions(topology: Topology, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what must be alike on all ranks, and in all attempts at one run."""
    return {"hpcbench": __version__, "python": platform.python_version(), "mpi": topology.mpi,
            **facts["versions"]}


def version_mix(
    facts: Sequence[Mapping[str, Any]], places: Sequence[Sequence[Any]],
) -> str | None:
    """Return which rank's software differs from rank 0's, and the remedy; None if none does."""
    seen = [{"mpi": place[2], **fact["versions"]}
            for fact, place in zip(facts, places, strict=True)]
    for rank, versions in enumerate(seen):
        for name in versions.keys() | seen[0].keys():
            ours, theirs = seen[0].get(name, "none"), versions.get(name, "none")
            if ours != theirs:
                return (
                    f"rank {rank} on {places[rank][0]} has {name} {theirs}, rank 0 on "
                    f"{places[0][0]} has {ours}: use one environment on all nodes, or set "
                    "launch.allow_mixed=true")
    return None

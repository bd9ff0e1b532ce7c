"""What a rank sets up from its plan and its place before the first case."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench import __version__
from hpcbench.backends.availability import RankFacts, gpu_indices, own_gpu
from hpcbench.backends.mpi_facts import gather_mpi_facts, no_mpi
from hpcbench.launch.probe import resolve
from hpcbench.launch.ranks.address import Network, socket_variables
from hpcbench.launch.ranks.launcher_variables import by_torchrun
from hpcbench.launch.ranks.session import Topology
from hpcbench.launch.verdicts.network_state import Seat
from hpcbench.launch.workers.environment import worker_environment
from hpcbench.launch.workers.worker_group import Rendezvous
from hpcbench.launch.workers.worker_pool import WorkerPool
from hpcbench.measure.allocation import cgroup
from hpcbench.measure.environment import machine
from hpcbench.measure.hardware import described_hardware
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.measure.loop import SINGLE_CALLS
from hpcbench.measure.progress import SharedProgress
from hpcbench.plan.canary import planned_canary
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.estimate import case_budget_s
from hpcbench.trace.schema import Header

_GROUP_TIMEOUT_MARGIN_S = 300.0


def open_pool(plan: Plan, topology: Topology) -> WorkerPool:
    """Start this rank's template process, with memory for the stamps of the longest case."""
    launch = plan.config["launch"]
    env = worker_environment(os.environ, launch["pass_env"], _thread_env(topology))
    return WorkerPool(
        env, SharedProgress.create(most_rows(plan)), kinds=plan.kinds,
        memory_limit_bytes=int((launch["memory_limit_gb"] or 0) * 1e9),
        ready_timeout_s=_init_timeout_s(plan, topology))


def _init_timeout_s(plan: Plan, topology: Topology) -> float:
    """Return how long starting workers may take: ranks that share a core load torch in turns.

    Of cores that a cgroup grants; how many of a node's a launcher binds its ranks to is not known.
    """
    granted = cgroup(KernelFiles())["cpus"]
    cores = min(os.cpu_count() or 1, granted if isinstance(granted, (int, float)) else math.inf)
    ranks_a_core = topology.local_size / cores
    return float(plan.config["launch"]["init_timeout_s"]) * max(1.0, ranks_a_core)


def most_rows(plan: Plan) -> int:
    """Return how many rows a worker stamps in the longest case; the canary may be that."""
    canary = planned_canary(plan.world_size)
    cases: list[Case] = [*plan.cases, *([canary] if canary else [])]
    return max(case.warmup + case.iterations for case in cases) + SINGLE_CALLS


def job_rendezvous(
    network: Network, topology: Topology, plan: Plan, ranks: Sequence[RankFacts],
) -> Rendezvous:
    """Return where the workers of this job meet, and what this rank's worker takes there."""
    launch = plan.config["launch"]
    first, last = launch["port"] if isinstance(launch["port"], list) else [launch["port"]] * 2
    longest = max((case.timeout_s for case in plan.cases), default=launch["timeout_s"])
    return Rendezvous(
        address=network.address, ports=tuple(range(first, last + 1)),
        local_rank=topology.local_rank, local_size=topology.local_size,
        gpu=gpu_indices(ranks)[topology.rank], init_timeout_s=_init_timeout_s(plan, topology),
        # the supervisors' deadline comes first, so that stacks show where a hang is; inline
        # nothing but the group's own timeout can end a call that waits for a failed rank
        group_timeout_s=longest + (0.0 if launch["inline"] else _GROUP_TIMEOUT_MARGIN_S),
        seat=Seat(hosts(ranks)[topology.rank], network.interface))


def hosts(ranks: Sequence[RankFacts]) -> tuple[str, ...]:
    """Return each rank's host as messages name it: "" for all where there is but one."""
    names = [rank.hostname for rank in ranks]
    return tuple(names) if len(set(names)) > 1 else ("",) * len(names)


def run_budget_s(plan: Plan, runnable: int) -> float:
    """Return the seconds that one run of one case may spend in its timed loop."""
    return case_budget_s(plan.config["measure"]["budget_s"], runnable, plan.passes, plan.launches)


def job_canary(plan: Plan, ranks: Sequence[RankFacts]) -> Case | None:
    """Return the canary, or None if it is not wanted or this machine cannot run it."""
    launch = plan.config["launch"]
    canary = planned_canary(plan.world_size, launch["timeout_s"], launch["wakeup_s"])
    if canary is None or not plan.config["measure"]["canary"]:
        return None
    return None if resolve(replace(plan, cases=(canary,)), ranks).skips else canary


def socket_env(network: Network) -> Mapping[str, str]:
    """Return the variables that fix the network interface, unless the user has set them."""
    chosen = socket_variables(network.interface)
    return {name: value for name, value in chosen.items() if name not in os.environ}


def _thread_env(topology: Topology) -> Mapping[str, str]:
    """Return the variables that divide the cores among the ranks of a node, unless set."""
    threads = max(1, len(os.sched_getaffinity(0)) // topology.local_size)
    return {"OMP_NUM_THREADS": str(threads)}


def header(
    topology: Topology, network: Network, plan: Plan, run_id: str, ranks: Sequence[RankFacts],
) -> Header:
    """Return who writes this rank's trace, and with what; variables as its workers have them."""
    rank, gpu = ranks[topology.rank], gpu_indices(ranks)[topology.rank]
    facts = rank.facts
    described = machine({**_thread_env(topology), **socket_env(network), **os.environ})
    hardware = described_hardware(plan.config["hardware"], facts, described["memory_bytes"])
    return Header(
        run_id=run_id, plan_hash=plan.plan_hash, rank=topology.rank,
        world_size=topology.world_size, local_rank=topology.local_rank,
        hostname=topology.hostname, node=topology.node, pid=os.getpid(),
        versions=versions(topology, facts),
        environment={
            **described, "devices": facts["cuda"]["names"], "hardware": hardware,
            "gpu": own_gpu(rank, gpu), "mpi_cuda": facts["mpi"]["cuda"],
            "libraries": {**described["libraries"], "worker": facts["libraries"]}})


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

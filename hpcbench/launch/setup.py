"""What a rank sets up from its plan and its place before the first case."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace

from hpcbench.backends.availability import own_gpu
from hpcbench.config.schema import Launch
from hpcbench.launch.attempt import Attempt, PlannedRun
from hpcbench.launch.machine import versions
from hpcbench.launch.probe import resolve
from hpcbench.launch.ranks.session import Topology
from hpcbench.launch.verdicts.network_state import RankLocation
from hpcbench.launch.workers.environment import worker_environment
from hpcbench.launch.workers.worker_group import Rendezvous
from hpcbench.launch.workers.worker_pool import WorkerPool
from hpcbench.measure.allocation import cgroup
from hpcbench.measure.environment import described_hardware, machine
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.measure.loop import SINGLE_CALLS
from hpcbench.measure.progress import SharedProgress
from hpcbench.plan.case import Case, Plan, planned_canary
from hpcbench.trace.schema import Header

_GROUP_TIMEOUT_MARGIN_S = 300.0


def open_pool(planned: PlannedRun, topology: Topology) -> WorkerPool:
    """Start this rank's template process, with memory for the stamps of the longest case."""
    launch, plan = planned.config.launch, planned.plan
    env = worker_environment(os.environ, launch.pass_env, _thread_env(topology))
    return WorkerPool(
        env, SharedProgress.create(most_rows(plan)), kinds=plan.kinds,
        memory_limit_bytes=memory_limit_bytes(launch),
        ready_timeout_s=_init_timeout_s(launch, topology))


def memory_limit_bytes(launch: Launch) -> int:
    """Return the limit of a worker's data memory, 0 where there is none."""
    return int((launch.memory_limit_gb or 0) * 1e9)


def _init_timeout_s(launch: Launch, topology: Topology) -> float:
    """Return how long starting workers may take: ranks that share a core load torch in turns.

    Of cores that a cgroup grants; how many of a node's a launcher binds its ranks to is not known.
    """
    granted = cgroup(KernelFiles())["cpus"]
    cores = min(os.cpu_count() or 1, granted if isinstance(granted, (int, float)) else math.inf)
    ranks_a_core = topology.local_size / cores
    return launch.init_timeout_s * max(1.0, ranks_a_core)


def most_rows(plan: Plan) -> int:
    """Return the most rows that one case of the plan, or its canary, can record."""
    canary = planned_canary(plan.world_size)
    cases: list[Case] = [*plan.cases, *([canary] if canary else [])]
    return max(case.warmup + case.iterations for case in cases) + SINGLE_CALLS


def job_rendezvous(attempt: Attempt) -> Rendezvous:
    """Return where the workers of this job meet, and what this rank's worker takes there."""
    launch, topology, network = attempt.config.launch, attempt.topology, attempt.machine.network
    first, last = launch.port
    longest = max((case.timeout_s for case in attempt.plan.cases), default=launch.timeout_s)
    return Rendezvous(
        address=network.address, ports=tuple(range(first, last + 1)),
        local_rank=topology.local_rank, local_size=topology.local_size,
        gpu=attempt.machine.gpu_of(topology.rank),
        init_timeout_s=_init_timeout_s(launch, topology),
        # the supervisors' deadline comes first, so that stacks show where a hang is; inline
        # nothing but the group's own timeout can end a call that waits for a failed rank
        group_timeout_s=longest + (0.0 if launch.inline else _GROUP_TIMEOUT_MARGIN_S),
        location=RankLocation(attempt.machine.hosts[topology.rank], network.interface))


def job_canary(attempt: Attempt) -> Case | None:
    """Return the canary, or None if it is not wanted or this machine cannot run it."""
    plan, launch = attempt.plan, attempt.config.launch
    canary = planned_canary(plan.world_size, launch.timeout_s, launch.wakeup_s)
    if canary is None or not attempt.config.measure.canary:
        return None
    return None if resolve(replace(plan, cases=(canary,)), attempt.machine.ranks).skips else canary


def _thread_env(topology: Topology) -> Mapping[str, str]:
    """Return the variables that divide the cores among the ranks of a node, unless set."""
    threads = max(1, len(os.sched_getaffinity(0)) // topology.local_size)
    return {"OMP_NUM_THREADS": str(threads)}


def header(attempt: Attempt, run_id: str) -> Header:
    """Return who writes this rank's trace, and with what; variables as its workers have them."""
    topology = attempt.topology
    rank = attempt.machine.ranks[topology.rank]
    facts, gpu = rank.facts, attempt.machine.gpu_of(topology.rank)
    described = machine({
        **_thread_env(topology), **attempt.machine.socket_env(), **os.environ})
    hardware = described_hardware(
        attempt.config.hardware.model_dump(mode="json"), facts, described["memory_bytes"])
    return Header(
        run_id=run_id, plan_hash=attempt.plan.plan_hash, rank=topology.rank,
        world_size=topology.world_size, local_rank=topology.local_rank,
        hostname=topology.hostname, node=topology.node, pid=os.getpid(),
        versions=versions(topology, facts),
        environment={
            **described, "devices": facts["cuda"]["names"], "hardware": hardware,
            "gpu": own_gpu(rank, gpu), "mpi_cuda": facts["mpi"]["cuda"],
            "libraries": {**described["libraries"], "worker": facts["libraries"]}})

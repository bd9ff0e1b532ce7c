"""The measuring stage of a run: what a rank sets up and says before it, and its journal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hpcbench.backends.availability import (
    gpu_names,
    gpu_tried,
    lost_lines,
    of_rocm,
    own_gpu,
)
from hpcbench.config.fault import fault_texts
from hpcbench.config.schema import Launch, stored_config
from hpcbench.launch.attempt import Attempt, CaseReport, PlannedRun, SupervisorContext
from hpcbench.launch.clocks.synchronization import Clocks
from hpcbench.launch.folders.run_folder import RankFolders, separate_folder_lines
from hpcbench.launch.probe import resolve, versions
from hpcbench.launch.profiled import opening_line, profile_cases
from hpcbench.launch.ranks.agreement import on_all
from hpcbench.launch.ranks.launcher_variables import by_torchrun
from hpcbench.launch.ranks.session import Topology
from hpcbench.launch.ranks.stop_requests import StopRequests
from hpcbench.launch.recording import record_telemetry
from hpcbench.launch.supervisor import supervise
from hpcbench.launch.workers.environment import thread_variables, worker_environment
from hpcbench.launch.workers.observation import RankLocation
from hpcbench.launch.workers.template_process import TemplateProcess
from hpcbench.launch.workers.worker_group import Rendezvous
from hpcbench.launch.workers.worker_pool import WorkerPool
from hpcbench.launch.workers.worker_process import TemplateSpec
from hpcbench.measure.environment import described_hardware, machine
from hpcbench.measure.loop import SINGLE_CALLS
from hpcbench.measure.noise import check_s, measure_noise
from hpcbench.measure.progress import SharedProgress
from hpcbench.plan.case import Case, Plan, planned_canary
from hpcbench.plan.order import INLINE_BACKENDS
from hpcbench.telemetry.opening import open_sampler
from hpcbench.telemetry.sampler import Sampler
from hpcbench.trace.journal import Journal, journal_path
from hpcbench.trace.schema import NOISE_NOTE, Header
from hpcbench.trace.source import APART_NOTE, END_NOTE, RESUMED_NOTE, STOPPED_NOTE
from hpcbench.units import plural, rough_time

_GROUP_TIMEOUT_MARGIN_S = 300.0
_NOTABLE_SHARE = 0.05
"""Of a core before the sweep: what others take of it is told as a reason for times."""


def open_pool(
    planned: PlannedRun, topology: Topology, early: TemplateProcess | None = None,
) -> WorkerPool:
    """Return what gives this rank's workers, with memory for the stamps of the longest case.

    It goes on with the ``early`` template if that has the right variables.
    """
    launch, plan = planned.config.launch, planned.plan
    env = worker_environment(os.environ, launch.pass_env, thread_variables(topology.threads))
    return WorkerPool(
        TemplateSpec(env, _init_timeout_s(launch, topology), plan.kinds),
        SharedProgress.create(most_rows(plan)), memory_limit_bytes=launch.memory_limit_bytes,
        early=early)


def _init_timeout_s(launch: Launch, topology: Topology) -> float:
    """Return how long starting workers may take: ranks that share a core load torch in turns."""
    return launch.init_timeout_s * max(1.0, topology.ranks_a_core)


def most_rows(plan: Plan) -> int:
    """Return the most rows that one case of the plan, or its canary, can record."""
    canary = planned_canary(plan.world_size)
    cases: list[Case] = [*plan.cases, *([canary] if canary else [])]
    measured = max(case.warmup + case.iterations for case in cases) + SINGLE_CALLS
    profiling = stored_config(plan.config).profiling
    return max(measured, *(max(case.warmup, 1) + profiling.samples for case in cases))


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


def header(attempt: Attempt, run_id: str) -> Header:
    """Return who writes this rank's trace, and with what; variables as its workers have them."""
    topology = attempt.topology
    faults = fault_texts(attempt.plan.config.get("fault", ()))
    rank = attempt.machine.ranks[topology.rank]
    facts, gpu = rank.facts, attempt.machine.gpu_of(topology.rank)
    described = machine({
        **thread_variables(topology.threads), **attempt.machine.socket_env(), **os.environ})
    hardware = described_hardware(
        attempt.config.hardware.model_dump(mode="json"), facts, described["memory_bytes"])
    return Header(
        run_id=run_id, plan_hash=attempt.plan.plan_hash, rank=topology.rank,
        world_size=topology.world_size, local_rank=topology.local_rank,
        hostname=topology.hostname, node=topology.node, pid=os.getpid(),
        versions=versions(topology, facts),
        environment={
            **described,
            "process": {**described["process"], "ranks_a_core": topology.ranks_a_core},
            **({"faults": [*faults]} if faults else {}),
            **({"lost": facts["lost"]} if facts["lost"] else {}),
            "devices": gpu_names(facts), "hardware": hardware,
            "gpu": own_gpu(rank, gpu), "gpu_topology": facts["gpu_topology"],
            "mpi_cuda": facts["mpi"]["cuda"],
            "libraries": {**described["libraries"], "worker": facts["libraries"]}})


def shared_cores_lines(topology: Topology) -> Iterator[str]:
    """Say what suffers where ranks of rank 0's node share cores, by bindings or a cgroup's limit.
    """
    if topology.ranks_a_core > 1:
        yield (f"{topology.local_size} ranks on {topology.hostname} share cores, up to "
               f"{topology.ranks_a_core:.3g} of them each core: ranks wait for a core within what "
               "is timed. Times are longer, spread by whole scheduler ticks, and do not tell how "
               "fast a backend is")


def _work_line(attempt: Attempt, todo: Sequence[Case]) -> str:
    """Return how much there is to do, where, about how long it takes, and what cannot be done."""
    host, n_nodes = attempt.topology.hostname, len(attempt.topology.nodes)
    place = host if n_nodes == 1 else f"{n_nodes} nodes ({host}, ...)"
    n_cases, n_skips = len({case.case_id for case in todo}), len(attempt.resolution.skips)
    work = plural(n_cases, "case")
    work = work if len(todo) == n_cases else f"{len(todo)} runs of {work}"
    skips = f"; {plural(n_skips, 'case')} cannot run here" if n_skips else ""
    return f"on {place}: {work}, about {rough_time(sum(case.estimate_s for case in todo))}{skips}"


def opening_lines(attempt: Attempt, todo: Sequence[Case], folders: RankFolders) -> Iterator[str]:
    """Yield how much is run on what, where the results go, and what the user should know."""
    history, config = attempt.history, attempt.config
    if attempt.resolution.no_gpu:
        yield attempt.resolution.no_gpu
    yield _work_line(attempt, todo)
    yield from shared_cores_lines(attempt.topology)
    yield f"results in {folders.folder.path}"
    yield from separate_folder_lines(folders)
    for note in (*folders.folder.notes, *config.notes):
        yield f"note: {note}"
    if history.attempt:
        yield (f"attempt number {history.attempt + 1} at this run: {len(history.finished)} runs of "
               "cases were done before and are not repeated")
    if history.retried:
        yield f"run again in all their passes (--retry): {plural(len(history.retried), 'case')}"
    for case in attempt.plan.cases:
        if reason := history.quarantine(case):
            yield f"{case.label}: {reason}"
    yield from lost_lines(attempt.machine.ranks)
    for fault in fault_texts(attempt.plan.config.get("fault", ())):
        yield f"fault to be injected, so this measures no machine: {fault}"
    if config.profiling.enabled:
        yield opening_line(config.profiling)
    if config.launch.inline:
        yield ("workers run inline, in the ranks' own processes, and are not isolated: a crash "
               "ends the job, a hang is not survived"
               + " (torchrun; with mpirun or srun they are isolated)" * by_torchrun(os.environ))
    elif inline := sum(case.backend in INLINE_BACKENDS for case in todo):
        yield (f"{plural(inline, 'run')} of backend mpi come last, in the MPI processes: a crash "
               "or a hang there ends the job")


@contextlib.contextmanager
def open_journal(attempt: Attempt, folders: RankFolders) -> Iterator[Journal]:
    """Give this rank's journal, opened on all ranks or on none. Collective."""
    opened: list[Journal] = []
    rank = attempt.comm.rank
    who, plan = header(attempt, folders.own.run_id), attempt.plan if rank == 0 else None
    on_all(attempt.comm, "opening the trace", lambda: opened.append(
        Journal.create(journal_path(folders.own.traces, rank), who, plan)))
    with opened[0] as journal:
        if rank == 0:
            _note_beginning(attempt, folders, journal)
        yield journal


def _note_beginning(attempt: Attempt, folders: RankFolders, journal: Journal) -> None:
    """Note which ranks write elsewhere, and what the attempt goes on with."""
    if folders.apart:
        journal.note(APART_NOTE, {str(rank): place for rank, place in folders.apart.items()})
    history = attempt.history
    if history.attempt:
        left = len(attempt.runs_left())
        journal.note(RESUMED_NOTE, {
            "attempt": history.attempt, "left": left, "changes": list(history.changes),
            "planned": left + len(history.finished), "earlier_plans": list(history.plans)})


def note_noise(attempt: Attempt, journal: Journal) -> float:
    """Look how quiet this rank's core is, and note it; return the share that others took of it.

    Collective: all ranks look at the same time, as they measure. 0 where it is switched off.
    """
    most_s = attempt.config.measure.noise_check_s
    if not most_s:
        return 0.0
    attempt.comm.barrier()
    noise = measure_noise(check_s(
        most_s, sum(case.estimate_s for case in attempt.runs_left())))
    journal.note(NOISE_NOTE, noise)
    return float(noise["detours"]["stolen_share"])


def slow_reason(topology: Topology, cores: int | None, taken: float) -> str:
    """Return why cases may take longer than planned, as far as it is known on rank 0.

    ``cores`` are those of its node, None where that is unknown; ``taken`` is what others took of
    its own before the sweep.
    """
    if cores is not None and cores < topology.local_size:
        return f"{topology.local_size} ranks share {plural(cores, 'core')} of {topology.hostname}"
    if taken >= _NOTABLE_SHARE:
        return f"other processes used {taken:.0%} of rank 0's core before the sweep"
    return "the plan assumes a faster or a quieter machine"


def measure(
    attempt: Attempt, journal: Journal, report: CaseReport, folders: RankFolders,
    pool: WorkerPool, stop: StopRequests,
) -> None:
    """Supervise the whole sweep; this rank's journal is complete when this returns."""
    clocks = Clocks(time.perf_counter_ns, attempt.config.measure.clock_sync_s, journal.note)
    clocks.sync(attempt.comm)
    with _sampler(attempt) as telemetry:
        job = SupervisorContext(
            attempt, journal, report, folders.folder.path, clocks, stop, job_rendezvous(attempt),
            job_canary(attempt), telemetry)
        reason = supervise(job, pool)
        record_telemetry(job)
        if not reason and attempt.config.profiling.enabled:
            reason = profile_cases(job, pool, folders.own.path)
    if reason:
        journal.note(STOPPED_NOTE, {"signal": reason})
    journal.note(END_NOTE, {})


def _sampler(attempt: Attempt) -> Sampler:
    """Return what reads the machine of this rank while cases run."""
    topology, machine = attempt.topology, attempt.machine
    rank, index = machine.ranks[topology.rank], machine.gpu_of(topology.rank)
    gpu = own_gpu(rank, index)
    return open_sampler(attempt.config.telemetry, local_rank=topology.local_rank,
                        gpu_uuid=gpu["uuid"] if gpu else None, tried=gpu_tried(rank, index),
                        rocm=gpu is not None and of_rocm(rank.facts))

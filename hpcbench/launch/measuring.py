"""The measuring stage of a run: its journal, the first lines of a rank, and profiles at the end.

Profiled samples come last, in workers of their own: a profiler can leave a process slower. A case
that cannot be profiled costs its profile only."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from hpcbench.backends.availability import (
    gpu_names,
    gpu_refusals,
    is_rocm_build,
    lost_lines,
    own_gpu,
)
from hpcbench.config.axes import SLOWING
from hpcbench.config.schema import Launch, Profiling, stored_config
from hpcbench.config.section import fault_texts
from hpcbench.launch.attempt import (
    CaseReport,
    PlannedRun,
    RunAttempt,
    SupervisorContext,
    record_telemetry,
)
from hpcbench.launch.clocks import SynchronisedClock
from hpcbench.launch.communicator import IDLE_PAUSE_S, LONGEST_PAUSE_S, Communicator
from hpcbench.launch.launcher import StopRequests, by_torchrun, mixed_mpis
from hpcbench.launch.messages import ProfileRequest
from hpcbench.launch.probe import resolve, versions
from hpcbench.launch.run_folder import RankFolders, send_to_root, separate_folder_lines
from hpcbench.launch.session import RankIdentity, on_all
from hpcbench.launch.supervisor import supervise
from hpcbench.launch.template_process import AnyTemplate, thread_variables, worker_environment
from hpcbench.launch.worker_group import CaseHooks, RankLocation, Rendezvous, WorkerGroup
from hpcbench.launch.worker_pool import LoadWorker, WorkerPool
from hpcbench.launch.worker_process import TemplateSpec, WorkerHandle
from hpcbench.measurement.control import SharedProgress
from hpcbench.measurement.environment import described_hardware, machine
from hpcbench.measurement.noise import check_s, measure_noise
from hpcbench.plan.case import Case, Plan, planned_canary
from hpcbench.plan.order import INLINE_BACKENDS, Generation, History, generations, pass_s
from hpcbench.profiling import profiled_cases as nsys
from hpcbench.profiling.profiled_cases import (
    PROFILE_FOLDER,
    RANK_FILES,
    STALL_SHARE,
    ProfileNote,
    profile_reason,
    rank_file,
    stall,
)
from hpcbench.records import dataclass
from hpcbench.telemetry.sampler import Sampler, open_sampler
from hpcbench.trace.journal import Journal, journal_path
from hpcbench.trace.schema import NOISE_NOTE, Header
from hpcbench.trace.source import END_NOTE, FOLDERS_NOTE, PROFILE_NOTE, RESUMED_NOTE, STOPPED_NOTE
from hpcbench.units import digits, grouped, plural, rough_time

_FIRST_NUMBER = 1 << 48
"""Above the numbers of all cases of the sweep, so that no notice of one is taken for another's."""
MOST_FAILURES = 3
"""After so many profiles in a row that failed, the other cases of the workers are left out."""
PROFILER_S = 60.0
"""Time for profiling beside the case's limit: torch's profiler starts in seconds, and long traces
take time."""
_NO_TOOL = "profiling.tool is none"
MOST_SENT_BYTES = 256 << 20
"""A rank with a disk of its own sends rank 0 so many bytes of profiles at most."""


def profile_cases(job: SupervisorContext, pool: WorkerPool, folder: Path) -> str:
    """Profile each case whose last run was ok, once; return the signal that stopped it, or "".

    Cases of earlier attempts are included if not profiled yet. ``folder`` is where this rank
    writes. Collective."""
    attempt, stop = job.attempt, ""
    lacking = _lacking(job)
    if not lacking and attempt.config.profiling.tool == nsys.NSYS:
        devices = attempt.resolution.devices.values()
        with contextlib.suppress(OSError):  # then nsys has no report, as the case's entry states
            (folder / PROFILE_FOLDER / RANK_FILES).mkdir(parents=True, exist_ok=True)
        pool.renew_under(nsys.nsys_command(folder, job.comm.rank, cuda="cuda" in devices))
    todo = generations(attempt.runnable())
    members = {size: job.comm.first(size)
               for size in sorted({generation.world_size for generation in todo})}
    for place, generation in enumerate(todo):
        mine = members[generation.world_size]
        if mine is not None and not stop:
            turn = _ProfileTurn(job, pool, folder, mine, generation,
                                _FIRST_NUMBER + (place << 24), lacking)
            stop = turn.run()
        pause_s = IDLE_PAUSE_S if mine is None else LONGEST_PAUSE_S
        stop = str(job.comm.bcast(stop, pause_s))
    pool.end_template()  # a profiler around it writes its report now
    if not stop:
        job.clocks.sync(job.comm)  # so that profiles lie between two synchronisations
    return stop


def opening_line(profiling: Profiling) -> str:
    """Return rank 0's line on profiling before the first case."""
    if profiling.tool == "none":
        return f"no case will be profiled: {_NO_TOOL}"
    if profiling.tool == nsys.NSYS and not nsys.nsys_is_installed():
        return f"no case will be profiled: {nsys.nsys_missing([0])}"
    which = ("each case" if profiling.trigger == "always"
             else "each case whose ranks wait for each other")
    return (f"after the last pass {which} is profiled (tool {profiling.tool}): "
            f"{plural(profiling.samples, 'sample')}, in no statistic")


def _lacking(job: SupervisorContext) -> str:
    """Return why no case can be profiled, "" if cases can. Collective."""
    tool = job.attempt.config.profiling.tool
    if tool == "none":
        return _NO_TOOL
    if tool != nsys.NSYS:
        return ""
    if job.inline:
        return "nsys cannot be put around workers in the ranks' own processes (--inline, torchrun)"
    installed = job.comm.allgather(nsys.nsys_is_installed())
    without = [rank for rank, is_there in enumerate(installed) if not is_there]
    return nsys.nsys_missing(without) if without else ""


@dataclass(slots=True)
class _ProfileTurn:
    """The profiles of the cases that share workers."""

    job: SupervisorContext
    pool: WorkerPool
    folder: Path
    members: Communicator
    generation: Generation
    number: int
    lacking: str = ""
    failures: int = 0

    def run(self) -> str:
        job, stop = self.job, ""
        workers = WorkerGroup(self.members, job.rendezvous, job.stop, CaseHooks(
            self._start_worker, lambda worker, case: contextlib.nullcontext(), lambda: ()),
            unbounded=job.inline)
        try:
            for case, note in self._chosen():
                if stop:
                    break
                if note.is_wanted and self.failures >= MOST_FAILURES:
                    note = replace(note, is_wanted=False,
                                   why=f"{MOST_FAILURES} profiles before it failed")
                if note.is_wanted:
                    stop = self._profile(workers, case, note)
                elif job.comm.rank == 0:
                    job.journal.note(PROFILE_NOTE, asdict(note))
            workers.close()
        finally:
            workers.dismiss()
        return stop

    def _start_worker(self) -> WorkerHandle:
        variables = (*self.job.attempt.machine.socket_env().items(), *self.generation.env)
        if self.job.inline:
            return self.pool.start_inline(variables, None)
        return self.pool.start_worker(variables, stop=self.job.stop)

    def _chosen(self) -> Iterator[tuple[Case, ProfileNote]]:
        """Yield the cases whose last run was ok, each with whether it is profiled, and why."""
        job = self.job
        medians = self.members.allgather({case.case_id: job.medians_ns.get(case.case_id)
                                           for case in self.generation.cases})
        for case in self.generation.cases:
            of_ranks: list[Mapping[str, float] | None] = [one[case.case_id] for one in medians]
            chosen = [one for one in of_ranks if one is not None]
            if chosen == of_ranks or job.attempt.history.is_profile_left(case):
                is_wanted, why = self._decided(case, chosen if chosen == of_ranks else None)
                yield case, ProfileNote(case.case_id, is_wanted, why)

    def _decided(
        self, case: Case, medians: Sequence[Mapping[str, float]] | None,
    ) -> tuple[bool, str]:
        if self.lacking:
            return False, self.lacking
        if case.workload.next_try(()) is not None:
            return False, "its tries run different workloads"
        if self.generation.inline and not self.job.inline:
            return False, "backend mpi runs in the MPI process, which a profiler could crash"
        if self.job.attempt.config.profiling.trigger == "always":
            return True, "trigger always"
        if medians is None:
            return True, "an earlier attempt measured it: whether its ranks wait is unknown"
        share, name = stall(medians)
        return share >= STALL_SHARE, profile_reason(share, name)

    def _profile(self, workers: WorkerGroup, case: Case, note: ProfileNote) -> str:
        job, attempt = self.job, self.job.attempt
        self.number += 1  # the same on all members
        outcome = workers.run(ProfileRequest(
            replace(case, timeout_s=case.timeout_s + PROFILER_S), self.number,
            attempt.resolution.devices[case.case_id], tuple(
                fault for fault in attempt.config.fault if fault.kind in SLOWING
                and fault.rank == self.members.rank and case.may_have(fault)),
            job.clocks.model, attempt.config.profiling.samples, attempt.history.attempt,
            str(rank_file(self.folder, case.case_id, self.members.rank)),
            attempt.config.profiling.tool))
        problem = outcome.verdict.reason if outcome.verdict.status != "ok" else ""
        self.failures = self.failures + 1 if problem else 0
        if job.comm.rank == 0:
            job.journal.note(PROFILE_NOTE, asdict(replace(note, problem=problem)))
        return outcome.stop


def collect_profiles(comm: Communicator, folders: RankFolders) -> list[str]:
    """Send rank 0 the profiles that it does not see; return there what is missing. Collective."""
    if not folders.separate:
        return []
    ranks = folders.own.path / PROFILE_FOLDER / RANK_FILES
    files, left, sent_bytes = {}, 0, 0
    for path in sorted(ranks.glob("*")) if comm.rank in folders.separate else ():
        if sent_bytes + path.stat().st_size <= MOST_SENT_BYTES:
            sent_bytes += path.stat().st_size
            files[path.name] = path
        else:
            left += 1
    counts = comm.allgather(left)
    problems = send_to_root(comm, files, folders.separate,
                       folders.folder.path / PROFILE_FOLDER / RANK_FILES)
    problems += [f"rank {rank}: {counts[rank]} profiles stay on {place.host} in "
                 f"{place.path}/{PROFILE_FOLDER}/{RANK_FILES}: no more than "
                 f"{MOST_SENT_BYTES >> 20} MiB are sent"
                 for rank, place in folders.separate.items() if counts[rank]]
    if comm.rank in folders.separate:
        for empty in (ranks, ranks.parent):
            with contextlib.suppress(OSError):
                empty.rmdir()
    return problems if comm.rank == 0 else []


_GROUP_TIMEOUT_MARGIN_S = 300.0
_NOTABLE_SHARE = 0.05
"""Share of a core before the sweep: more is reported as a reason for slow cases."""
_NOTABLE_PACE, _MOST_SHARE = 1.1, 0.9
"""The least factor by which other processes slow estimates down; the share that bounds it."""


def open_pool(
    planned: PlannedRun, topology: RankIdentity, inline: LoadWorker,
    early: AnyTemplate | None = None,
) -> WorkerPool:
    """Return the pool of this rank's workers, with memory for the stamps of the longest case."""
    launch, plan = planned.config.launch, planned.plan
    env = worker_environment(os.environ, launch.pass_env, thread_variables(topology.threads))
    kinds = () if launch.inline else plan.kinds  # inline, the template probes the machine only
    return WorkerPool(
        TemplateSpec(env, _init_timeout_s(launch, topology), kinds),
        SharedProgress.create(most_rows(plan)), memory_limit_bytes=launch.memory_limit_bytes,
        early=early, inline=inline)


def _init_timeout_s(launch: Launch, topology: RankIdentity) -> float:
    return launch.init_timeout_s * max(1.0, topology.ranks_a_core)


def most_rows(plan: Plan) -> int:
    """Return the most rows that one case of the plan, or its canary, can record."""
    cases = (*plan.cases, planned_canary(plan.world_size))
    measured = max(case.warmup + case.iterations + sum(case.single_calls) for case in cases)
    profiling = stored_config(plan.config).profiling
    return max(measured, *(max(case.warmup, 1) + profiling.samples for case in cases))


def job_rendezvous(attempt: RunAttempt) -> Rendezvous:
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


def job_canary(attempt: RunAttempt) -> Case | None:
    """Return the canary, or None if it is not wanted or this machine cannot run it."""
    plan, launch = attempt.plan, attempt.config.launch
    canary = planned_canary(plan.world_size, launch.timeout_s, launch.poll_interval_s)
    if not attempt.config.measure.canary:
        return None
    return None if resolve(replace(plan, cases=(canary,)), attempt.machine.ranks).skips else canary


def header(attempt: RunAttempt, run_id: str) -> Header:
    """Return the header of this rank's trace; variables are those of its workers."""
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


def shared_cores_lines(topology: RankIdentity) -> Iterator[str]:
    """Yield a warning where ranks of rank 0's node share cores, by bindings or a cgroup's limit."""
    if topology.ranks_a_core > 1:
        yield (f"note: {topology.local_size} ranks on {topology.hostname} share cores, up to "
               f"{topology.ranks_a_core:.3g} a core: times include waits for a core and do not "
               "show how fast a backend is")


class Pace(NamedTuple):
    """How many times the plan's estimate is expected, and by what."""

    factor: float = 1.0
    reason: str = ""


def pace_of(
    history: History, stolen_share: float, todo: Iterable[Case], slow_reason: str,
) -> Pace:
    """Return the pace of the attempt before, else that of a core of which others take a share.

    Cases whose iterations are not fixed have a budget of time, which load does not change."""
    if history.pace:
        return Pace(history.pace, "as in the attempt before")
    times = grouped((case.is_fixed, case.estimate_s) for case in todo)
    fixed_s, budget_s = (sum(times.get(is_fixed, ())) for is_fixed in (True, False))
    slow_s = fixed_s / (1 - min(stolen_share, _MOST_SHARE)) + budget_s
    factor = slow_s / (fixed_s + budget_s) if fixed_s else 1.0
    if factor < _NOTABLE_PACE:
        return Pace()
    return Pace(factor, slow_reason)


def _work_line(attempt: RunAttempt, todo: Sequence[Case], pace: Pace) -> str:
    """Return how many cases can run, where, and about how long they take."""
    host, n_nodes = attempt.topology.hostname, len(attempt.topology.nodes)
    place = host if n_nodes == 1 else f"{n_nodes} nodes ({host}, ...)"
    left, every = len({case.case_id for case in todo}), len(attempt.plan.cases)
    able = every - len(attempt.resolution.skips)
    rest = f", {left} of them left" if left < able else ""
    planned_s = (attempt.launches_left() * attempt.launch_s()
                 + sum(pass_s(cases) for _, cases in attempt.turns_left()))
    why = (f", {digits(pace.factor, 2)} times the plan's {rough_time(planned_s)}: {pace.reason}"
           if pace.reason else "")
    return (f"{able} of {plural(every, 'case')} can run on {place}{rest}: "
            f"about {rough_time(planned_s * pace.factor)}{why}")


def opening_lines(
    attempt: RunAttempt, todo: Sequence[Case], folders: RankFolders, pace: Pace,
) -> Iterator[str]:
    """Yield the job's first lines: amount, place, results folder, and what the user should know."""
    history, config = attempt.history, attempt.config
    if attempt.resolution.no_gpu:
        yield attempt.resolution.no_gpu
    yield _work_line(attempt, todo, pace)
    yield from shared_cores_lines(attempt.topology)
    yield from (f"note: {mixed}" for mixed in mixed_mpis(os.environ, attempt.topology.mpi))
    yield f"results in {folders.folder.path}"
    yield from separate_folder_lines(folders)
    for note in (*folders.folder.notes, *attempt.plan.config.get("notes", ())):
        yield f"note: {note}"
    if history.attempt:
        yield (f"attempt {history.attempt + 1} of this run: {len(history.finished)} measurements "
               "are kept")
    if history.retried:
        yield f"repeated in all passes (--retry): {plural(len(history.retried), 'case')}"
    for case in attempt.plan.cases:
        if reason := history.quarantine(case):
            yield f"{case.label}: {reason}"
    yield from lost_lines(attempt.machine.ranks)
    for fault in fault_texts(attempt.plan.config.get("fault", ())):
        yield f"fault injection, times are not valid: {fault}"
    if config.profiling.enabled:
        yield opening_line(config.profiling)
    if config.launch.inline:
        yield ("note: workers run inline, unisolated: a crash or hang ends the job"
               + " (torchrun; mpirun and srun isolate them)" * by_torchrun(os.environ))
    elif any(case.backend in INLINE_BACKENDS for case in todo):
        yield ("note: backend mpi runs last in each pass, inside the MPI job: a crash or hang "
               "there ends the job")


@contextlib.contextmanager
def open_journal(attempt: RunAttempt, folders: RankFolders) -> Iterator[Journal]:
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


def _note_beginning(attempt: RunAttempt, folders: RankFolders, journal: Journal) -> None:
    """Note which ranks write elsewhere, and the state in which the attempt continues a run."""
    if folders.separate:
        journal.note(FOLDERS_NOTE, {str(rank): place for rank, place in folders.separate.items()})
    history = attempt.history
    if history.attempt:
        left = len(attempt.runs_left())
        journal.note(RESUMED_NOTE, {
            "attempt": history.attempt, "left": left, "changes": list(history.changes),
            "planned": left + len(history.finished), "earlier_plans": list(history.plans)})


def load_inline(attempt: RunAttempt, pool: WorkerPool) -> None:
    """Import torch in this process if it runs cases itself: these seconds are no case's time, and
    the time left is not extrapolated from them."""
    is_inline, rank = attempt.config.launch.inline, attempt.comm.rank
    if any((is_inline or generation.inline) and rank < generation.world_size
           for generation in generations(attempt.runs_left())):
        pool.load_inline()


def note_noise(attempt: RunAttempt, journal: Journal) -> float:
    """Measure other processes' share of this rank's core, and note it. Collective; 0 if switched
    off."""
    most_s = attempt.config.measure.noise_check_s
    if not most_s:
        return 0.0
    attempt.comm.barrier()
    noise = measure_noise(check_s(
        most_s, sum(case.estimate_s for case in attempt.runs_left())))
    journal.note(NOISE_NOTE, noise)
    return float(noise["detours"]["stolen_share"])


def slow_reason(topology: RankIdentity, cores: int | None, stolen_share: float) -> str:
    """Return why cases may take longer than planned.

    ``cores`` are those of rank 0's node, None if unknown; ``stolen_share``: of rank 0's core."""
    if cores is not None and cores < topology.local_size:
        return f"{topology.local_size} ranks share {plural(cores, 'core')} of {topology.hostname}"
    if stolen_share >= _NOTABLE_SHARE:
        return f"other processes used {100 * stolen_share:.0f} % of rank 0's core before the sweep"
    return "the plan assumes a faster or a quieter machine"


def measure(
    attempt: RunAttempt, journal: Journal, report: CaseReport, folders: RankFolders,
    pool: WorkerPool, stop: StopRequests,
) -> None:
    clocks = SynchronisedClock(time.perf_counter_ns, attempt.config.measure.clock_sync_s,
                               journal.note)
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


def _sampler(attempt: RunAttempt) -> Sampler:
    topology, machine = attempt.topology, attempt.machine
    rank, index = machine.ranks[topology.rank], machine.gpu_of(topology.rank)
    gpu = own_gpu(rank, index)
    return open_sampler(attempt.config.telemetry, local_rank=topology.local_rank,
                        gpu_uuid=gpu["uuid"] if gpu else None, tried=gpu_refusals(rank, index),
                        rocm=gpu is not None and is_rocm_build(rank.facts))

"""The turn of profiled samples behind all measured ones, and what becomes of its files.

It comes last, with workers of its own, because a profiler can leave a process slower than it was.
A case that cannot be profiled costs its profile only: what is measured is in the journals by then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpcbench.config.schema import Profiling
from hpcbench.launch.attempt import SupervisorContext
from hpcbench.launch.folders.run_folder import RankFolders
from hpcbench.launch.folders.trace_delivery import deliver
from hpcbench.launch.ranks.communicator import IDLE_PAUSE_S, Communicator
from hpcbench.launch.ranks.waiting import LONGEST_PAUSE_S
from hpcbench.launch.workers.messages import ProfileRequest
from hpcbench.launch.workers.worker_group import CaseHooks, WorkerGroup
from hpcbench.launch.workers.worker_pool import InlineWorker, WorkerPool
from hpcbench.launch.workers.worker_process import WorkerHandle
from hpcbench.plan.case import Case
from hpcbench.plan.order import Generation, generations
from hpcbench.profiling import nsys
from hpcbench.profiling.notes import ProfileNote
from hpcbench.profiling.rank_file import FOLDER, RANKS, rank_file
from hpcbench.profiling.trigger import STALL_SHARE, reason, stall
from hpcbench.trace.source import PROFILE_NOTE

_FIRST_NUMBER = 1 << 48
"""Above the numbers of all cases of the sweep, so that no notice of one is taken for another's."""
MOST_FAILURES = 3
"""After so many profiles in a row that failed, the other cases of the workers are left out."""
PROFILER_S = 60.0
"""What profiling a case may take beside its own limit: the first start of torch's profiler takes
seconds where ranks share cores, and files of long traces take time, too."""
_NO_TOOL = "profiling.tool is none: the stamps of the measured samples are all there is"
MOST_SENT_BYTES = 256 << 20
"""A rank with a disk of its own sends rank 0 so many bytes of profiles at most."""


def profile_cases(job: SupervisorContext, pool: WorkerPool, folder: Path) -> str:
    """Profile each case whose last run was ok, once; return the signal that stopped it, or "".

    Cases of earlier attempts are among them, if those were stopped before they were profiled.

    ``folder`` is where this rank writes. Rank 0 notes of each case what became of it. Collective.
    """
    attempt, stop = job.attempt, ""
    lacking = _lacking(job)
    if not lacking and attempt.config.profiling.tool == nsys.TOOL:
        devices = attempt.resolution.devices.values()
        with contextlib.suppress(OSError):  # then nsys has no report, and the case's entry says so
            (folder / FOLDER / RANKS).mkdir(parents=True, exist_ok=True)
        pool.renew_under(nsys.nsys_words(folder, job.comm.rank, cuda="cuda" in devices))
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
    """Return what rank 0 says of profiling before the first case."""
    if profiling.tool == "none":
        return f"no case will be profiled: {_NO_TOOL}"
    if profiling.tool == nsys.TOOL and not nsys.is_installed():
        return f"no case will be profiled: {nsys.missing([0])}"
    which = ("each case" if profiling.trigger == "always"
             else "each case whose ranks wait for each other")
    return (f"after the last pass {which} is profiled (tool {profiling.tool}): "
            f"{profiling.samples} samples that enter no statistic")


def _lacking(job: SupervisorContext) -> str:
    """Say what keeps all cases from being profiled, "" if nothing. Collective."""
    tool = job.attempt.config.profiling.tool
    if tool == "none":
        return _NO_TOOL
    if tool != nsys.TOOL:
        return ""
    if job.inline:
        return "nsys cannot be put around workers in the ranks' own processes (--inline, torchrun)"
    installed = job.comm.allgather(nsys.is_installed())
    without = [rank for rank, is_there in enumerate(installed) if not is_there]
    return nsys.missing(without) if without else ""


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
        """Profile the generation's cases; return the signal to stop, or ""."""
        job, stop = self.job, ""
        workers = WorkerGroup(self.members, job.rendezvous, job.stop, CaseHooks(
            self._start_worker, lambda worker, case: contextlib.nullcontext(), lambda: ()),
            unbounded=job.inline)
        try:
            for case, note in self._chosen():
                if stop:
                    break
                if note.is_wanted and self.failures >= MOST_FAILURES:
                    note = note.left_out(f"{MOST_FAILURES} profiles before it failed")
                if note.is_wanted:
                    stop = self._profile(workers, case, note)
                elif job.comm.rank == 0:
                    job.journal.note(PROFILE_NOTE, note.to_json())
            workers.close()
        finally:
            workers.dismiss()
        return stop

    def _start_worker(self) -> WorkerHandle:
        variables = (*self.job.attempt.machine.socket_env().items(), *self.generation.env)
        if self.job.inline:
            return InlineWorker(variables, self.pool.progress, None)
        return self.pool.start_worker(variables, stop=self.job.stop)

    def _chosen(self) -> Iterator[tuple[Case, ProfileNote]]:
        """Yield the cases whose last run was ok, each with whether it is profiled, and why."""
        job, wanted = self.job, self.job.attempt.config.profiling
        medians = self.members.allgather({case.case_id: job.medians_ns.get(case.case_id)
                                           for case in self.generation.cases})
        for case in self.generation.cases:
            of_ranks: list[Mapping[str, float] | None] = [one[case.case_id] for one in medians]
            known = [one for one in of_ranks if one is not None]
            is_known = known == of_ranks
            if not is_known and not job.attempt.history.is_profile_left(case):
                continue
            if self.lacking:
                yield case, ProfileNote(case.case_id, is_wanted=False, why=self.lacking)
            elif case.workload.next_try(()) is not None:
                yield case, ProfileNote(case.case_id, is_wanted=False, why=(
                    "it is many runs of different workloads"))
            elif self.generation.inline and not job.inline:
                yield case, ProfileNote(case.case_id, is_wanted=False, why=(
                    "it runs in the MPI process (backend mpi), which a profiler could bring down"))
            elif wanted.trigger == "always":
                yield case, ProfileNote(case.case_id, is_wanted=True, why="trigger always")
            elif not is_known:
                yield case, ProfileNote(case.case_id, is_wanted=True, why=(
                    "an earlier attempt measured it, so whether its ranks wait is not looked up"))
            else:
                share, name = stall(known)
                yield case, ProfileNote(case.case_id, is_wanted=share >= STALL_SHARE,
                                        why=reason(share, name))

    def _profile(self, workers: WorkerGroup, case: Case, note: ProfileNote) -> str:
        """Profile one case and note what became of it; return the signal to stop, or ""."""
        job, attempt = self.job, self.job.attempt
        self.number += 1  # the same on all members
        outcome = workers.run(ProfileRequest(
            replace(case, timeout_s=case.timeout_s + PROFILER_S), self.number,
            attempt.resolution.devices[case.case_id], job.clocks.model,
            attempt.config.profiling.samples, attempt.history.attempt,
            str(rank_file(self.folder, case.case_id, self.members.rank)),
            attempt.config.profiling.tool))
        problem = outcome.verdict.reason if outcome.verdict.status != "ok" else ""
        self.failures = self.failures + 1 if problem else 0
        if job.comm.rank == 0:
            job.journal.note(PROFILE_NOTE, note.with_problem(problem).to_json())
        return outcome.stop


def collect_profiles(comm: Communicator, folders: RankFolders) -> list[str]:
    """Send rank 0 the profiles that it does not see; return there what is missing. Collective."""
    if not folders.apart:
        return []
    ranks = folders.own.path / FOLDER / RANKS
    files, left, sent_bytes = {}, 0, 0
    for path in sorted(ranks.glob("*")) if comm.rank in folders.apart else ():
        if sent_bytes + path.stat().st_size <= MOST_SENT_BYTES:
            sent_bytes += path.stat().st_size
            files[path.name] = path
        else:
            left += 1
    counts = comm.allgather(left)
    problems = deliver(comm, files, folders.apart, folders.folder.path / FOLDER / RANKS)
    problems += [f"rank {rank}: {counts[rank]} profiles are left on {place.host} in "
                 f"{place.path}/{FOLDER}/{RANKS}: no more than {MOST_SENT_BYTES >> 20} MiB are "
                 "sent"
                 for rank, place in folders.apart.items() if counts[rank]]
    if comm.rank in folders.apart:
        for empty in (ranks, ranks.parent):
            with contextlib.suppress(OSError):
                empty.rmdir()
    return problems if comm.rank == 0 else []

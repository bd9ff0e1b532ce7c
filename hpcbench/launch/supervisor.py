"""What a supervisor does: for every case have the workers run it, agree, and put it on disk.

A case is acknowledged when its record is on disk on every member rank and all know that.
"""

from __future__ import annotations

import contextlib
import fnmatch
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbench.launch.communicator import IDLE_PAUSE_S, Communicator, InlineComms
from hpcbench.launch.consultation import agreed_verdict
from hpcbench.launch.crew import Crew, Guard, Hearing, Rendezvous
from hpcbench.launch.inline import InlineWorker
from hpcbench.launch.pool import WorkerPool
from hpcbench.launch.probe import Resolution
from hpcbench.launch.stop import StopRequests
from hpcbench.launch.watchdog import Watchdog, end_job, inline_evidence, set_last_word
from hpcbench.launch.workers import WorkerHandle
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.order import Generation, generations
from hpcbench.trace.journal import Journal
from hpcbench.trace.schema import Record, Samples, no_samples

_RECORDING_TIMEOUT_S = 120.0

Report = Callable[[Case, str, str, float], None]


@dataclass(frozen=True, slots=True)
class Job:
    """Everything a supervisor works from. ``socket_env`` goes to every worker.

    ``faults`` are the config's faults as plain values, ``required`` backends whose skips fail.
    """

    comm: Communicator
    plan: Plan
    resolution: Resolution
    required: frozenset[str]
    rendezvous: Rendezvous
    socket_env: Mapping[str, str]
    faults: Sequence[Mapping[str, Any]]
    inline: bool
    stop: StopRequests
    journal: Journal
    report: Report


def supervise(job: Job, pool: WorkerPool) -> str:
    """Run all passes of the plan on this rank; return the signal that stopped it, or ""."""
    _record_skips(job)
    runnable = [case for case in job.plan.cases if case.case_id in job.resolution.devices]
    todo = generations(runnable)
    sizes = sorted({generation.world_size for generation in todo})
    members = {size: job.comm.first(size) for size in sizes}
    comms = {size: member.inline_comms() for size, member in members.items()
             if member is not None and _inline_size(todo, size)}
    for pass_index in range(job.plan.passes):
        for generation in todo:
            size = generation.world_size
            stop = _run_generation(job, pool, generation, members[size], comms.get(size),
                                   pass_index)
            if stop:
                return stop
    return ""


def _inline_size(todo: Sequence[Generation], size: int) -> bool:
    return any(generation.inline and generation.world_size == size for generation in todo)


def _record_skips(job: Job) -> None:
    """Record every case that cannot run here, once; a required backend's skip is a failure."""
    records = []
    for case in job.plan.cases:
        reason = job.resolution.skips.get(case.case_id)
        if reason is None or job.comm.rank >= case.world_size:
            continue
        asked = job.required & {case.backend, case.backend.partition("/")[0]}
        required = asked and case.skip is None
        status = "failed" if required else "skipped"
        text = f"{case.backend} is required (require): {reason}" if required else reason
        records.append(_record(case, 0, status, text))
    job.journal.append(*records)


def _run_generation(
    job: Job, pool: WorkerPool, generation: Generation, members: Communicator | None,
    comms: InlineComms | None, pass_index: int,
) -> str:
    """Run the cases that share workers; return the agreed signal to stop, or ""."""
    stop = ""
    if members is not None:
        crew = Crew(members, _hiring(job, pool, generation, comms), job.rendezvous, job.stop,
                    guard=_guard(job, generation, comms, pass_index), patient=job.inline)
        try:
            for case in generation.cases:
                if stop := _run_case(job, crew, members, case, pass_index):
                    break
            crew.close()
        finally:
            crew.dismiss()
    agreed: str = job.comm.bcast(stop, **({} if members is not None else {"pause_s": IDLE_PAUSE_S}))
    return agreed


def _hiring(
    job: Job, pool: WorkerPool, generation: Generation, comms: InlineComms | None,
) -> Callable[[], WorkerHandle]:
    variables = (*job.socket_env.items(), *generation.env)
    if job.inline or generation.inline:
        return lambda: InlineWorker(variables, pool.progress, comms)
    return lambda: pool.hire(variables)


def _guard(
    job: Job, generation: Generation, comms: InlineComms | None, pass_index: int,
) -> Guard:
    """Return the watchdog of cases that cannot be isolated; under --inline a debugger may wait."""
    if not generation.inline or comms is None or job.inline:
        return lambda worker, case: contextlib.nullcontext()

    def guarded(worker: WorkerHandle, case: Case) -> Watchdog:
        began_ns = time.perf_counter_ns()
        return Watchdog(case.timeout_s, lambda late_s: _give_up(
            job, comms.watchdog, worker, case, pass_index, began_ns, late_s))

    return guarded


def _give_up(
    job: Job, comm: Communicator, worker: WorkerHandle, case: Case, pass_index: int, began_ns: int,
    late_s: float,
) -> None:
    """Record the inline case that does not end, and end the job; run by the watchdog."""
    set_last_word()
    evidence = inline_evidence(comm.rank, worker)
    verdict, speaker = agreed_verdict(comm, evidence, case.timeout_s, late_s)
    record = _record(
        case, pass_index, verdict.status, verdict.reason, blamed_rank=verdict.blamed_rank,
        window=(began_ns, time.perf_counter_ns()), samples=worker.progress.rows(),
        detail={"evidence": evidence.outcome.value, "cause": evidence.cause})
    end_job(comm, lambda: job.journal.append(record), (
        f"hpcbench: rank {comm.rank}: {case.label}: {verdict.status}: {verdict.reason}\n"
        "  it ran in the MPI process (backend mpi), so the job ends here; what was acknowledged "
        f"is on disk: hpcbench reduce {job.journal.path.parent.parent}"
        ) if speaker == comm.rank else "")


def _run_case(
    job: Job, crew: Crew, members: Communicator, case: Case, pass_index: int,
) -> str:
    """Run one case, record it, and wait until all members have; return a wish to stop."""
    began_ns, began = time.perf_counter_ns(), time.monotonic()
    number = pass_index * len(job.plan.cases) + case.index + 1
    faults = [fault for fault in job.faults
              if fault["rank"] == members.rank and _matches(fault["case"], case)]
    hearing = crew.run(case, number, job.resolution.devices[case.case_id], faults)
    window = (began_ns, time.perf_counter_ns())
    job.journal.append(_heard(case, pass_index, hearing, crew.rows(), window))
    members.barrier(timeout_s=None if job.inline else _RECORDING_TIMEOUT_S)
    job.report(case, hearing.verdict.status, hearing.verdict.reason, time.monotonic() - began)
    return hearing.stop


def _matches(pattern: str, case: Case) -> bool:
    return pattern == case.case_id or fnmatch.fnmatchcase(case.label, pattern)


def _heard(
    case: Case, pass_index: int, hearing: Hearing, rows: Samples, window: tuple[int, int],
) -> Record:
    """Return this rank's record of a case that was run."""
    answer, evidence = hearing.own.answer, hearing.own.evidence
    detail = dict(hearing.own.detail)
    if evidence.wrong:
        detail["wrong"] = evidence.wrong
    if answer.get("transport"):
        detail["transport"] = answer["transport"]
    return _record(
        case, pass_index, hearing.verdict.status, hearing.verdict.reason,
        blamed_rank=hearing.verdict.blamed_rank, device=answer.get("device", ""),
        window=(answer.get("begin_ns", window[0]), answer.get("end_ns", window[1])),
        n_wrong=evidence.n_wrong, samples=rows, detail=detail)


def _record(
    case: Case, pass_index: int, status: str, reason: str, *, blamed_rank: int = -1,
    device: str = "", window: tuple[int, int] = (0, 0), n_wrong: int = -1,
    samples: Samples | None = None, detail: Mapping[str, Any] | None = None,
) -> Record:
    return Record(
        case_id=case.case_id, pass_index=pass_index, launch=0, attempt=0, status=status,
        reason=reason, blamed_rank=blamed_rank, mode=case.mode, device=device,
        begin_ns=window[0], end_ns=window[1], n_wrong=n_wrong,
        samples=no_samples() if samples is None else samples, detail=detail or {})

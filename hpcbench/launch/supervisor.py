"""A supervisor has the workers run every case, agrees with the others, and records the case.

A case is acknowledged when its record is on disk on every member rank and all know that. The job
ends by MPI_Abort with a case without an ordinary verdict: a supervisor does not answer, or the case
hangs in the MPI process. There Python runs no signal handler, but other threads."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from time import perf_counter_ns
from typing import NamedTuple

from hpcbench.config.section import Fault
from hpcbench.errors import ExitCode, RankLostError
from hpcbench.launch.attempt import (
    CaseRun,
    RunAttempt,
    SupervisorContext,
    canary_note,
    case_record,
    record_telemetry,
    unmeasured_record,
)
from hpcbench.launch.communicator import IDLE_PAUSE_S, LONGEST_PAUSE_S, Communicator, InlineComms
from hpcbench.launch.messages import CaseRequest, FailureAnswer
from hpcbench.launch.start import Watchdog
from hpcbench.launch.verdict import EXCHANGE_S, Evidence, RankOutcome, Verdict, agreed_verdict
from hpcbench.launch.worker_group import (
    CaseHooks,
    CaseOutcome,
    NoAgreement,
    WorkerGroup,
    evidence_of,
    last_seen,
    located,
)
from hpcbench.launch.worker_pool import WorkerPool
from hpcbench.launch.worker_process import WorkerHandle
from hpcbench.plan.case import Case
from hpcbench.plan.order import (
    Generation,
    RunKey,
    Turn,
    generations,
    shuffled,
    turns,
    within_timeout_s,
)
from hpcbench.plan.workload import MOST_TRIES, TRIES, Ended, Tried
from hpcbench.profiling.profiled_cases import medians_ns
from hpcbench.records import dataclass
from hpcbench.texts import as_field, masked, say_all
from hpcbench.trace.schema import SampleColumns, Samples
from hpcbench.trace.source import BEGIN_NOTE, TEARDOWN_NOTE


class TriedCase(NamedTuple):
    """How a case ended, and its samples: those of the last successful try, if there is one."""

    outcome: CaseOutcome
    rows: Samples


def run_tries(
    case: Case, workers: WorkerGroup, run: Callable[[Case], CaseOutcome], *, keeps_tries: bool,
) -> TriedCase:
    """Have the workers run all tries of a case. Collective over the members.

    A lack of memory or a worker's death ends a try; any other failure, or a stop, ends the case.
    ``keeps_tries``: this rank's record keeps the tries."""
    tries: list[Tried] = []
    best: TriedCase | None = None
    last: TriedCase | None = None
    while len(tries) < MOST_TRIES and (following := case.workload.next_try(tries)) is not None:
        workers.dismiss()  # nothing of an earlier try is left, neither memory nor its limit
        tried, began = replace(case, workload=following[0]), time.monotonic()
        outcome = run(tried)
        last = TriedCase(outcome, workers.rows)
        tries.append(Tried(*following, outcome.ended, outcome.verdict.reason,
                           time.monotonic() - began))
        if outcome.ended is Ended.OK:
            best = last
        if outcome.ended is Ended.ERROR or outcome.stop:
            break
    workers.dismiss()
    assert last is not None  # noqa: S101  (a case without tries is not run here)
    outcome, rows = _final(case, tries, best, last)
    if keeps_tries:
        detail = {**outcome.own.detail, TRIES: [one.to_json() for one in tries]}
        outcome = replace(outcome, own=replace(outcome.own, detail=detail))
    return TriedCase(outcome, rows)


def _final(
    case: Case, tries: list[Tried], best: TriedCase | None, last: TriedCase,
) -> TriedCase:
    """Return how the case ended: by an error or a stop, else by its best try, else by the last."""
    outcome, reason = last.outcome, last.outcome.verdict.reason
    if tries[-1].ended is Ended.ERROR:
        label = " ".join(tries[-1].workload.label(case.world_size).words)
        return _with_reason(last, f"try {len(tries)} ({label}): {reason}")
    if outcome.stop:
        return last._replace(outcome=replace(
            outcome, verdict=Verdict("not_run", f"stopped by {outcome.stop}", -1)))
    if best is None:
        return _with_reason(last, f"none of {len(tries)} tries was ok; the last one: {reason}")
    return best._replace(outcome=replace(best.outcome, due=outcome.due))


def _with_reason(ended: TriedCase, reason: str) -> TriedCase:
    outcome = ended.outcome
    return ended._replace(outcome=replace(
        outcome, verdict=replace(outcome.verdict, reason=reason)))


_REPORT_S = 45.0


@dataclass(frozen=True, slots=True)
class FinalCase:
    """The case that ends the job, this rank's evidence, and ``why`` the job ends.

    ``comm``: a communicator on which no rank is inside a call that cannot end."""

    case: Case
    turn: Turn
    began_ns: int
    comm: Communicator
    evidence: Evidence
    rows: Samples
    why: str


def end_with_case(
    job: SupervisorContext, last: FinalCase, late_s: float, exchange_s: float = EXCHANGE_S,
) -> None:
    """Record the case that has no ordinary verdict, and end every rank with code 3."""
    timer = threading.Timer(_REPORT_S, os._exit, (int(ExitCode.INCOMPLETE),))
    timer.daemon = True  # should MPI neither answer nor abort
    timer.start()
    case, comm, evidence = last.case, last.comm, last.evidence
    verdict, reporter = agreed_verdict(
        comm, evidence, case.timeout_s, late_s, exchange_s, job.attempt.machine.hosts)
    record = replace(
        unmeasured_record(
            case, last.turn, job.attempt.history.attempt, verdict.status, verdict.reason),
        blamed_rank=verdict.blamed_rank, begin_ns=last.began_ns, end_ns=time.perf_counter_ns(),
        samples=SampleColumns.of_rows(last.rows),
        detail={"evidence": evidence.outcome.value, "cause": evidence.cause})
    _skip_exit_handlers()
    try:
        planned = case.case_id in job.attempt.resolution.devices  # the canary is not
        job.journal.append(*([record] if planned else []))
        if reporter == comm.rank:
            whole = f"rank {comm.rank}: {case.label}: {verdict.status}: {verdict.reason}"
            say_all(f"hpcbench: {as_field(whole)}\n"
                    f"  {as_field(f'{last.why}. {job.journal.to_see(job.folder)}')}", sys.stderr)
        with suppress(RankLostError):  # the other ranks' watchdogs record, too
            comm.barrier(timeout_s=EXCHANGE_S)
    finally:
        comm.abort(int(ExitCode.INCOMPLETE))
        os._exit(int(ExitCode.INCOMPLETE))


def _skip_exit_handlers() -> None:
    """Have exit(3) end the process at once: MPI_Abort calls exit(3), whose handlers would unload
    libraries under the main thread (a segmentation fault)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's: hands the exit code on
        libc.on_exit(libc._exit, None)


def inline_evidence(rank: int, worker: WorkerHandle) -> Evidence:
    """Return the evidence of an inline worker: its answer, or its progress where it hangs."""
    answer, outcome, cause = worker.receive(), RankOutcome.OK, "its part was done"
    if answer is None:
        outcome, cause = RankOutcome.STUCK, last_seen(worker)
    elif isinstance(answer, FailureAnswer):
        outcome, cause = answer.outcome, masked(answer.cause, os.environ)
    return replace(evidence_of(rank, worker, outcome, cause), expired=True)


_RECORDING_TIMEOUT_S = 120.0
_LOST_EXCHANGE_S = 5.0
_CANARY_S = 5.0
_CANARY_SHARE = 0.05
_NUMBERS = 1 << 24
"""More than the cases that one set of workers runs in a pass, canaries included."""


def supervise(job: SupervisorContext, pool: WorkerPool) -> str:
    """Run all launches and passes on this rank; return the signal that stopped it, or ""."""
    _record_skips(job)
    attempt = job.attempt
    todo = generations(attempt.runnable())
    sizes = sorted({generation.world_size for generation in todo})
    members = {size: job.comm.first(size) for size in sizes}
    inline_sizes = {generation.world_size for generation in todo if generation.inline}
    comms = {size: member.inline_comms() for size, member in members.items()
             if member is not None and size in inline_sizes}
    stop, started = "", 0
    for turn in turns(attempt.plan.launches, attempt.plan.passes):
        if turn.launch and not turn.pass_index:
            pool.renew()
        for generation in todo:
            if not attempt.history.left(generation.cases, turn):
                continue
            mine = members[generation.world_size]
            stop = stop or _run_generation(job, None if mine is None else _GenerationRunner(
                job, pool, generation, turn, mine, comms.get(generation.world_size),
                started * _NUMBERS))
            started += 1
    if not stop:
        job.clocks.sync(job.comm)
    return stop


def _record_skips(job: SupervisorContext) -> None:
    """Record cases that cannot run here, once; those in quarantine, and skips for want of a
    required backend or of the driver's answer, as failures."""
    attempt, records = job.attempt, []
    plan, history = attempt.plan, attempt.history
    for case in plan.cases:
        verdict = _not_run_here(attempt, case)
        left = [turn for turn in turns(plan.launches, plan.passes) if history.is_left(case, turn)]
        if verdict is None or job.comm.rank >= case.world_size or (
                verdict[0] == "skipped" and case.case_id in history.skipped):
            continue
        if case.case_id in attempt.resolution.skips:
            left = left[:1]
        records += [unmeasured_record(case, turn, history.attempt, *verdict) for turn in left]
    job.journal.append(*records)


def _not_run_here(attempt: RunAttempt, case: Case) -> tuple[str, str] | None:
    reason = attempt.resolution.skips.get(case.case_id)
    if reason is None:
        quarantined = attempt.history.quarantine(case)
        return ("failed", quarantined) if quarantined else None
    if unmet := attempt.resolution.unmet.get(case.case_id):
        return "failed", f"{unmet} is required (required_backends): {reason}"
    return "failed" if case.case_id in attempt.resolution.failures else "skipped", reason


def canary_pause_s(rows: Samples) -> float:
    """Return when a canary is due again: after 5 s, or longer so that it takes at most 5 % of the
    time."""
    took_s = float(rows[-1, 1] - rows[0, 0]) / 1e9 if len(rows) else 0.0
    return max(_CANARY_S, took_s * (1 / _CANARY_SHARE - 1))


def _run_generation(job: SupervisorContext, runner: _GenerationRunner | None) -> str:
    stop = ""
    if runner is not None:
        try:
            stop = runner.run_all()
        finally:
            runner.workers.dismiss()
    return str(job.comm.bcast(stop, IDLE_PAUSE_S if runner is None else LONGEST_PAUSE_S))


@dataclass
class _GenerationRunner:
    """The workers of one generation in one pass; ``number`` is that of its last case."""

    job: SupervisorContext
    pool: WorkerPool
    generation: Generation
    turn: Turn
    members: Communicator
    comms: InlineComms | None
    number: int

    def __post_init__(self) -> None:
        self._position = 0
        self._canary_due_at = 0.0
        self._budget_s = self.job.attempt.run_budget_s()
        whole = self.members.size == self.job.comm.size and not self.generation.inline
        self._canary = self.job.canary if whole else None
        self.workers = WorkerGroup(
            self.members, self.job.rendezvous, self.job.stop,
            CaseHooks(self._start_worker, self._guard, self._due), unbounded=self.job.inline)

    def _start_worker(self) -> WorkerHandle:
        generation = self.generation
        variables = (*self.job.attempt.machine.socket_env().items(), *generation.env)
        worker: WorkerHandle = (
            self.pool.start_inline(variables, self.comms) if self._is_inline
            else self.pool.start_worker(variables, stop=self.job.stop))
        self.job.telemetry.watch(worker.pid)
        return worker

    @property
    def _is_inline(self) -> bool:
        return self.job.inline or self.generation.inline

    def _guard(self, worker: WorkerHandle, case: Case) -> AbstractContextManager[None]:
        """Return the watchdog of a case not isolated; under --inline a debugger may wait."""
        job, turn, comms, began_ns = self.job, self.turn, self.comms, perf_counter_ns()
        if comms is None or job.inline or not self.generation.inline:
            return nullcontext()

        def act(late_s: float) -> None:
            evidence = job.rendezvous.location.sign(
                located(inline_evidence(comms.watchdog.rank, worker), case))
            end_with_case(job, FinalCase(
                case, turn, began_ns, comms.watchdog, evidence, worker.progress.rows(),
                "it ran in the MPI process (backend mpi), so the job ends here"), late_s)

        return Watchdog(case.timeout_s, act)

    def run_all(self) -> str:
        """Run the generation's cases in this pass's order, a canary at either end."""
        measure, turn = self.job.attempt.config.measure, self.turn
        if self.members.bcast(self._clocks_due()):  # of ranks that have not run for long
            self.job.clocks.sync(self.members)
        stop, has_just_run = self._run_canary(), True
        order = shuffled(self.generation.cases, measure.order, measure.seed,
                         turn.number)
        for case in self.job.attempt.history.left(order, turn):
            if stop:
                break
            outcome = self._run_case(case)
            stop, has_just_run = outcome.stop, False
            if "clock" in outcome.due and not stop:
                self.job.clocks.sync(self.members)
            if "canary" in outcome.due and not stop:
                stop, has_just_run = self._run_canary(), True
        if not has_just_run:
            stop = stop or self._run_canary()
        self._close_workers()
        return stop

    def _close_workers(self) -> None:
        """Have the workers end, and note how this rank's crashed then, if it did."""
        if ended := self.workers.close():
            turn = self.turn
            self.job.journal.note(TEARDOWN_NOTE, {
                "ended": ended, "launch": turn.launch, "pass_index": turn.pass_index})

    def _due(self) -> tuple[str, ...]:
        is_late = self._canary is not None and time.monotonic() > self._canary_due_at
        wanted = (("clock", self._clocks_due()), ("canary", is_late))
        return tuple(name for name, is_due in wanted if is_due)

    def _clocks_due(self) -> bool:
        return self.job.clocks.due(self.members.size)

    def _run_case(self, case: Case) -> CaseOutcome:
        """Run one case, record it, and wait until all members have."""
        job, members = self.job, self.members
        began_ns, began = perf_counter_ns(), time.monotonic()
        if job.comm.rank == 0:
            job.journal.note(BEGIN_NOTE, RunKey(
                case.case_id, self.turn.launch, self.turn.pass_index)._asdict(),
                durable=False)
        job.telemetry.mark()
        with job.telemetry.only_marks(self._is_inline):
            outcome, rows = self._all_runs(case)
        job.telemetry.mark()
        run = CaseRun(case, self.turn, job.attempt.history.attempt, self._position,
                      began_ns, perf_counter_ns())
        record = case_record(run, outcome, rows)
        record_telemetry(job)
        job.journal.append(record)
        if left_behind := outcome.own.evidence.left_behind:
            job.journal.note(TEARDOWN_NOTE, {
                "case": case.label, "left_behind": left_behind,
                "launch": self.turn.launch, "pass_index": self.turn.pass_index})
        if job.attempt.config.profiling.enabled:
            job.medians_ns.pop(case.case_id, None)
            if record.status == "ok":
                job.medians_ns[case.case_id] = medians_ns(rows, record.phases)
        self._position += 1
        members.barrier(timeout_s=None if job.inline else _RECORDING_TIMEOUT_S)
        job.report(
            case, outcome.verdict.status, outcome.verdict.reason, time.monotonic() - began,
            self.turn.launch, self.turn.pass_index)
        return outcome

    def _all_runs(self, case: Case) -> tuple[CaseOutcome, Samples]:
        """Run a case, or all its tries by new workers; return how it ended and its samples."""
        if case.workload.next_try(()) is None:
            return self._run_once(case), self.workers.rows
        self._close_workers()
        return run_tries(case, self.workers, self._run_once, keeps_tries=self.members.rank == 0)

    def _run_once(self, case: Case) -> CaseOutcome:
        attempt = self.job.attempt
        faults = tuple(fault for fault in attempt.config.fault
                       if fault.rank == self.members.rank and case.may_have(fault))
        return self._agreed_outcome(case, attempt.resolution.devices[case.case_id], faults)

    def _run_canary(self) -> str:
        """Run the canary, if there is one, and note it; return the signal to stop, or "".

        One that failed is not run again in this pass: it is a finding already, and costs new
        workers."""
        if (canary := self._canary) is None:
            return ""
        outcome, rows = self._agreed_outcome(canary, "cpu"), self.workers.rows
        self.job.journal.note("canary", canary_note(canary, self.turn, outcome, rows))
        self._canary_due_at = time.monotonic() + canary_pause_s(rows)
        if outcome.verdict.status != "ok":
            self._canary = None
        return outcome.stop

    def _agreed_outcome(
        self, case: Case, device: str, faults: tuple[Fault, ...] = (),
    ) -> CaseOutcome:
        """Have the workers run a case; end the job if supervisors cannot agree on how it ended."""
        self.number += 1  # the same on all members
        began_ns = perf_counter_ns()
        try:
            return self.workers.run(CaseRequest(
                case, self.number, device, faults, self.job.clocks.model,
                within_timeout_s(self._budget_s, case.timeout_s),
                self.job.attempt.config.measure.precision))
        except NoAgreement as lost:
            end_with_case(self.job, FinalCase(
                case, self.turn, began_ns, self.members, lost.evidence, self.workers.rows,
                f"{lost}, so the job ends here"), 0.0, _LOST_EXCHANGE_S)
            raise

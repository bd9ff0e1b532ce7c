"""What a supervisor does: for every case have the workers run it, agree, and put it on disk.

A case is acknowledged when its record is on disk on every member rank and all know that.
"""

from __future__ import annotations

import contextlib
import fnmatch
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcbench.config.schema import Fault
from hpcbench.launch.attempt import Attempt
from hpcbench.launch.context import SupervisorContext
from hpcbench.launch.ranks.communicator import IDLE_PAUSE_S, Communicator, InlineComms
from hpcbench.launch.recording import canary_note, heard, record
from hpcbench.launch.verdicts.final_case import LastCase, give_up, guard
from hpcbench.launch.workers.inline_worker import InlineWorker
from hpcbench.launch.workers.messages import CaseRequest
from hpcbench.launch.workers.worker_group import Crew, Guard, Hearing, NoAgreement
from hpcbench.launch.workers.worker_pool import WorkerPool
from hpcbench.launch.workers.worker_process import WorkerHandle
from hpcbench.plan.case import Case
from hpcbench.plan.estimate import within_timeout_s
from hpcbench.plan.history import RunKey
from hpcbench.plan.order import Generation, Turn, generations, shuffled, turns
from hpcbench.trace.source import BEGIN_NOTE, TEARDOWN_NOTE

_RECORDING_TIMEOUT_S = 120.0
_LOST_EXCHANGE_S = 5.0
_CANARY_S = 5.0
_NUMBERS = 1 << 24
"""More than the cases that one set of workers runs in a pass, canaries included."""


def supervise(job: SupervisorContext, pool: WorkerPool) -> str:
    """Run all launches and passes on this rank; return the signal that stopped it, or ""."""
    _record_skips(job)
    attempt = job.attempt
    todo = generations(attempt.runnable())
    sizes = sorted({generation.world_size for generation in todo})
    members = {size: job.comm.first(size) for size in sizes}
    comms = {size: member.inline_comms() for size, member in members.items()
             if member is not None and _inline_size(todo, size)}
    stop, started = "", 0
    for turn in turns(attempt.plan.launches, attempt.plan.passes):
        if turn.launch and not turn.pass_index:
            pool.renew()
        for generation in todo:
            if not attempt.history.left(generation.cases, turn):
                continue
            size = generation.world_size
            stop = stop or _run_generation(job, pool, _Shift(
                generation, turn, members[size], comms.get(size), started * _NUMBERS))
            started += 1
    if not stop:
        job.clocks.sync(job.comm)
    return stop


def _inline_size(todo: Sequence[Generation], size: int) -> bool:
    return any(generation.inline and generation.world_size == size for generation in todo)


def _record_skips(job: SupervisorContext) -> None:
    """Record every case that cannot run here, once; a required backend's skip is a failure.

    So is a case in quarantine, in all that is left of it. What an earlier attempt has recorded is
    not recorded again.
    """
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
        records += [record(case, turn, *verdict, attempt=history.attempt) for turn in left]
    job.journal.append(*records)


def _not_run_here(attempt: Attempt, case: Case) -> tuple[str, str] | None:
    """Return status and reason of a case that is not run, or None."""
    reason = attempt.resolution.skips.get(case.case_id)
    if reason is None:
        quarantined = attempt.history.quarantine(case)
        return ("failed", quarantined) if quarantined else None
    required = {case.backend, case.backend.partition("/")[0]} & {*attempt.config.require}
    if required and case.skip is None:
        return "failed", f"{case.backend} is required (require): {reason}"
    return "skipped", reason


@dataclass(frozen=True, slots=True)
class _Shift:
    """One generation in one pass: who takes part, and the first number its cases get."""

    generation: Generation
    turn: Turn
    members: Communicator | None
    comms: InlineComms | None
    first_number: int


def _run_generation(job: SupervisorContext, pool: WorkerPool, shift: _Shift) -> str:
    """Run the cases that share workers; return the agreed signal to stop, or ""."""
    stop = ""
    if shift.members is not None:
        team = _Team(job, pool, shift, shift.members)
        try:
            stop = team.run_all()
        finally:
            team.crew.dismiss()
    pause = {} if shift.members is not None else {"pause_s": IDLE_PAUSE_S}
    agreed: str = job.comm.bcast(stop, **pause)
    return agreed


class _Team:
    """The crew of one generation in one pass, and what it has done so far."""

    def __init__(
        self, job: SupervisorContext, pool: WorkerPool, shift: _Shift, members: Communicator,
    ) -> None:
        self._job = job
        self._shift = shift
        self._members = members
        self._number = shift.first_number
        self._position = 0
        self._canary_at = -_CANARY_S
        self._budget_s = job.attempt.run_budget_s()
        whole = members.size == job.comm.size and not shift.generation.inline
        self._canary = job.canary if whole else None
        self.crew = Crew(
            members, _hiring(job, pool, shift), job.rendezvous, job.stop,
            guard=_guard(job, shift), due=self._due, patient=job.inline)

    def run_all(self) -> str:
        """Run the generation's cases in this pass's order, a canary at either end."""
        measure, turn = self._job.attempt.config.measure, self._shift.turn
        if self._members.bcast(self._clocks_due()):  # of ranks that have not run for long
            self._job.clocks.sync(self._members)
        stop = self._run_canary()
        order = shuffled(self._shift.generation.cases, measure.order, measure.seed,
                         turn.number)
        for case in self._job.attempt.history.left(order, turn):
            if stop:
                break
            hearing = self._run_case(case)
            stop = hearing.stop
            if "clock" in hearing.due and not stop:
                self._job.clocks.sync(self._members)
            if "canary" in hearing.due and not stop:
                stop = self._run_canary()
        stop = stop or self._run_canary()
        if ended := self.crew.close():
            self._job.journal.note(TEARDOWN_NOTE, {
                "ended": ended, "launch": turn.launch, "pass_index": turn.pass_index})
        return stop

    def _due(self) -> tuple[str, ...]:
        late = time.monotonic() - self._canary_at > _CANARY_S
        wanted = (("clock", self._clocks_due()), ("canary", self._canary is not None and late))
        return tuple(name for name, is_due in wanted if is_due)

    def _clocks_due(self) -> bool:
        return self._job.clocks.due(self._members.size)

    def _run_case(self, case: Case) -> Hearing:
        """Run one case, record it, and wait until all members have."""
        job, members = self._job, self._members
        began_ns, began = time.perf_counter_ns(), time.monotonic()
        if job.comm.rank == 0:
            job.journal.mark(BEGIN_NOTE, RunKey(
                case.case_id, self._shift.turn.launch, self._shift.turn.pass_index)._asdict())
        faults = tuple(fault for fault in job.attempt.config.fault
                       if fault.rank == members.rank and _matches(fault.case, case))
        hearing = self._heard(self._request(
            case, job.attempt.resolution.devices[case.case_id], faults))
        window = (began_ns, time.perf_counter_ns())
        job.journal.append(heard(
            case, self._shift.turn, self._position, hearing, self.crew.rows(), window,
            job.attempt.history.attempt))
        self._position += 1
        members.barrier(timeout_s=None if job.inline else _RECORDING_TIMEOUT_S)
        job.recorder.report(
            case, hearing.verdict.status, hearing.verdict.reason, time.monotonic() - began,
            self._shift.turn.launch, self._shift.turn.pass_index)
        return hearing

    def _run_canary(self) -> str:
        """Run the canary, if there is one, and note it; return a wish to stop.

        One that was not ok is not run again in this pass of the generation: it would cost new
        workers each time, and is a finding already.
        """
        if (canary := self._canary) is None:
            return ""
        hearing = self._heard(self._request(canary, "cpu"))
        self._job.journal.note("canary", canary_note(
            canary, self._shift.turn, hearing, self.crew.rows()))
        self._canary_at = time.monotonic()
        if hearing.verdict.status != "ok":
            self._canary = None
        return hearing.stop

    def _heard(self, request: CaseRequest) -> Hearing:
        """Have the crew run a case; end the job if the supervisors cannot agree on how it ended."""
        began_ns = time.perf_counter_ns()
        try:
            return self.crew.run(request)
        except NoAgreement as lost:
            give_up(self._job, LastCase(
                request.case, self._shift.turn, began_ns, self._members, lost.evidence,
                self.crew.rows(), f"{lost}, so the job ends here"), 0.0, _LOST_EXCHANGE_S)
            raise

    def _request(self, case: Case, device: str, faults: tuple[Fault, ...] = ()) -> CaseRequest:
        """Return the request to run a case, with a number that is the same on all members."""
        self._number += 1
        return CaseRequest(
            case, self._number, device, faults, self._job.clocks.model,
            within_timeout_s(self._budget_s, case.timeout_s),
            self._job.attempt.config.measure.precision)


def _hiring(job: SupervisorContext, pool: WorkerPool, shift: _Shift) -> Callable[[], WorkerHandle]:
    generation = shift.generation
    variables = (*job.attempt.machine.socket_env().items(), *generation.env)
    if job.inline or generation.inline:
        return lambda: InlineWorker(variables, pool.progress, shift.comms)
    return lambda: pool.hire(variables)


def _guard(job: SupervisorContext, shift: _Shift) -> Guard:
    """Return the watchdog of cases that cannot be isolated; under --inline a debugger may wait."""
    if not shift.generation.inline or shift.comms is None or job.inline:
        return lambda worker, case: contextlib.nullcontext()
    return guard(job, shift.comms, shift.turn)


def _matches(pattern: str, case: Case) -> bool:
    return pattern == case.case_id or fnmatch.fnmatchcase(case.label, pattern)

"""The workers of one generation, one per member rank, started, awaited and replaced together.

Supervisors are quiet while a case runs: they sleep on the worker's socket and on the wake-up signal
of failed ranks of the node, and wake every ``wakeup_s`` for the deadline, other nodes' notices and
stop requests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import field, replace
from typing import Any

import psutil

from hpcbench.errors import LaunchError, RankLostError
from hpcbench.launch import messages
from hpcbench.launch.communicator import Communicator
from hpcbench.launch.launcher import StopRequests
from hpcbench.launch.template_process import KILLED_FOR_MEMORY
from hpcbench.launch.verdict import EVIDENCE, Evidence, RankOutcome, Verdict, how_ended, judge
from hpcbench.launch.worker_process import WorkerHandle
from hpcbench.measurement.library_log import read_choices
from hpcbench.measurement.process import KernelFiles, cgroup
from hpcbench.plan.case import Case, planner_of
from hpcbench.plan.workload import Ended
from hpcbench.profiling.flight import FLIGHT, current_collective
from hpcbench.records import dataclass
from hpcbench.texts import masked, masked_json
from hpcbench.trace.schema import LIBRARY, LibraryChoices, Samples, no_rows
from hpcbench.units import round_bytes

_GRACE_S = 0.15


@dataclass(frozen=True, slots=True)
class AnswerWait:
    """How long to wait for an answer, and who else may end the wait."""

    comm: Communicator
    number: int
    timeout_s: float
    wakeup_s: float
    stop: StopRequests


@dataclass(frozen=True, slots=True)
class Observation:
    """This rank's evidence, the worker's answer if it gave one, and what to keep for the reader."""

    evidence: Evidence
    answer: messages.Answer | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


def await_answer(worker: WorkerHandle, how: AnswerWait) -> Observation:
    """Return the outcome of the request that ``worker`` was just sent."""
    deadline = time.monotonic() + how.timeout_s
    while not how.stop.now:
        remaining = deadline - time.monotonic()
        if worker.wait(min(how.wakeup_s, remaining), how.comm.wakeup_fd):
            return _answered(worker, how)
        if how.comm.noticed(how.number):  # the own worker may report what it saw of that failure
            return (_answered(worker, how) if worker.wait(_GRACE_S)
                    else _silent(worker, how, expired=False))
        if time.monotonic() >= deadline:
            how.comm.notify(how.number)
            return _silent(worker, how, expired=True)
    how.comm.notify(how.number)
    return _without_answer(worker, how, RankOutcome.HALTED, f"stopped by {how.stop.now}")


def _answered(worker: WorkerHandle, how: AnswerWait) -> Observation:
    """Turn an answer, or the end of the worker, into evidence."""
    answer = worker.receive()
    if answer is None:
        how.comm.notify(how.number)
        return _without_answer(worker, how, RankOutcome.DIED, worker.how_it_ended())
    if isinstance(answer, messages.FailureAnswer):
        if answer.outcome is not RankOutcome.SKIPPED:  # the others are about to say the same
            how.comm.notify(how.number)
        failed = _without_answer(worker, how, answer.outcome, masked(answer.cause, os.environ))
        return replace(failed, evidence=replace(
            failed.evidence, out_of_memory=answer.out_of_memory))
    evidence = replace(evidence_of(how.comm.rank, worker, RankOutcome.OK), stop=how.stop.any)
    if isinstance(answer, messages.CaseAnswer):
        evidence = replace(evidence, n_wrong=answer.n_wrong, wrong=answer.wrong,
                           left_behind=masked(answer.left_behind, os.environ))
    return Observation(evidence, answer)


def _silent(worker: WorkerHandle, how: AnswerWait, *, expired: bool) -> Observation:
    """Take the stacks of a worker that does not answer; a stopped one cannot give any."""
    where = _position(worker)
    if worker.is_stopped():
        return _without_answer(worker, how, RankOutcome.STOPPED, f"process is stopped, {where}",
                               expired=expired)
    record = masked_json(worker.flight_record(), os.environ)
    return _without_answer(worker, how, RankOutcome.STUCK, where,
                           {FLIGHT: record, "stacks": worker.stacks()}, expired=expired)


def _without_answer(
    worker: WorkerHandle, how: AnswerWait, outcome: RankOutcome, cause: str,
    detail: Mapping[str, Any] | None = None, *, expired: bool = False,
) -> Observation:
    evidence = replace(evidence_of(how.comm.rank, worker, outcome, cause), expired=expired,
                       stop=how.stop.any,
                       current_collective=current_collective((detail or {}).get(FLIGHT, {})))
    place = f"{_position(worker)}, case number {worker.progress.case_number}"
    kept = {"evidence": outcome.value, "cause": cause, "position": place,
            "output": worker.last_output(), **(detail or {})}
    return Observation(evidence, None, kept)


def evidence_of(rank: int, worker: WorkerHandle, outcome: RankOutcome, cause: str = "") -> Evidence:
    """Return evidence with the worker's progress, as its progress word shows it."""
    progress = worker.progress
    return Evidence(rank, outcome, cause, progress.iteration, int(progress.phase),
                    wrong_operation=progress.wrong_operation,
                    wrong_iteration=progress.wrong_iteration, step=progress.within)


def located(evidence: Evidence, case: Case) -> Evidence:
    """Return evidence that names, in words, the rank's step in the case's samples."""
    return replace(evidence, doing=case.workload.step_words(
        evidence.rank, case.world_size, evidence.step))


def last_seen(worker: WorkerHandle) -> str:
    """Return the last phase and iteration of the worker, in words."""
    progress = worker.progress
    return f"last seen in phase {progress.phase.name.lower()} of iteration {progress.iteration}"


def _position(worker: WorkerHandle) -> str:
    """Return where the worker was last seen, and its call in place of the planned operation."""
    called, iteration = worker.progress.wrong_operation, worker.progress.wrong_iteration
    return last_seen(worker) + (f", called {called} in iteration {iteration}" if called else "")


@dataclass(frozen=True, slots=True)
class RankLocation:
    """This rank's host, "" where all ranks have the same, and the interface that it is to use."""

    host: str = ""
    interface: str | None = None

    def sign(self, evidence: Evidence) -> Evidence:
        """Return evidence with its host, and for a failed case with the problem of its link."""
        link = ""
        if self.host and self.interface and evidence.outcome not in (RankOutcome.OK,
                                                                     RankOutcome.HALTED):
            state = psutil.net_if_stats().get(self.interface)
            if state is None or not state.isup:
                link = f"network interface {self.interface} is {'down' if state else 'gone'}"
        return replace(evidence, host=self.host, link=link)


def with_advice(observation: Observation, case: Case, local_size: int) -> Observation:
    """Add the planner's advice to a kill for memory; ``local_size`` ranks share the limit."""
    evidence = observation.evidence
    if KILLED_FOR_MEMORY not in evidence.cause:
        return observation
    limit = cgroup(KernelFiles())["memory_bytes"]
    share = (limit if isinstance(limit, int) else psutil.virtual_memory().total) // local_size
    advice = planner_of(case.kind).advice(case.workload, share)
    if not advice:
        return observation
    cause = f"{evidence.cause}: {round_bytes(share)} for each rank; {advice}"
    return replace(observation, evidence=replace(evidence, cause=cause))


_LEAVE_TIMEOUT_S = 5.0
_ASSEMBLY_GRACE_S = 60.0
_AGREEMENT_GRACE_S = 30.0
"""How long ranks are waited for after a case's timeout: one that is missed then ends the job."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """How the workers of a job meet; times in seconds, ``ports`` tried in order.

    ``local_rank``, ``local_size``, ``gpu`` (index among visible GPUs, or None) and ``location`` are
    this rank's."""

    address: str
    ports: tuple[int, ...]
    local_rank: int
    local_size: int
    gpu: int | None
    init_timeout_s: float
    group_timeout_s: float
    location: RankLocation = RankLocation()


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The agreed verdict of one case, this rank's observation, and any rank's wish to stop.

    ``due``: rank 0's names of things to do before the next case. ``ended``: on all ranks together.
    """

    verdict: Verdict
    own: Observation
    stop: str
    due: tuple[str, ...] = ()
    ended: Ended = Ended.ERROR


class NoAgreement(RankLostError):
    """The ranks could not agree on how a case ended; ``evidence`` is this rank's."""

    def __init__(self, message: str, evidence: Evidence) -> None:
        super().__init__(message)
        self.evidence = evidence


@dataclass(frozen=True, slots=True)
class CaseHooks:
    """The calls around each case.

    ``start`` returns a new worker or raises LaunchError. ``guard`` surrounds the case. ``due`` is
    called after it; rank 0's answer holds."""

    start: Callable[[], WorkerHandle]
    guard: Callable[[WorkerHandle, Case], AbstractContextManager[None]]
    due: Callable[[], tuple[str, ...]]


class WorkerGroup:
    """The worker of this rank and the agreement with the other members' supervisors."""

    def __init__(
        self, comm: Communicator, rendezvous: Rendezvous, stop: StopRequests, hooks: CaseHooks, *,
        unbounded: bool = False,
    ) -> None:
        """``comm`` is of the member ranks; ``unbounded``: a debugger may hold a rank for ever."""
        self._hooks = hooks
        self._unbounded = unbounded
        self._comm = comm
        self._rendezvous = rendezvous
        self._stop = stop
        self._worker: WorkerHandle | None = None
        self.rows: Samples = no_rows()
        """The samples of the last case, int64 (row, 4), also of a worker that is gone."""
        self._choices: dict[tuple[object, ...], LibraryChoices] = {}

    def run(self, request: messages.CaseRequest | messages.ProfileRequest) -> CaseOutcome:
        """Run or profile one case on all members and agree on its verdict.

        Failed workers are replaced. Raises NoAgreement if a member's supervisor does not answer."""
        case, number = request.case, request.number
        if self._worker is None:
            outcome = self._assemble(number, case)
            if outcome is not None:
                return outcome
        assert self._worker is not None
        self._worker.progress.begin(number)
        self._worker.newly_printed()  # what was printed before is not of this case
        deadline = time.monotonic() + case.timeout_s + _AGREEMENT_GRACE_S
        began_ns = time.perf_counter_ns()
        with self._hooks.guard(self._worker, case):
            self._worker.send(request)
            observation = with_advice(
                await_answer(self._worker, AnswerWait(
                    self._comm, number, case.timeout_s, case.wakeup_s, self._stop)),
                case, self._rendezvous.local_size)
            observation = self._proved(self._worker, observation, number, began_ns)
            observation = replace(observation, evidence=located(observation.evidence, case))
            return self._agree(self._with_choices(case, self._worker, observation), case.timeout_s,
                               deadline, case.workload.name)

    def close(self) -> str:
        """Have workers leave their group together; return how this rank's crashed then, else ""."""
        if self._worker is None:
            return ""
        ended = self._worker.leave(_LEAVE_TIMEOUT_S)
        self._worker = None
        return ended

    def dismiss(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _proved(
        self, worker: WorkerHandle, observation: Observation, number: int, began_ns: int,
    ) -> Observation:
        """Take the worker's samples; what it cannot have measured is a failure of it, and none."""
        problem = worker.progress.problem(number, began_ns, time.perf_counter_ns())
        self.rows = no_rows() if problem else worker.progress.rows()
        if not problem:
            return observation
        evidence = replace(observation.evidence, iteration=0, step=0, wrong_operation="",
                           wrong_iteration=0)
        if evidence.outcome is not RankOutcome.OK:
            return replace(observation, evidence=evidence)
        cause = f"what the worker left in shared memory is no measurement: {problem}"
        return Observation(
            replace(evidence, outcome=RankOutcome.EXCEPTION, cause=cause),
            detail={"evidence": RankOutcome.EXCEPTION.value, "cause": cause,
                    "output": worker.last_output()})

    def _with_choices(
        self, case: Case, worker: WorkerHandle, observation: Observation,
    ) -> Observation:
        """Add the choices that libraries printed, if any."""
        group, text = (case.backend, case.group_ranks), worker.newly_printed()
        if not text and group not in self._choices:
            return observation
        choices = read_choices(text, self._choices.get(group))
        if choices == LibraryChoices():
            return observation
        self._choices[group] = choices
        return replace(observation, detail={
            **observation.detail, LIBRARY: masked_json(choices.to_json(), os.environ)})

    def _assemble(self, number: int, case: Case) -> CaseOutcome | None:
        """Start this rank's worker and have all join; an outcome is returned only on failure."""
        self.rows = no_rows()
        where, limit_s = self._rendezvous, self._rendezvous.init_timeout_s
        how = AnswerWait(self._comm, number, limit_s, case.wakeup_s, self._stop)
        observation = self._start(number)
        self._meet(observation, limit_s + _ASSEMBLY_GRACE_S)
        if self._comm.rank == 0 and observation.evidence.outcome is RankOutcome.OK:
            observation = self._request(how, messages.StoreRequest(
                where.address, where.ports, limit_s))
        store = observation.answer
        port = self._comm.bcast(store.port if isinstance(store, messages.StoreAnswer) else None)
        if port is not None and observation.evidence.outcome is RankOutcome.OK:
            observation = self._request(how, messages.JoinRequest(
                where.address, port, self._comm.rank, self._comm.size, where.local_rank,
                where.local_size, where.gpu, where.group_timeout_s))
        outcome = self._agree(observation, limit_s, time.monotonic() + limit_s + _ASSEMBLY_GRACE_S)
        return None if outcome.verdict.status == "ok" else replace(outcome, ended=Ended.ERROR)

    def _meet(self, observation: Observation, timeout_s: float) -> None:
        """Wait for all members' workers: a killed one that does not go costs no time to join."""
        try:
            self._comm.barrier(timeout_s=None if self._unbounded else timeout_s)
        except RankLostError as error:
            raise NoAgreement(str(error), observation.evidence) from error

    def _start(self, number: int) -> Observation:
        """Start a worker; a template that cannot fork is evidence, not the end of the job."""
        try:
            self._worker = self._hooks.start()
        except (LaunchError, OSError) as error:
            self._comm.notify(number)
            return Observation(Evidence(self._comm.rank, RankOutcome.DIED,
                                     masked(str(error), os.environ)))
        self._choices.clear()  # new groups, new connections
        self._worker.progress.begin(number)
        return Observation(Evidence(self._comm.rank, RankOutcome.OK))

    def _request(self, how: AnswerWait, request: messages.Request) -> Observation:
        assert self._worker is not None
        self._worker.send(request)
        return await_answer(self._worker, how)

    def _agree(
        self, observation: Observation, timeout_s: float, deadline: float, planned: str = "",
    ) -> CaseOutcome:
        """Exchange evidence; every member reaches the same verdict and acts on it."""
        observation = replace(
            observation, evidence=self._rendezvous.location.sign(observation.evidence))
        try:
            answers = self._comm.allgather(
                [EVIDENCE.write(observation.evidence), self._hooks.due()],
                timeout_s=None if self._unbounded else max(deadline - time.monotonic(), 0.0))
        except RankLostError as error:
            raise NoAgreement(str(error), observation.evidence) from error
        evidence = [EVIDENCE.read(answer) for answer, _ in answers]
        verdict = judge(evidence, timeout_s, planned)
        if verdict.status not in ("ok", "wrong") or any(item.left_behind for item in evidence):
            self.dismiss()
        stop = next((item.stop for item in evidence if item.stop), "")
        return CaseOutcome(verdict, observation, stop, tuple(answers[0][1]),
                           how_ended(evidence, verdict))

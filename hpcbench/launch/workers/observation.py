"""Waiting for a worker without disturbing it, and taking evidence when it does not answer.

Supervisors are quiet while a case runs. They sleep on the worker's socket and on the wake-up
signal that a rank of the same node sends when it has failed. They wake only every ``wakeup_s`` to
look at the deadline, other nodes' notices and stop requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from hpcbench.kinds.registry import planner_of
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.launch.ranks.stop_requests import StopRequests
from hpcbench.launch.verdicts.verdict import Evidence, Outcome
from hpcbench.launch.workers.messages import Answer, CaseAnswer, FailureAnswer
from hpcbench.launch.workers.processes import KILLED_FOR_MEMORY
from hpcbench.launch.workers.worker_process import WorkerHandle
from hpcbench.masking import masked, masked_json
from hpcbench.measure.allocation import cgroup
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.plan.case import Case
from hpcbench.profiling.flight import FLIGHT, standing

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
    answer: Answer | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


def await_answer(worker: WorkerHandle, how: AnswerWait) -> Observation:
    """Return what became of the request that ``worker`` was just sent."""
    deadline = time.monotonic() + how.timeout_s
    while not how.stop.now:
        remaining = deadline - time.monotonic()
        if worker.wait(min(how.wakeup_s, remaining), how.comm.wakeup_fd):
            return _answered(worker, how)
        if how.comm.noticed(how.number):  # the own worker may say what it saw of that failure
            return (_answered(worker, how) if worker.wait(_GRACE_S)
                    else _silent(worker, how, expired=False))
        if time.monotonic() >= deadline:
            how.comm.notify(how.number)
            return _silent(worker, how, expired=True)
    how.comm.notify(how.number)
    return _without_answer(worker, how, Outcome.HALTED, f"stopped by {how.stop.now}")


def _answered(worker: WorkerHandle, how: AnswerWait) -> Observation:
    """Turn an answer, or the end of the worker, into evidence."""
    answer = worker.receive()
    if answer is None:
        how.comm.notify(how.number)
        return _without_answer(worker, how, Outcome.DIED, worker.how_it_ended())
    if isinstance(answer, FailureAnswer):
        how.comm.notify(how.number)
        failed = _without_answer(worker, how, answer.outcome, masked(answer.cause, os.environ))
        return replace(failed, evidence=replace(
            failed.evidence, out_of_memory=answer.out_of_memory))
    evidence = replace(evidence_of(how.comm.rank, worker, Outcome.OK), stop=how.stop.any)
    if isinstance(answer, CaseAnswer):
        evidence = replace(evidence, n_wrong=answer.n_wrong, wrong=answer.wrong)
    return Observation(evidence, answer)


def _silent(worker: WorkerHandle, how: AnswerWait, *, expired: bool) -> Observation:
    """Take the stacks of a worker that does not answer; a stopped one cannot give any."""
    where = _position(worker)
    if worker.is_stopped():
        return _without_answer(worker, how, Outcome.STOPPED, f"process is stopped, {where}",
                               expired=expired)
    record = masked_json(worker.flight_record(), os.environ)
    return _without_answer(worker, how, Outcome.STUCK, where,
                           {FLIGHT: record, "stacks": worker.stacks()}, expired=expired)


def _without_answer(
    worker: WorkerHandle, how: AnswerWait, outcome: Outcome, cause: str,
    detail: Mapping[str, Any] | None = None, *, expired: bool = False,
) -> Observation:
    evidence = replace(evidence_of(how.comm.rank, worker, outcome, cause), expired=expired,
                       stop=how.stop.any, standing=standing((detail or {}).get(FLIGHT, {})))
    place = f"{_position(worker)}, case number {worker.progress.case_number}"
    kept = {"evidence": outcome.value, "cause": cause, "position": place,
            "output": worker.last_output(), **(detail or {})}
    return Observation(evidence, None, kept)


def evidence_of(rank: int, worker: WorkerHandle, outcome: Outcome, cause: str = "") -> Evidence:
    """Return evidence with what the progress word shows of how far the worker has come."""
    progress = worker.progress
    return Evidence(rank, outcome, cause, progress.iteration, int(progress.phase),
                    stray=progress.stray_operation, stray_iteration=progress.stray_iteration,
                    step=progress.within)


def located(evidence: Evidence, case: Case) -> Evidence:
    """Return evidence that says in words in which step of the case's samples the rank is."""
    return replace(evidence, doing=case.workload.step_words(
        evidence.rank, case.world_size, evidence.step))


def last_seen(worker: WorkerHandle) -> str:
    """Say where the worker's progress word last stood."""
    progress = worker.progress
    return f"last seen in phase {progress.phase.name.lower()} of iteration {progress.iteration}"


def _position(worker: WorkerHandle) -> str:
    """Say where the worker was last seen, and what it called in place of the planned operation."""
    stray, iteration = worker.progress.stray_operation, worker.progress.stray_iteration
    return last_seen(worker) + (f", called {stray} in iteration {iteration}" if stray else "")


@dataclass(frozen=True, slots=True)
class RankLocation:
    """This rank's host, "" where all ranks have the same, and the interface that it is to use."""

    host: str = ""
    interface: str | None = None

    def sign(self, evidence: Evidence) -> Evidence:
        """Return evidence that says where it is from; of a case gone wrong, if the link is down."""
        link = ""
        if self.host and self.interface and evidence.outcome not in (Outcome.OK, Outcome.HALTED):
            state = psutil.net_if_stats().get(self.interface)
            if state is None or not state.isup:
                link = f"network interface {self.interface} is {'down' if state else 'gone'}"
        return replace(evidence, host=self.host, link=link)


def with_advice(observation: Observation, case: Case, local_size: int) -> Observation:
    """Add to a kill for memory what was predicted; ``local_size`` ranks share the limit."""
    evidence = observation.evidence
    if KILLED_FOR_MEMORY not in evidence.cause:
        return observation
    limit = cgroup(KernelFiles())["memory_bytes"]
    share = (limit if isinstance(limit, int) else psutil.virtual_memory().total) // local_size
    advice = planner_of(case).advice(case.workload, share)
    if not advice:
        return observation
    cause = f"{evidence.cause}: {share / 1e9:.3g} GB for each rank; {advice}"
    return replace(observation, evidence=replace(evidence, cause=cause))

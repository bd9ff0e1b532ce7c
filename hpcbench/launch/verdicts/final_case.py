"""The case that a job ends with, as no ordinary verdict can be had of it; then MPI_Abort.

Either a supervisor does not answer after it, or it runs in the MPI process and does not end.
Nothing outside can end the latter alone. Python runs no signal handler while the main thread sits
in MPI, but it does run other threads.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from hpcbench.errors import ExitCode, RankLostError, command_line
from hpcbench.launch.attempt import SupervisorContext
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.launch.recording import unmeasured_record
from hpcbench.launch.verdicts.consultation import EXCHANGE_S, agreed_verdict
from hpcbench.launch.verdicts.verdict import Evidence, Outcome
from hpcbench.launch.workers.messages import FailureAnswer
from hpcbench.launch.workers.observation import evidence_of, last_seen
from hpcbench.launch.workers.worker_process import WorkerHandle
from hpcbench.masking import masked
from hpcbench.plan.case import Case
from hpcbench.plan.order import Turn
from hpcbench.texts import say
from hpcbench.trace.schema import SampleColumns, Samples

_LAST_WORD_S = 45.0


@dataclass(frozen=True, slots=True)
class FinalCase:
    """The case that the job ends with, what this rank knows of it, and why the job ends.

    ``comm`` is one on which the ranks are not in the middle of anything that cannot end.
    """

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
    """Record the case of which no ordinary verdict can be had, and end every rank with 3."""
    timer = threading.Timer(_LAST_WORD_S, os._exit, (int(ExitCode.INCOMPLETE),))
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
            say(f"hpcbench: rank {comm.rank}: {case.label}: {verdict.status}: {verdict.reason}\n"
                f"  {last.why}. The recorded cases are on disk; to see them, run: "
                f"{command_line('reduce', job.folder)}", sys.stderr)
        with suppress(RankLostError):  # the other ranks' watchdogs record, too
            comm.barrier(timeout_s=EXCHANGE_S)
    finally:
        comm.abort(int(ExitCode.INCOMPLETE))
        os._exit(int(ExitCode.INCOMPLETE))


def _skip_exit_handlers() -> None:
    """Have exit(3) end the process at once, as the handler that runs first.

    MPI_Abort calls exit(3), whose other handlers would take libraries down under the main thread:
    a segmentation fault instead of the exit code.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's: hands the exit code on
        libc.on_exit(libc._exit, None)


class Watchdog:
    """Calls ``act`` on a thread of its own if the block takes longer than ``timeout_s``.

    ``act`` is given the seconds by which it is late: many if the whole process was stopped. It
    must end the process. From the moment it is called the block cannot be left, so that never two
    threads write to one journal.
    """

    def __init__(self, timeout_s: float, act: Callable[[float], None]) -> None:
        self._timeout_s = timeout_s
        self._act = act
        self._left = threading.Event()
        self._one = threading.Lock()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with self._one:
            self._left.set()

    def _watch(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        if self._left.wait(self._timeout_s):
            return
        with self._one:
            if not self._left.is_set():
                self._act(time.monotonic() - deadline)


def inline_evidence(rank: int, worker: WorkerHandle) -> Evidence:
    """Return what an inline worker has answered, or how far its progress word shows it to be."""
    answer, outcome, cause = worker.receive(), Outcome.OK, "its part was done"
    if answer is None:
        outcome, cause = Outcome.STUCK, last_seen(worker)
    elif isinstance(answer, FailureAnswer):
        outcome, cause = answer.outcome, masked(answer.cause, os.environ)
    return replace(evidence_of(rank, worker, outcome, cause), expired=True)

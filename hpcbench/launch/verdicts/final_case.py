"""The case that a job ends with: of which no ordinary verdict can be had.

One that runs in the MPI processes and does not end, or one after which a rank's supervisor does not
answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from hpcbench.launch.context import SupervisorContext
from hpcbench.launch.ranks.communicator import Communicator, InlineComms
from hpcbench.launch.recording import unmeasured_record
from hpcbench.launch.verdicts.consultation import EXCHANGE_S, agreed_verdict
from hpcbench.launch.verdicts.verdict import Evidence
from hpcbench.launch.verdicts.watchdog import Watchdog, end_job, force_exit_later, inline_evidence
from hpcbench.launch.workers.worker_group import Guard
from hpcbench.launch.workers.worker_process import WorkerHandle
from hpcbench.plan.case import Case
from hpcbench.plan.order import Turn
from hpcbench.trace.schema import Samples


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
    samples: Samples
    why: str


def end_with_case(
    job: SupervisorContext, last: FinalCase, late_s: float, exchange_s: float = EXCHANGE_S,
) -> None:
    """Record the case of which no ordinary verdict can be had, and end the job."""
    force_exit_later()
    case, comm, evidence = last.case, last.comm, last.evidence
    verdict, reporter = agreed_verdict(
        comm, evidence, case.timeout_s, late_s, exchange_s, job.attempt.machine.hosts)
    record = unmeasured_record(
        case, last.turn, job.attempt.history.attempt, verdict.status, verdict.reason)
    written = replace(
        record, blamed_rank=verdict.blamed_rank, begin_ns=last.began_ns,
        end_ns=time.perf_counter_ns(), samples=last.samples,
        detail={"evidence": evidence.outcome.value, "cause": evidence.cause})
    planned = case.case_id in job.attempt.resolution.devices  # the canary is not
    end_job(comm, lambda: job.journal.append(*([written] if planned else [])), (
        f"hpcbench: rank {comm.rank}: {case.label}: {verdict.status}: {verdict.reason}\n"
        f"  {last.why}. The recorded cases are on disk; to see them, run: "
        f"hpcbench reduce {job.recorder.folder}"
        ) if reporter == comm.rank else "")


def guard(job: SupervisorContext, comms: InlineComms, turn: Turn) -> Guard:
    """Return the watchdog of cases that run in the MPI processes."""
    def guarded(worker: WorkerHandle, case: Case) -> Watchdog:
        began_ns = time.perf_counter_ns()

        def act(late_s: float) -> None:
            evidence = job.rendezvous.location.sign(inline_evidence(comms.watchdog.rank, worker))
            end_with_case(job, FinalCase(
                case, turn, began_ns, comms.watchdog, evidence, worker.progress.rows(),
                "it ran in the MPI process (backend mpi), so the job ends here"), late_s)

        return Watchdog(case.timeout_s, act)

    return guarded

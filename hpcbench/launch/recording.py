"""What a supervisor puts into its journal: records of cases, and notes of canaries and clocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcbench.launch.attempt import SupervisorContext
from hpcbench.launch.workers.messages import CaseAnswer
from hpcbench.launch.workers.worker_group import CaseOutcome
from hpcbench.plan.case import Case
from hpcbench.plan.order import Turn
from hpcbench.trace.schema import (
    NO_COMMUNICATOR,
    SAMPLE_COLUMNS,
    UNTIMED,
    Phases,
    Record,
    SampleColumns,
    Samples,
    no_samples,
)
from hpcbench.trace.telemetry import TELEMETRY_NOTE

_START, _END, _FLAGS = (SAMPLE_COLUMNS.index(name) for name in ("start_ns", "end_ns", "flags"))


def record_telemetry(job: SupervisorContext) -> None:
    """Put what was read of the machine since the last case into the journal.

    It is not waited for: the next record makes it durable. Raises FileError if it cannot.
    """
    if (told := job.telemetry.news()) is not None:
        job.journal.note(TELEMETRY_NOTE, told.to_json(), durable=False)
    job.journal.readings(job.telemetry.take())


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One run of a case: in which turn of which attempt, where in its order, and when in ns.

    The times are the supervisor's; the worker's are more exact, if it has answered.
    """

    case: Case
    turn: Turn
    attempt: int
    position: int
    begin_ns: int
    end_ns: int


def case_record(run: CaseRun, outcome: CaseOutcome, rows: Samples) -> Record:
    """Return this rank's record of a case that was run."""
    answer, evidence = outcome.own.answer, outcome.own.evidence
    if not isinstance(answer, CaseAnswer):
        answer = CaseAnswer(run.begin_ns, run.end_ns, device="")
    detail = dict(outcome.own.detail)
    if evidence.wrong:
        detail["wrong"] = evidence.wrong
    detail |= {name: value for name, value in answer.detail.items() if value}
    phases: Phases = {name: np.array(values, dtype=np.int64)
                      for name, values in answer.phases.items()}
    if any(len(values) != len(rows) for values in phases.values()):
        longest = max(map(len, phases.values()))
        detail["phases"], phases = f"up to {longest} durations of {len(rows)} samples", {}
    verdict = outcome.verdict
    return replace(
        unmeasured_record(run.case, run.turn, run.attempt, verdict.status, verdict.reason),
        blamed_rank=verdict.blamed_rank, device=answer.device, begin_ns=answer.begin_ns,
        end_ns=answer.end_ns, n_wrong=evidence.n_wrong,
        samples=SampleColumns.of_rows(rows), detail=detail,
        position=run.position, stop_reason=answer.stop_reason,
        communicator_ns=answer.communicator_ns, phases=phases)


def unmeasured_record(case: Case, turn: Turn, attempt: int, status: str, reason: str) -> Record:
    """Return a record without samples of a case in one pass of one launch."""
    return Record(
        case_id=case.case_id, pass_index=turn.pass_index, launch=turn.launch, attempt=attempt,
        status=status, reason=reason, blamed_rank=-1, mode=case.mode, device="", begin_ns=0,
        end_ns=0, n_wrong=-1, samples=no_samples(), detail={}, stop_reason="", position=-1,
        communicator_ns=NO_COMMUNICATOR, phases={})


def canary_note(case: Case, turn: Turn, outcome: CaseOutcome, rows: Samples) -> dict[str, Any]:
    """Return the note of one run of the canary: its durations on this rank in ns, or why not."""
    timed = rows[(rows[:, _FLAGS] & UNTIMED) == 0]
    ran = outcome.verdict.status == "ok" and len(timed)
    return {
        "case_id": case.case_id, "launch": turn.launch, "pass_index": turn.pass_index,
        "at_ns": int(rows[0, _START]) if len(rows) else 0, "status": outcome.verdict.status,
        "reason": outcome.verdict.reason,
        "durations_ns": (timed[:, _END] - timed[:, _START]).tolist() if ran else []}

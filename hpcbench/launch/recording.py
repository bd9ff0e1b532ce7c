"""What a supervisor puts into its journal: records of cases, and notes of canaries and clocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcbench.launch.workers.messages import CaseAnswer
from hpcbench.launch.workers.worker_group import Hearing
from hpcbench.plan.case import Case
from hpcbench.plan.order import Turn
from hpcbench.trace.schema import (
    NO_COMMUNICATOR,
    SAMPLE_COLUMNS,
    UNTIMED,
    Phases,
    Record,
    Samples,
    no_samples,
)

_START, _END, _FLAGS = (SAMPLE_COLUMNS.index(name) for name in ("start_ns", "end_ns", "flags"))


def heard(
    case: Case, turn: Turn, position: int, hearing: Hearing, rows: Samples,
    window: tuple[int, int], attempt: int = 0,
) -> Record:
    """Return this rank's record of a case that was run; ``window`` is the supervisor's, in ns."""
    answer, evidence = hearing.own.answer, hearing.own.evidence
    if not isinstance(answer, CaseAnswer):
        answer = CaseAnswer(*window, device="")
    detail = dict(hearing.own.detail)
    if evidence.wrong:
        detail["wrong"] = evidence.wrong
    detail |= {name: value for name, value in answer.detail.items() if value}
    phases: Phases = {name: np.array(values, dtype=np.int64)
                      for name, values in answer.phases.items()}
    if any(len(values) != len(rows) for values in phases.values()):
        longest = max(map(len, phases.values()))
        detail["phases"], phases = f"up to {longest} durations of {len(rows)} samples", {}
    return record(
        case, turn, hearing.verdict.status, hearing.verdict.reason,
        blamed_rank=hearing.verdict.blamed_rank, device=answer.device,
        window=(answer.begin_ns, answer.end_ns),
        n_wrong=evidence.n_wrong, samples=rows, detail=detail, position=position,
        stop_reason=answer.stop_reason, communicator_ns=answer.communicator_ns, phases=phases,
        attempt=attempt)


def record(
    case: Case, turn: Turn, status: str, reason: str, *, blamed_rank: int = -1,
    device: str = "", window: tuple[int, int] = (0, 0), n_wrong: int = -1,
    samples: Samples | None = None, detail: Mapping[str, Any] | None = None,
    position: int = -1, stop_reason: str = "", communicator_ns: int = NO_COMMUNICATOR,
    phases: Phases | None = None, attempt: int = 0,
) -> Record:
    """Return a record of a case in one pass of one launch."""
    return Record(
        case_id=case.case_id, pass_index=turn.pass_index, launch=turn.launch, attempt=attempt,
        status=status, reason=reason, blamed_rank=blamed_rank, mode=case.mode, device=device,
        begin_ns=window[0], end_ns=window[1], n_wrong=n_wrong,
        samples=no_samples() if samples is None else samples, detail=detail or {},
        stop_reason=stop_reason, position=position, communicator_ns=communicator_ns,
        phases=phases or {})


def canary_note(case: Case, turn: Turn, hearing: Hearing, rows: Samples) -> dict[str, Any]:
    """Return the note of one run of the canary: its durations on this rank in ns, or why not."""
    timed = rows[(rows[:, _FLAGS] & UNTIMED) == 0]
    ran = hearing.verdict.status == "ok" and len(timed)
    return {
        "case_id": case.case_id, "launch": turn.launch, "pass_index": turn.pass_index,
        "at_ns": int(rows[0, _START]) if len(rows) else 0, "status": hearing.verdict.status,
        "reason": hearing.verdict.reason,
        "durations_ns": (timed[:, _END] - timed[:, _START]).tolist() if ran else []}

"""The inputs of one attempt at a run, and the records of its supervisors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from hpcbench.config.schema import Config, stored_config
from hpcbench.launch.clocks import SynchronisedClock
from hpcbench.launch.communicator import Communicator
from hpcbench.launch.launcher import StopRequests
from hpcbench.launch.messages import CaseAnswer
from hpcbench.launch.probe import JobMachine, Resolution
from hpcbench.launch.session import RankIdentity
from hpcbench.launch.worker_group import CaseOutcome, Rendezvous
from hpcbench.plain import Codec, Plain
from hpcbench.plan.case import Case, Plan, plan_from_json, plan_to_json
from hpcbench.plan.order import History, Turn, case_budget_s, launch_s, turns
from hpcbench.records import dataclass
from hpcbench.telemetry.sampler import Sampler
from hpcbench.trace import schema
from hpcbench.trace.columns import TELEMETRY_NOTE
from hpcbench.trace.journal import Journal

PlainPlan = Annotated[Plan, Codec(plan_from_json, plan_to_json)]


@dataclass(frozen=True)
class PlannedRun:
    """A plan, its history, and the folder to resume (None: a new one)."""

    plan: PlainPlan
    history: History
    folder: Path | None

    @cached_property
    def config(self) -> Config:
        return stored_config(self.plan.config)


PLANNED_RUN: Plain[PlannedRun] = Plain(PlannedRun)
HISTORY: Plain[History] = Plain(History)


@dataclass(frozen=True)
class RunAttempt(PlannedRun):
    """This job's plan, machine and resolution; the same on all ranks, but for ``topology``."""

    comm: Communicator
    topology: RankIdentity
    machine: JobMachine
    resolution: Resolution

    def runnable(self) -> list[Case]:
        return [case for case in self.plan.cases if case.case_id in self.resolution.devices
                and self.history.quarantine(case) is None]

    def turns_left(self) -> list[tuple[Turn, Sequence[Case]]]:
        """Return each pass that has cases left, with them."""
        cases = self.runnable()
        left = ((turn, self.history.left(cases, turn))
                for turn in turns(self.plan.launches, self.plan.passes))
        return [(turn, those) for turn, those in left if those]

    def runs_left(self) -> list[Case]:
        return [case for _, cases in self.turns_left() for case in cases]

    def launches_left(self) -> int:
        return len({turn.launch for turn, _ in self.turns_left()})

    def launch_s(self) -> float:
        """Return the assumed seconds until a launch has workers."""
        return launch_s(self.runnable(), inline=self.config.launch.inline)

    def is_done(self) -> bool:
        """Return whether there is nothing to run and nothing to record."""
        cases = [case for case in self.plan.cases if case.case_id in self.resolution.devices]
        is_run = self.history.ended and not any(
            self.history.is_left(case, turn) for case in cases
            for turn in turns(self.plan.launches, self.plan.passes))
        wanted = self.runnable() if self.config.profiling.enabled else []
        return is_run and not any(map(self.history.is_profile_left, wanted))

    def run_budget_s(self) -> float:
        return case_budget_s(self.config.measure.budget_s, len(self.resolution.devices),
                             self.plan.passes, self.plan.launches)


CaseReport = Callable[[Case, str, str, float, int, int], None]
"""Called after each case with its status, reason, seconds, launch and pass."""


@dataclass(frozen=True, slots=True)
class SupervisorContext:
    """The inputs of a supervisor.

    Results go to this rank's ``journal`` and rank 0's progress lines (``report``). ``folder`` is
    that of the results, for messages."""

    attempt: RunAttempt
    journal: Journal
    report: CaseReport
    folder: Path
    clocks: SynchronisedClock
    stop: StopRequests
    rendezvous: Rendezvous
    canary: Case | None
    telemetry: Sampler
    medians_ns: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """This rank's medians of each case whose last run was ok, by id; kept only for profiling."""

    @property
    def comm(self) -> Communicator:
        return self.attempt.comm

    @property
    def inline(self) -> bool:
        return self.attempt.config.launch.inline


_START, _END, _FLAGS = map(schema.SAMPLE_COLUMNS.index, ("start_ns", "end_ns", "flags"))


def record_telemetry(job: SupervisorContext) -> None:
    """Append telemetry since the last case to the journal; the next record makes it durable."""
    if (changed := job.telemetry.new_report()) is not None:
        job.journal.note(TELEMETRY_NOTE, changed.to_json(), durable=False)
    job.journal.readings(job.telemetry.drain())


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One run of a case: turn, attempt, position in its order, and the supervisor's times in ns."""

    case: Case
    turn: Turn
    attempt: int
    position: int
    begin_ns: int
    end_ns: int


def case_record(run: CaseRun, outcome: CaseOutcome, rows: schema.Samples) -> schema.Record:
    answer, evidence = outcome.own.answer, outcome.own.evidence
    if not isinstance(answer, CaseAnswer):
        answer = CaseAnswer(run.begin_ns, run.end_ns, device="")
    detail = dict(outcome.own.detail)
    if evidence.wrong:
        detail["wrong"] = evidence.wrong
    detail |= {name: value for name, value in answer.detail.items() if value}
    phases: schema.Phases = {name: np.array(values, dtype=np.int64)
                             for name, values in answer.phases.items()}
    if any(len(values) != len(rows) for values in phases.values()):
        longest = max(map(len, phases.values()))
        detail["phases"], phases = f"up to {longest} durations of {len(rows)} samples", {}
    verdict = outcome.verdict
    return replace(
        unmeasured_record(run.case, run.turn, run.attempt, verdict.status, verdict.reason),
        blamed_rank=verdict.blamed_rank, device=answer.device, begin_ns=answer.begin_ns,
        end_ns=answer.end_ns, n_wrong=evidence.n_wrong,
        samples=schema.SampleColumns.of_rows(rows), detail=detail,
        position=run.position, stop_reason=answer.stop_reason,
        communicator_ns=answer.communicator_ns, phases=phases)


def unmeasured_record(
    case: Case, turn: Turn, attempt: int, status: str, reason: str,
) -> schema.Record:
    """Return a record without samples of a case in one pass of one launch."""
    return schema.Record(
        case_id=case.case_id, pass_index=turn.pass_index, launch=turn.launch, attempt=attempt,
        status=status, reason=reason, blamed_rank=-1, mode=case.mode, device="", begin_ns=0,
        end_ns=0, n_wrong=-1, samples=schema.no_samples(), detail={}, stop_reason="", position=-1,
        communicator_ns=schema.NO_COMMUNICATOR, phases={})


def canary_note(
    case: Case, turn: Turn, outcome: CaseOutcome, rows: schema.Samples,
) -> dict[str, Any]:
    """Return the note of one canary run: its durations on this rank in ns, or why there are none.
    """
    timed = rows[(rows[:, _FLAGS] & schema.UNTIMED) == 0]
    ran = outcome.verdict.status == "ok" and len(timed)
    return {
        "case_id": case.case_id, "launch": turn.launch, "pass_index": turn.pass_index,
        "at_ns": int(rows[0, _START]) if len(rows) else 0, "status": outcome.verdict.status,
        "reason": outcome.verdict.reason,
        "durations_ns": (timed[:, _END] - timed[:, _START]).tolist() if ran else []}

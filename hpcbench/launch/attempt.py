"""One attempt at a run: what is left to run, on what, and what a supervisor works from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from hpcbench.config.schema import Config, stored_config
from hpcbench.launch.clocks.synchronization import Clocks
from hpcbench.launch.probe import Machine, Resolution
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.launch.ranks.session import Topology
from hpcbench.launch.ranks.stop_requests import StopRequests
from hpcbench.launch.workers.worker_group import Rendezvous
from hpcbench.plan.case import Case, Plan, plan_from_json, plan_to_json
from hpcbench.plan.estimate import case_budget_s
from hpcbench.plan.history import History
from hpcbench.plan.order import turns
from hpcbench.telemetry.sampler import Sampler
from hpcbench.trace.journal import Journal

PlainPlan = Annotated[Plan, PlainSerializer(plan_to_json), PlainValidator(plan_from_json)]


@dataclass(frozen=True)
class PlannedRun:
    """What a job does: a plan, what of it is done, and the folder to go on in (None: a new one)."""

    plan: PlainPlan
    history: History
    folder: Path | None

    @cached_property
    def config(self) -> Config:
        """Return the plan's configuration."""
        return stored_config(self.plan.config)


PLANNED_RUN = TypeAdapter(PlannedRun)
HISTORY = TypeAdapter(History)


@dataclass(frozen=True)
class Attempt(PlannedRun):
    """What this job runs of a plan, and on what; all ranks have the same, but for ``topology``."""

    comm: Communicator
    topology: Topology
    machine: Machine
    resolution: Resolution

    def runnable(self) -> list[Case]:
        """Return the cases that this attempt may run."""
        return [case for case in self.plan.cases if case.case_id in self.resolution.devices
                and self.history.quarantine(case) is None]

    def runs_left(self) -> list[Case]:
        """Return the case of every run that this attempt has to make."""
        cases = self.runnable()
        return [case for turn in turns(self.plan.launches, self.plan.passes)
                for case in self.history.left(cases, turn)]

    def is_done(self) -> bool:
        """Return whether there is nothing to run and nothing to record."""
        cases = [case for case in self.plan.cases if case.case_id in self.resolution.devices]
        is_run = self.history.ended and not any(
            self.history.is_left(case, turn) for case in cases
            for turn in turns(self.plan.launches, self.plan.passes))
        wanted = self.runnable() if self.config.profiling.enabled else []
        return is_run and not any(map(self.history.is_profile_left, wanted))

    def run_budget_s(self) -> float:
        """Return the seconds that one run of one case may spend in its timed loop."""
        return case_budget_s(self.config.measure.budget_s, len(self.resolution.devices),
                             self.plan.passes, self.plan.launches)


CaseReport = Callable[[Case, str, str, float, int, int], None]
"""Called after each case with its status, reason, seconds, launch and pass."""


@dataclass(frozen=True, slots=True)
class SupervisorContext:
    """Everything that a supervisor works from.

    Results of cases go to this rank's ``journal`` and rank 0's progress lines (``report``).
    ``folder`` is that of the results, for messages. ``canary`` is None if there is none.
    ``telemetry`` reads the machine meanwhile.
    """

    attempt: Attempt
    journal: Journal
    report: CaseReport
    folder: Path
    clocks: Clocks
    stop: StopRequests
    rendezvous: Rendezvous
    canary: Case | None
    telemetry: Sampler
    medians_ns: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """This rank's medians of each case whose last run was ok, by id (`profiling.trigger`). Kept
    only if cases are to be profiled."""

    @property
    def comm(self) -> Communicator:
        """Return the communicator of all ranks."""
        return self.attempt.comm

    @property
    def inline(self) -> bool:
        """Return whether all workers run in the ranks' own processes."""
        return self.attempt.config.launch.inline

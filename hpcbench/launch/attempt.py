"""One attempt at a run: what is planned, what the machine allows, and what is left to run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from hpcbench.config.schema import Config, stored_config
from hpcbench.launch.machine import Machine
from hpcbench.launch.probe import Resolution
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.launch.ranks.session import Session, Topology
from hpcbench.plan.case import Case, Plan, plan_from_json, plan_to_json
from hpcbench.plan.estimate import case_budget_s
from hpcbench.plan.history import History
from hpcbench.plan.order import turns

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


@dataclass(frozen=True, slots=True)
class Attempt:
    """What this job runs of a plan, and on what; all ranks have the same, but for ``session``."""

    session: Session
    planned: PlannedRun
    machine: Machine
    resolution: Resolution

    @property
    def comm(self) -> Communicator:
        """Return the communicator of all ranks."""
        return self.session.comm

    @property
    def topology(self) -> Topology:
        """Return the place of this rank."""
        return self.session.topology

    @property
    def plan(self) -> Plan:
        """Return the plan."""
        return self.planned.plan

    @property
    def config(self) -> Config:
        """Return the plan's configuration."""
        return self.planned.config

    @property
    def history(self) -> History:
        """Return what earlier attempts have done."""
        return self.planned.history

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
        return self.history.ended and not any(
            self.history.is_left(case, turn)
            for turn in turns(self.plan.launches, self.plan.passes)
            for case in self.plan.cases if case.case_id in self.resolution.devices)

    def run_budget_s(self) -> float:
        """Return the seconds that one run of one case may spend in its timed loop."""
        return case_budget_s(self.config.measure.budget_s, len(self.resolution.devices),
                             self.plan.passes, self.plan.launches)

"""What every test of the machine is to the plan: its workload, and how its points are drafted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hpcbench.kinds.hardware.plan.block import HardwareBlock
from hpcbench.plan.case import Case
from hpcbench.plan.points import CommonPoint, Draft, PlanRequest
from hpcbench.plan.workload import Workload


class HardwareWork(Workload):
    """Base of the workloads of all tests. ``test`` is stored, and tells which class it is."""

    __slots__ = ()
    test: str

    @property
    def name(self) -> str:
        """Return the name of the test."""
        return self.test

    def identity(self) -> dict[str, Any]:
        """Return what makes it this workload."""
        return {"kind": "hardware", **self.to_json()}


@dataclass(frozen=True, slots=True)
class HardwareTest:
    """A test as the planner sees it.

    ``lengths`` gives the number of values of each axis that only this test reads; ``drafts`` the
    drafts of one common point: one for each combination of those axes. ``problem`` says what is
    wrong with those keys, if anything is.
    """

    name: str
    meaning: str
    work: type[HardwareWork]
    lengths: Callable[[HardwareBlock], dict[str, int]]
    drafts: Callable[[HardwareBlock, CommonPoint, PlanRequest], Iterator[Draft]]
    problem: Callable[[HardwareBlock], str | None] = lambda _block: None


def work_of(case: Case) -> HardwareWork:
    """Return the workload of a case of a test. Raises TypeError for another kind."""
    if not isinstance(case.workload, HardwareWork):
        raise TypeError(f"{case.label} is no test of the machine")
    return case.workload

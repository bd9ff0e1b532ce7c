"""What a case of this kind runs: steps of a training, of which the last are followed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.call import Call
from hpcbench.plan.case import Case
from hpcbench.plan.workload import Workload


@dataclass(frozen=True, slots=True)
class MemoryWork(Workload):
    """The memory of a training: a sample is one of its steps, and two more are followed."""

    training: Training

    @property
    def dtype(self) -> str:  # type: ignore[override]
        """Return that of the arithmetic."""
        return self.training.dtype

    @property
    def groups(self) -> int:  # type: ignore[override]
        """Return that of the training."""
        return self.training.groups

    @property
    def name(self) -> str:
        """Return what is measured."""
        return "memory"

    def words(self, world_size: int) -> list[str]:
        """Return the words of its label: those of the training behind ``memory``."""
        first, *rest = self.training.words(world_size)
        return [f"{self.name} {first}", *rest]

    def axes(self) -> dict[str, Any]:
        """Return what tells it from others."""
        return self.training.axes()

    def choice(self) -> None:
        """Return None: what counts is memory, not time."""

    def collective_calls(self) -> tuple[Call, ...]:
        """Return the collectives that the training calls."""
        return self.training.collective_calls()

    def needs(self) -> tuple[str, ...]:
        """Return what the training needs of a machine."""
        return self.training.needs()

    def selectors(self) -> dict[str, str]:
        """Return what ``--model`` and ``--strategy`` select it by."""
        return self.training.selectors()

    def not_captured(self) -> str | None:
        """Return why a step is not captured."""
        return self.training.not_captured()

    def rehearsal_calls(self) -> int:
        """Return how often a dry run calls it."""
        return self.training.rehearsal_calls()

    @property
    def has_whole_samples(self) -> bool:
        """Return whether a rank sees steps from end to end."""
        return self.training.has_whole_samples

    @property
    def has_phases(self) -> bool:
        """Return True: a step records its phases."""
        return True

    def to_json(self) -> dict[str, Any]:
        """Return the training as plain JSON values."""
        return {"training": self.training.to_json()}


def work_of(case: Case) -> MemoryWork:
    """Return the workload of a case of this kind. Raises TypeError for another."""
    if not isinstance(case.workload, MemoryWork):
        raise TypeError(f"{case.label} measures no memory")
    return case.workload


def of_training(case: Case) -> Case:
    """Return the case as one of the training that it measures."""
    return replace(case, workload=work_of(case).training)

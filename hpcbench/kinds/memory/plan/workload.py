"""What a case of this kind runs: steps of a training, of which the last are followed.

Or many of them: tries of a search for the largest batch that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hpcbench.kinds.memory.plan.search import Search, next_batch, told, with_batch
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.call import Call
from hpcbench.plan.case import Case
from hpcbench.plan.tries import Ended, Tried
from hpcbench.plan.workload import Workload
from hpcbench.units import format_bytes

TRIES = "tries"
"""The key of a record's detail for the batches that were tried (`search.told`)."""


@dataclass(frozen=True, slots=True)
class MemoryWork(Workload):
    """The memory of a training: a sample is one of its steps, and two more are followed.

    ``search``: the largest batch of it that fits is looked for, or this is a try of that.
    """

    training: Training
    search: Search | None = None

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
        if (search := self.search) is not None:
            limit = [f"limit={format_bytes(search.limit_bytes)}"] if search.limit_bytes else []
            what = f"batch={search.batch}" if search.batch else "batch=largest"
            at = next(at for at, word in enumerate(rest) if word.startswith("batch="))
            rest[at:at + 1] = [what, *limit]
        return [f"{self.name} {first}", *rest]

    def drawn_numbers(self) -> int:
        """Return those of the training."""
        return self.training.drawn_numbers()

    def next_try(self, tries: Sequence[Tried]) -> MemoryWork | None:
        """Return the training of the batch that is tried next; None if none is looked for."""
        search = self.search
        if search is None or search.batch:
            return None
        batch = next_batch(search, [(size, one.ended is Ended.OK) for size, one in _sized(tries)])
        return None if batch is None else MemoryWork(
            with_batch(self.training, batch), replace(search, batch=batch))

    def told_of_tries(self, tries: Sequence[Tried]) -> dict[str, Any]:
        """Return each batch that was tried, and how that ended."""
        return {TRIES: told(_sized(tries))}

    def axes(self) -> dict[str, Any]:
        """Return what tells it from others."""
        axes = self.training.axes()
        if self.search is None:
            return axes
        del axes["batch_size"]
        return {**axes, "largest_batch": True, "memory_limit": self.search.limit_bytes}

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
        """Return the training, and the search if it is one, as plain JSON values."""
        searched = {"search": asdict(self.search)} if self.search else {}
        return {"training": self.training.to_json(), **searched}


def _sized(tries: Sequence[Tried]) -> list[tuple[int, Tried]]:
    """Return tries of a search with the batch of each."""
    return [(one.workload.search.batch, one) for one in tries
            if isinstance(one.workload, MemoryWork) and one.workload.search]


def work_of(case: Case) -> MemoryWork:
    """Return the workload of a case of this kind. Raises TypeError for another."""
    if not isinstance(case.workload, MemoryWork):
        raise TypeError(f"{case.label} measures no memory")
    return case.workload

"""Which operation runs which kind of workload.

What a kind needs is imported when it is first asked for: DTensor alone, which trainings use, takes
as long to import as half of torch, on every rank of every job.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from hpcbench.kinds.collective.run.table import make_operation
from hpcbench.operations.operation import Place
from hpcbench.plan.workload import Collective, Primitive, Workload

_MODULES = {
    "collective": "hpcbench.kinds.collective.run.table",
    "primitive": "hpcbench.kinds.primitive.run.operation",
    "training": "hpcbench.kinds.training.run.replay",
}
"""Kind of case -> the module that imports all that its operations are made of."""


class AnyOperation(Protocol):
    """A workload on this rank, ready to be called."""

    name: str
    place: Place

    def prepare(self) -> None:
        """Restore inputs and wipe outputs."""

    def run(self) -> None:
        """Do the work once."""

    def spoil(self) -> None:
        """Make the result wrong, for tests of the check."""

    def check(self) -> object | None:
        """Return what is wrong with the last result, or None."""


@runtime_checkable
class Telling(Protocol):
    """An operation that tells more than rows, and holds what must be closed."""

    def answer(self) -> dict[str, Any]:
        """Return what is told beside the rows, as plain JSON values."""

    def close(self) -> None:
        """Close what was opened. All ranks call it."""


@runtime_checkable
class Wrong(Protocol):
    """What is wrong with a result: how many elements, and the first of them in words."""

    @property
    def n_wrong(self) -> int:
        """Return the number of wrong elements."""

    @property
    def words(self) -> str:
        """Return it for people."""


@runtime_checkable
class Draggable(Protocol):
    """An operation whose samples can be made to take longer, for tests."""

    def drag(self, seconds: float) -> None:
        """Make each sample of this rank take this much longer."""


def import_kinds(kinds: Iterable[str]) -> None:
    """Import what cases of these kinds need, so that processes forked from this one have it."""
    for kind in kinds:
        import_module(_MODULES[kind])


def open_operation(work: Workload, place: Place, *, validate: bool) -> AnyOperation:
    """Allocate a workload on this rank; if ``validate``, trainings prove their parity first."""
    if isinstance(work, Collective):
        return make_operation(work, place)
    if isinstance(work, Primitive):
        from hpcbench.kinds.primitive.run.operation import PrimitiveOperation

        return PrimitiveOperation(work, place)
    from hpcbench.kinds.training.run.operation import TrainingOperation
    from hpcbench.kinds.training.run.replay import ReplayOperation

    if work.communication == "only":
        return ReplayOperation(work, place)
    return TrainingOperation(work, place, validate=validate)

"""Opens the cases of one kind in a worker: the only side of a kind that may import torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from hpcbench.kinds.registry import spec_of

if TYPE_CHECKING:
    from hpcbench.operations.place import AnyOperation, Place
    from hpcbench.plan.workload import Workload


class Runner(ABC):
    """Runs the cases of one kind in a worker."""

    @abstractmethod
    def open(
        self, work: Workload, place: Place, *, validate: bool,
    ) -> AnyOperation | AbstractContextManager[AnyOperation]:
        """Allocate a workload on this rank; if ``validate``, prove what must hold before it.

        A context manager, which gives the operation, is entered around set-up and measurement; it
        may explain a lack of memory."""


def opened(
    runner: Runner, work: Workload, place: Place, *, validate: bool,
) -> AbstractContextManager[AnyOperation]:
    """Return the context manager that gives the operation of a workload on this rank."""
    found = runner.open(work, place, validate=validate)
    return found if isinstance(found, AbstractContextManager) else nullcontext(found)


def runner_of(kind: str) -> Runner:
    """Return a new runner; this imports torch. Raises PluginError if it cannot be loaded."""
    spec = spec_of(kind)
    return spec.made(spec.runner_path)  # type: ignore[no-any-return]

"""What opens the cases of one kind in a worker: the only side of a kind that may import torch."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from hpcbench.kinds.registry import spec_of

if TYPE_CHECKING:
    from hpcbench.operations.place import AnyOperation, Place
    from hpcbench.plan.workload import Workload


class Runner(ABC):
    """Runs the cases of one kind in a worker."""

    @abstractmethod
    def open(self, work: Workload, place: Place, *, validate: bool) -> AnyOperation:
        """Allocate a workload on this rank; if ``validate``, prove what must hold before it."""

    def around(
        self, work: Workload, device: Any, local_size: int,
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context of set-up and measurement, e.g. to explain a lack of memory. ``device``
        is a torch device."""
        return contextlib.nullcontext()


def runner_of(kind: str) -> Runner:
    """Return a new runner; this imports torch. Raises PluginError if it cannot be loaded."""
    spec = spec_of(kind)
    return spec.made(spec.runner_path)  # type: ignore[no-any-return]

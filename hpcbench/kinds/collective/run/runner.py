"""The runner of collectives."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from hpcbench.backends.devices import cache_bytes
from hpcbench.errors import CaseError
from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.cold import Rotation
from hpcbench.kinds.collective.run.lane import take
from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.kinds.kind import Runner
from hpcbench.operations.lane import Lane
from hpcbench.operations.place import Place
from hpcbench.operations.sizes import cold_bytes
from hpcbench.plan.workload import Workload


class CollectiveRunner(Runner):
    """Opens collectives; which class runs which is told by its row."""

    def open(self, work: Workload, place: Place, *, validate: bool) -> Operation | Rotation:
        """Allocate the collective on this rank. Raises CaseError if it is not here.

        A module that begins with a dot is one of this package.
        """
        assert isinstance(work, Collective)
        traits = work.traits
        path = traits.operation if work.split == "even" else traits.uneven_operation
        if traits.problem:
            raise CaseError(f"{traits.problem}; install its plug-in on every node")
        module, _, name = path.partition(":")
        try:
            operation: type[Operation] = getattr(import_module(module, __package__), name)
        except (ImportError, AttributeError) as error:
            raise CaseError(f"{path} of {work.collective} cannot be loaded: {error}") from error
        if work.buffers == "cold":
            sets = work.sets(cold_bytes(cache_bytes(place.device)))
            return Rotation([_opened(operation, work, place) for _ in range(sets)])
        return _opened(operation, work, place)

    def stray(self, work: Workload, place: Place) -> Operation | Rotation:
        """Return a broadcast, or a barrier where a broadcast is planned."""
        stray = Collective(
            collective="broadcast", dtype=work.dtype, op=None, root=0, in_place=True,
            requested_bytes=0, size_bytes=0,
            count=max(work.count, 1) if isinstance(work, Collective) else 1)
        if work.name == "broadcast":
            stray = replace(stray, collective="barrier", root=None)
        return self.open(stray, place, validate=False)


def _opened(operation: type[Operation], work: Collective, place: Place) -> Operation:
    """Return the collective on buffers of its own, called as the group calls it."""
    opened = operation(work, place)
    if isinstance(place.group, Lane):
        take(opened, place.group)
    return opened

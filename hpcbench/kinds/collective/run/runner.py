"""The runner of collectives."""

from __future__ import annotations

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.kinds.collective.run.table import make_operation, other_operation
from hpcbench.kinds.kind import Runner
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload


class CollectiveRunner(Runner):
    """Opens collectives."""

    def open(self, work: Workload, place: Place, *, validate: bool) -> Operation:
        """Allocate the collective on this rank."""
        assert isinstance(work, Collective)
        return make_operation(work, place)

    def stray(self, work: Workload, place: Place) -> Operation:
        """Return a broadcast, or a barrier where a broadcast is planned."""
        return other_operation(work, place)

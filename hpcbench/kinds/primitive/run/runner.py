"""The runner of primitives."""

from __future__ import annotations

from hpcbench.kinds.kind import Runner
from hpcbench.kinds.primitive.plan.registry import installed
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.operation import PrimitiveOperation
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload


class PrimitiveRunner(Runner):
    """Opens primitives. Plug-ins are found when it is made: in the template, before workers are."""

    def __init__(self) -> None:
        installed()

    def open(self, work: Workload, place: Place, *, validate: bool) -> PrimitiveOperation:
        """Allocate the implementation's buffers and inputs on this rank."""
        assert isinstance(work, Primitive)
        return PrimitiveOperation(work, place)

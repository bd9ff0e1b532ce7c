"""all_reduce: every rank ends with the reduction of all ranks' buffers."""

from __future__ import annotations

import torch.distributed as dist

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation, reduce_op
from hpcbench.operations.data import contributed, reduced
from hpcbench.operations.place import Place


class AllReduce(Operation):
    """torch.distributed.all_reduce, which has only the in-place form; ``count`` elements a rank."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        op = str(spec.op)
        self.op = reduce_op(op)
        self.source = self.on_device(
            contributed(place.rank, place.world_size, op, spec.count, self.dtype, place.first))
        self.expected = self.on_device(
            reduced(place.world_size, op, 0, spec.count, self.dtype, place.first))
        self.output = self.empty(spec.count)

    def prepare(self) -> None:
        """Restore the input that the last call overwrote."""
        self.output.copy_(self.source)

    def run(self) -> None:
        """Reduce in place."""
        dist.all_reduce(self.output, self.op, group=self.place.group)

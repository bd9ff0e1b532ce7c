"""reduce: the root ends with the reduction of all ranks' buffers."""

from __future__ import annotations

import torch.distributed as dist

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation, reduce_op
from hpcbench.operations.check import Mismatch
from hpcbench.operations.data import contributed, reduced
from hpcbench.operations.place import Place


class Reduce(Operation):
    """torch.distributed.reduce, which has only the in-place form; ``count`` elements a rank.

    Checked at the root: what the other ranks' buffers hold afterwards is not defined.
    """

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        op, self.root = str(spec.op), int(spec.root or 0)
        self.op = reduce_op(op)
        self.source = self.on_device(contributed(
            place.rank, place.world_size, op, spec.count, self.dtype, place.first))
        if place.rank == self.root:
            self.expected = self.on_device(reduced(
                place.world_size, op, 0, spec.count, self.dtype, place.first))
        self.output = self.empty(spec.count)

    def prepare(self) -> None:
        """Restore the input that the last call may have overwritten."""
        self.output.copy_(self.source)

    def run(self) -> None:
        """Reduce to the root."""
        dist.reduce(self.output, self.place.global_rank(self.root), self.op,
                    group=self.place.group)

    def check(self) -> Mismatch | None:
        """Compare at the root; other ranks have no result."""
        return super().check() if self.place.rank == self.root else None

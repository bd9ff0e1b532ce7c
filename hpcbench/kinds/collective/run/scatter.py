"""scatter: part r of the root's buffer ends on rank r."""

from __future__ import annotations

import torch.distributed as dist

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.operations.data import moved
from hpcbench.operations.place import Place


class Scatter(Operation):
    """torch.distributed.scatter; ``count`` elements to each rank, the root's own included."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        self.root = int(spec.root or 0)
        sender, total = place.first + self.root, spec.count * place.world_size
        self.parts = None
        if place.rank == self.root:
            self.source = self.on_device(moved(sender, 0, total, self.dtype))
            self.parts = list(self.source.split(spec.count))
        self.expected = self.on_device(
            moved(sender, place.rank * spec.count, spec.count, self.dtype))
        self.output = self.empty(spec.count)

    def run(self) -> None:
        """Receive this rank's part from the root."""
        dist.scatter(self.output, self.parts, self.place.global_rank(self.root),
                     group=self.place.group)

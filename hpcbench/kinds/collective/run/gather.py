"""gather: the root ends with all ranks' parts, in rank order."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.operations.check import Mismatch
from hpcbench.operations.data import moved
from hpcbench.operations.place import Place


class Gather(Operation):
    """torch.distributed.gather; ``count`` elements from each rank, checked at the root."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        self.root = int(spec.root or 0)
        self.source = self.on_device(moved(place.number, 0, spec.count, self.dtype))
        self.output, self.parts = self.empty(0), None
        if place.rank == self.root:
            parts = [moved(rank, 0, spec.count, self.dtype) for rank in place.numbers]
            self.expected = self.on_device(torch.cat(parts))
            self.output = self.empty(spec.count * place.world_size)
            self.parts = list(self.output.split(spec.count))

    def run(self) -> None:
        """Send this rank's part to the root."""
        dist.gather(self.source, self.parts, self.place.global_rank(self.root),
                    group=self.place.group)

    def check(self) -> Mismatch | None:
        """Compare at the root; other ranks receive nothing."""
        return super().check() if self.place.rank == self.root else None

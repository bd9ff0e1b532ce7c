"""broadcast: every rank ends with the root's buffer."""

from __future__ import annotations

import torch.distributed as dist

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.operations.data import moved
from hpcbench.operations.place import Place


class Broadcast(Operation):
    """torch.distributed.broadcast of ``count`` elements; it has only the in-place form."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        self.root = int(spec.root or 0)
        self.expected = self.on_device(moved(place.first + self.root, 0, spec.count, self.dtype))
        self.output = self.empty(spec.count)

    def prepare(self) -> None:
        """Give the root its data, and every other rank anything but that."""
        if self.place.rank == self.root:
            self.output.copy_(self.expected)
        else:
            self.output.fill_(self.poison)

    def run(self) -> None:
        """Broadcast from the root."""
        dist.broadcast(self.output, self.place.global_rank(self.root), group=self.place.group)

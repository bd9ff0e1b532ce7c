"""all_to_all: part d of rank s's buffer ends as part s of rank d's buffer."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.operations.data import moved
from hpcbench.operations.place import Place


class AllToAll(Operation):
    """torch.distributed.all_to_all_single with equal parts of ``count`` elements."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        total, start = spec.count * place.world_size, place.rank * spec.count
        parts = [moved(rank, start, spec.count, self.dtype) for rank in place.numbers]
        self.expected = self.on_device(torch.cat(parts))
        self.source = self.on_device(moved(place.number, 0, total, self.dtype))
        self.output = self.empty(total)

    def run(self) -> None:
        """Exchange the parts."""
        dist.all_to_all_single(self.output, self.source, group=self.place.group)

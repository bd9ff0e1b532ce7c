"""all_gather: every rank ends with all ranks' parts, in rank order."""

from __future__ import annotations

import torch

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.operations.data import moved
from hpcbench.operations.place import Place
from hpcbench.operations.torch_calls import all_gather_tensor


class AllGather(Operation):
    """All-gather into one tensor; ``count`` elements from each rank.

    In place, the part to send is the rank's own slot of the output, as in nccl-tests.
    """

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        parts = [moved(rank, 0, spec.count, self.dtype) for rank in place.numbers]
        self.expected = self.on_device(torch.cat(parts))
        self.source = self.on_device(parts[place.rank])
        self.output = self.empty(spec.count * place.world_size)
        own = self.output[place.rank * spec.count:(place.rank + 1) * spec.count]
        self.part = own if spec.in_place else self.source

    def prepare(self) -> None:
        """Wipe the output; in place, put this rank's part back into its slot."""
        self.output.fill_(self.poison)
        if self.spec.in_place:
            self.part.copy_(self.source)

    def run(self) -> None:
        """Gather all parts."""
        all_gather_tensor(self.output, self.part, group=self.place.group)

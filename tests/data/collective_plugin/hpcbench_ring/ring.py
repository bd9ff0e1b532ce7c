"""ring_all_gather: what every rank ends with is passed on from neighbour to neighbour."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcbench.plugins import Collective, Operation, Place, moved


class RingAllGather(Operation):
    """``count`` elements from each rank travel n - 1 steps round the ring."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        parts = [moved(rank, 0, spec.count, self.dtype) for rank in place.numbers]
        self.expected = self.on_device(torch.cat(parts))
        self.source = self.on_device(parts[place.rank])
        self.output = self.empty(spec.count * place.world_size)
        self._parts = self.output.split(spec.count)
        self._next = place.global_rank((place.rank + 1) % place.world_size)
        self._previous = place.global_rank((place.rank - 1) % place.world_size)

    def run(self) -> None:
        """Pass on in each step what arrived in the one before."""
        rank, ranks, group = self.place.rank, self.place.world_size, self.place.group
        self._parts[rank].copy_(self.source)
        for step in range(ranks - 1):
            sent, received = self._parts[rank - step], self._parts[rank - step - 1]
            requests = dist.batch_isend_irecv([
                dist.P2POp(dist.irecv, received, self._previous, group=group),
                dist.P2POp(dist.isend, sent, self._next, group=group)])
            for request in requests:
                request.wait()

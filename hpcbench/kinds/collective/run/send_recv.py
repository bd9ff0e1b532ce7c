"""send_recv: every rank sends to the next and receives from the one before, as nccl-tests."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.operations.data import moved
from hpcbench.operations.place import Place


class SendRecv(Operation):
    """A ring of simultaneous sends and receives of ``count`` elements; at least 2 ranks."""

    def __init__(self, spec: Collective, place: Place) -> None:
        super().__init__(spec, place)
        following = place.global_rank((place.rank + 1) % place.world_size)
        preceding = place.global_rank((place.rank - 1) % place.world_size)
        self.source = self.on_device(moved(place.number, 0, spec.count, self.dtype))
        self.expected = self.on_device(moved(preceding, 0, spec.count, self.dtype))
        self.output = self.empty(spec.count)
        # The receive first: gloo's permission to send travels behind a rank's own data.
        self.exchange = [
            dist.P2POp(dist.irecv, self.output, preceding, group=place.group),
            dist.P2POp(dist.isend, self.source, following, group=place.group),
        ]

    def run(self) -> None:
        """Start both directions, then wait for both."""
        for request in self._start():
            request.wait()

    def _start(self) -> list[Any]:
        """Start both in one batch; torch has no batch for a plug-in that is itself the group."""
        if getattr(self.place.group, "_device_types", True):
            return list(dist.batch_isend_irecv(self.exchange))
        return [item.op(item.tensor, item.peer, group=item.group) for item in self.exchange]

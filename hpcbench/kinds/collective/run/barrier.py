"""barrier: no rank leaves before all have entered."""

from __future__ import annotations

import torch.distributed as dist

from hpcbench.kinds.collective.run.operation import Operation
from hpcbench.operations.check import Mismatch


class Barrier(Operation):
    """torch.distributed.barrier: no buffer, so nothing to prepare and nothing to check."""

    def prepare(self) -> None:
        """Do nothing: there is no buffer."""

    def run(self) -> None:
        """Wait for all ranks of the group under test."""
        devices = [self.place.device.index] if self.place.device.type == "cuda" else None
        dist.barrier(group=self.place.group, device_ids=devices)

    def spoil(self) -> None:
        """Do nothing: there is no buffer."""

    def check(self) -> Mismatch | None:
        """Return None: a barrier has no result (the plan marks it as unchecked)."""
        return None

"""Where an operation runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation runs: rank and size in the group under test, the group, the device.

    ``first`` is the global rank of the group's rank 0, and its ranks are ``stride`` apart. Data
    depend on global ranks, so that what another group sent is wrong here.
    """

    rank: int
    world_size: int
    group: Any
    device: torch.device
    first: int = 0
    stride: int = 1

    @property
    def number(self) -> int:
        """Return this rank's global rank."""
        return self.global_rank(self.rank)

    @property
    def numbers(self) -> range:
        """Return the global ranks of the group."""
        return range(self.first, self.global_rank(self.world_size), self.stride)

    @property
    def device_ids(self) -> list[int] | None:
        """Return what a barrier of the group must be told: this rank's GPU; None without one.

        Left to itself, NCCL takes the GPU whose number is the global rank modulo the GPUs that a
        rank sees, if no call before has shown another.
        """
        return [self.device.index] if self.device.type == "cuda" else None

    def global_rank(self, rank: int) -> int:
        """Return the global rank of a rank of the group, as torch wants roots and peers."""
        return self.first + rank * self.stride

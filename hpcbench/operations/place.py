"""Where an operation runs: its ranks, its device, and messages between two ranks of its group."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.errors import CaseError


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
        return self.global_rank(self.rank)

    @property
    def numbers(self) -> range:
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


def receiving(place: Place, rank: int, tensor: torch.Tensor) -> dist.P2POp:
    """Return the message of a rank of the group, as it is received."""
    return dist.P2POp(dist.irecv, tensor, place.global_rank(rank), place.group)


def sending(place: Place, rank: int, tensor: torch.Tensor) -> dist.P2POp:
    """Return the message to a rank of the group, as it is sent."""
    return dist.P2POp(dist.isend, tensor, place.global_rank(rank), place.group)


def start(messages: Sequence[dist.P2POp]) -> Sequence[Any]:
    """Start messages that were made once; there may be none, which torch refuses."""
    return dist.batch_isend_irecv(list(messages)) if messages else ()


def finish(started: Iterable[Any]) -> None:
    """Wait for collectives or messages that were started."""
    for work in started:
        work.wait()


def meeting_point(place: Place) -> tuple[str, int]:
    """Return rank 0's address, and a port that is free there; all ranks must call.

    Such a library connects the processes of a job, so a group must have all of them, or CaseError
    is raised.
    """
    if dist.get_world_size() != place.world_size:
        raise CaseError(f"a library that connects processes by itself takes all "
                        f"{dist.get_world_size()} ranks, not a group of {place.world_size}")
    port = [0]
    if dist.get_rank() == 0:
        with socket.create_server(("", 0)) as server:
            port = [server.getsockname()[1]]
    dist.broadcast_object_list(port)
    return os.environ["MASTER_ADDR"], port[0]  # rank 0 opened the store of torch at this address

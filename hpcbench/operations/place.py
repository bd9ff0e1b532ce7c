"""Where an operation runs: its ranks, its device, and messages between two ranks of its group.

Also the protocols of operations in the measuring loop, and of groups that are not torch's."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from hpcbench.errors import CaseError


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation runs: rank and size in the group under test, the group, the device.

    ``first`` is the global rank of the group's rank 0, and its ranks are ``stride`` apart. Data
    depend on global ranks, so that what another group sent is wrong here. ``local_size`` ranks of
    the job share the node."""

    rank: int
    world_size: int
    group: Any
    device: torch.device
    first: int = 0
    stride: int = 1
    local_size: int = 1

    @property
    def number(self) -> int:
        return self.global_rank(self.rank)

    @property
    def numbers(self) -> range:
        return range(self.first, self.global_rank(self.world_size), self.stride)

    @property
    def device_ids(self) -> list[int] | None:
        """Return ``device_ids`` of a barrier of the group: this rank's GPU; None without one.

        Left to itself, NCCL takes the GPU whose number is the global rank modulo the GPUs that a
        rank sees, if no call before has shown another."""
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

    A library that connects the processes of a job by itself meets there, so a group must have
    all of them, or CaseError is raised."""
    if dist.get_world_size() != place.world_size:
        raise CaseError(f"a library that connects processes by itself takes all "
                        f"{dist.get_world_size()} ranks, not a group of {place.world_size}")
    port = [0]
    if dist.get_rank() == 0:
        with socket.create_server(("", 0)) as server:
            port = [server.getsockname()[1]]
    dist.broadcast_object_list(port)
    return os.environ["MASTER_ADDR"], port[0]  # rank 0 opened the store of torch at this address


class AnyOperation(Protocol):
    """A workload on this rank, ready to be called.

    One that has a ``has_check`` that is False is not checked, whatever the case wants."""

    name: str
    place: Place

    def prepare(self) -> None:
        """Restore inputs and wipe outputs."""

    def run(self) -> None:
        """Do the work once."""

    def corrupt_output(self) -> None:
        """Make the result wrong, for tests of the check."""

    def check(self) -> object | None:
        """Return the mismatch of the last result, or None."""


@runtime_checkable
class Reporting(Protocol):
    """An operation that has values beside its rows, and resources to close."""

    def answer(self) -> dict[str, Any]:
        """Return the values beside the rows, as plain JSON values."""

    def close(self) -> None:
        """Close what was opened. All ranks call it."""


@runtime_checkable
class CanSlowDown(Protocol):
    """An operation on a batch whose samples can be made to take longer, for tests."""

    def slow_down(self, seconds: float) -> None:
        """Make each sample of this rank's batch take this much longer."""


@runtime_checkable
class Stepping(Protocol):
    """An operation whose samples have steps, in each of which it waits for certain ranks.

    If one hangs, it is then known which ranks wait (`plan.workload.Workload.step_words`)."""

    on_step: Callable[[int], None]
    """Called with the number of each step, from 1, when it begins; with 0 behind the last."""


def close(operation: AnyOperation, *, with_report: bool = True) -> dict[str, Any]:
    """Close an operation that needs it; return its report beside its rows if ``with_report``."""
    if not isinstance(operation, Reporting):
        return {}
    reported = operation.answer() if with_report else {}
    operation.close()
    return reported


@dataclass(frozen=True, slots=True)
class Buffers:
    """The tensors of a collective on one rank.

    ``source`` is None where the rank gives nothing of its own, or gives what is in ``output``.
    ``root`` is a rank of the group; ``op`` is empty where nothing is reduced."""

    source: torch.Tensor | None
    output: torch.Tensor | None
    op: str = ""
    root: int = 0


@runtime_checkable
class DirectCalls(Protocol):
    """A group that makes its own calls of collectives; it is no group of torch's."""

    def prepared(self, collective: str, buffers: Buffers) -> Callable[[], object]:
        """Return the call, ready to be made again and again."""

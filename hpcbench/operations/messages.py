"""Messages between two ranks of a group: how they are described, started and awaited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.operations.place import Place


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

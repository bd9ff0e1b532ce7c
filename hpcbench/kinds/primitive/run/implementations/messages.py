"""Messages between ranks, where an implementation sends them itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.operations.messages import receiving, sending, start
from hpcbench.operations.place import Place


def by_messages(place: Place) -> bool:
    """Return whether messages between all ranks serve better than collectives of chunks.

    gloo's do. Its all_gather sends before it posts what it receives, so a link works one way at a
    time. Its reduce_scatter sends twice what is needed, and each call wakes two threads
    (benchmarks/results/overlap.md). Its messages are on the CPU only. Other backends keep their
    collectives: NCCL's take ways through the network that messages do not.
    """
    return place.device.type == "cpu" and bool(dist.get_backend(place.group) == "gloo")


class Exchange:
    """Every rank sends every other one a part of each chunk; for backends as `by_messages` says.

    ``sent`` and ``received`` have a tensor (ranks, ...) a chunk, whose [r] is the part for, and
    of, rank r. The own ones are not looked at. A part must be contiguous.

    A receive may be posted before anything is sent, which NCCL would wait for for ever. gloo needs
    it: it sends the permission to send in the stream that carries its own data.
    """

    def __init__(
        self, place: Place, sent: Iterable[torch.Tensor], received: Iterable[torch.Tensor],
    ) -> None:
        ranks = place.world_size
        others = [(place.rank + distance) % ranks for distance in range(1, ranks)]
        self._receives = [[receiving(place, rank, parts[rank]) for rank in reversed(others)]
                          for parts in received]
        self._sends = [[sending(place, rank, parts[rank]) for rank in others] for parts in sent]

    def receive(self) -> list[Sequence[Any]]:
        """Post all receives; return those of each chunk."""
        return [start(messages) for messages in self._receives]

    def send(self, chunk: int) -> Sequence[Any]:
        """Start to send the parts of one chunk."""
        return start(self._sends[chunk])

    def send_all(self) -> list[Any]:
        """Start to send all chunks, one after the other."""
        return [work for chunk in range(len(self._sends)) for work in self.send(chunk)]

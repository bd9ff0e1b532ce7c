"""The supervisors' communicator of a job of one rank, without MPI."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

from hpcbench.launch.clocks.mpi_pair import Pair
from hpcbench.launch.ranks.communicator import Communicator, InlineComms


class SingleRankCommunicator:
    """One rank, no MPI."""

    rank = 0
    size = 1
    wakeup_fd: int | None = None

    def allgather(self, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Return the one value."""
        return [value]

    def bcast(self, value: Any, pause_s: float = 0.0) -> Any:
        """Return the value."""
        return value

    def barrier(self, pause_s: float = 0.0, timeout_s: float | None = None) -> None:
        """Return at once."""

    def first(self, count: int) -> Communicator | None:
        """Return this communicator."""
        return self

    def pair(self, rank: int, timeout_s: float) -> AbstractContextManager[Pair]:
        """There is no other rank."""
        raise LookupError("a single rank has no other")

    def notify(self, number: int) -> None:
        """There is nobody to tell."""

    def noticed(self, number: int) -> bool:
        """Nobody else can fail."""
        return False

    def post(self, value: Any, rank: int) -> None:
        """There is nobody to send to."""

    def posted(self) -> list[tuple[int, Any]]:
        """Return nothing."""
        return []

    def send(self, data: bytes, rank: int, timeout_s: float | None = None) -> None:
        """There is nobody to send to."""
        raise LookupError("a single rank has no other")

    def receive(self, rank: int, timeout_s: float | None = None) -> bytes:
        """There is nobody who sends."""
        raise LookupError("a single rank has no other")

    def abort(self, code: int) -> None:
        """End the process."""
        os._exit(code)

    def inline_comms(self) -> InlineComms | None:
        """Return None."""
        return None

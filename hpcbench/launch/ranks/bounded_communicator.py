"""The supervisors' communicator for ranks that may not answer: each wait ends, and names them.

Every value goes through rank 0, as one message a rank, for the few calls of ``hpcbench
validate``. MPI's collectives could not say who is missing.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from hpcbench.errors import RankLostError
from hpcbench.launch.clocks.mpi_pair import Pair
from hpcbench.launch.ranks.communicator import Communicator, InlineComms
from hpcbench.launch.ranks.waiting import FIRST_PAUSE_S
from hpcbench.units import rank_list

_LONGEST_PAUSE_S = 0.01
_MARGIN_S = 5.0


class BoundedCommunicator:
    """A `Communicator` over another one, which nobody else may use meanwhile.

    Whoever does not answer rank 0 within ``timeout_s`` is in ``lost``, on rank 0, and is not waited
    for again.
    """

    wakeup_fd: int | None = None

    def __init__(self, comm: Communicator, timeout_s: float) -> None:
        self._comm = comm
        self._calls = 0
        self._came: dict[tuple[int, int], Any] = {}
        self.timeout_s = timeout_s
        self.lost: set[int] = set()
        self.rank = comm.rank
        self.size = comm.size

    def gather(self, value: Any, timeout_s: float | None = None) -> dict[int, Any]:
        """Return on rank 0 the value of each rank that answered; elsewhere nothing, at once."""
        number = self._next()
        if self.rank != 0:
            self._comm.post([number, value], 0)
            return {}
        others = [rank for rank in range(1, self.size) if rank not in self.lost]
        came = self._await(number, others, timeout_s or self.timeout_s)
        self.lost.update(rank for rank in others if rank not in came)
        return {0: value, **came}

    def bcast(self, value: Any, pause_s: float = 0.0) -> Any:
        """Return rank 0's value on every rank. Raises RankLostError where it does not come."""
        return self._bcast(value, self.timeout_s)

    def _bcast(self, value: Any, before_s: float) -> Any:
        """``before_s`` is how long rank 0 may wait for a lost rank before it comes here."""
        number = self._next()
        if self.rank == 0:
            for rank in range(1, self.size):
                if rank not in self.lost:
                    self._comm.post([number, value], rank)
            return value
        limit_s = before_s + self.timeout_s  # it also does what it does for all
        came = self._await(number, [0], limit_s + _MARGIN_S)
        if 0 not in came:
            raise RankLostError(f"rank 0 has not answered for {limit_s:g} s")
        return came[0]

    def allgather(self, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Return every rank's value, by rank. Raises RankLostError, everywhere, naming the lost."""
        limit_s = timeout_s or self.timeout_s
        values = self.gather(value, limit_s)
        by_rank = [values.get(rank) for rank in range(self.size)]
        lost, everything = self._bcast([sorted(self.lost), by_rank], limit_s)
        if lost:
            raise RankLostError(f"rank {rank_list(lost)} has not answered for "
                                f"{limit_s:g} s")
        return list(everything)

    def barrier(self, pause_s: float = 0.0, timeout_s: float | None = None) -> None:
        """Return when every rank has called."""
        self.allgather(None, timeout_s)

    def _next(self) -> int:
        self._calls += 1
        return self._calls

    def _await(self, number: int, ranks: list[int], timeout_s: float) -> dict[int, Any]:
        """Return what these ranks have posted as their call ``number``, as far as it comes."""
        deadline, pause_s = time.monotonic() + timeout_s, FIRST_PAUSE_S
        while True:
            for sender, (of_call, value) in self._comm.posted():
                self._came[of_call, sender] = value
            missing = [rank for rank in ranks if (number, rank) not in self._came]
            if not missing or time.monotonic() > deadline:
                return {rank: self._came.pop((number, rank)) for rank in ranks
                        if rank not in missing}
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def first(self, count: int) -> Communicator | None:
        """Return the communicator of ranks 0..count-1 of the one below. Collective."""
        return self._comm.first(count)

    def pair(self, rank: int, timeout_s: float) -> AbstractContextManager[Pair]:
        """Give quick messages to and from another rank, which has to open the same pair."""
        return self._comm.pair(rank, timeout_s)

    def notify(self, number: int) -> None:
        """Tell the other ranks that case ``number`` has failed here."""
        self._comm.notify(number)

    def noticed(self, number: int) -> bool:
        """Return whether another rank reported that case ``number`` has failed."""
        return self._comm.noticed(number)

    def post(self, value: Any, rank: int) -> None:
        """Send a value to another rank; returns at once."""
        self._comm.post(value, rank)

    def posted(self) -> list[tuple[int, Any]]:
        """Return what other ranks have posted since the last call, with who did."""
        return self._comm.posted()

    def send(self, data: bytes, rank: int, timeout_s: float | None = None) -> None:
        """Send bytes to a rank that calls `receive`."""
        self._comm.send(data, rank, timeout_s or self.timeout_s)

    def receive(self, rank: int, timeout_s: float | None = None) -> bytes:
        """Return what ``rank`` sends to this one next."""
        return self._comm.receive(rank, timeout_s or self.timeout_s)

    def abort(self, code: int) -> None:
        """End every rank of the job now."""
        self._comm.abort(code)

    def inline_comms(self) -> InlineComms | None:
        """Return new communicators of the same ranks, or None where there is no MPI."""
        return self._comm.inline_comms()

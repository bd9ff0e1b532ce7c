"""The supervisors' communicator for ranks that may not answer: each wait ends, and names them.

Every value goes through rank 0, as one message a rank, for the few calls of ``hpcbench
validate``. MPI's collectives could not say who is missing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from hpcbench.errors import RankLostError
from hpcbench.launch.clocks.pairs import Pair
from hpcbench.launch.ranks.communicator import Communicator, InlineComms
from hpcbench.launch.ranks.waiting import Inbox
from hpcbench.units import rank_list

_MARGIN_S = 5.0


class BoundedCommunicator(Communicator):
    """The collective operations over another communicator, which nobody else may use meanwhile.

    Whoever does not answer rank 0 within ``timeout_s`` is in ``lost``, on rank 0, and is not waited
    for again.
    """

    def __init__(self, comm: Communicator, timeout_s: float) -> None:
        self._comm = comm
        self._calls = 0
        self._inbox = Inbox(comm.posted)
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
        came = self._inbox.take(number, others, timeout_s or self.timeout_s)
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
        came = self._inbox.take(number, [0], limit_s + _MARGIN_S)
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
            raise RankLostError(f"rank {rank_list(lost)} has not answered for {limit_s:g} s")
        return list(everything)

    def _next(self) -> int:
        self._calls += 1
        return self._calls

    def pair(self, rank: int, timeout_s: float) -> AbstractContextManager[Pair]:
        """Give quick messages to and from another rank, which has to open the same pair."""
        return self._comm.pair(rank, timeout_s)

    def first(self, count: int) -> Communicator | None:
        """Return the communicator of ranks 0..count-1, whose waits are not bounded."""
        return self._comm.first(count)

    def notify(self, number: int) -> None:
        """Tell the other ranks, by way of rank 0, that case ``number`` has failed here."""
        self._comm.notify(number)

    def noticed(self, number: int) -> bool:
        """Return whether another rank reported that case ``number`` has failed."""
        return self._comm.noticed(number)

    def inline_comms(self) -> InlineComms | None:
        """Return new communicators of the same ranks, or None where there is no MPI."""
        return self._comm.inline_comms()

    def abort(self, code: int) -> None:
        """End every rank of the job now."""
        self._comm.abort(code)

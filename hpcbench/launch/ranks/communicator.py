"""The supervisors' communicator: a few quiet operations, for one rank alone and over MPI.

Waiting must not spin: a rank that spins in MPI takes a core from what is being timed. So every
operation is non-blocking underneath, tested now and then with growing pauses.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcbench.launch.clocks.pairs import Pair, open_mpi_pair
from hpcbench.launch.ranks.waiting import FIRST_PAUSE_S, LONGEST_PAUSE_S, WakeupSignal, wait_quietly

_SLOT_BYTES = 1024  # an allgather of short messages is one MPI operation
_NOTICE_TAG = 77
_POST_TAG = 78
_BYTES_TAG = 80
_ARRIVAL_S = 0.02  # a wake-up signal may overtake the notice it announces
IDLE_PAUSE_S = 0.2
"""Between looks of a rank that waits while others measure."""
LAST_PAUSE_S = 0.02
"""Between looks when nothing is measured any more, but rank 0 has work to do."""
_ALONE = "a single rank has no other"


class Communicator:
    """What supervisors need of each other; as it stands, of a job of one rank without MPI.

    Payloads are JSON values.
    """

    rank: int = 0
    size: int = 1
    wakeup_fd: int | None = None
    """A descriptor that is readable when there may be a notice, if there is one."""

    def allgather(self, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Return every rank's value, by rank."""
        return [value]

    def bcast(self, value: Any, pause_s: float = LONGEST_PAUSE_S) -> Any:
        """Return rank 0's value on every rank."""
        return value

    def barrier(self, pause_s: float = LONGEST_PAUSE_S, timeout_s: float | None = None) -> None:
        """Return when every rank has called; look only every ``pause_s`` seconds at the end."""
        self.allgather(None, timeout_s)

    def first(self, count: int) -> Communicator | None:
        """Return the communicator of ranks 0..count-1, or None on the others. Collective."""
        return self

    def pair(self, rank: int, timeout_s: float) -> AbstractContextManager[Pair]:
        """Give quick messages to and from another rank, which has to open the same pair in time."""
        raise LookupError(_ALONE)

    def notify(self, number: int) -> None:
        """Tell the other ranks, by way of rank 0, that case ``number`` has failed here."""

    def noticed(self, number: int) -> bool:
        """Return whether another rank reported that case ``number`` has failed."""
        return False

    def post(self, value: Any, rank: int) -> None:
        """Send a value to another rank; returns at once."""
        raise LookupError(_ALONE)

    def posted(self) -> list[tuple[int, Any]]:
        """Return what other ranks have posted since the last call, with who did."""
        return []

    def send(self, data: bytes, rank: int, timeout_s: float | None = None) -> None:
        """Send bytes to a rank that calls `receive`; returns when they need no memory here."""
        raise LookupError(_ALONE)

    def receive(self, rank: int, timeout_s: float | None = None) -> bytes:
        """Return what ``rank`` sends to this one next."""
        raise LookupError(_ALONE)

    def abort(self, code: int) -> None:
        """End every rank of the job now."""
        os._exit(code)

    def inline_comms(self) -> InlineComms | None:
        """Return new communicators of the same ranks, or None where there is no MPI. Collective."""
        return None


@dataclass(frozen=True, slots=True)
class InlineComms:
    """mpi4py communicators for cases that run in the MPI process, apart from the supervisors'.

    ``tested`` is what is measured, ``control`` lines the ranks up before it.
    """

    tested: Any
    control: Any
    watchdog: Communicator


class MpiCommunicator(Communicator):
    """The operations over an mpi4py intracommunicator."""

    def __init__(
        self, comm: Any, while_waiting: Callable[[], None], wakeup: WakeupSignal | None = None,
        neighbours: Mapping[int, str] | None = None,
    ) -> None:
        """``while_waiting`` is called at every test; it may end the process (launcher gone).

        ``neighbours`` maps the other ranks of this node to the addresses of their wake-up signals.
        """
        self._comm = comm
        self._while_waiting = while_waiting
        self._wakeup = wakeup
        self._neighbours = neighbours or {}
        self._notices: set[int] = set()
        self._sent: list[Any] = []
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.wakeup_fd = wakeup.fd if wakeup else None

    def allgather(self, value: Any, timeout_s: float | None = None) -> list[Any]:
        """Return every rank's value, by rank: one MPI operation if all are short."""
        data = json.dumps(value).encode()
        head = np.int64(len(data)).tobytes() + data[:_SLOT_BYTES - 8]
        slot = np.frombuffer(head.ljust(_SLOT_BYTES, b"\0"), dtype=np.uint8)
        slots = np.empty((self.size, _SLOT_BYTES), dtype=np.uint8)
        self._wait(self._comm.Iallgather(slot, slots), timeout_s=timeout_s)
        lengths = slots[:, :8].copy().view(np.int64).reshape(-1)
        if int(lengths.max()) <= _SLOT_BYTES - 8:
            parts = [slot[8:8 + length] for slot, length in zip(slots, lengths, strict=True)]
        else:
            everything = np.empty(int(lengths.sum()), dtype=np.uint8)
            mine = np.frombuffer(data, dtype=np.uint8)
            self._wait(self._comm.Iallgatherv(mine, (everything, lengths)), timeout_s=timeout_s)
            parts = np.split(everything, np.cumsum(lengths)[:-1])
        return [json.loads(part.tobytes()) for part in parts]

    def bcast(self, value: Any, pause_s: float = LONGEST_PAUSE_S) -> Any:
        """Return rank 0's value on every rank."""
        data = json.dumps(value).encode() if self.rank == 0 else b""
        length = np.array([len(data)], dtype=np.int64)
        self._wait(self._comm.Ibcast(length), pause_s)
        buffer = (np.frombuffer(data, dtype=np.uint8).copy() if self.rank == 0
                  else np.empty(int(length[0]), dtype=np.uint8))
        self._wait(self._comm.Ibcast(buffer), pause_s)
        return json.loads(buffer.tobytes())

    def barrier(self, pause_s: float = LONGEST_PAUSE_S, timeout_s: float | None = None) -> None:
        """Return when every rank has called."""
        self._wait(self._comm.Ibarrier(), pause_s, timeout_s)

    def first(self, count: int) -> Communicator | None:
        """Return the communicator of ranks 0..count-1, or None on the others. Collective."""
        member = self.rank < count
        comm = self._comm.Split(0 if member else 1, self.rank)
        if not member:
            return None
        return MpiCommunicator(comm, self._while_waiting, self._wakeup, self._neighbours)

    def pair(self, rank: int, timeout_s: float) -> AbstractContextManager[Pair]:
        """Give quick messages to and from another rank, which has to open the same pair."""
        return open_mpi_pair(self._comm, rank, timeout_s, self._while_waiting)

    def with_wakeup_signals(self, node: str, wakeup: WakeupSignal) -> MpiCommunicator:
        """Return this communicator with notices that wake the ranks of one node. Collective."""
        addresses = self.allgather([node, wakeup.address])
        neighbours = {rank: address for rank, (other, address) in enumerate(addresses)
                      if other == node and rank != self.rank}
        return MpiCommunicator(self._comm, self._while_waiting, wakeup, neighbours)

    def notify(self, number: int) -> None:
        """Send the notice to rank 0, which passes it on: O(ranks) messages, not O(ranks^2)."""
        if self.rank == 0:
            self._pass_on(number)
        elif number not in self._notices:
            self._send(number, 0)

    def noticed(self, number: int) -> bool:
        """Take in all notices; rank 0 passes on the first of each case."""
        self._while_waiting()
        deadline = time.monotonic() + _ARRIVAL_S if self._wakeup and self._wakeup.clear() else 0.0
        self._take_notices()
        while number not in self._notices and time.monotonic() < deadline:
            time.sleep(FIRST_PAUSE_S)
            self._take_notices()
        return number in self._notices

    def _take_notices(self) -> None:
        # a matched probe: between nodes MPICH 5.0.2's Iprobe finds a message that the Recv after it
        # then waits for in vain
        while (message := self._comm.Improbe(tag=_NOTICE_TAG)) is not None:
            notice = np.empty(1, dtype=np.int64)
            message.Recv(notice)
            if self.rank == 0:
                self._pass_on(int(notice[0]))
            self._notices.add(int(notice[0]))

    def post(self, value: Any, rank: int) -> None:
        """Send a value; MPI makes progress with it whenever this communicator is used."""
        self._keep(self._comm.isend((self.rank, value), rank, tag=_POST_TAG), None)

    def posted(self) -> list[tuple[int, Any]]:
        """Take in what has arrived."""
        self._while_waiting()
        messages = []
        while (message := self._comm.improbe(tag=_POST_TAG)) is not None:
            messages.append(message.recv())
        return messages

    def send(self, data: bytes, rank: int, timeout_s: float | None = None) -> None:
        """Send the length, then the bytes: their receiver has to make room first."""
        for part in (np.array([len(data)], dtype=np.int64), np.frombuffer(data, dtype=np.uint8)):
            self._wait(self._comm.Isend(part, rank, tag=_BYTES_TAG), timeout_s=timeout_s,
                       lost=f"rank {rank}")

    def receive(self, rank: int, timeout_s: float | None = None) -> bytes:
        """Wait for the length, then for as many bytes."""
        length = self._received(np.empty(1, dtype=np.int64), rank, timeout_s)
        return self._received(np.empty(int(length[0]), dtype=np.uint8), rank, timeout_s).tobytes()

    def _received(
        self, buffer: np.ndarray[Any, Any], rank: int, timeout_s: float | None,
    ) -> np.ndarray[Any, Any]:
        self._wait(self._comm.Irecv(buffer, rank, tag=_BYTES_TAG), timeout_s=timeout_s,
                   lost=f"rank {rank}")
        return buffer

    def abort(self, code: int) -> None:
        """MPI_Abort: end every rank of the job now."""
        self._comm.Abort(code)

    def inline_comms(self) -> InlineComms | None:
        """Duplicate the communicator for each use."""
        return InlineComms(self._comm.Dup(), self._comm.Dup(),
                           MpiCommunicator(self._comm.Dup(), self._while_waiting))

    def _pass_on(self, number: int) -> None:
        if number not in self._notices:
            self._notices.add(number)
            for rank in range(1, self.size):
                self._send(number, rank)

    def _send(self, number: int, rank: int) -> None:
        notice = np.array([number], dtype=np.int64)
        self._keep(self._comm.Isend(notice, rank, tag=_NOTICE_TAG), notice)
        if self._wakeup and rank in self._neighbours:
            self._wakeup.send(self._neighbours[rank])

    def _keep(self, request: Any, buffer: Any) -> None:
        """Hold on to a send, and to what it reads, until it is complete."""
        self._sent.append((request, buffer))
        self._sent = [(kept, read) for kept, read in self._sent if not kept.Test()]

    def _wait(
        self, request: Any, pause_s: float = LONGEST_PAUSE_S, timeout_s: float | None = None,
        lost: str = "another rank",
    ) -> None:
        """Test ``request`` with pauses that grow to ``pause_s``. Raises RankLostError when late."""
        wait_quietly(request.Test, self._while_waiting, timeout_s, lost=lost,
                     longest_pause_s=pause_s)

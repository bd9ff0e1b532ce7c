"""The supervisors' communicator: a few quiet operations, for one rank alone and over MPI.

A rank that spins in MPI takes a core from what is timed. So every operation is non-blocking and
tested with growing pauses. Only a `Pair`, which compares clocks, has little delay."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from hpcbench.errors import CaseError, LaunchError, RankLostError
from hpcbench.records import dataclass

FIRST_PAUSE_S = 20e-6
LONGEST_PAUSE_S = 2e-3
_LONG_WAIT_PAUSE_S = 20e-3
_INBOX_PAUSE_S = 10e-3
_SIGNAL_BYTES = 16
_SHARE = 0.01
"""How much longer a long wait may last: 64 ranks on 2 cores that test every 2 ms leave no core."""


def wait_quietly(
    is_done: Callable[[], bool], while_waiting: Callable[[], None], timeout_s: float | None, *,
    lost: str, longest_pause_s: float = LONGEST_PAUSE_S,
) -> None:
    """Test ``is_done`` with pauses that grow to ``longest_pause_s``, in a long wait to 20 ms.

    ``while_waiting`` is called each time. Raises RankLostError after ``timeout_s`` (None: never)
    with ``lost``, the rank that has not answered."""
    began, pause_s = time.monotonic(), FIRST_PAUSE_S
    while not is_done():
        while_waiting()
        raise_if_late(began, timeout_s, lost)
        time.sleep(pause_s)
        long_wait_s = min(_LONG_WAIT_PAUSE_S, _SHARE * (time.monotonic() - began))
        pause_s = min(pause_s * 1.5, max(longest_pause_s, long_wait_s))


def raise_if_late(began: float, timeout_s: float | None, lost: str) -> None:
    if timeout_s is not None and time.monotonic() - began > timeout_s:
        raise RankLostError(f"{lost} has not answered for {timeout_s:.0f} s; its supervisor "
                            "process is stopped, gone or cut off")


class Inbox:
    """Values that other ranks posted to this one as [number, value], kept until they are taken."""

    def __init__(self, posted: Callable[[], Iterable[tuple[int, Any]]]) -> None:
        """``posted`` is that of a communicator which nothing else reads meanwhile."""
        self._posted = posted
        self._came: dict[tuple[int, int], Any] = {}

    def collect(self, number: int, ranks: Collection[int], timeout_s: float) -> dict[int, Any]:
        """Return by rank the values that these posted as ``number``, once all have or the time is
        up."""
        deadline, pause_s = time.monotonic() + timeout_s, FIRST_PAUSE_S
        while True:
            for sender, (of_call, value) in self._posted():
                self._came[of_call, sender] = value
            came = [rank for rank in ranks if (number, rank) in self._came]
            if len(came) == len(ranks) or time.monotonic() >= deadline:
                return {rank: self._came.pop((number, rank)) for rank in came}
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _INBOX_PAUSE_S)


class WakeupSignal:
    """Wakes a supervisor of the same node at once; MPI carries what happened.

    A lost signal costs one wake-up interval, a foreign one a check. A datagram socket in Linux's
    abstract namespace leaves no file; elsewhere every signal is lost."""

    def __init__(self) -> None:
        """Take a free address, which the kernel chooses."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.address: str = ""
        if sys.platform == "linux":
            self._socket.bind("")
            self.address = self._socket.getsockname().decode("latin-1")
        self.fd = self._socket.fileno()

    def __enter__(self) -> WakeupSignal:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, address: str) -> None:
        """Signal another supervisor; one that is gone or has enough signals is no error."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"\n", address.encode("latin-1"))

    def clear(self) -> bool:
        """Take all signals that have arrived; return whether there was one."""
        arrived = False
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(_SIGNAL_BYTES):
                arrived = True
        return arrived


_NOT_FREE = (errno.EADDRINUSE, errno.EACCES)


def listener_on(address: str, ports: Sequence[int]) -> socket.socket:
    """Return a socket that listens on the first free one of the ports, on ``address`` alone.

    Whoever can connect to a store can change it. For another machine's address, which forwards, it
    listens on all of ours. Raises CaseError if no port is free, or the address does not resolve."""
    problem: Exception | None = None
    family, host = _resolved(address)
    for port in ports:
        try:
            return _listener(family, host, port)
        except OSError as error:
            if error.errno not in _NOT_FREE:
                raise CaseError(f"nothing can listen on {address} port {port}: {error}") from error
            problem = error
    raise CaseError(f"no free port in {ports[0]}..{ports[-1]} (launch.port): {problem}")


def _resolved(address: str) -> tuple[socket.AddressFamily, str]:
    try:
        family, *_, (host, *_) = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise CaseError(f"{address!r} does not resolve here (launch.address): {error}") from error
    return family, str(host)


def _listener(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address of ours; on all if it is none of them."""
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), family=family)


ADDRESS_REMEDY = "set launch.interface (such as eth0) or launch.address"


def own_address_towards(address: str) -> str:
    """Return the address that packets to ``address`` would leave from. Raises LaunchError."""
    try:
        family, *_, where = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # of a datagram socket: looks up the route, sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchError(f"{socket.gethostname()} has no route to {address}, the address of rank "
                          f"0: {error.strerror or error}; {ADDRESS_REMEDY}") from error


_TAG = 79
_TESTS = 30
"""So many tests (about 3 us over MPI) before each further one yields the core, which the other rank
may need."""
_LOOK_EVERY = 256
_LONGEST_SLEEP_S = 0.2
_VALUE = struct.Struct("!q")


class Pair:
    """This rank and one other, who take turns in sending one int64 each.

    Raises RankLostError where nothing comes in time."""

    def __init__(
        self, other: str, timeout_s: float, while_waiting: Callable[[], None],
        arrived: Callable[[], bool],
    ) -> None:
        """``arrived`` takes in the next value, if it is there: a method bound once, for speed."""
        self._other = other
        self._timeout_s = timeout_s
        self._while_waiting = while_waiting
        self._arrived = arrived

    def send(self, value: int) -> None:
        """Send a value; returns at once. The one before it must have been answered."""
        raise NotImplementedError

    def receive(self) -> int:
        """Return the next value as soon as it is there: keeps a core busy."""
        self._expect()
        arrived, give_way = self._arrived, os.sched_yield
        began, tests = time.monotonic(), 0
        while not arrived():
            tests += 1
            if tests > _TESTS:
                give_way()
            if tests % _LOOK_EVERY == 0:
                self._while_waiting()
                raise_if_late(began, self._timeout_s, self._other)
        return self._value()

    def wait(self, timeout_s: float) -> int:
        """Return the next value; checks only now and then."""
        self._expect()
        wait_quietly(self._arrived, self._while_waiting, timeout_s, lost=self._other)
        return self._value()

    def _expect(self) -> None:
        ...

    def _value(self) -> int:
        raise NotImplementedError


class _MpiPair(Pair):
    """A pair over persistent requests, which cost a tenth of mpi4py's ordinary ones."""

    def __init__(
        self, comm: Any, rank: int, timeout_s: float, while_waiting: Callable[[], None],
    ) -> None:
        self._out = np.zeros(1, dtype=np.int64)
        self._in = np.zeros(1, dtype=np.int64)
        self._sending = comm.Send_init(self._out, rank, tag=_TAG)
        self._receiving = comm.Recv_init(self._in, rank, tag=_TAG)
        super().__init__(f"rank {rank}", timeout_s, while_waiting, self._receiving.Test)

    def send(self, value: int) -> None:
        self._sending.Wait()  # of a message that was answered: it cannot block
        self._out[0] = value
        self._sending.Start()

    def _expect(self) -> None:
        self._receiving.Start()

    def _value(self) -> int:
        return int(self._in[0])

    def close(self) -> None:
        """Free the requests once the last message has left its buffer."""
        wait_quietly(self._sending.Test, self._while_waiting, self._timeout_s, lost=self._other)
        self._sending.Free()
        self._receiving.Free()


@contextlib.contextmanager
def open_socket_pair(
    *, address: str | None, publish: Callable[[str], None], learn: Callable[[], str], lost: str,
    timeout_s: float, while_waiting: Callable[[], None],
) -> Iterator[Pair]:
    """Give the pair; the rank with an ``address`` publishes where the other connects. Raises
    RankLostError."""
    try:
        with _connected(address, publish, learn, timeout_s) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
            yield _SocketPair(connection, lost, timeout_s, while_waiting)
    except OSError as error:
        raise RankLostError(f"{lost} cannot be reached: {error}") from error


@contextlib.contextmanager
def _connected(
    address: str | None, publish: Callable[[str], None], learn: Callable[[], str], timeout_s: float,
) -> Iterator[socket.socket]:
    if address is None:
        host, _, port = learn().rpartition(":")
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            yield connection
        return
    with listener_on(address, [0]) as server:
        server.settimeout(timeout_s)
        publish(f"{address}:{server.getsockname()[1]}")
        connection, _ = server.accept()
    with connection:
        yield connection


class _SocketPair(Pair):
    """A pair over a connected socket that does not block."""

    def __init__(
        self, connection: socket.socket, lost: str, timeout_s: float,
        while_waiting: Callable[[], None],
    ) -> None:
        super().__init__(lost, timeout_s, while_waiting, self._is_whole)
        self._connection = connection
        self._data = b""

    def send(self, value: int) -> None:
        self._connection.sendall(_VALUE.pack(value))  # 8 bytes of which the last were answered

    def wait(self, timeout_s: float) -> int:
        began = time.monotonic()
        while not self._is_whole():
            select.select([self._connection], [], [], min(_LONGEST_SLEEP_S, timeout_s))
            self._while_waiting()
            raise_if_late(began, timeout_s, self._other)
        return self._value()

    def _is_whole(self) -> bool:
        """Return whether the next value is there. Raises OSError when the other side is gone."""
        with contextlib.suppress(BlockingIOError):
            data = self._connection.recv(_VALUE.size - len(self._data))
            if not data:
                raise ConnectionResetError("it has closed the connection")
            self._data += data
        return len(self._data) == _VALUE.size

    def _value(self) -> int:
        data, self._data = self._data, b""
        return int(_VALUE.unpack(data)[0])


_SLOT_BYTES = 1024  # an allgather of short messages is one MPI operation
_NOTICE_TAG = 77
_POST_TAG = 78
_BYTES_TAG = 80
_ARRIVAL_S = 0.02  # a wake-up signal may overtake the notice it announces
IDLE_PAUSE_S = 0.2
"""Between checks of a rank that waits while others measure."""
LAST_PAUSE_S = 0.02
"""Between checks when nothing is measured any more, but rank 0 has work to do."""
_ALONE = "a single rank has no other"


class Communicator:
    """The operations between supervisors; this class itself is one rank without MPI.

    Payloads are JSON values."""

    rank: int = 0
    size: int = 1
    wakeup_fd: int | None = None
    """A descriptor that is readable when there may be a notice, if there is one."""

    def allgather(self, value: Any, timeout_s: float | None = None) -> list[Any]:
        return [value]

    def bcast(self, value: Any, pause_s: float = LONGEST_PAUSE_S) -> Any:
        return value

    def barrier(self, pause_s: float = LONGEST_PAUSE_S, timeout_s: float | None = None) -> None:
        """Return when every rank has called; check only every ``pause_s`` seconds at the end."""
        self.allgather(None, timeout_s)

    def first(self, count: int) -> Communicator | None:
        """Return the communicator of ranks 0..count-1, or None on the others. Collective."""
        return self

    def pair(self, rank: int, timeout_s: float) -> AbstractContextManager[Pair]:
        """Give quick messages to and from another rank, which has to open the same pair in time."""
        raise LookupError(_ALONE)

    def notify(self, number: int) -> None:
        """Report to the other ranks, through rank 0, that case ``number`` has failed here."""

    def noticed(self, number: int) -> bool:
        """Return whether another rank reported that case ``number`` has failed."""
        return False

    def post(self, value: Any, rank: int) -> None:
        """Send a value to another rank; returns at once."""
        raise LookupError(_ALONE)

    def posted(self) -> list[tuple[int, Any]]:
        """Return (rank, value) of what other ranks have posted since the last call."""
        return []

    def send(self, data: bytes, rank: int, timeout_s: float | None = None) -> None:
        """Send bytes to a rank that calls `receive`; returns when they need no memory here."""
        raise LookupError(_ALONE)

    def receive(self, rank: int, timeout_s: float | None = None) -> bytes:
        """Return the next bytes that ``rank`` sends to this one."""
        raise LookupError(_ALONE)

    def abort(self, code: int) -> None:
        """End every rank of the job now."""
        os._exit(code)

    def inline_comms(self) -> InlineComms | None:
        """Return new communicators of the same ranks, or None where there is no MPI. Collective."""
        return None


@dataclass(frozen=True, slots=True)
class InlineComms:
    """mpi4py communicators for cases in the MPI process: ``tested`` is measured, ``control`` lines
    ranks up."""

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

        ``neighbours``: other ranks of this node -> the addresses of their wake-up signals."""
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
        data = json.dumps(value).encode() if self.rank == 0 else b""
        length = np.array([len(data)], dtype=np.int64)
        self._wait(self._comm.Ibcast(length), pause_s)
        buffer = (np.frombuffer(data, dtype=np.uint8).copy() if self.rank == 0
                  else np.empty(int(length[0]), dtype=np.uint8))
        self._wait(self._comm.Ibcast(buffer), pause_s)
        return json.loads(buffer.tobytes())

    def barrier(self, pause_s: float = LONGEST_PAUSE_S, timeout_s: float | None = None) -> None:
        self._wait(self._comm.Ibarrier(), pause_s, timeout_s)

    def first(self, count: int) -> Communicator | None:
        member = self.rank < count
        comm = self._comm.Split(0 if member else 1, self.rank)
        if not member:
            return None
        return MpiCommunicator(comm, self._while_waiting, self._wakeup, self._neighbours)

    @contextlib.contextmanager
    def pair(self, rank: int, timeout_s: float) -> Iterator[Pair]:
        pair = _MpiPair(self._comm, rank, timeout_s, self._while_waiting)
        yield pair
        pair.close()  # not after an error: the other rank is lost, so the job ends

    def with_wakeup_signals(
        self, nodes: Sequence[str], addresses: Sequence[str], wakeup: WakeupSignal,
    ) -> MpiCommunicator:
        """Return this communicator with notices that wake the ranks of one node; the ranks' nodes
        and the addresses of their signals are by rank."""
        neighbours = {rank: addresses[rank] for rank, node in enumerate(nodes)
                      if node == nodes[self.rank] and rank != self.rank}
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
        self._receive_notices()
        while number not in self._notices and time.monotonic() < deadline:
            time.sleep(FIRST_PAUSE_S)
            self._receive_notices()
        return number in self._notices

    def _receive_notices(self) -> None:
        # a matched probe: between nodes MPICH 5.0.2's Iprobe finds a message that the Recv after it
        # then waits for in vain
        while (message := self._comm.Improbe(tag=_NOTICE_TAG)) is not None:
            notice = np.empty(1, dtype=np.int64)
            message.Recv(notice)
            if self.rank == 0:
                self._pass_on(int(notice[0]))
            self._notices.add(int(notice[0]))

    def post(self, value: Any, rank: int) -> None:
        self._keep(self._comm.isend((self.rank, value), rank, tag=_POST_TAG), None)

    def posted(self) -> list[tuple[int, Any]]:
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
        length = self._received(np.empty(1, dtype=np.int64), rank, timeout_s)
        return self._received(np.empty(int(length[0]), dtype=np.uint8), rank, timeout_s).tobytes()

    def _received(
        self, buffer: np.ndarray[Any, Any], rank: int, timeout_s: float | None,
    ) -> np.ndarray[Any, Any]:
        self._wait(self._comm.Irecv(buffer, rank, tag=_BYTES_TAG), timeout_s=timeout_s,
                   lost=f"rank {rank}")
        return buffer

    def abort(self, code: int) -> None:
        self._comm.Abort(code)

    def inline_comms(self) -> InlineComms | None:
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
        """Keep a send and its buffer until it is complete."""
        self._sent.append((request, buffer))
        self._sent = [(kept, read) for kept, read in self._sent if not kept.Test()]

    def _wait(
        self, request: Any, pause_s: float = LONGEST_PAUSE_S, timeout_s: float | None = None,
        lost: str = "another rank",
    ) -> None:
        """Test ``request`` with pauses that grow to ``pause_s``. Raises RankLostError when late."""
        wait_quietly(request.Test, self._while_waiting, timeout_s, lost=lost,
                     longest_pause_s=pause_s)

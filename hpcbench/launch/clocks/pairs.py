"""Messages between two ranks with little delay, over MPI or TCP, for comparing their clocks."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpcbench.backends.listening import listener_on
from hpcbench.errors import RankLostError
from hpcbench.launch.ranks.waiting import refuse_lateness, wait_quietly

_TAG = 79
_TESTS = 30
"""So many tests (about 3 us over MPI) before each further one yields the core: the other rank may
be waiting for this very one."""
_LOOK_EVERY = 256
_LONGEST_SLEEP_S = 0.2
_VALUE = struct.Struct("!q")


class Pair:
    """This rank and one other, who take turns in sending one int64 each.

    Both ways of receiving raise RankLostError where nothing comes in time.
    """

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
                refuse_lateness(began, self._timeout_s, self._other)
        return self._value()

    def wait(self, timeout_s: float) -> int:
        """Return the next value; looks only now and then."""
        self._expect()
        wait_quietly(self._arrived, self._while_waiting, timeout_s, lost=self._other)
        return self._value()

    def _expect(self) -> None:
        """Prepare for the next value."""

    def _value(self) -> int:
        """Return the value that has arrived."""
        raise NotImplementedError


@contextlib.contextmanager
def open_mpi_pair(
    comm: Any, rank: int, timeout_s: float, while_waiting: Callable[[], None],
) -> Iterator[Pair]:
    """Give the pair with ``rank`` of an mpi4py communicator.

    After an error its requests are left as they are: the other rank is lost, so the job ends.
    """
    pair = _MpiPair(comm, rank, timeout_s, while_waiting)
    yield pair
    pair.close()


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
    """Give the pair; the rank that has an ``address`` publishes where the other may connect.

    Raises RankLostError if the other rank (``lost``) does not come within ``timeout_s``.
    """
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
        """Return the next value; sleeps until some of it has come."""
        began = time.monotonic()
        while not self._is_whole():
            select.select([self._connection], [], [], min(_LONGEST_SLEEP_S, timeout_s))
            self._while_waiting()
            refuse_lateness(began, timeout_s, self._other)
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

"""Quick messages between two ranks without MPI: one TCP connection, for comparing their clocks."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator

from hpcbench.errors import RankLostError
from hpcbench.launch.clocks.mpi_pair import Pair
from hpcbench.launch.ranks.waiting import refuse_lateness

_VALUE = struct.Struct("!q")
_LOOK_S = 0.2
_SPINS = 64


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
    with socket.create_server((address, 0)) as server:
        server.settimeout(timeout_s)
        publish(f"{address}:{server.getsockname()[1]}")
        connection, _ = server.accept()
    with connection:
        yield connection


class _SocketPair:
    """A pair over a connected socket that does not block."""

    def __init__(
        self, connection: socket.socket, lost: str, timeout_s: float,
        while_waiting: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._lost = lost
        self._timeout_s = timeout_s
        self._while_waiting = while_waiting
        self._data = b""

    def send(self, value: int) -> None:
        self._connection.sendall(_VALUE.pack(value))  # 8 bytes of which the last were answered

    def receive(self) -> int:
        began, tries = time.monotonic(), 0
        while (value := self._arrived()) is None:
            tries += 1
            if tries % _SPINS == 0:
                os.sched_yield()
                self._while_waiting()
                refuse_lateness(began, self._timeout_s, self._lost)
        return value

    def wait(self, timeout_s: float) -> int:
        began = time.monotonic()
        while (value := self._arrived()) is None:
            select.select([self._connection], [], [], min(_LOOK_S, timeout_s))
            self._while_waiting()
            refuse_lateness(began, timeout_s, self._lost)
        return value

    def _arrived(self) -> int | None:
        """Return the next value if it is there. Raises OSError when the other side is gone."""
        with contextlib.suppress(BlockingIOError):
            data = self._connection.recv(_VALUE.size - len(self._data))
            if not data:
                raise ConnectionResetError("it has closed the connection")
            self._data += data
        if len(self._data) < _VALUE.size:
            return None
        value, self._data = int(_VALUE.unpack(self._data)[0]), b""
        return value

"""Messages between a supervisor and its worker: JSON over a socket pair."""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from hpcbench.launch.workers.messages import (
    ANSWERS,
    REQUESTS,
    Answer,
    Request,
    decoded,
    encoded,
)

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class Channel(Generic[Sent, Received]):
    """One end of the socket pair. A closed peer shows as ``EOFError`` from `receive`."""

    def __init__(
        self, fd: int, sent: TypeAdapter[Sent], received: TypeAdapter[Received],
    ) -> None:
        """Take ownership of the connected socket ``fd``; the adapters are of the messages."""
        self._connection = Connection(fd)
        self._sent = sent
        self._received = received

    def send(self, message: Sent) -> None:
        """Send one message. Raises OSError if the peer is gone."""
        self._connection.send_bytes(encoded(self._sent, message))

    def receive(self) -> Received:
        """Return the next message. Raises EOFError or OSError if the peer is gone.

        Raises ValueError for what is no such message.
        """
        return decoded(self._received, self._connection.recv_bytes())

    def wait(self, timeout_s: float, wakeup_fd: int | None = None) -> bool:
        """Sleep until there is a message or the peer is gone; False if there is not.

        Returns after ``timeout_s``, or earlier when the descriptor ``wakeup_fd`` is readable.
        """
        watched: list[Any] = [self._connection, *([] if wakeup_fd is None else [wakeup_fd])]
        return self._connection in wait(watched, max(timeout_s, 0.0))

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


SupervisorChannel = Channel[Request, Answer]
WorkerChannel = Channel[Answer, Request]


def supervisor_channel(fd: int) -> SupervisorChannel:
    """Return the supervisor's end, which sends requests."""
    return Channel(fd, REQUESTS, ANSWERS)


def worker_channel(fd: int) -> WorkerChannel:
    """Return the worker's end, which sends answers."""
    return Channel(fd, ANSWERS, REQUESTS)


def socket_pair() -> tuple[int, int]:
    """Return two connected descriptors, closed on exec unless passed on."""
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()

"""Messages between a supervisor and its worker: JSON over a socket pair."""

from __future__ import annotations

import json
import socket
from multiprocessing.connection import Connection, wait
from typing import Any

Message = dict[str, Any]


class Channel:
    """One end of the socket pair. A closed peer shows as ``EOFError`` from `receive`."""

    def __init__(self, fd: int) -> None:
        """Take ownership of the connected socket ``fd``."""
        self._connection = Connection(fd)

    def send(self, message: Message) -> None:
        """Send one message. Raises OSError if the peer is gone."""
        self._connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> Message:
        """Return the next message. Raises EOFError or OSError if the peer is gone."""
        message: Message = json.loads(self._connection.recv_bytes())
        return message

    def wait(self, timeout_s: float, bell: int | None = None) -> bool:
        """Sleep until there is a message or the peer is gone; False if there is not.

        Returns after ``timeout_s``, or earlier when the descriptor ``bell`` is readable.
        """
        watched: list[Any] = [self._connection] if bell is None else [self._connection, bell]
        return self._connection in wait(watched, max(timeout_s, 0.0))

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


def socket_pair() -> tuple[int, int]:
    """Return two connected descriptors, closed on exec unless passed on."""
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()

"""Waking a supervisor of the same node at once, so that nobody has to look often.

A bell says only "look now": what happened is told by MPI. So a lost ring costs one wake-up
interval, and a ring by a stranger costs one look.
"""

from __future__ import annotations

import contextlib
import socket

_READ_BYTES = 16


class Bell:
    """A datagram socket in Linux's abstract namespace, which leaves no file; a context manager."""

    def __init__(self) -> None:
        """Take a free address, which the kernel chooses."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("")
        self.address: str = self._socket.getsockname().decode("latin-1")

    def __enter__(self) -> Bell:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def fd(self) -> int:
        """Return the descriptor that is readable once the bell was rung."""
        return self._socket.fileno()

    def ring(self, address: str) -> None:
        """Ring another one; nobody there, or rung often enough already, is no error."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"\n", address.encode("latin-1"))

    def take(self) -> bool:
        """Silence this one; return whether it was rung."""
        rung = False
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(_READ_BYTES):
                rung = True
        return rung

"""Waking a supervisor of the same node at once, so that nobody has to look often.

A signal says only "look now": MPI carries what happened. So a lost signal costs one wake-up
interval, and a signal of a stranger costs one look.
"""

from __future__ import annotations

import contextlib
import socket

_READ_BYTES = 16


class WakeupSignal:
    """A datagram socket in Linux's abstract namespace, which leaves no file; a context manager."""

    def __init__(self) -> None:
        """Take a free address, which the kernel chooses."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("")
        self.address: str = self._socket.getsockname().decode("latin-1")

    def __enter__(self) -> WakeupSignal:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def fd(self) -> int:
        """Return the descriptor that is readable once a signal has arrived."""
        return self._socket.fileno()

    def send(self, address: str) -> None:
        """Signal another supervisor; one that is gone or has enough signals is no error."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"\n", address.encode("latin-1"))

    def clear(self) -> bool:
        """Take all signals that have arrived; return whether there was one."""
        arrived = False
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(_READ_BYTES):
                arrived = True
        return arrived

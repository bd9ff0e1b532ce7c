"""Sockets that listen where the ranks of a job meet; torch is not needed for it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from hpcbench.errors import CaseError

_NOT_FREE = (errno.EADDRINUSE, errno.EACCES)


def listener_on(address: str, ports: Sequence[int]) -> socket.socket:
    """Return a socket that listens on the first free one of the ports.

    It listens on ``address`` alone, a name or an address of either family: whoever can connect to
    a store can read and change it. An address that is another machine's, which sends on what it
    gets, is listened to on all of ours. Raises CaseError if no port is free, or the address does
    not resolve.
    """
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

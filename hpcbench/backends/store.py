"""The store at which the workers of a job meet."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hpcbench.errors import CaseError

_NOT_FREE = (errno.EADDRINUSE, errno.EACCES)


def open_store(address: str, ports: Sequence[int], timeout_s: float) -> dist.TCPStore:
    """Start the store on the first free one of the ports.

    It listens on ``address`` alone: whoever can connect to a store can read and change it. An
    address that is another machine's, which sends on what it gets, is listened to on all of ours.
    Raises CaseError if no port is free, the address does not resolve, or torch does not take it.
    """
    problem: Exception | None = None
    family, host = _resolved(address)
    for port in ports:
        try:
            listener = _listener(family, host, port)
        except OSError as error:
            if error.errno not in _NOT_FREE:
                raise CaseError(f"nothing can listen on {address} port {port}: {error}") from error
            problem = error
        else:
            return _started(listener, timeout_s)
    raise CaseError(f"no free port in {ports[0]}..{ports[-1]} (launch.port): {problem}")


def _resolved(address: str) -> tuple[socket.AddressFamily, str]:
    try:
        family, *_, (host, *_) = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise CaseError(f"{address!r} does not resolve here (launch.address): {error}") from error
    return family, str(host)


def _started(listener: socket.socket, timeout_s: float) -> dist.TCPStore:
    """Return the store on a socket that listens, which is the store's from now on."""
    host, port, *_ = listener.getsockname()
    inode, fd = os.fstat(listener.fileno()).st_ino, listener.detach()
    try:
        return _served(host, port, fd, timeout_s)
    except RuntimeError as error:
        # whether torch has closed the descriptor depends on how far it came
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_ino == inode:
                os.close(fd)
        raise CaseError(f"the store on {host} does not start: {error}") from error


def _served(host: str, port: int, fd: int, timeout_s: float) -> dist.TCPStore:
    """Return the store on a descriptor. Torch before 2.8 takes one without libuv only."""
    how: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": fd,
                           "timeout": timedelta(seconds=timeout_s)}
    try:
        return dist.TCPStore(host, port, **how)
    except NotImplementedError:
        return dist.TCPStore(host, port, use_libuv=False, **how)


def _listener(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address of ours; on all if it is none of them."""
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), family=family)

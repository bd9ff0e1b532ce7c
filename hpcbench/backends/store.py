"""The store at which the workers of a job meet."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hpcbench.errors import CaseError


def open_store(address: str, ports: Sequence[int], timeout_s: float) -> dist.TCPStore:
    """Start the store on the first free one of the ports. Raises CaseError if none is free.

    It listens on ``address`` alone: whoever can connect to a store can read and change it. An
    address that is another machine's, which sends on what it gets, is listened to on all of ours.
    """
    problem: Exception | None = None
    for port in ports:
        try:
            with _listener(address, port) as listener:
                host, port, *_ = listener.getsockname()
                return _served(host, port, listener.detach(), timeout_s)
        except (RuntimeError, OSError) as error:
            problem = error
    raise CaseError(f"no free port in {ports[0]}..{ports[-1]} (launch.port): {problem}")


def _served(host: str, port: int, fd: int, timeout_s: float) -> dist.TCPStore:
    """Return the store on a socket that listens. Torch before 2.8 takes one without libuv only."""
    how: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": fd,
                           "timeout": timedelta(seconds=timeout_s)}
    try:
        return dist.TCPStore(host, port, **how)
    except NotImplementedError:
        return dist.TCPStore(host, port, use_libuv=False, **how)


def _listener(address: str, port: int) -> socket.socket:
    """Return a socket that listens on this address of ours; on all if it is none of them."""
    family, *_, (host, *_) = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), family=family)

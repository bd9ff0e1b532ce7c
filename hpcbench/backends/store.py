"""The store at which the workers of a job meet."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hpcbench.backends.listening import listener_on
from hpcbench.errors import CaseError


def open_store(address: str, ports: Sequence[int], timeout_s: float) -> dist.TCPStore:
    """Start the store on the first free one of the ports of an address (`listening.listener_on`).

    Raises CaseError if no port is free, the address does not resolve, or torch does not take it.
    """
    return _started(listener_on(address, ports), timeout_s)


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

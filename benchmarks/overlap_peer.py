"""The other of two ranks, reached by TCP sockets of one's own: what overlap_bare.py sends by."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

WORD = struct.Struct("b")
TIMEOUT_S = 60.0


class Peer:
    """The other rank: a connection for data, with a thread each way, and one to meet over."""

    def __init__(self, data: socket.socket, turns: socket.socket) -> None:
        self._turns = turns
        self._leaving: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._awaited: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._sent: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        for work in (partial(self._send_all, data), partial(self._receive_all, data)):
            threading.Thread(target=work, daemon=True).start()

    def send(self, tensor: torch.Tensor) -> None:
        """Hand a tensor to the thread that sends."""
        self._leaving.put(_bytes_of(tensor))

    def receive(self, tensors: Sequence[torch.Tensor]) -> None:
        """Tell the thread that receives what comes next."""
        for tensor in tensors:
            self._awaited.put(_bytes_of(tensor))

    def finish_one(self) -> None:
        """Wait until the next tensor has arrived."""
        self._arrived.get(timeout=TIMEOUT_S)

    def finish_sending(self, count: int) -> None:
        """Wait until so many tensors have left."""
        for _ in range(count):
            self._sent.get(timeout=TIMEOUT_S)

    def meet(self) -> None:
        """Return when both ranks are here."""
        self._turns.sendall(WORD.pack(1))
        if not self._turns.recv(WORD.size):
            raise ConnectionError("the other rank has gone")

    def _send_all(self, data: socket.socket) -> None:
        while True:
            data.sendall(self._leaving.get())
            self._sent.put(None)

    def _receive_all(self, data: socket.socket) -> None:
        while True:
            missing = self._awaited.get()
            while missing:
                got = data.recv_into(missing, len(missing), socket.MSG_WAITALL)
                if not got:
                    return
                missing = missing[got:]
            self._arrived.put(None)


def connected(rank: int, agree: Callable[[object], Any], most_bytes: int) -> Peer:
    """Return the other rank; ``agree`` returns what it is given on rank 0.

    All that is sent at once may wait in the kernel, so that the sending thread need not wake.
    """
    if rank:
        address = agree(None)
        ends = [socket.socket() for _ in range(2)]
        for end in ends:
            _prepare(end, most_bytes)
            end.settimeout(TIMEOUT_S)
            end.connect(tuple(address))
    else:
        with socket.create_server((socket.gethostname(), 0), backlog=2) as server:
            server.settimeout(TIMEOUT_S)
            _prepare(server, most_bytes)
            agree(server.getsockname())
            ends = [server.accept()[0] for _ in range(2)]
    for end in ends:
        end.settimeout(None)
    return Peer(*ends)


def _prepare(end: socket.socket, most_bytes: int) -> None:
    """Have a connection, or those that a server accepts, send at once, and so many bytes."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, most_bytes)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    return memoryview(tensor.numpy()).cast("B")

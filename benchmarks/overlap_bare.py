"""One rank of overlap_bound.py: product and communication by torch and bare TCP, no hpcbench.

MPI tells the rank and the other's address and is not called while anything is timed. The rank's
product is (m, k) by (k, n). The other rank owns half of its rows, m / 2: they are sent to it, and
as many arrive from it at once, to be added to the own half. One thread sends, one receives.

Each call begins when both ranks have met over a second connection. Its time is counted from there
on each rank. The times in s, and the CPU times of the process, are written to a file of this rank,
(variant, pass, call).
"""

from __future__ import annotations

import argparse
import queue
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

PIECES = (2, 4)
PIECES_BY_GLOO = (1, 2)
PRODUCT, AGAIN, SOCKETS, MESSAGES, REDUCE_SCATTER = (
    "product", "product again", "sockets", "gloo messages", "gloo reduce_scatter")
FREE, FREE_BY_GLOO = "together, nothing awaited", "together by gloo"
WORD = struct.Struct("b")
TIMEOUT_S = 60.0


def in_pieces(pieces: int) -> str:
    """Return the name of the product alone in pieces."""
    return f"product, {pieces} pieces"


def overlapped(pieces: int) -> str:
    """Return the name of what overlaps them as an implementation has to."""
    return f"overlapped, {pieces} pieces"


def overlapped_by_gloo(pieces: int) -> str:
    """Return the name of the same by gloo's messages; one piece is what p2p_ring does."""
    return f"overlapped by gloo, {pieces} piece{'s' * (pieces > 1)}"


VARIANTS = (PRODUCT, AGAIN, *map(in_pieces, PIECES), SOCKETS, MESSAGES, REDUCE_SCATTER,
            *map(overlapped, PIECES), FREE,
            *map(overlapped_by_gloo, PIECES_BY_GLOO), FREE_BY_GLOO)


@dataclass(frozen=True)
class Buffers:
    """What a rank multiplies, sends and receives; ``theirs`` and ``mine`` are halves of C."""

    columns_of_theirs: torch.Tensor
    columns_of_mine: torch.Tensor
    weight: torch.Tensor
    theirs: torch.Tensor
    mine: torch.Tensor
    arrived: torch.Tensor
    expected: torch.Tensor

    @classmethod
    def of(cls, rank: int, m: int, n: int, k: int) -> Buffers:
        """Return those of a rank; integers as small as these have exact sums."""
        made = torch.Generator().manual_seed(1)
        columns, weights = (torch.randint(-3, 4, (2, *shape), generator=made).float()
                            for shape in ((m, k), (k, n)))
        rows = columns[rank].chunk(2)
        half = slice(rank * m // 2, (rank + 1) * m // 2)
        expected = sum(columns[each, half] @ weights[each] for each in range(2))
        assert isinstance(expected, torch.Tensor)
        return cls(rows[1 - rank].clone(), rows[rank].clone(), weights[rank].clone(),
                   *torch.zeros(3, m // 2, n), expected)


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


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    return memoryview(tensor.numpy()).cast("B")


def _pieces(half: torch.Tensor, pieces: int) -> Sequence[torch.Tensor]:
    """Return the memory of a half of C as so many pieces, each with some of its columns."""
    return half.view(pieces, len(half), -1).unbind()


class Calls:
    """What is timed, each by its name."""

    def __init__(self, own: Buffers, peer: Peer, rank: int) -> None:
        self._own, self._peer, self._other = own, peer, 1 - rank
        whole = torch.cat((own.columns_of_theirs, own.columns_of_mine))
        made = torch.empty(len(whole), own.mine.shape[1])
        both = torch.cat((own.theirs, own.mine))
        alone = partial(torch.mm, whole, own.weight, out=made)
        self.by_name: dict[str, Callable[[], object]] = {
            PRODUCT: alone, AGAIN: alone, SOCKETS: self._exchange, MESSAGES: self._messages,
            REDUCE_SCATTER: partial(dist.reduce_scatter_tensor, torch.empty_like(own.mine), both),
            FREE: partial(self._exchange, alone), FREE_BY_GLOO: partial(self._messages, alone),
            **{in_pieces(pieces): partial(self._multiply, pieces) for pieces in PIECES},
            **{overlapped(pieces): partial(self._overlap, pieces) for pieces in PIECES},
            **{overlapped_by_gloo(pieces): partial(self._by_gloo, pieces)
               for pieces in PIECES_BY_GLOO}}

    def check(self) -> None:
        """Overlap in each way once; raise ValueError if a result is wrong."""
        for name in (*map(overlapped, PIECES), *map(overlapped_by_gloo, PIECES_BY_GLOO)):
            for buffer in (self._own.mine, self._own.theirs, self._own.arrived):
                buffer.fill_(float("nan"))
            self._peer.meet()
            self.by_name[name]()
            if not torch.equal(self._own.mine, self._own.expected):
                raise ValueError(f"the result of '{name}' is wrong")

    def _multiply(self, pieces: int, ready: Callable[[torch.Tensor], object] = id) -> None:
        """Multiply the other's rows piece by piece, each of which is then ready, and own rows.

        A piece is some columns of C: cut by rows, each would read and pack all of the weight.
        """
        own = self._own
        for weight, piece in zip(own.weight.chunk(pieces, 1), _pieces(own.theirs, pieces),
                                 strict=True):
            torch.mm(own.columns_of_theirs, weight, out=piece)
            ready(piece)
        torch.mm(own.columns_of_mine, own.weight, out=own.mine)

    def _exchange(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Send and receive all at once, and do something that needs none of it."""
        self._peer.receive([self._own.arrived])
        self._peer.send(self._own.theirs)
        if meanwhile is not None:
            meanwhile()
        self._peer.finish_one()
        self._peer.finish_sending(1)

    def _overlap(self, pieces: int) -> None:
        """Send each piece when it is made, and add what arrived to the own rows."""
        arriving = _pieces(self._own.arrived, pieces)
        self._peer.receive(arriving)
        self._multiply(pieces, self._peer.send)
        for arrived, total in zip(arriving, self._own.mine.chunk(pieces, 1), strict=True):
            self._peer.finish_one()
            total.add_(arrived)
        self._peer.finish_sending(pieces)

    def _messages(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Do as `_exchange` does, by gloo's messages."""
        works = (dist.irecv(self._own.arrived, self._other),
                 dist.isend(self._own.theirs, self._other))
        if meanwhile is not None:
            meanwhile()
        for work in works:
            assert work is not None
            work.wait()

    def _by_gloo(self, pieces: int) -> None:
        """Do as `_overlap` does, by gloo's messages."""
        arriving = _pieces(self._own.arrived, pieces)
        receives: list[Any] = [dist.irecv(piece, self._other) for piece in arriving]
        sends: list[Any] = []
        self._multiply(pieces, lambda piece: sends.append(dist.isend(piece, self._other)))
        for work, arrived, total in zip(receives, arriving, self._own.mine.chunk(pieces, 1),
                                        strict=True):
            work.wait()
            total.add_(arrived)
        for work in sends:
            work.wait()


def timed(calls: Calls, peer: Peer, passes: int, calls_a_turn: int) -> np.ndarray:
    """Return times and CPU times in s, (2, variant, pass, call); variants take turns in a pass.

    A turn begins with a call that does not count. Its order is shuffled, alike on both ranks.
    """
    found = np.empty((2, len(VARIANTS), passes, calls_a_turn))
    for number in range(passes):
        for which in random.Random(number).sample(range(len(VARIANTS)), len(VARIANTS)):
            call = calls.by_name[VARIANTS[which]]
            for sample in range(-1, calls_a_turn):
                peer.meet()
                cpu_s, start_s = time.process_time(), time.perf_counter()
                call()
                took = time.perf_counter() - start_s, time.process_time() - cpu_s
                if sample >= 0:
                    found[:, which, number, sample] = took
    return found


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


def main() -> None:
    """Be one rank: check, measure, and write the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("--m", "--n", "--k", "--passes", "--calls"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=world.rank, world_size=2,
                            store=dist.FileStore(str(given.folder / "store"), 2))
    own = Buffers.of(world.rank, given.m, given.n, given.k)
    peer = connected(world.rank, world.bcast, own.theirs.nbytes)
    calls = Calls(own, peer, world.rank)
    calls.check()
    np.save(given.folder / f"{world.rank}.npy", timed(calls, peer, given.passes, given.calls))
    peer.meet()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

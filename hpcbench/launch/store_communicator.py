"""The supervisors' communicator under torchrun: over its store, without MPI.

torch is imported into this process, whose workers run inline anyway. Rank and size are variables
that may be wrong, so all ranks meet and check them first."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from hpcbench.errors import LaunchError
from hpcbench.launch.communicator import (
    LONGEST_PAUSE_S,
    Communicator,
    Pair,
    open_socket_pair,
    own_address_towards,
    wait_quietly,
)
from hpcbench.measurement.process import no_collection_of_modules
from hpcbench.texts import say

_PAUSE_S = 0.02
_SHOWN = 8
REMEDY = "start each rank once (torchrun: --nnodes, and another --node-rank on every node)"


def open_store_communicator(
    while_waiting: Callable[[], None], timeout_s: float,
) -> StoreCommunicator:
    """Return the communicator of all ranks that torchrun started; collective.

    Raises LaunchError if its store is not reached in ``timeout_s``, or not every rank comes once in
    as much time again."""
    from torch.distributed import PrefixStore

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    # the store may outlive the job's attempts: --max-restarts
    store = PrefixStore(f"hpcbench/{os.environ['TORCHELASTIC_RUN_ID']}/{attempt}",
                        _open_store(os.environ, rank, timeout_s))
    meet(store, rank, size, while_waiting, timeout_s)
    return StoreCommunicator(store, "all", rank, size, while_waiting,
                             own_address_towards(os.environ["MASTER_ADDR"]))


class StoreCommunicator(Communicator):
    """The operations over a torch.distributed store; keys are deleted once all have read them.

    `abort` ends this process, and torchrun the others."""

    def __init__(
        self, store: Any, name: str, rank: int, size: int, while_waiting: Callable[[], None],
        address: str,
    ) -> None:
        """``name`` is unique to these ranks; ``address`` is where other ranks reach this one."""
        self._store = store
        self._name = name
        self._while_waiting = while_waiting
        self._address = address
        self._calls = 0
        self._read: list[str] = []
        self._posts = 0
        self._letters: Counter[tuple[int, int]] = Counter()
        self.rank = rank
        self.size = size

    def allgather(self, value: Any, timeout_s: float | None = None) -> list[Any]:
        name = self._next("gather")
        keys = [f"{name}/{rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], json.dumps(value))
        self._meet(name, timeout_s=timeout_s)
        values = [json.loads(data) for data in self._store.multi_get(keys)]
        self._forget(keys[self.rank])
        return values

    def bcast(self, value: Any, pause_s: float = LONGEST_PAUSE_S) -> Any:
        key = self._next("bcast")
        if self.rank == 0:
            self._store.set(key, json.dumps(value))
            self._read.append(key)
        else:
            self._await(key, pause_s)
        return json.loads(self._store.get(key))

    def barrier(self, pause_s: float = LONGEST_PAUSE_S, timeout_s: float | None = None) -> None:
        self._meet(self._next("barrier"), pause_s, timeout_s)
        self._forget()

    def first(self, count: int) -> Communicator | None:
        name = self._next("first")
        if self.rank >= count:
            return None
        return StoreCommunicator(self._store, name, self.rank, count, self._while_waiting,
                                 self._address)

    @contextlib.contextmanager
    def pair(self, rank: int, timeout_s: float) -> Iterator[Pair]:
        low, high = sorted((self.rank, rank))
        key = f"{self._name}/pair/{low}/{high}"
        with open_socket_pair(
                address=self._address if self.rank == low else None,
                publish=lambda address: self._store.set(key, address),
                learn=lambda: self._pop(key, timeout_s).decode(), lost=f"rank {rank}",
                timeout_s=timeout_s, while_waiting=self._while_waiting) as pair:
            yield pair

    def notify(self, number: int) -> None:
        self._store.set(f"{self._name}/failed/{number}", "")

    def noticed(self, number: int) -> bool:
        self._while_waiting()
        return bool(self._store.check([f"{self._name}/failed/{number}"]))

    def post(self, value: Any, rank: int) -> None:
        number = self._store.add(f"{self._name}/posted/{rank}", 1)
        self._store.set(f"{self._name}/post/{rank}/{number}", json.dumps([self.rank, value]))

    def posted(self) -> list[tuple[int, Any]]:
        self._while_waiting()
        messages: list[tuple[int, Any]] = []
        while self._store.check([key := f"{self._name}/post/{self.rank}/{self._posts + 1}"]):
            sender, value = json.loads(self._pop(key, None))
            messages.append((sender, value))
            self._posts += 1
        return messages

    def send(self, data: bytes, rank: int, timeout_s: float | None = None) -> None:
        """Leave the bytes in the store until the other rank has taken them."""
        key = self._letter(self.rank, rank)
        self._store.set(key, data)
        wait_quietly(lambda: not self._store.check([key]), self._while_waiting, timeout_s,
                     lost=f"rank {rank}")

    def receive(self, rank: int, timeout_s: float | None = None) -> bytes:
        return self._pop(self._letter(rank, self.rank), timeout_s, f"rank {rank}")

    def _pop(self, key: str, timeout_s: float | None, lost: str = "another rank") -> bytes:
        """Return the bytes that another rank left there for this one, and delete them."""
        self._await(key, timeout_s=timeout_s, lost=lost)
        data: bytes = self._store.get(key)
        self._store.delete_key(key)
        return data

    def _letter(self, sender: int, receiver: int) -> str:
        self._letters[sender, receiver] += 1
        return f"{self._name}/bytes/{sender}/{receiver}/{self._letters[sender, receiver]}"

    def _next(self, operation: str) -> str:
        """Return a name for one collective call, the same on all ranks."""
        self._calls += 1
        return f"{self._name}/{operation}/{self._calls}"

    def _meet(
        self, name: str, pause_s: float = LONGEST_PAUSE_S, timeout_s: float | None = None,
    ) -> None:
        """Return when every rank is here; the slowest rank sets the key."""
        if self._store.add(f"{name}/arrived", 1) == self.size:
            self._store.set(f"{name}/complete", "")
        self._await(f"{name}/complete", pause_s, timeout_s)
        if self.rank == 0:
            self._read += [f"{name}/arrived", f"{name}/complete"]

    def _forget(self, *keys: str) -> None:
        """Delete the keys used before the meeting that is just over; note those of the meeting.

        A rank in a later meeting has read all of an earlier one. The keys of this one are among
        the last two that rank 0 noted."""
        own = self._read[-2:] if self.rank == 0 else []
        for key in self._read[:len(self._read) - len(own)]:
            self._store.delete_key(key)
        self._read = [*own, *keys]

    def _await(
        self, key: str, pause_s: float = LONGEST_PAUSE_S, timeout_s: float | None = None,
        lost: str = "another rank",
    ) -> None:
        wait_quietly(lambda: bool(self._store.check([key])), self._while_waiting, timeout_s,
                     lost=lost, longest_pause_s=pause_s)


def _open_store(environ: Mapping[str, str], rank: int, timeout_s: float) -> Any:
    """Return a client of the store at MASTER_ADDR and MASTER_PORT; rank 0 opens it, or torchrun.

    Raises LaunchError if there is none, or no way to it."""
    with no_collection_of_modules():
        import torch.distributed as dist

    try:
        host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise LaunchError(f"MASTER_ADDR and MASTER_PORT of torchrun are not set: {error}"
                          ) from error
    there = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"

    def client(is_master: bool, seconds: float) -> Any:
        return dist.TCPStore(host, port, is_master=is_master, wait_for_workers=False,
                             timeout=timedelta(seconds=seconds))

    try:
        return client(rank == 0 and not there, timeout_s)
    except (dist.DistError, RuntimeError) as error:
        problem: Exception = error
    if rank == 0 and not there:  # the port is taken: by another rank 0?
        try:
            return client(False, 5.0)
        except (dist.DistError, RuntimeError):
            pass
    raise LaunchError(f"no store at {host}:{port} (MASTER_ADDR, MASTER_PORT): "
                      f"{str(problem).splitlines()[0]}")


def meet(
    store: Any, rank: int, size: int, while_waiting: Callable[[], None], timeout_s: float,
) -> None:
    """Return when every rank of the job is here, once.

    Raises LaunchError on all ranks if one came twice or has another number of ranks, and after
    ``timeout_s`` with the missing ranks."""
    try:
        if problem := _contradiction(store, rank, size):
            store.set("refused", problem)
            if rank and store.add("arrived", 0) >= size:  # rank 0 has gone on, and reports nothing
                say(f"hpcbench: {problem}", sys.stderr)
            raise LaunchError(problem)
        deadline = time.monotonic() + timeout_s
        while store.add("arrived", 0) < size:
            while_waiting()
            if store.check(["refused"]):
                raise LaunchError(store.get("refused").decode())
            if time.monotonic() >= deadline:
                missing = [rank for rank in range(size) if not store.check([f"who/{rank}"])]
                shown = ", ".join(map(str, missing[:_SHOWN])) + ", ..." * (len(missing) > _SHOWN)
                raise LaunchError(f"{len(missing)} of {size} ranks have not come in "
                                  f"{timeout_s:g} s: {shown}")
            time.sleep(_PAUSE_S)
    except RuntimeError as error:  # torch's, of a store whose process has ended
        raise LaunchError(f"rank 0 has ended before all ranks had come: {error}") from error


def _contradiction(store: Any, rank: int, size: int) -> str:
    """Register this rank; return what contradicts it, or ""."""
    me = f"process {os.getpid()} on {socket.gethostname()}"
    mine = f"{secrets.token_hex(8)} {me}"  # containers may be alike in both
    first_comer = store.compare_set(f"who/{rank}", "", mine).decode()
    if first_comer != mine:
        other = first_comer.partition(" ")[2]
        return f"two processes are rank {rank}: {other} and {me}; {REMEDY}"
    first = store.compare_set("size", "", f"{size}").decode()
    if first != f"{size}":
        return (f"rank {rank}, {me}, has {size} ranks, others have "
                f"{first} (WORLD_SIZE); {REMEDY}")
    if not 0 <= rank < size:
        return f"{me} is rank {rank} of {size} (RANK, WORLD_SIZE); {REMEDY}"
    store.add("arrived", 1)
    return ""

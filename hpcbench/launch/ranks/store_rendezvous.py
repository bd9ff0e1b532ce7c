"""Where torchrun's ranks meet: its store, and that each rank is there once, before they go on.

MPI numbers its ranks itself. Here rank and size are variables. Two processes of one rank, or of
different sizes, would wait until torch's timeout, and nobody would say for whom.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from hpcbench.errors import LaunchError

_PAUSE_S = 0.02
REMEDY = "start each rank once (torchrun: --nnodes, and another --node-rank on every node)"
_SHOWN = 8


def open_store(environ: Mapping[str, str], rank: int, timeout_s: float) -> Any:
    """Return a client of the store at MASTER_ADDR and MASTER_PORT; rank 0 opens it, or torchrun.

    Raises LaunchError if there is none, or no way to it.
    """
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

    Raises LaunchError on all ranks that have come, if one came twice or has another number of
    ranks. After ``timeout_s`` seconds it names the ranks that are missing.
    """
    try:
        if problem := _contradiction(store, rank, size):
            store.set("refused", problem)
            if rank and store.add("arrived", 0) >= size:  # rank 0 has gone on, and will not say it
                print(f"hpcbench: {problem}", file=sys.stderr, flush=True)
            raise LaunchError(problem)
        _await_all(store, size, while_waiting, timeout_s)
    except RuntimeError as error:  # torch's, of a store whose process has ended
        raise LaunchError(f"rank 0 has ended before all ranks had come: {error}") from error


def _await_all(
    store: Any, size: int, while_waiting: Callable[[], None], timeout_s: float,
) -> None:
    deadline = time.monotonic() + timeout_s
    while store.add("arrived", 0) < size:
        while_waiting()
        if store.check(["refused"]):
            raise LaunchError(store.get("refused").decode())
        if time.monotonic() >= deadline:
            missing = [rank for rank in range(size) if not store.check([f"who/{rank}"])]
            raise LaunchError(
                f"{len(missing)} of {size} ranks have not come in {timeout_s:g} s: "
                f"{', '.join(map(str, missing[:_SHOWN]))}{', ...' * (len(missing) > _SHOWN)}")
        time.sleep(_PAUSE_S)


def _contradiction(store: Any, rank: int, size: int) -> str:
    """Say who this rank is; return what speaks against it, or ""."""
    me = f"process {os.getpid()} on {socket.gethostname()}"
    mine = f"{secrets.token_hex(8)} {me}"  # containers may be alike in both
    first_comer = store.compare_set(f"who/{rank}", "", mine).decode()
    if first_comer != mine:
        other = first_comer.partition(" ")[2]
        return f"two processes are rank {rank}: {other} and {me}; {REMEDY}"
    first = store.compare_set("size", "", f"{size}").decode()
    if first != f"{size}":
        return (f"rank {rank}, {me}, was told that there are {size} ranks, others that there are "
                f"{first} (WORLD_SIZE); {REMEDY}")
    if not 0 <= rank < size:
        return f"{me} is rank {rank} of {size} (RANK, WORLD_SIZE); {REMEDY}"
    store.add("arrived", 1)
    return ""

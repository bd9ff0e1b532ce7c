"""A program of a user, on some ranks: measures, and prints as JSON what each rank reports.

    mpirun -np N python on_measure.py mpi|gloo TASK...
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import hpcbench
from hpcbench.api import ranks

COMM = MPI.COMM_WORLD


def opened(library: str) -> tuple[Any, Callable[[], object]]:
    """Return a group of all ranks, and an all_reduce of it."""
    if library == "mpi":
        own, total = np.ones(1 << 16, dtype=np.float32), np.empty(1 << 16, dtype=np.float32)
        return COMM, lambda: COMM.Allreduce(own, total)
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1"}
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"),  # noqa: PTH100
                            rank=COMM.rank, world_size=COMM.size)
    tensor = torch.zeros(1 << 16)
    return dist.group.WORLD, lambda: dist.all_reduce(tensor)


def described(found: hpcbench.Measurement) -> dict[str, Any]:
    return {"median": found.median, "interval": found.interval, "per_rank": found.per_rank,
            "shape": found.samples.shape, "longest": found.samples.max(axis=0).tolist(),
            "times": found.times.tolist(), "wrong": found.wrong, "skew": found.skew,
            "flags": found.flags}


def failing(on_call: int) -> Callable[[], None]:
    """Return a function that raises on rank 1 in this call."""
    calls = []

    def step() -> None:
        calls.append(1)
        if COMM.rank == 1 and len(calls) == on_call:
            raise ValueError("no batch left")
    return step


def several_errors() -> None:
    raise ValueError(f"no batch left on {COMM.rank}")


def error_of(**options: Any) -> dict[str, Any]:
    try:
        hpcbench.measure(**options)
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error),
                "rank": getattr(error, "rank", None), "cause": type(error.__cause__).__name__}
    return {"error": None}


def done(task: str, group: Any, call: Callable[[], object]) -> dict[str, Any]:
    """Do a task; return what there is to report of it."""
    if task == "measure":
        check = (lambda: None) if COMM.rank else (lambda: 3)
        first = hpcbench.measure(call, group=group, seconds=0.3, check=check, name="call")
        again = hpcbench.measure(call, group=group, iterations=8)
        kept = hpcbench.measure(call, group=group, iterations=8, name="call", save="kept")
        return {"first": described(first), "again": described(again), "kept": described(kept)}
    if task == "several clocks":
        ranks.clock_identity = lambda *_: f"node{COMM.rank}"
        return {"first": described(hpcbench.measure(
            lambda: time.sleep(0.002), group=group, iterations=30)),
            "save": error_of(fn=call, group=group, save="kept", name="call")}
    return {
        "first call": error_of(fn=failing(1), group=group),
        "a later call": error_of(fn=failing(20), group=group, iterations=40),
        "check": error_of(fn=call, check=failing(2), group=group, iterations=9),
        "several": error_of(fn=several_errors, group=group),
        "counts": error_of(fn=call, group=group, iterations=5 + COMM.rank),
        "one argument": error_of(fn=call if COMM.rank else 3, group=group),
        "still": error_of(fn=call, group=group, iterations=5),
    }


if __name__ == "__main__":
    opened_group = opened(sys.argv[1])
    reports = COMM.gather({task: done(task, *opened_group) for task in sys.argv[2:]})
    if reports:  # by one rank: of several, long lines mix
        json.dump(reports, sys.stdout)

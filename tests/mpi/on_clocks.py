"""Run under mpirun: synchronise clocks whose offset and drift are known, print errors as JSON.

All ranks run on one machine, whose clock is the truth: a synthetic clock is a function of it, and
what a time namespace adds stands in /proc. So errors are exact, at any time before or after.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpcbench.errors import RankLostError
from hpcbench.launch.clocks import ClockEffort, synchronise
from hpcbench.launch.communicator import Communicator
from hpcbench.launch.session import open_session
from hpcbench.measurement.environment import clock_identity
from hpcbench.trace.clock import SyncRecord, bound_at, to_global

SECOND = 10**9
OFFSETS_NS = (5, 10**15 + 7, -3 * 10**14, 123_456_789)
DRIFTS_PPB = (12_000, -30_000, 30_000, -7_000)
HOLDS_S = (0, 3, 10)
Truth = Callable[[int, int], int]
"""What the clock of a rank shows at a true time."""


class Counting:
    """A communicator that keeps the names of what was used of it."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.used = comm, []

    def __getattr__(self, name: str) -> Any:
        self.used.append(name)
        return getattr(self.comm, name)


def synthetic(begin_ns: int) -> Truth:
    def at(rank: int, true_ns: int) -> int:
        return true_ns + OFFSETS_NS[rank] + (true_ns - begin_ns) * DRIFTS_PPB[rank] // SECOND
    return at


def compared(
    comm: Communicator, at: Truth, name: str, clock: Callable[[int], int], points: int = 100,
) -> SyncRecord:
    """Synchronise; ranks with the same ``clock`` share a clock. Print the errors afterwards."""
    mine = clock(comm.rank)
    began, cpu = time.monotonic(), time.process_time()
    record = synchronise(comm, lambda: at(mine, time.perf_counter_ns()), f"clock {mine}",
                         ClockEffort(points=points))
    took_s, cpu_s = time.monotonic() - began, time.process_time() - cpu
    now_ns = time.perf_counter_ns()
    times = [now_ns + hold * SECOND for hold in HOLDS_S]
    print_line(name, comm, record, took_s=took_s, cpu_s=cpu_s,
         errors_ns=[record.model.to_global(at(mine, true_ns)) - at(0, true_ns)
                    for true_ns in times],
         bounds_ns=[record.model.bound_at(at(mine, true_ns)) for true_ns in times],
         drift_ppb=DRIFTS_PPB[mine] - DRIFTS_PPB[0])
    return record


def print_line(name: str, comm: Communicator, record: SyncRecord, **found: Any) -> None:
    """Print one line, whole."""
    line = {"name": name, "rank": comm.rank, **record.to_json(), **found}
    print(json.dumps(line) + "\n", end="", flush=True)


def twice(comm: Communicator) -> None:
    """Two synchronisations, and the errors of stamps between them."""
    at = synthetic(comm.bcast(time.perf_counter_ns()))
    first = compared(comm, at, "first", lambda rank: rank)
    between_ns = time.perf_counter_ns()
    second = compared(comm, at, "second", lambda rank: rank)
    models = [first.model, second.model]
    times = [between_ns + step * SECOND // 20 for step in range(10)]
    local = np.array([at(comm.rank, true_ns) for true_ns in times])
    errors = to_global(models, local) - np.array([at(0, true_ns) for true_ns in times])
    print_line("between", comm, second, errors_ns=errors.tolist(),
         bounds_ns=bound_at(models, local).tolist())


def shared(comm: Communicator) -> None:
    """One clock each, then one clock for two ranks, then one for all."""
    at = synthetic(comm.bcast(time.perf_counter_ns()))
    compared(comm, at, "each", lambda rank: rank)
    compared(comm, at, "two", lambda rank: rank // 2, points=40)
    counting = Counting(comm)
    record = synchronise(counting, time.perf_counter_ns, "one")
    print_line("one", comm, record, used=counting.used)


def namespaces(comm: Communicator) -> None:
    """Clocks that ``unshare -T`` shifted: the same physical clock, with offsets that /proc has."""
    offset = next(line.split() for line in Path("/proc/self/timens_offsets").read_text().split("\n")
                  if line.startswith("monotonic"))
    offsets = comm.allgather(int(offset[1]) * SECOND + int(offset[2]))
    record = synchronise(comm, time.perf_counter_ns, clock_identity())
    now_ns = time.perf_counter_ns()
    truth = offsets[comm.rank] - offsets[0]
    print_line("namespaces", comm, record, shifted_s=truth / SECOND, bound_ns=record.model.bound_ns,
         errors_ns=[record.model.offset_at(now_ns + hold * SECOND) - truth for hold in HOLDS_S],
         bounds_ns=[record.model.bound_at(now_ns + hold * SECOND) for hold in HOLDS_S])


def lost(comm: Communicator) -> None:
    """Rank 1 stops in the middle of it; the first to find out ends the job."""
    calls = 0

    def now_ns() -> int:
        nonlocal calls
        calls += 1
        if comm.rank == 1 and calls == 200:
            os.kill(os.getpid(), signal.SIGSTOP)
        return time.perf_counter_ns()

    try:
        synchronise(comm, now_ns, f"clock {comm.rank}", ClockEffort(timeout_s=1.0))
    except RankLostError as error:
        print(f"rank {comm.rank}: {error}\n", end="", flush=True)
        comm.abort(3)


if __name__ == "__main__":
    with open_session(os.environ) as (world, _):
        {"twice": twice, "shared": shared, "namespaces": namespaces, "lost": lost}[
            sys.argv[1]](world)

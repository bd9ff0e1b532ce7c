"""Is a time of hpcbench the time of the operation? Backend mpi beside plain C calls of its MPI.

    python benchmarks/fidelity.py [--launches 20] [--ranks 2] [--sizes 8 65536 1048576 4194304]

all_reduce, all_gather, broadcast and send_recv (both ranks send and receive at once) through the
worker's measuring loop on backend mpi, and the same operation as a call of the C library (ctypes)
on the same communicator and the same buffers, in one process: in every pass both loops take turns,
with the same barrier and the same restored inputs before each call; who goes first alternates. Each
launch is an mpirun of its own, because one launch proves nothing: ratios and differences are formed
within a launch, and shown are their medians over launches and how far launches lie apart.

Every pair is measured in several ways. "warm" and "cold" are the values of the axis ``buffers``:
inputs are restored before each call, or calls take turns over sets of buffers that no cache holds.
In both, the call path of torch and Python, much longer than that of C, runs from what the caches
still have. For "primed" (warm buffers) both loops call the same operation on 8 bytes before the
barrier, so that the path is in the caches. Each of "direct" is backend mpi/direct, which calls
mpi4py on the tensors' memory. C does in each way what hpcbench does.

Goals: within 3 % from 4 MiB up in every way; primed, at most 10 us a call for torch and Python up
to 64 KiB; stamping at most 0.5 us an iteration; direct, 8 B: at most 2 us. A ctypes call itself
costs what the line "C call of nothing" says.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from launching import mpirun

WAYS = ("primed", "warm", "cold", "direct-warm", "direct-cold")
OPERATIONS = ("all_reduce", "all_gather", "broadcast", "send_recv")
LARGE_BYTES, GOAL_RATIO, GOAL_US, GOAL_STAMP_US = 4 << 20, 1.03, 10.0, 0.5
GOAL_DIRECT_US, SMALL_BYTES = 2.0, 8
NOW = time.perf_counter_ns
Loop = Callable[[int], np.ndarray]


def main() -> None:
    """Run the launches and print what they have in common; or be a rank of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+",
                        default=[8, 65536, 1 << 20, 4 << 20, 16 << 20])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        one_rank(given)
        return
    launches = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.launches):
            answer = Path(folder) / f"{number}.json"
            mpirun(given.ranks, [__file__, *sys.argv[1:], "--answer", answer],
                   env={"OMP_NUM_THREADS": "1"})
            launches.append(json.loads(answer.read_text()))
    sys.exit(int(report(launches, given)))


def one_rank(given: argparse.Namespace) -> None:
    """Measure every operation and size in turns; rank 0 writes {what: [through, plain]} in us."""
    import torch.distributed as dist
    from mpi4py import MPI

    from hpcbench.backends.groups import open_groups
    from hpcbench.backends.mpi_buffers import DirectGroup
    from hpcbench.operations.collectives import MOST_COLD_SETS, cold_sets

    world, size = MPI.COMM_WORLD, MPI.COMM_WORLD.size
    dist.init_process_group("gloo", store=store(world), rank=world.rank, world_size=size)
    group = open_groups("mpi", timedelta(seconds=300), [range(size)], world.rank,
                        mpi_comm=world.Dup())
    lane, control, found = DirectGroup(world.Dup()), world.Dup(), {}
    gc.collect()
    gc.freeze()  # as the template process does before it forks workers
    for collective, size_bytes, way in product(OPERATIONS, given.sizes, given.ways):
        if way.endswith("cold") and cold_sets(size_bytes) > MOST_COLD_SETS:
            continue
        pair = loops(collective, size_bytes, lane if "direct" in way else group, control, way)
        times = in_turns(pair, given.passes, size_bytes)
        slowest = np.empty_like(times)
        world.Allreduce(times, slowest, MPI.MAX)
        found[f"{collective} {size_bytes} {way}"] = (
            np.median(slowest, axis=(1, 2)) / 1e3).tolist()
    if world.rank == 0:
        given.answer.write_text(json.dumps({
            "times": found, "nothing_us": ctypes_us(), "stamp_us": stamp_us(),
            "library": MPI.Get_library_version().splitlines()[0].strip("\0")}))
    world.Barrier()
    dist.destroy_process_group()


def store(world: Any) -> Any:
    """Return a store that all ranks share."""
    import torch.distributed as dist

    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) \
        if world.rank == 0 else None
    port = world.bcast(server.port if server else None)
    return server or dist.TCPStore("127.0.0.1", port, is_master=False)


def in_turns(pair: tuple[Loop, Loop], passes: int, size_bytes: int) -> np.ndarray:
    """Return durations in ns, (loop, pass, iteration)."""
    iterations = 100 if size_bytes < 1 << 20 else 20
    for loop in pair:
        loop(5)
    times = np.empty((2, passes, iterations), dtype=np.int64)
    for number in range(passes):
        for which in ((0, 1), (1, 0))[number % 2]:
            times[which, number] = pair[which](iterations)
    return times


def loops(
    collective: str, size_bytes: int, group: Any, control: Any, way: str,
) -> tuple[Loop, Loop]:
    """Return the measuring loop of a worker and the plain one, on the same buffers."""
    from hpcbench.backends.devices import CpuDevice
    from hpcbench.backends.groups import MpiControl
    from hpcbench.measurement.control import SharedProgress
    from hpcbench.measurement.loop import (
        FixedCount,
        SampleSchedule,
        Surroundings,
        after_barrier,
        measure,
    )

    operation = make(collective, size_bytes, group, "cold" if "cold" in way else "warm")
    sets = getattr(operation, "sets", [operation])
    if way == "primed":
        primed(operation, make(collective, 8, group))
    device, meeting, progress = CpuDevice(), MpiControl(control), SharedProgress.create(200)
    calls = [plain_call(one, group.comm) for one in sets]

    def through(iterations: int) -> np.ndarray:
        if operation not in sets:
            operation.restore()  # C has used them meanwhile
        progress.begin(1)
        measured = measure(
            operation, device, progress, SampleSchedule(0, 1, validate=True),
            Surroundings(after_barrier(meeting), FixedCount(iterations), meeting.barrier, NOW))
        assert not measured.wrong
        rows = progress.rows()
        return rows[:, 1] - rows[:, 0]

    def bare(iterations: int) -> np.ndarray:
        times = []
        for number in range(iterations):
            at = number % len(sets)
            if not at:
                for one in sets:
                    one.prepare()
            call = calls[at]
            control.Barrier()
            start_ns = NOW()
            call()
            times.append(NOW() - start_ns)
        assert sets[at].check() is None
        control.Barrier()
        return np.array(times)

    return through, bare


def make(collective: str, size_bytes: int, group: Any, buffers: str = "warm") -> Any:
    """Return a collective of the package on buffers of its own."""
    import torch

    from hpcbench.kinds.collective.plan import Collective
    from hpcbench.kinds.collective.run import CollectiveRunner
    from hpcbench.operations.place import Place

    ranks = group.comm.size
    parts = ranks if collective == "all_gather" else 1
    spec = Collective(
        collective=collective, dtype="fp32", op="sum" if collective == "all_reduce" else None,
        root=0 if collective == "broadcast" else None,
        in_place=collective in ("all_reduce", "broadcast"), requested_bytes=size_bytes,
        size_bytes=size_bytes, count=max(size_bytes // 4 // parts, 1), buffers=buffers)
    place = Place(group.comm.rank, ranks, group, torch.device("cpu"))
    return CollectiveRunner().open(spec, place, validate=False)


def primed(operation: Any, small: Any) -> None:
    """Have ``operation`` end its preparation with a call of ``small``."""
    restore = operation.prepare

    def prepare() -> None:
        restore()
        small.run()

    operation.prepare = prepare


def plain_call(operation: Any, comm: Any) -> Callable[[], object]:
    """Return the operation as a call of the C library on the operation's own buffers."""
    from mpi4py import MPI

    handle = ctypes.c_int if MPI._sizeof(MPI.COMM_WORLD) == 4 else ctypes.c_void_p
    library, spec = c_library(), operation.spec
    of, kind = handle(MPI._handleof(comm)), handle(MPI._handleof(MPI.FLOAT))
    byte = handle(MPI._handleof(MPI.BYTE))
    output = ctypes.c_void_p(operation.output.data_ptr())
    count = ctypes.c_int(spec.count)
    if spec.collective == "all_reduce":
        op, in_place = handle(MPI._handleof(MPI.SUM)), ctypes.c_void_p(int(MPI.IN_PLACE))
        return lambda: library.MPI_Allreduce(in_place, output, count, kind, op, of)
    n_bytes = ctypes.c_int(4 * spec.count)
    if spec.collective == "all_gather":
        part = ctypes.c_void_p(operation.part.data_ptr())
        return lambda: library.MPI_Allgather(part, n_bytes, byte, output, n_bytes, byte, of)
    if spec.collective == "broadcast":
        return lambda: library.MPI_Bcast(output, n_bytes, byte, ctypes.c_int(0), of)
    source = ctypes.c_void_p(operation.source.data_ptr())
    following = ctypes.c_int((comm.rank + 1) % comm.size)
    preceding = ctypes.c_int((comm.rank - 1) % comm.size)
    tag, ignored = ctypes.c_int(9), (ctypes.c_byte * 64)()
    return lambda: library.MPI_Sendrecv(source, n_bytes, byte, following, tag, output, n_bytes,
                                        byte, preceding, tag, of, ignored)


def c_library() -> Any:
    """Return the MPI library that mpi4py has loaded: its symbols are found from mpi4py's module."""
    from mpi4py import MPI

    return ctypes.CDLL(MPI.__file__)


def ctypes_us() -> float:
    """Return what a call of the library costs that does nothing (MPI_Initialized)."""
    function, flag = c_library().MPI_Initialized, ctypes.byref(ctypes.c_int())
    began_ns = NOW()
    for _ in range(20_000):
        function(flag)
    return (NOW() - began_ns) / 20_000 / 1e3


def stamp_us() -> float:
    """Return what stamping costs an iteration: two clock readings and a row of the record."""
    from hpcbench.measurement.control import PREPARED, ROW_BYTES, SharedProgress

    progress = SharedProgress.create(20_000)
    write, advance, at = progress.writers(0)
    began_ns = NOW()
    for row in range(1, 20_001):
        start_ns = NOW()
        end_ns = NOW()
        write(at, start_ns, end_ns, -1, -1, 0)
        advance(row, PREPARED, row)
        at += ROW_BYTES
    return (NOW() - began_ns) / 20_000 / 1e3


def is_met(size: int, way: str, ratios: np.ndarray, extra: np.ndarray) -> bool:
    """Return whether the goal of a size and a way, if there is one, is met."""
    if size >= LARGE_BYTES:
        return bool(np.median(ratios) <= GOAL_RATIO)
    direct = way.startswith("direct")
    goal_us = GOAL_DIRECT_US if direct else GOAL_US
    has_goal = size == SMALL_BYTES if direct else size <= 65536 and way == "primed"
    return not has_goal or bool(np.median(extra) <= goal_us)


def report(launches: list[dict[str, Any]], given: argparse.Namespace) -> bool:
    """Print ratios, differences and spreads; return whether a goal is missed."""
    print(f"{launches[0]['library']}, {given.ranks} ranks, {len(launches)} launches; medians in us")
    missed = False
    for what in launches[0]["times"]:
        through, plain = np.array([launch["times"][what] for launch in launches]).T
        ratios, extra = through / plain, through - plain
        size, way = int(what.split()[1]), what.split()[2]
        met = is_met(size, way, ratios, extra)
        missed |= not met
        print(f"{what:<26} hpcbench {np.median(through):9.1f} ({through.min():.1f}.."
              f"{through.max():.1f})  C {np.median(plain):9.1f} ({plain.min():.1f}.."
              f"{plain.max():.1f})  ratio {np.median(ratios):.3f} ({ratios.min():.3f}.."
              f"{ratios.max():.3f})  difference {np.median(extra):.1f} {'' if met else 'missed'}")
    stamping = float(np.median([launch["stamp_us"] for launch in launches]))
    nothing = float(np.median([launch["nothing_us"] for launch in launches]))
    print(f"stamping {stamping:.2f} us an iteration (goal {GOAL_STAMP_US}), "
          f"C call of nothing {nothing:.2f} us")
    return missed or stamping > GOAL_STAMP_US


if __name__ == "__main__":
    main()

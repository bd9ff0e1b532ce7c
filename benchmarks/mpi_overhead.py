"""What torch adds to MPI: all_reduce on backend mpi against plain mpi4py, on one buffer.

    mpirun -np 2 python benchmarks/mpi_overhead.py

The two alternate in one process on one communicator, each call after a barrier. Prints the
quartiles in us on rank 0, and their differences.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcbench.backends.mpi_backend import register

REPETITIONS = {2: 3000, 16 * 1024: 600, 256 * 1024: 80}
"""fp32 elements -> calls of each kind."""


def quartiles(comm: MPI.Comm, calls: Sequence[Callable[[], object]], n: int) -> list[list[float]]:
    """Return [q25, median, q75] in us of each call, ``n`` of each, in alternating order."""
    times: list[list[float]] = [[] for _ in calls]
    for repetition in range(n):
        order = range(len(calls)) if repetition % 2 else reversed(range(len(calls)))
        for which in order:
            comm.Barrier()
            start_ns = time.perf_counter_ns()
            calls[which]()
            times[which].append((time.perf_counter_ns() - start_ns) / 1e3)
    return [statistics.quantiles(found, n=4) for found in times]


def main() -> None:
    """Measure every size."""
    comm = MPI.COMM_WORLD
    register()
    dist.init_process_group(
        "mpi4py", store=dist.HashStore(), rank=comm.rank, world_size=comm.size)
    tested = dist.group.WORLD.comm
    for count, n in REPETITIONS.items():
        tensor = torch.zeros(count)
        array = tensor.numpy()
        found = quartiles(tested, (lambda t=tensor: dist.all_reduce(t),
                                   lambda a=array: tested.Allreduce(MPI.IN_PLACE, a)), n)
        if comm.rank == 0:
            text = [" ".join(f"{value:9.2f}" for value in row) for row in
                    (*found, [one - other for one, other in zip(*found, strict=True)])]
            print(f"{4 * count:8} B  torch {text[0]}  mpi4py {text[1]}  difference {text[2]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

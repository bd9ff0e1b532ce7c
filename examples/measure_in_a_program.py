"""Time a call of your own program on all of its ranks, and check what it computes.

    python examples/measure_in_a_program.py
    mpirun -np 2 python examples/measure_in_a_program.py
"""

import numpy as np
from mpi4py import MPI

import hpcbench

comm = MPI.COMM_WORLD
gradient = np.ones(1 << 18, dtype=np.float32)
total = np.empty_like(gradient)

result = hpcbench.measure(
    lambda: comm.Allreduce(gradient, total),
    setup=lambda: total.fill(0),
    check=lambda: int((total != comm.size).sum()),  # how many elements are wrong
    group=comm, bytes=gradient.nbytes, seconds=0.5, name="my all_reduce")

if comm.rank == 0:
    print(result)
    print("by rank:", ", ".join(f"{1e6 * median_s:.1f} us" for median_s in result.per_rank))

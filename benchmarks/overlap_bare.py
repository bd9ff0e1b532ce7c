"""One rank of overlap_bound.py: product and communication by torch and bare TCP, no hpcbench.

MPI tells the rank and the other's address and is not called while anything is timed. The rank's
product is (m, k) by (k, n). What is done with it is that of overlap_bare_scatter.py or
overlap_bare_sums.py. One thread sends, one receives.

Each call begins when both ranks have met over a second connection. Its time is counted from there
on each rank. The times in s, and the CPU times of the process, are written to a file of this rank,
(variant, pass, call).
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from overlap_bare_scatter import Scatter
from overlap_bare_sums import Sums
from overlap_peer import connected
from overlap_variants import ORDERS

CALLS: Mapping[str, type[Scatter] | type[Sums]] = {"RS_after": Scatter, "AR_after": Sums}


def timed(
    calls: Mapping[str, Callable[[], object]], names: Sequence[str], meet: Callable[[], None],
    passes: int, calls_a_turn: int,
) -> np.ndarray:
    """Return times and CPU times in s, (2, variant, pass, call); variants take turns in a pass.

    A turn begins with a call that does not count. Its order is shuffled, alike on both ranks.
    """
    found = np.empty((2, len(names), passes, calls_a_turn))
    for number in range(passes):
        for which in random.Random(number).sample(range(len(names)), len(names)):
            call = calls[names[which]]
            for sample in range(-1, calls_a_turn):
                meet()
                cpu_s, start_s = time.process_time(), time.perf_counter()
                call()
                took = time.perf_counter() - start_s, time.process_time() - cpu_s
                if sample >= 0:
                    found[:, which, number, sample] = took
    return found


def main() -> None:
    """Be one rank: check, measure, and write the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("--m", "--n", "--k", "--passes", "--calls"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--order", choices=CALLS, required=True)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=world.rank, world_size=2,
                            store=dist.FileStore(str(given.folder / "store"), 2))
    variants = ORDERS[given.order]
    sent_bytes = given.m // variants.sent_part * given.n * torch.float32.itemsize
    peer = connected(world.rank, world.bcast, sent_bytes)
    calls = CALLS[given.order]((given.m, given.n, given.k), peer, world.rank)
    calls.check()
    np.save(given.folder / f"{world.rank}.npy",
            timed(calls.by_name, variants.names, peer.meet, given.passes, given.calls))
    peer.meet()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

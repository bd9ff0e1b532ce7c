"""What does a rank cost when there are many more of them than cores, and is any result lost?

    python benchmarks/many_ranks.py [--ranks 16 32 64] [--no-canary | --alone | --bare]

One job for each number of ranks: a case or two of every kind, one pass, with canary and clocks.
Printed are wall time, and the time of the processor of all processes of the job, user
and system, for each rank. What the cases are is the same at each size, so a rank does as much. But
the canary has fewer samples above 32 ranks, and comes less often where it is slow: --no-canary.
Goals: every case is ok on every rank, and twice the ranks take at most 1.1 times the system time
for each. --alone: only cases that exchange nothing, without the canary; what grows then is neither
what is measured nor gloo's groups for it. --bare: instead of jobs, processes that have nothing of
hpcbench start MPI, import torch, open gloo's group and call it: that growth is the libraries'.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcbench.reduce.results_file import open_results
from launching import mpirun, run_sweep

GOAL_GROWTH = 1.1
TRAINED = {"model": "transformer-tiny", "layers": 1, "hidden": 16, "heads": 1, "vocab": 64,
           "seq_length": 16, "strategies": ["data"], "batch_size": 1}
"""So small that the memory of 64 ranks is that of their processes, not of their models."""
BLOCKS: Sequence[dict[str, Any]] = (
    {"kind": "collective", "collective": ["all_reduce", "barrier"], "size": "64KiB"},
    {"kind": "primitive", "primitive": "tp_columnwise", "implementations": ["torch"],
     "m": 128, "n": 128, "k": 128, "dtype": "fp32"},
    {"kind": "training", **TRAINED},
    {"kind": "hardware", "test": "gemm", "shape": "64", "dtype": "fp32"},
    {"kind": "memory", **TRAINED},
)
ALONE = [block for block in BLOCKS if block["kind"] == "hardware"]
STAGES = ("python", "MPI", "torch", "gloo's group", "20 barriers", "20 all_reduces of 64 KiB")


class Cost(NamedTuple):
    """What a job took: from start to end, and of the processor for each rank; and what was lost."""

    ranks: int
    wall_s: float
    user_s: float
    system_s: float
    lost: tuple[str, ...]

    def line(self) -> str:
        """Return it in words."""
        return (f"{self.ranks:>4} ranks: wall {self.wall_s:6.1f} s; a rank: user "
                f"{self.user_s / self.ranks:5.2f} s, system {self.system_s / self.ranks:5.2f} s; "
                f"load {os.getloadavg()[0]:.0f}; "
                + (f"lost: {', '.join(self.lost)}" if self.lost else "nothing lost"))


def main() -> None:
    """Run the jobs, smallest first; tell missed goals by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32, 64])
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--no-canary", action="store_true", help="all cases, but no canary")
    instead.add_argument("--alone", action="store_true", help="cases that exchange nothing")
    instead.add_argument("--bare", action="store_true", help="the libraries alone")
    parser.add_argument("--bare-rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare_rank:
        bare_rank()
    elif given.bare:
        for ranks in sorted(given.ranks):
            print(mpirun(ranks, [__file__, "--bare-rank"]).stdout, end="", flush=True)
    else:
        compare_jobs(given.ranks, ALONE if given.alone else BLOCKS,
                     canary=not (given.alone or given.no_canary))


def compare_jobs(
    numbers: Sequence[int], blocks: Sequence[dict[str, Any]], *, canary: bool,
) -> None:
    """Run a job with each number of ranks and compare what a rank took."""
    before: Cost | None = None
    missed = False
    for ranks in sorted(set(numbers)):
        cost = measured(ranks, blocks, canary=canary)
        print(cost.line(), flush=True)
        missed |= bool(cost.lost)
        if before:
            growth = cost.system_s * before.ranks / (before.system_s * ranks)
            missed |= growth ** (1 / math.log2(ranks / before.ranks)) > GOAL_GROWTH
            print(f"     system time of a rank: {growth:.2f} of that with {before.ranks} ranks")
        before = cost
    print(f"goals: nothing lost, system time of a rank at most {GOAL_GROWTH} a doubling: "
          + ("missed" if missed else "met"))
    sys.exit(int(missed))


def measured(ranks: int, blocks: Sequence[dict[str, Any]], *, canary: bool) -> Cost:
    """Run a job with so many ranks and the cases of these blocks; return its cost."""
    config = {
        "name": "many-ranks", "output": {"plots": False, "report": False},
        "measure": {"warmup": 2, "iterations": 10, "passes": 1, "noise_check_s": 0,
                    "canary": canary},
        "launch": {"timeout_s": 120},
        "benchmarks": list(blocks)}
    with tempfile.TemporaryDirectory() as folder:
        used, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        results = run_sweep(ranks, config, Path(folder), accepted=(0, 1))
        wall_s, now = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
        return Cost(ranks, wall_s, now.ru_utime - used.ru_utime, now.ru_stime - used.ru_stime,
                    lost(results, ranks))


def lost(folder: Path, ranks: int) -> tuple[str, ...]:
    """Return what is missing of the results: cases that are not ok, ranks without a trace."""
    with open_results(folder) as file:
        results = file.results
        cases = [f"{item.case.label}: {item.status}: {item.reason}" for item in results.cases
                 if item.status != "ok"]
        absent = set(range(ranks)) - set(results.run.ranks_present)
        return (*cases, *(f"rank {rank}" for rank in sorted(absent)))


def bare_rank() -> None:
    """Do what every job needs of the libraries; rank 0 prints the mean system time of each stage.

    Between stages the ranks wait as hpcbench does, asleep: MPI's own barrier spins.
    """
    took = [os.times().system]
    world = import_module("mpi4py.MPI").COMM_WORLD
    ranks = world.Get_size()

    def done() -> None:
        took.append(os.times().system)
        request = world.Ibarrier()
        while not request.Test():
            time.sleep(0.02)

    done()
    torch, dist = import_module("torch"), import_module("torch.distributed")
    done()
    store = dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False) if (
        world.Get_rank() == 0) else None
    port = world.bcast(store and store.port)
    store = store or dist.TCPStore("127.0.0.1", port, ranks, is_master=False)
    dist.init_process_group("gloo", store=store, rank=world.Get_rank(), world_size=ranks)
    done()
    values = torch.zeros(1 << 14)
    for call in (dist.barrier, lambda: dist.all_reduce(values)):
        for _ in range(20):
            call()
        done()
    means = np.diff([0.0, *np.mean(world.allgather(took), axis=0)])
    if world.Get_rank() == 0:
        print(f"{ranks:>4} ranks, system time of a rank in ms: " + ", ".join(
            f"{stage} {mean * 1e3:.0f}" for stage, mean in zip(STAGES, means, strict=True)))


if __name__ == "__main__":
    main()

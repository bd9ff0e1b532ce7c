"""What does measuring through hpcbench add to an all_reduce? The same in plain torch, beside it.

    python benchmarks/overhead.py [--passes 100] [--warmup 5] [--iterations 50] [--sizes 8 65536]

Two gloo ranks, one job: in every pass three loops take turns in the same processes, each on a
group of its own, all with the same barrier before each iteration: the worker's measuring loop, a
plain loop, and that plain loop once more. Who goes first rotates. Passes are as long as the shipped
sweep's; their warm-ups count on no side. An iteration's time is the maximum over ranks of
end - start, as in the results. gloo on few cores is bimodal (ticks of 4 ms), so quartiles are
compared too, and the second plain loop shows how far equal loops come apart. Goals: ratio of
medians at most 1.15 below 64 KiB and 1.03 from there.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from hpcbench.backends.control import GlooControl
from hpcbench.backends.devices import CpuDevice
from hpcbench.backends.groups import open_groups
from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.collective.run.runner import CollectiveRunner
from hpcbench.measure.loop import Schedule, Surroundings, measure
from hpcbench.measure.progress import SharedProgress
from hpcbench.measure.start import after_barrier
from hpcbench.measure.stop import FixedCount
from hpcbench.operations.place import Place
from launching import fail

GOAL_SMALL, GOAL_LARGE, LARGE_BYTES = 1.15, 1.03, 65536
RANKS = 2
Loop = Callable[[int], np.ndarray]


def main() -> None:
    """Run both ranks and print the ratios; or be one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 65536, 1048576])
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        one_rank(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--folder", folder, "--rank", str(rank)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
            for rank in range(RANKS)]
        if any([rank.wait() for rank in ranks]):
            fail("a rank failed")
        missed = [report(Path(folder), size) for size in given.sizes]
    sys.exit(int(any(missed)))


def one_rank(given: argparse.Namespace) -> None:
    """Measure every size in turns; keep this rank's durations, (loop, pass, iteration), in ns."""
    timeout = timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=f"file://{given.folder}/store", rank=given.rank,
                            world_size=RANKS, timeout=timeout)
    size, rank = dist.get_world_size(), dist.get_rank()
    groups = [open_groups("gloo", timeout, size, 1, rank, None) for _ in range(3)]
    gc.collect()
    gc.freeze()  # as the template process does before it forks workers
    n_each = given.warmup + given.iterations
    for size in given.sizes:
        loops = (through_hpcbench(size, groups[0], given), plain(size, groups[1]),
                 plain(size, groups[2]))
        for loop in loops:
            loop(n_each)  # connects the group
        times = np.empty((len(loops), given.passes, given.iterations))
        for number in range(given.passes):
            for turn in range(len(loops)):
                which = (number + turn) % len(loops)
                times[which, number] = loops[which](n_each)[given.warmup:]
        np.save(given.folder / f"{size}-{given.rank}.npy", times)
    dist.barrier()
    dist.destroy_process_group()


def through_hpcbench(
    size_bytes: int, group: dist.ProcessGroup, given: argparse.Namespace,
) -> Loop:
    """Return the worker's loop over its all_reduce, results checked as in a run."""
    spec = Collective(
        collective="all_reduce", dtype="fp32", op="sum", root=None, in_place=True,
        requested_bytes=size_bytes, size_bytes=size_bytes, count=size_bytes // 4)
    operation = CollectiveRunner().open(
        spec, Place(dist.get_rank(), RANKS, group, torch.device("cpu")), validate=True)
    device, progress = CpuDevice(), SharedProgress.create(given.warmup + given.iterations)
    control = GlooControl()

    def loop(iterations: int) -> np.ndarray:
        around = Surroundings(
            after_barrier(control), FixedCount(iterations - given.warmup), control.barrier,
            time.perf_counter_ns)
        progress.begin(1)
        schedule = Schedule(given.warmup, 1, validate=True)
        assert not measure(operation, device, progress, schedule, around).wrong
        rows = progress.rows()
        return rows[:, 1] - rows[:, 0]
    return loop


def plain(size_bytes: int, group: dist.ProcessGroup) -> Loop:
    """Return what one would write without hpcbench."""
    source = torch.ones(size_bytes // 4)
    buffer = torch.empty_like(source)

    def loop(iterations: int) -> np.ndarray:
        times = []
        for _ in range(iterations):
            buffer.copy_(source)
            dist.barrier()
            start_ns = time.perf_counter_ns()
            dist.all_reduce(buffer, group=group)
            times.append(time.perf_counter_ns() - start_ns)
        dist.barrier()
        return np.array(times)
    return loop


def report(folder: Path, size: int) -> bool:
    """Print the quartiles of all loops and their ratios; return whether the goal is missed."""
    ranks = np.array([np.load(folder / f"{size}-{rank}.npy") for rank in range(RANKS)])
    times_us = ranks.max(axis=0).reshape(3, -1) / 1e3
    quartiles = np.percentile(times_us, [25, 50, 75], axis=1).T
    goal = GOAL_LARGE if size >= LARGE_BYTES else GOAL_SMALL
    ratios = quartiles / quartiles[1]
    print(f"{size} B, {times_us.shape[1]} iterations each; q25, median, q75 in us, over plain's:")
    for name, times, ratio in zip(("hpcbench", "plain", "plain again"), quartiles, ratios,
                                  strict=True):
        print(f"  {name:<12}" + ", ".join(f"{item:8.1f}" for item in times) + "   "
              + ", ".join(f"{item:.3f}" for item in ratio))
    met = ratios[0, 1] <= goal
    print(f"  ratio of medians {ratios[0, 1]:.3f}, goal {goal}: {'met' if met else 'missed'}")
    return not met


if __name__ == "__main__":
    main()

"""What does measuring through hpcbench add to an all_reduce? The same in plain torch, beside it.

    python benchmarks/overhead.py [--passes 192] [--warmup 5] [--iterations 50] [--sizes 8 65536]

Two gloo ranks, one job: in every pass four loops take turns in the same processes, with the same
barrier of the shared-memory control group before each call: the worker's measuring loop, the same
without checks of results, a plain loop, and that plain loop once more (A/A). All orders of them
take turns, and so do four groups and their buffers with the loops: groups differ by more than loops
do. Passes are as long as the shipped sweep's; their warm-ups count on no side. An iteration's time
is the maximum over ranks of end - start, as in the results.

gloo on few cores has two modes, one of them a tick of the kernel longer. So samples are divided
once for all loops, where two groups of them have the least variance of their logarithms. What is
compared is the median of the fast mode, and beside it the share of the slow one. Intervals are of
95 %, from 2,000 bootstrap samples of whole passes, the same passes for all loops. The goal is met
if the upper end of the difference is at most 10 us. ``--control gloo`` lines up with dist.barrier.
``--parts`` also tells what lies between barriers and calls; its clock readings are in all loops.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hpcbench.backends.devices import CpuDevice
from hpcbench.backends.groups import GlooControl, open_groups
from hpcbench.kinds.collective.plan import Collective
from hpcbench.kinds.collective.run import CollectiveRunner
from hpcbench.measurement.control import Control, SharedControl, SharedProgress, bytes_of
from hpcbench.measurement.loop import (
    FixedCount,
    SampleSchedule,
    Surroundings,
    after_barrier,
    measure,
)
from hpcbench.measurement.process import shared_memory
from hpcbench.operations.place import Place
from hpcbench.statistics.steady import best_split
from launching import fail

GOAL_US, RANKS, TIMEOUT_S, RESAMPLED = 10.0, 2, 300.0, 2000
NAMES = ("hpcbench", "unchecked", "plain", "plain again")
PLAIN = NAMES.index("plain")
PARTS = ("barrier to start", "call", "end to barrier")
NOW = time.perf_counter_ns
Loop = Callable[[int], np.ndarray]


def main() -> None:
    """Run both ranks and print the differences; or be one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=192)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 65536, 1048576])
    parser.add_argument("--control", choices=("shared", "gloo"), default="shared")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        one_rank(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        fd = shared_memory("hpcbench-overhead", bytes_of(RANKS))
        ranks = [subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--folder", folder, "--rank", str(rank),
             "--fd", str(fd)], pass_fds=[fd],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
            for rank in range(RANKS)]
        if any([rank.wait() for rank in ranks]):
            fail("a rank failed")
        missed = []
        for size in given.sizes:
            ranks = np.array([np.load(f"{folder}/{size}-{rank}.npy") for rank in range(RANKS)])
            missed.append(report((ranks[..., 1] - ranks[..., 0]).max(axis=0) / 1e3, size))
            if given.parts:
                report_parts(ranks)
    sys.exit(int(any(missed)))


def one_rank(given: argparse.Namespace) -> None:
    """Measure every size in turns; keep what this rank finds (`in_turns`)."""
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", init_method=f"file://{given.folder}/store", rank=given.rank,
                            world_size=RANKS, timeout=timeout)
    lines = [range(RANKS)]
    places = [Place(given.rank, RANKS, open_groups("gloo", timeout, lines, given.rank),
                    torch.device("cpu")) for _ in NAMES]
    control: Control = GlooControl()
    if given.control == "shared":
        control = SharedControl(given.fd, given.rank, RANKS, TIMEOUT_S)
    meeting = Watched(control) if given.parts else control
    gc.collect()
    gc.freeze()  # as the template process does before it forks workers
    for size in given.sizes:
        operations = [all_reduce(size, place) for place in places]
        loops = [(through_hpcbench(operation, meeting, given, validate=True),
                  through_hpcbench(operation, meeting, given, validate=False),
                  plain(operation, meeting)) for operation in operations]
        np.save(given.folder / f"{size}-{given.rank}.npy", in_turns(loops, given, meeting))
    dist.barrier()
    dist.destroy_process_group()


class Watched:
    """A control group's barrier, and when it was entered and left, in ns."""

    def __init__(self, control: Control) -> None:
        self._barrier = control.barrier
        self.log: list[tuple[int, int]] = []

    def barrier(self) -> None:
        """Return when every rank has called."""
        entered_ns = NOW()
        self._barrier()
        self.log.append((entered_ns, NOW()))


def in_turns(
    loops: Sequence[tuple[Loop, ...]], given: argparse.Namespace, meeting: Any,
) -> np.ndarray:
    """Return (name, pass, iteration, moment) in ns; ``loops`` are those of each group.

    The moments are start and end, and where barriers are watched, when the one before was left
    and the one behind was entered.
    """
    n_each = given.warmup + given.iterations
    for of_group in loops:
        for loop in of_group:
            loop(n_each)  # connects the group
    times = np.zeros((len(NAMES), given.passes, given.iterations, 4), dtype=np.int64)
    orders = list(permutations(range(len(NAMES))))
    for number in range(given.passes):
        for which in orders[number % len(orders)]:
            group = (which + number // len(orders)) % len(NAMES)
            if given.parts:
                meeting.log.clear()
            stamps = loops[group][min(which, PLAIN)](n_each)
            times[which, number, :, :2] = stamps[given.warmup:]
            if given.parts:
                barriers = np.array(meeting.log[given.warmup:])
                times[which, number, :, 2] = barriers[:-1, 1]
                times[which, number, :, 3] = barriers[1:, 0]
    return times


def all_reduce(size_bytes: int, place: Place) -> Any:
    """Return an all_reduce of the package, whose buffers the plain loop takes, too."""
    spec = Collective(
        collective="all_reduce", dtype="fp32", op="sum", root=None, in_place=True,
        requested_bytes=size_bytes, size_bytes=size_bytes, count=size_bytes // 4)
    return CollectiveRunner().open(spec, place, validate=True)


def through_hpcbench(
    operation: Any, control: Any, given: argparse.Namespace, *, validate: bool,
) -> Loop:
    """Return the worker's loop over the operation, results checked as in a run if asked for."""
    device, progress = CpuDevice(), SharedProgress.create(given.warmup + given.iterations)

    def loop(iterations: int) -> np.ndarray:
        around = Surroundings(
            after_barrier(control), FixedCount(iterations - given.warmup), control.barrier,
            NOW)
        progress.begin(1)
        schedule = SampleSchedule(given.warmup, 1, validate=validate, settles=True)
        assert not measure(operation, device, progress, schedule, around).wrong
        return progress.rows()[:, :2]
    return loop


def plain(operation: Any, control: Any) -> Loop:
    """Return what one would write without hpcbench."""
    source, buffer, group = operation.source, operation.output, operation.place.group
    barrier = control.barrier

    def loop(iterations: int) -> np.ndarray:
        times = []
        for _ in range(iterations):
            buffer.copy_(source)
            barrier()
            start_ns = NOW()
            dist.all_reduce(buffer, group=group)
            times.append((start_ns, NOW()))
        barrier()
        return np.array(times)
    return loop


def report(times_us: np.ndarray, size: int) -> bool:
    """Print fast medians, slow shares and differences to plain; return whether the goal is missed.

    ``times_us`` is (name, pass, iteration).
    """
    split_us = float(np.exp(best_split(np.sort(np.log(times_us.ravel())))))
    fast = [fast_median(passes, split_us) for passes in times_us]
    slow = (times_us > split_us * (1 + 1e-9)).mean(axis=(1, 2))
    print(f"{size} B, {times_us.shape[1]} passes of {times_us.shape[2]}; "
          f"the slow mode begins above {split_us:.0f} us")
    for name, median, share in zip(NAMES, fast, slow, strict=True):
        print(f"  {name:<12} fast median {median:8.1f} us, slow {100 * share:5.1f} %")
    low, high = differences(times_us, split_us)
    met = high[0] <= GOAL_US
    for at, name in enumerate(NAMES):
        if at != PLAIN:
            print(f"  {name:<12} - plain: {fast[at] - fast[PLAIN]:+7.1f} us ({low[at]:+.1f} to "
                  f"{high[at]:+.1f}), {fast[at] / fast[PLAIN]:.3f} times")
    print(f"  upper end at most {GOAL_US:g} us: {'met' if met else 'missed'}")
    return not met


def report_parts(ranks: np.ndarray) -> None:
    """Print medians of what lies between barriers and calls, of (rank, name, ...) in ns."""
    start, end, left, entered = np.moveaxis(ranks, -1, 0) / 1e3
    skew = np.abs(start[0] - start[1])
    for at, name in enumerate(NAMES):
        parts = [np.median(part[:, at]) for part in (start - left, end - start, entered - end)]
        print(f"  {name:<12} " + ", ".join(
            f"{part} {value:.2f}" for part, value in zip(PARTS, parts, strict=True))
            + f", starts of ranks apart {np.median(skew[at]):.2f} us")


def fast_median(times_us: np.ndarray, split_us: float) -> float:
    """Return the median of the samples of the fast mode."""
    return float(np.median(times_us[times_us <= split_us * (1 + 1e-9)]))


def differences(times_us: np.ndarray, split_us: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the intervals, (name,), of the difference of fast medians to plain's."""
    drawn = np.random.default_rng(17).integers(
        times_us.shape[1], size=(RESAMPLED, times_us.shape[1]))
    medians = np.array([[fast_median(loop[passes], split_us) for loop in times_us]
                        for passes in drawn])
    low, high = np.percentile(medians - medians[:, PLAIN:PLAIN + 1], [2.5, 97.5], axis=0)
    return low, high


if __name__ == "__main__":
    main()

"""Do the supervisors disturb what they measure? Two wake-up intervals, interleaved in one job.

    python benchmarks/quiet.py [--ranks 4] [--passes 40] [--intervals 0.2 2.0 0.001]

The first interval is the shipped one, the second ten times as quiet: their times must agree within
3 %. A third one that is known to be too fast shows that the comparison would see a difference.
Each pass runs every interval once, so that drift of the machine falls on all alike; gloo on few
cores is bimodal, so quartiles are compared as well as medians.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcbench.reduce.results_file import open_results
from hpcbench.trace.schema import Flag
from launching import run_sweep

ALLOWED = 0.03


def main() -> None:
    """Run the job and print each interval's quartiles over those of the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--sizes", nargs="+", default=["8", "64KiB"])
    parser.add_argument("--intervals", nargs="+", type=float, default=[0.2, 2.0, 0.001])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), given)
        table, worst = compared(Path(folder) / "latest", given.intervals)
    print("\n".join(table))
    print(f"median at {given.intervals[1]:g} s over {given.intervals[0]:g} s: off by "
          f"{100 * worst:.1f} % at most, allowed {100 * ALLOWED:.0f} %")
    sys.exit(int(worst > ALLOWED))


def run(folder: Path, given: argparse.Namespace) -> None:
    """Run the sweep under the mpirun of this environment."""
    config = {
        "name": "quiet", "output": {"plots": False, "report": False},
        "measure": {"warmup": 5, "iterations": given.iterations, "passes": given.passes,
                    "mode": "barrier_start", "canary": False, "noise_check_s": 0},
        "benchmarks": [{"kind": "collective", "collective": "all_reduce", "backend": "gloo",
                        "size": given.sizes, "poll_interval_s": given.intervals}]}
    run_sweep(given.ranks, config, folder)


def compared(folder: Path, intervals: Sequence[float]) -> tuple[list[str], float]:
    """Return a line per size and interval, and how far the second interval's median is off.

    A line has quartiles and their ratio to the first interval's.
    """
    worst = 0.0
    lines = [f"{'size':>8} {'wake-up':>8} {'q25 us':>9} {'median us':>9} {'q75 us':>9}  "
             "ratio of q25, median, q75 to the first"]
    with open_results(folder) as file:
        for size in dict.fromkeys(item.case.workload.size_bytes for item in file.results.cases):
            quartiles = {}
            for item in file.results.cases:
                samples = file.samples(item.case.case_id)
                if item.case.workload.size_bytes != size or samples is None:
                    continue
                timed = (samples.flags[0] & Flag.WARMUP) == 0
                folded = (samples.end_ns - samples.start_ns).max(axis=0)[timed] / 1e3
                quartiles[item.case.wakeup_s] = np.percentile(folded, [25, 50, 75])
            for interval in intervals:
                ratio = quartiles[interval] / quartiles[intervals[0]]
                if interval == intervals[1]:
                    worst = max(worst, abs(ratio[1] - 1))
                low, middle, high = quartiles[interval]
                lines.append(f"{size:>8} {interval:>6g} s {low:>9.1f} {middle:>9.1f} {high:>9.1f}  "
                             + ", ".join(f"{value:.3f}" for value in ratio))
    return lines, worst


if __name__ == "__main__":
    main()

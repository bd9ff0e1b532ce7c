"""Does a check between samples disturb the next one? Both kinds of samples are of one run.

    python benchmarks/checking.py [--ranks 2] [--passes 20] [--iterations 200] [--sizes 8 4MiB]

A few samples of each case are checked (docs/method.md). The sample right after a checked one is
compared with the median of those around it: of the three before the checked one, and of the second
to the fourth after it. So the machine's drift falls on both alike.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.results_file import open_results
from hpcbench.trace.schema import UNTIMED, Flag
from launching import run_sweep

Times = npt.NDArray[np.float64]


def main() -> None:
    """Run the job and print, for each size, the ratio of samples after a check to their neighbours.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--sizes", nargs="+", default=["8", "64KiB", "4MiB"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), given)
        print("\n".join(compared(Path(folder) / "latest")))


def run(folder: Path, given: argparse.Namespace) -> None:
    """Run the sweep under the mpirun of this environment."""
    config = {
        "name": "checking", "output": {"plots": False, "report": False},
        "measure": {"warmup": 5, "iterations": given.iterations, "passes": given.passes,
                    "mode": "barrier_start", "canary": False, "noise_check_s": 0},
        "benchmarks": [{"kind": "collective", "collective": "all_reduce", "backend": "gloo",
                        "size": given.sizes}]}
    run_sweep(given.ranks, config, folder)


def compared(folder: Path) -> list[str]:
    """Return a line for each size."""
    lines = [f"{'size':>8} {'checks':>6}  after a check over its neighbours: q25, median, q75"]
    with open_results(folder) as file:
        for item in file.results.cases:
            samples = file.samples(item.case.case_id)
            if samples is None:
                continue
            times = (samples.end_ns - samples.start_ns).max(axis=0) / 1e3
            ratios = after_checks(times, samples.flags[0])
            quartiles = ", ".join(f"{value:.3f}" for value in np.percentile(ratios, [25, 50, 75]))
            lines.append(f"{item.case.workload.size_bytes:>8} {len(ratios):>6}  {quartiles}")
    return lines


def after_checks(times: Times, flags: npt.NDArray[np.int64]) -> Times:
    """Return each sample after a checked one over the median of its neighbours.

    ``times`` and ``flags`` are of all samples in their order. Neighbours are timed and unchecked.
    """
    plain = (flags & (UNTIMED | Flag.CHECKED)) == 0
    ratios = []
    for row in np.flatnonzero(flags & Flag.CHECKED):
        around = [near for near in (*range(row - 3, row), *range(row + 2, row + 5))
                  if 0 <= near < len(times) and plain[near] and not flags[near - 1] & Flag.CHECKED]
        if len(around) >= 4 and plain[row + 1]:
            ratios.append(times[row + 1] / np.median(times[around]))
    return np.array(ratios)


if __name__ == "__main__":
    main()

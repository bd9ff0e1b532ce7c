"""How long is a sweep held up by a worker that is killed?

    python benchmarks/restart.py [--ranks 4] [--faults 12] [--kind kill]

From the last stamp of the faulty case on any rank, which is the failure within an iteration, to the
first iteration of the healthy case behind it: everyone is told, evidence is taken, the verdict is
agreed, recorded, and new workers are forked and joined. Goal: 0.5 s. Also prints how often the
right rank is blamed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from hpcbench.reduce.results_file import open_results
from launching import fail, run_sweep

GOAL_S = 0.5


def main() -> None:
    """Run the job and print the quartiles of the hold-up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--kind", default="kill")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), given)
        held_up_s, right = held_up(Path(folder) / "latest", given.ranks)
    low, middle, high = np.percentile(held_up_s, [25, 50, 75])
    print(f"{given.kind}, {given.ranks} ranks, {len(held_up_s)} faults: q25 {low:.3f} s, median "
          f"{middle:.3f} s, q75 {high:.3f} s, longest {max(held_up_s):.3f} s (goal {GOAL_S} s); "
          f"right rank blamed {right} of {len(held_up_s)} times")
    sys.exit(int(middle > GOAL_S or right < len(held_up_s)))


def run(folder: Path, given: argparse.Namespace) -> None:
    """Run a sweep in which every other case has a fault, on one rank after the other."""
    sizes = [1024 * (number + 1) for number in range(2 * given.faults)]
    config = {
        "name": "restart", "output": {"plots": False, "report": False},
        "measure": {"warmup": 1, "iterations": 4, "passes": 1, "canary": False,
                    "order": "planned", "mode": "barrier_start",
                    "noise_check_s": 0},
        "launch": {"timeout_s": 30},
        "fault": [{"case": f"* {size}B *", "rank": number % given.ranks, "kind": given.kind,
                   "iteration": 1 + number % 3} for number, size in enumerate(sizes[::2])],
        "benchmarks": [{"kind": "collective", "collective": "all_reduce", "backend": "gloo",
                        "size": [str(size) for size in sizes]}]}
    run_sweep(given.ranks, config, folder, accepted=(0, 1))


def held_up(folder: Path, ranks: int) -> tuple[list[float], int]:
    """Return the seconds of each fault, and how many of them were put down to the right rank."""
    found, right = [], 0
    with open_results(folder) as file:
        cases = file.results.cases
        for number, (failed, healthy) in enumerate(zip(cases[::2], cases[1::2], strict=True)):
            before = file.samples(failed.case.case_id)
            after = file.samples(healthy.case.case_id)
            right += failed.blamed_rank == number % ranks
            if before is None or after is None:
                fail(f"no samples: {failed.reason}; {healthy.reason}")
            found.append((after.start_ns[:, 0].min() - before.end_ns.max()) / 1e9)
    return found, right


if __name__ == "__main__":
    main()

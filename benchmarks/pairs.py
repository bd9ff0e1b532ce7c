"""How long do the pairs of many ranks take, and what does a round cost beside its messages?

    python benchmarks/pairs.py [--ranks 16] [--iterations 3]

One job: latency and bandwidth between every two ranks on gloo, all pairs of a round at once, then
one pair alone. Printed are the wall time of the job from mpirun's start to its end, and of each
case its links, the time of a tournament and the share of it in which a rank measures. Goals: every
case is ok on every link, and the job takes at most 60 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from hpcbench.kinds.hardware.derive import PairsRecord
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.results_file import open_results
from launching import run_sweep

GOAL_S = 60.0


def main() -> None:
    """Run the job; tell missed goals by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=3)
    given = parser.parse_args()
    config = {
        "name": "pairs", "output": {"plots": False, "report": False},
        "measure": {"warmup": 1, "iterations": given.iterations, "passes": 1, "canary": False,
                    "noise_check_s": 0},
        "launch": {"timeout_s": 60},
        "benchmarks": [{"kind": "hardware", "test": "pairs", "concurrent": [True, False]}]}
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.perf_counter()
        results = run_sweep(given.ranks, config, Path(folder), accepted=(0, 1))
        wall_s = time.perf_counter() - began_s
        with open_results(results) as file:
            whole = [_is_whole(item, file.results.record_of(item)["pairs"], given.ranks)
                     for item in file.results.cases]
    missed = wall_s > GOAL_S or not all(whole)
    print(f"{given.ranks} ranks: {wall_s:.1f} s from start to end; goals: every link measured, at "
          f"most {GOAL_S:g} s: {'missed' if missed else 'met'}")
    sys.exit(int(missed))


def _is_whole(item: CaseResult, found: PairsRecord, ranks: int) -> bool:
    """Print what a case found; return whether it is ok and has every link both ways."""
    if item.statistics is None or item.timing is None or item.timing.steps is None:
        print(f"{item.case.label}: {item.status}: {item.reason}")
        return False
    links = sum(one.links for one in found.distances)
    median_ms = item.statistics.median_s * 1e3
    print(f"{item.case.label}: {links} links, a tournament {median_ms:.1f} ms, of which a rank "
          f"measures {1 - item.timing.steps.other_share:.0%}", flush=True)
    return item.status == "ok" and links == ranks * (ranks - 1)


if __name__ == "__main__":
    main()

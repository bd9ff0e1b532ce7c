"""How often does the diagnosis name the late rank of real runs, and how often one of a clean run?

    python benchmarks/diagnose_runs.py [--runs 20] [--late 0.2] [--size 4MiB] [--passes 9]

First a clean run tells how long an all_reduce of 2 ranks takes. Then faulty and clean runs take
turns. In a faulty one the fault ``slow`` makes one rank start each call later, by ``late`` of this
time; the ranks take turns. Goals: the right rank, and no other, is named in 18 of 20 faulty runs,
and no rank in any clean one. The exit code is 1 if one is missed, 2 if a run failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from hpcbench.analysis.diagnose import Diagnosis, diagnose
from hpcbench.answers.answer import Run, TopicOptions
from hpcbench.reduce.results_file import open_results
from launching import fail, run_sweep

RANKS, GOAL = 2, 0.9


def swept(given: argparse.Namespace, slow: dict[str, Any] | None) -> tuple[Diagnosis, float]:
    """Return what the diagnosis says of one run, and the median time of its call."""
    config: dict[str, Any] = {
        "name": "diagnose", "output": {"plots": False, "report": False},
        "measure": {"warmup": 2, "iterations": given.iterations, "passes": given.passes,
                    "canary": False, "noise_check_s": 0},
        "launch": {"timeout_s": 30},
        "benchmarks": [{"kind": "collective", "collective": "all_reduce", "backend": "gloo",
                        "size": [given.size]}]}
    if slow:
        config["fault"] = [slow]
    with tempfile.TemporaryDirectory() as name:
        folder = run_sweep(RANKS, config, Path(name), accepted=(0, 1))
        with open_results(folder) as file:
            (item,) = file.results.cases
            if item.statistics is None:
                fail(f"the case is {item.status}: {item.reason}")
            found = diagnose([Run("FILE", file.results, file)], TopicOptions())
            return found, item.statistics.median_s


def main() -> int:
    """Print a line for each run, then how many were right; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--late", type=float, default=0.2)
    parser.add_argument("--size", default="4MiB")
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--iterations", type=int, default=10)
    given = parser.parse_args()
    _, call_s = swept(given, None)
    late_s = given.late * call_s
    print(f"a call takes {1e3 * call_s:.3f} ms; a slow rank starts {1e3 * late_s:.3f} ms later")
    right = named = 0
    for number in range(given.runs):
        rank = number % RANKS
        for slow in ({"kind": "slow", "rank": rank, "seconds": late_s}, None):
            found, _ = swept(given, slow)
            clear = [one for one in found.checks if one.is_clear]
            right += slow is not None and {one.rank for one in clear} == {rank}
            named += slow is None and bool(clear)
            for one in found.checks:
                print(f"{number:3} {f'rank {rank} slow' if slow else 'clean':<12} rank {one.rank} "
                      f"is {1e3 * one.behind_s.value:.3f} ms [{1e3 * one.behind_s.low:.3f}, "
                      f"{1e3 * one.behind_s.high:.3f}] after the next"
                      f"{': named' if one.is_clear else ''}", flush=True)
    met = right >= GOAL * given.runs and not named
    print(f"right rank named in {right} of {given.runs} faulty runs; any rank in {named} of "
          f"{given.runs} clean ones: {'met' if met else 'missed'}")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())

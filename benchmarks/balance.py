"""Does dynamic load balancing help where one of two ranks is slow, and cost little where none is?

    python benchmarks/balance.py [--passes 7] [--iterations 12]

Two ranks, each pinned to a core of its own; strategy data with balance static and dynamic, which
take turns, pass by pass, in one job. Three jobs: nobody is slow; rank 1 shares its core with a
process that does nothing but count, so that it gets about half of it; and each sample takes rank 1
four times as long as in the first job (fault ``slow_samples``, which waits and computes nothing).
Where one is half as fast, a step can take 2/3 of the time, with samples divided 2 to 1; where it is
a quarter as fast, 2/5. Goals: 1.2 and 1.5 times as fast; where none is slow, at most 5 % slower.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.results_file import open_results
from launching import fail, run_sweep

GOAL_ALIKE, GOAL_HALF, GOAL_QUARTER = 0.95, 1.2, 1.5
PINNED = ["sh", "-c", 'exec taskset -c "$(( ${PMI_RANK:-$OMPI_COMM_WORLD_RANK} ))" "$@"', "sh"]
"""Runs a command on the core with the rank's number."""
BLOCK: dict[str, Any] = {
    "kind": "training", "model": "transformer-tiny", "layers": 2, "seq_length": 32,
    "batch_size": 16, "backend": "gloo", "strategies": {"data": {"balance": ["static", "dynamic"]}}}


def main() -> None:
    """Run the three jobs, print a table; tell missed goals by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=12)
    given = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}")
    print(f"{'rank 1':<28}{'static ms':>10}{'dynamic ms':>11}{'samples':>9}  "
          "static / dynamic, median (least..greatest of passes)")
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), given.passes, given.iterations)
        alike = job.run()
        met = report("as fast as rank 0", alike, GOAL_ALIKE)
        with spinning_on(1):
            met &= report("shares its core", job.run(), GOAL_HALF)
        extra_s = 3 * median_s(alike[0]) / BLOCK["batch_size"]
        met &= report(f"{extra_s * 1e3:.1f} ms a sample longer", job.run(extra_s), GOAL_QUARTER)
    sys.exit(int(not met))


class Job:
    """How the jobs are run."""

    def __init__(self, folder: Path, passes: int, iterations: int) -> None:
        self._folder = folder
        self._measure = {
            "warmup": 6, "iterations": iterations, "passes": passes, "mode": "barrier_start",
            "canary": False, "noise_check_s": 0}

    def run(self, extra_s: float = 0.0) -> list[CaseResult]:
        """Return the cases static and dynamic; a sample takes rank 1 ``extra_s`` longer."""
        config: dict[str, Any] = {
            "name": "balance", "output": {"plots": False, "report": False},
            "measure": self._measure,
            "launch": {"timeout_s": 300}, "benchmarks": [BLOCK]}
        if extra_s:
            config["fault"] = [{"rank": 1, "kind": "slow_samples", "seconds": extra_s}]
        latest = run_sweep(2, config, self._folder, options=PINNED, env={"OMP_NUM_THREADS": "1"})
        with open_results(latest) as file:
            return list(file.results.cases)


@contextlib.contextmanager
def spinning_on(core: int) -> Iterator[None]:
    """Keep a core busy with a process of its own."""
    with subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c",
                           "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def report(who: str, cases: list[CaseResult], goal: float) -> bool:
    """Print the row of a job; return whether its goal is met."""
    static, dynamic = cases
    shares = [dynamic.detail[str(rank)]["balance"]["samples"] for rank in range(2)]
    assert static.timing is not None
    assert dynamic.timing is not None
    ratios = sorted(one / other for one, other in zip(
        static.timing.pass_medians_s, dynamic.timing.pass_medians_s, strict=True) if one and other)
    middle = ratios[len(ratios) // 2]
    print(f"{who:<28}{median_s(static) * 1e3:>10.1f}{median_s(dynamic) * 1e3:>11.1f}"
          f"{f'{shares[0]} + {shares[1]}':>9}  {middle:.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f}), "
          f"goal {goal:g}: {'met' if middle >= goal else 'missed'}", flush=True)
    return middle >= goal


def median_s(item: CaseResult) -> float:
    """Return the median of a case that ran."""
    if item.statistics is None:
        fail(f"{item.case.label} is {item.status}: {item.reason}")
    return item.statistics.median_s


if __name__ == "__main__":
    main()

"""What does a case cost beyond what it measures, and where does that time go?

    python benchmarks/control.py [--ranks 2] [--cases 200] [--iterations 20]

A sweep of short all_reduce cases on gloo. The cost of a case is the time between its worker's end
and the next one's begin: set-up, warm-up, timing and checking all lie inside a worker's window.
Every rank is the real main job with a stop watch around the parts of it; rank 0's are printed, of
all cases but the first, which starts the workers. Goal: 20 ms a case.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import hpcbench.launch.supervisor
import hpcbench.launch.worker_group
from hpcbench.launch.communicator import MpiCommunicator
from hpcbench.measurement.control import SharedProgress
from hpcbench.resume import RunRequest
from hpcbench.run import run_command
from hpcbench.trace.journal import Journal
from hpcbench.trace.sealed import open_trace, trace_path
from launching import mpirun

GOAL_MS = 20.0


def main() -> None:
    """Run the sweep and print the shares; or be one of its ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        sys.exit(timed_rank(given.rank_of))
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), given)
        sys.exit(int(report(Path(folder))))


def run(folder: Path, given: argparse.Namespace) -> None:
    """Run the sweep under the mpirun of this environment."""
    sizes = [str(8 * (number + 1)) for number in range(given.cases)]
    config = {
        "name": "control", "output": {"plots": False, "report": False, "folder": str(folder)},
        "measure": {"warmup": 2, "iterations": given.iterations, "passes": 1, "canary": False,
                    "noise_check_s": 0},
        "benchmarks": [{"kind": "collective", "collective": "all_reduce", "backend": "gloo",
                        "size": sizes}]}
    (folder / "config.json").write_text(json.dumps(config))
    mpirun(given.ranks, [__file__, "--rank-of", folder])


def timed_rank(folder: Path) -> int:
    """Be one rank of the main job, with a stop watch around its parts; rank 0 keeps the times."""
    Runner = hpcbench.launch.supervisor._GenerationRunner
    spent: dict[str, list[float]] = defaultdict(list)
    for owner, name in ((MpiCommunicator, "allgather"), (MpiCommunicator, "barrier"),
                        (Journal, "append"), (SharedProgress, "rows"),
                        (hpcbench.launch.worker_group, "await_answer"),
                        (Runner, "_run_case")):
        setattr(owner, name, timed(getattr(owner, name), spent[name]))
    inner = Runner._run_case
    cases: list[dict[str, float]] = []

    def one_case(team: Any, case: Any) -> Any:
        for times in spent.values():
            times.clear()
        spent["report"] = []
        job = team.job
        team.job = replace(job, report=timed(job.report, spent["report"]))
        hearing = inner(team, case)
        team.job = job
        cases.append({name: sum(times) for name, times in spent.items()})
        if job.comm.rank == 0 and len(cases) == len(job.attempt.plan.cases):
            (folder / "spent.json").write_text(json.dumps(cases))
        return hearing

    Runner._run_case = one_case
    return run_command(RunRequest(folder / "config.json", ()))


def timed(call: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    """Return ``call`` with the seconds of every call added to ``times``."""
    def with_stop_watch(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **options)
        finally:
            times.append(time.perf_counter() - began)
    return with_stop_watch


def report(folder: Path) -> bool:
    """Print what the parts take a case; return whether the goal is missed."""
    records = list(open_trace(trace_path(folder / "latest" / "traces", 0)).records())
    cases = json.loads((folder / "spent.json").read_text())[1:]
    begin_ns, end_ns = (np.array([getattr(item, name) for item in records])
                        for name in ("begin_ns", "end_ns"))
    cost_ms = (begin_ns[1:] - end_ns[:-1]) / 1e6
    window_ms = (end_ns - begin_ns)[1:] / 1e6
    parts = {name: np.array([case[name] * 1e3 for case in cases]) for name in cases[0]}
    shown = {
        "to the worker and back": parts["await_answer"] - window_ms,
        "agree on the verdict": parts["allgather"], "take the samples": parts["rows"],
        "journal, fdatasync": parts["append"], "all have recorded": parts["barrier"],
        "progress line": parts["report"]}
    shown["rest of the supervisor"] = parts["_run_case"] - window_ms - sum(shown.values())
    print(f"{len(records)} cases; worker's window {window_ms.mean():.2f} ms a case")
    for name, times_ms in shown.items():
        print(f"  {name:<24} {times_ms.mean():6.2f} ms a case, "
              f"{times_ms.mean() / cost_ms.mean():4.0%}")
    print(f"  {'control and record':<24} {cost_ms.mean():6.2f} ms a case (median "
          f"{np.median(cost_ms):.2f}, p95 {np.percentile(cost_ms, 95):.2f}; goal {GOAL_MS:g})")
    return bool(cost_ms.mean() > GOAL_MS)


if __name__ == "__main__":
    main()

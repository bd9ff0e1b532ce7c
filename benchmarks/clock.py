"""How far are synchronised clocks from the truth, right away and later?

    python benchmarks/clock.py [--ranks 2 4] [--syncs 10] [--every 0]

All ranks run on this machine, whose clock is the truth. Each rank has a synthetic clock, a known
function of it: off by up to 1e15 ns, fast or slow by up to 30 ppm. So errors are exact, and those
3 and 10 s later need no waiting. "between" is what results use: stamps between two
synchronisations, corrected from both; with ``--every 30`` they are as far apart as in a job.
Goals: 1 us at the sync and 5 us until the next where every rank has a core, else 5 us and 25 us
after 3 s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hpcbench.launch.clocks import synchronise
from hpcbench.launch.communicator import Communicator
from hpcbench.launch.session import open_session
from hpcbench.trace.clock import ClockModel, bound_at, to_global
from launching import mpirun

SECOND = 10**9
OFFSETS_NS = (5, 10**15 + 7, -3 * 10**14, 123_456_789)
DRIFTS_PPB = (12_000, -30_000, 30_000, -7_000)
HOLDS_S = (0, 3, 10)
GOALS_FREE_US, GOALS_SHARED_US = (1, 5, 5), (5, 25, None)


def main() -> None:
    """Run a job of each size and print a table; or be one of its ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--syncs", type=int, default=10)
    parser.add_argument("--every", type=float, default=0.0, help="seconds between them")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        with open_session(os.environ) as (comm, _):
            one_rank(comm, given.syncs, given.every)
        return
    missed = [report(ranks, run(ranks, given)) for ranks in given.ranks]
    sys.exit(int(any(missed)))


def run(ranks: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Run one job under the mpirun of this environment; return what its ranks found."""
    done = mpirun(ranks, [__file__, "--rank", "--syncs", str(given.syncs),
                          "--every", str(given.every)])
    return [json.loads(line) for line in done.stdout.splitlines()]


@dataclass(frozen=True)
class Clock:
    """A synthetic clock, from the true one; exact, and its own inverse within 1 ns."""

    begin_ns: int
    offset_ns: int
    drift_ppb: int

    def at(self, true_ns: int) -> int:
        """Return what it shows at a true time."""
        return true_ns + self.offset_ns + (true_ns - self.begin_ns) * self.drift_ppb // SECOND

    def true_ns(self, local_ns: int) -> int:
        """Return the true time at which it shows ``local_ns``."""
        since_ns = local_ns - self.begin_ns - self.offset_ns
        return self.begin_ns + since_ns * SECOND // (SECOND + self.drift_ppb)


def one_rank(comm: Communicator, syncs: int, every_s: float) -> None:
    """Synchronise repeatedly; all ranks but the first print their errors and limits, in ns."""
    begin_ns = comm.bcast(time.perf_counter_ns())
    root, mine = (Clock(begin_ns, OFFSETS_NS[rank % 4], DRIFTS_PPB[rank % 4])
                  for rank in (0, comm.rank))
    models: list[ClockModel] = []
    found: dict[str, list[Any]] = {name: [] for name in ("took_s", "later", "between")}
    for _ in range(syncs):
        began = time.monotonic()
        models.append(synchronise(
            comm, lambda: mine.at(time.perf_counter_ns()), f"clock {comm.rank}").model)
        found["took_s"].append(time.monotonic() - began)
        now_ns = time.perf_counter_ns()
        found["later"].append(errors_and_limits(
            models[-1:], mine, root, [now_ns + hold * SECOND for hold in HOLDS_S]))
        time.sleep(max(0.0, every_s - (time.monotonic() - began)))
    for pair in pairwise(models):
        first, last = (mine.true_ns(model.t_ref_ns) for model in pair)
        found["between"].append(errors_and_limits(
            pair, mine, root, [int(true_ns) for true_ns in np.linspace(first, last, 21)[1:-1]]))
    if comm.rank:
        print(json.dumps(found) + "\n", end="", flush=True)


def errors_and_limits(
    models: Sequence[ClockModel], mine: Clock, root: Clock, times: Sequence[int],
) -> list[list[float]]:
    """Return |error| and its reported limit at each of these true times."""
    local = np.array([mine.at(true_ns) for true_ns in times])
    errors = to_global(models, local) - np.array([root.at(true_ns) for true_ns in times])
    return [np.abs(errors).tolist(), bound_at(models, local).tolist()]


def report(ranks: int, found: Sequence[dict[str, Any]]) -> bool:
    """Print errors over all ranks and synchronisations; return if a goal or a limit is missed."""
    cores = len(os.sched_getaffinity(0))
    goals = GOALS_FREE_US if ranks <= cores else GOALS_SHARED_US
    took_s = np.array([rank["took_s"] for rank in found])
    later = np.array([row for rank in found for row in rank["later"]]) / 1e3
    between = np.array([row for rank in found for row in rank["between"]]) / 1e3
    print(f"{ranks} ranks, {cores} cores, load {os.getloadavg()[0]:.1f}; {len(later)} comparisons; "
          f"a synchronisation took {np.median(took_s):.2f} s, at most {took_s.max():.2f} s\n"
          f"  {'':>12} {'median us':>10} {'worst us':>9} {'goal us':>8} {'median limit us':>16}")
    rows = [*((f"after {hold} s", later[:, :, index], goal)
              for index, (hold, goal) in enumerate(zip(HOLDS_S, goals, strict=True))),
            *([("between", between, None)] if between.size else [])]
    missed = False
    for name, values, goal in rows:
        errors, limits = values[:, 0], values[:, 1]
        print(f"  {name:>12} {np.median(errors):>10.3f} {errors.max():>9.3f} {goal or '-':>8} "
              f"{np.median(limits):>16.2f}")
        missed |= goal is not None and errors.max() > goal
        if above := int((errors > limits).sum()):
            print(f"  {above} of them above the limit that was reported for them")
            missed = True
    return bool(missed)


if __name__ == "__main__":
    main()

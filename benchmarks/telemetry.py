"""Does telemetry disturb what is measured? The samples beside a reading, and those between two.

    python benchmarks/telemetry.py [--ranks 2] [--seconds 20] [--rounds 2] [--busy-ms 0]

Supervisors read at multiples of 100 ms. A quarter of each 100 ms begins with a reading, the others
have none. The mean time of the samples that begin in the first quarter, over that of the third, is
what a reading costs in 25 ms; it is paired within the same 100 ms, so drift cancels. The cost at
the shipped rate of 2 Hz is 2 x 25 ms of a second of it. A/A is beside it: the second quarter over
the fourth, and the first over the third of a job in which nothing is read. Jobs alternate.

With --busy-ms each reading takes so much CPU time longer, to show that this would be seen.

All are means with their 95 % interval. The goal is a cost of at most 1 % at 2 Hz. Where the
interval of A/A is wider than that to either side, or that of the cost holds 1 %, nothing can be
told, and the goal is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcbench.__main__ import main as hpcbench_main
from hpcbench.config.schema import Telemetry
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.results_file import ResultsFile, open_results
from hpcbench.statistics.order import Interval
from hpcbench.statistics.overlap import mean_interval
from hpcbench.telemetry.sources import ProcessSource, Source
from hpcbench.trace.schema import UNTIMED
from launching import fail, mpirun

ALLOWED = 0.01
RATE_HZ = 10
QUARTERS = 4
PERIOD_NS = 10**9 // RATE_HZ
SHARE = Telemetry().rate_hz / (RATE_HZ * QUARTERS)
"""The share of a second that is a quarter with a reading, at the shipped rate."""
JOBS: dict[str, dict[str, Any]] = {"read": {"rate_hz": RATE_HZ}, "not read": {"without": "all"}}
CASES: tuple[dict[str, Any], ...] = (
    {"kind": "training", "model": "transformer-tiny", "layers": 1, "hidden": 64, "seq_length": 16,
     "vocab": 64, "batch_size": 2, "strategies": {"data": {}}, "communication": "off"},
    {"kind": "collective", "collective": "all_reduce", "backend": "gloo", "size": "64KiB"})
Values = np.ndarray


@dataclass(frozen=True, slots=True)
class Excess:
    """By which share samples of one quarter take longer, as a mean over periods with its interval.
    """

    mean: float
    interval: Interval

    def __mul__(self, factor: float) -> Excess:
        return Excess(self.mean * factor, self.interval.map(lambda end: end * factor))

    @property
    def text(self) -> str:
        """Return ``+0.12 % (-0.30..+0.54)``."""
        low, high = (100 * end for end in self.interval.ends)
        return f"{100 * self.mean:+.3f} % ({low:+.3f}..{high:+.3f})"


def main() -> None:
    """Run the jobs and print what a reading costs each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--busy-ms", type=float, default=0.0)
    parser.add_argument("--as-rank", nargs=2, metavar=("CONFIG", "FOLDER"))
    given = parser.parse_args()
    if given.as_rank:
        sys.exit(busy_rank(*given.as_rank, busy_s=given.busy_ms / 1e3))
    tables: dict[tuple[str, str], list[Values]] = {}
    for _ in range(given.rounds):
        for job, telemetry in JOBS.items():
            with tempfile.TemporaryDirectory() as folder:
                for name, table in measured(Path(folder), telemetry, given):
                    tables.setdefault((name, job), []).append(table)
    print(f"{given.ranks} ranks; excess of the first quarter of {PERIOD_NS // 10**6} ms, "
          f"x {SHARE:g} at {Telemetry().rate_hz:g} Hz")
    verdicts = {*report({key: np.concatenate(parts) for key, parts in tables.items()})}
    is_met = verdicts == {"met"}
    sys.exit(int(not is_met))


def busy_rank(config: str, folder: str, *, busy_s: float) -> int:
    """Run hpcbench as one rank whose readings take longer."""
    read_row = Source.row

    def row(source: Source, *values: Any) -> tuple[int, ...]:
        ends = time.thread_time() + busy_s
        while source.table == ProcessSource.table and time.thread_time() < ends:
            pass
        return read_row(source, *values)

    setattr(Source, "row", row)  # noqa: B010
    sys.argv = ["hpcbench", "run", config, "-o", folder, "-q"]
    return int(hpcbench_main() or 0)


def measured(
    folder: Path, telemetry: dict[str, Any], given: argparse.Namespace,
) -> Iterator[tuple[str, Values]]:
    """Run one job; yield the name of each case, and its mean times by period and quarter."""
    config = {
        "name": "telemetry", "output": {"plots": False, "report": False}, "telemetry": telemetry,
        "launch": {"timeout_s": 60 + 2 * given.seconds},
        "measure": {"warmup": 5, "passes": 1, "mode": "barrier_start", "canary": False,
                    "noise_check_s": 0, "validate": False, "precision": 1e-6,
                    "max_iterations": 500_000, "budget_s": given.seconds * len(CASES)},
        "benchmarks": CASES}
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    program = [__file__, "--busy-ms", str(given.busy_ms), "--as-rank", path, folder]
    mpirun(given.ranks, program, accepted=(0, 1))
    with open_results(folder / "latest") as file:
        for item in file.results.cases:
            yield f"{item.case.workload.name} {item.case.backend}", by_quarter(file, item)


def by_quarter(file: ResultsFile, item: CaseResult) -> Values:
    """Return the mean times in s (period, quarter) of the samples that begin in each."""
    samples = file.samples(item.case.case_id)
    if item.status != "ok" or samples is None:
        fail(f"{item.case.label} is {item.status}: {item.reason}")
    timed = (samples.flags[0] & int(UNTIMED)) == 0
    begins_ns = samples.start_ns.min(axis=0)[timed]
    times_s = (samples.end_ns - samples.start_ns).max(axis=0)[timed] / 1e9
    first = begins_ns.min() // PERIOD_NS
    quarters = begins_ns * QUARTERS // PERIOD_NS - first * QUARTERS
    size = (quarters.max() // QUARTERS + 1) * QUARTERS
    counts = np.bincount(quarters, minlength=size)
    sums = np.bincount(quarters, weights=times_s, minlength=size)
    means = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)
    table = means.reshape(-1, QUARTERS)
    return table[~np.isnan(table).any(axis=1)]


def report(tables: dict[tuple[str, str], Values]) -> Iterator[str]:
    """Print a line for each case; yield the verdicts."""
    for name in dict.fromkeys(name for name, _ in tables):
        read, not_read = tables[name, "read"], tables[name, "not read"]
        if min(len(read), len(not_read)) < 2:
            fail(f"{name}: samples are longer than {PERIOD_NS // QUARTERS // 10**6} ms")
        beside, *chance = excess(read, 0, 2), excess(read, 1, 3), excess(not_read, 0, 2)
        cost = beside * SHARE
        verdict = judged(cost, [one * SHARE for one in chance])
        print(f"{name}: {1e6 * np.median(read):.0f} us, {len(read)} + {len(not_read)} periods: "
              f"beside a reading {beside.text}, A/A {chance[0].text} and {chance[1].text}")
        print(f"  cost at {Telemetry().rate_hz:g} Hz {cost.text}: at most {ALLOWED:.0%} is "
              f"{verdict}")
        yield verdict


def excess(table: Values, one: int, other: int) -> Excess:
    """Return by how much the samples of one quarter take longer than those of another."""
    logs = np.log(table[:, one] / table[:, other])
    return Excess(float(logs.mean()), mean_interval(logs))


def judged(cost: Excess, chance: Sequence[Excess]) -> str:
    """Return whether the goal is met, missed, or nothing can be told."""
    widest = max((one.interval.high - one.interval.low) / 2 for one in chance)
    if widest > ALLOWED or cost.interval.holds(ALLOWED):
        return "cannot tell"
    return "missed" if cost.interval.low > ALLOWED else "met"


if __name__ == "__main__":
    main()

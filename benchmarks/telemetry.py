"""Does telemetry disturb what is measured? Runs with it and without it, in turn, in one job.

    python benchmarks/telemetry.py [--ranks 2] [--triples 24] [--rate 2] [--seconds 1]

Each case runs three times in a row of passes: twice while nothing is read, and once while sources
are read by the clock. The order within a triple rotates. Around each case everything is read in
any run, as it is when the clock is off. The ratio of the runs with readings to the two without is
the cost; the ratio of these two is what chance does (A/A). Both are means over triples with their
95 % interval. The goal is a cost of at most 1 %. Where the interval of A/A is wider than that to
either side, or that of the cost holds values above and below the goal, nothing can be told, and the
goal is not met.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.results_file import ResultsFile, open_results
from hpcbench.statistics.overlap import MeanInterval, mean_interval
from hpcbench.trace.schema import UNTIMED
from launching import fail, mpirun

ALLOWED = 0.01
RUNS = 3
ON = 2
"""The arm that is read by the clock; the others are 0 and 1."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A mean of logarithms of ratios over triples, as a share, and its interval."""

    mean: float
    interval: MeanInterval

    @property
    def text(self) -> str:
        """Return ``+0.12 % (-0.30..+0.54)``."""
        low, high = (100 * end for end in (self.interval.low, self.interval.high))
        return f"{100 * self.mean:+.2f} % ({low:+.2f}..{high:+.2f})"


def main() -> None:
    """Run the job and print cost and A/A of each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--triples", type=int, default=24)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--as-rank", nargs=2, metavar=("CONFIG", "FOLDER"))
    given = parser.parse_args()
    if given.as_rank:
        sys.exit(as_rank(*given.as_rank))
    with tempfile.TemporaryDirectory() as folder:
        path = run(Path(folder), given)
        with open_results(path) as file:
            verdicts = [*report(file, given)]
    sys.exit(int(any(verdict != "met" for verdict in verdicts)))


def arm_of(pass_index: int) -> int:
    """Return the arm of a pass: each triple begins with another one."""
    return (pass_index + pass_index // RUNS) % RUNS


def as_rank(config: str, folder: str) -> int:
    """Run hpcbench as one rank, with the clock of telemetry on in one arm of three."""
    from hpcbench.__main__ import main as hpcbench_main
    from hpcbench.telemetry.sampler import Sampler

    numbers, only_marks = itertools.count(), Sampler.only_marks

    @contextlib.contextmanager
    def in_arm(sampler: Sampler, is_on: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002
        with only_marks(sampler, is_on or arm_of(next(numbers) // len(CASES)) != ON):
            yield

    setattr(Sampler, "only_marks", in_arm)  # noqa: B010
    sys.argv = ["hpcbench", "run", config, "-o", folder, "-q"]
    return int(hpcbench_main() or 0)


CASES: tuple[dict[str, Any], ...] = (
    {"kind": "training", "model": "transformer-tiny", "layers": 1, "hidden": 64, "seq_length": 16,
     "vocab": 64, "batch_size": 2, "strategies": {"data": {}}, "communication": "off"},
    {"kind": "collective", "collective": "all_reduce", "backend": "gloo", "size": "64KiB"})


def run(folder: Path, given: argparse.Namespace) -> Path:
    """Run the sweep; return the folder of its results."""
    import json

    passes = RUNS * given.triples
    config = {
        "name": "telemetry", "output": {"plots": False}, "telemetry": {"rate_hz": given.rate},
        "measure": {"warmup": 5, "passes": passes, "mode": "barrier_start", "order": "planned",
                    "canary": False, "noise_check_s": 0, "validate": False, "precision": 1e-6,
                    "max_iterations": 100_000,
                    "budget_s": given.seconds * passes * len(CASES)},
        "benchmarks": CASES}
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    mpirun(given.ranks, [Path(__file__), "--as-rank", path, folder], accepted=(0, 1))
    return folder / "latest"


def report(file: ResultsFile, given: argparse.Namespace) -> Iterator[str]:
    """Print a line for each case and statistic; yield the verdicts."""
    print(f"{given.ranks} ranks, {given.triples} triples, {given.rate:g} readings a second")
    for item in file.results.cases:
        times = pass_times(file, item)
        for name, statistic in (("median", np.median), ("mean", np.mean)):
            by_arm = arms([float(statistic(one)) for one in times])
            cost = ratio(by_arm[:, ON], np.sqrt(by_arm[:, 0] * by_arm[:, 1]))
            chance = ratio(by_arm[:, 1], by_arm[:, 0])
            verdict = judged(cost, chance)
            print(f"{item.case.label}: {name} of {1e6 * by_arm[:, 0].mean():.1f} us: cost "
                  f"{cost.text}, A/A {chance.text}: at most {ALLOWED:.0%} is {verdict}")
            yield verdict


def pass_times(file: ResultsFile, item: CaseResult) -> list[np.ndarray]:
    """Return the times of each pass in s: of each sample the longest of any rank."""
    samples = file.samples(item.case.case_id)
    if item.status != "ok" or samples is None:
        fail(f"{item.case.label} is {item.status}: {item.reason}")
    timed = (samples.flags[0] & int(UNTIMED)) == 0
    folded = (samples.end_ns - samples.start_ns).max(axis=0) / 1e9
    return [folded[timed & (samples.pass_index == number)]
            for number in np.unique(samples.pass_index)]


def arms(values: Sequence[float]) -> np.ndarray:
    """Return (triple, arm) of a value for each pass."""
    table = np.empty((len(values) // RUNS, RUNS))
    for number, value in enumerate(values):
        table[number // RUNS, arm_of(number)] = value
    return table


def ratio(ones: np.ndarray, others: np.ndarray) -> Ratio:
    """Return by which share the first are greater, over triples."""
    logs = np.log(ones / others)
    return Ratio(float(logs.mean()), mean_interval(logs))


def judged(cost: Ratio, chance: Ratio) -> str:
    """Return whether the goal is met, missed, or nothing can be told."""
    width = (chance.interval.high - chance.interval.low) / 2
    if width > ALLOWED or cost.interval.holds(ALLOWED):
        return "cannot tell"
    return "missed" if cost.interval.low > ALLOWED else "met"


if __name__ == "__main__":
    main()

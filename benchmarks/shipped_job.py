"""Does the shipped job give sound rows? N runs of it on this machine, judged by its own records.

    python benchmarks/shipped_job.py [--runs 10] [--ranks 2] [--config FILE] [-- FLAGS OF run]

A run counts if its noise check passes: no finding says that others used the cores (HB143, HB144),
or that the canary drifted (HB145). It is repeated up to three times as often as runs are wanted. A
row is sound if its 95 % interval is reliable, neither end is farther than 5 % from the median, and
the row has no flag.
A gloo row whose median lies between two modes may show both instead, in at most 20 % of the rows.

The exit code is 0 if the median run reaches the goals, 1 if it does not, 3 without enough runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launching import ROOT, mpirun

FARTHEST = 0.05
"""How far an end of a sound interval is from the median at most, over the median."""
LEAST_SOUND, MOST_MODES, LONGEST_S = 0.9, 0.2, 90.0
NOISE = ("HB143", "HB144", "HB145")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave: its ``ok`` rows, those sound, those that show two modes, and its time.

    ``noise`` are the codes of findings that say the machine was not quiet.
    """

    ok: int
    sound: int
    modes: int
    wall_s: float
    noise: tuple[str, ...]

    @property
    def good_share(self) -> float:
        """Return the share of rows that count as good: sound ones, and two modes up to 20 %."""
        return (self.sound + min(self.modes, int(MOST_MODES * self.ok))) / max(self.ok, 1)


def is_sound(row: Row) -> bool:
    """Return whether an ok row has a reliable interval, each end close enough, and no flag."""
    return not row["quality"] and bool(row["ci_reliable"]) and max(
        row["ci_high_s"] - row["median_s"],
        row["median_s"] - row["ci_low_s"]) <= FARTHEST * row["median_s"]


def has_modes(row: Row) -> bool:
    """Return whether a gloo row shows two modes, and no other flag but of its interval."""
    return row["backend"] == "gloo" and "two_modes" in row["quality"] and (
        {*row["quality"]} <= {"two_modes", "ci_unreliable"})


def judged(summary: Mapping[str, Any], wall_s: float) -> Run:
    """Return what a run's summary.json says."""
    rows = [row for row in summary["cases"] if row["status"] == "ok"]
    codes = {finding["code"] for finding in summary["findings"]}
    return Run(len(rows), sum(map(is_sound, rows)), sum(map(has_modes, rows)), wall_s,
               tuple(code for code in NOISE if code in codes))


def runs(ranks: int, config: Path, flags: Sequence[str]) -> Iterator[Run]:
    """Yield one run after another. Raises RuntimeError for one that leaves no results."""
    while True:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            done = mpirun(ranks, ["-m", "hpcbench", "run", config.resolve(), "-o", folder, *flags],
                          accepted=(0, 1, 3))
            wall_s = time.monotonic() - began
            found = Path(folder, "latest", "summary.json")
            if not found.exists():
                raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
            yield judged(json.loads(found.read_text(encoding="utf-8")), wall_s)


def lines(quiet: Sequence[Run]) -> Iterator[tuple[str, bool]]:
    """Yield each goal with what the median of the runs has, and whether that is enough."""
    sound = statistics.median(run.good_share for run in quiet)
    modes = statistics.median(run.modes / max(run.ok, 1) for run in quiet)
    wall_s = statistics.median(run.wall_s for run in quiet)
    yield f"good rows: {sound:.0%}, goal {LEAST_SOUND:.0%}", sound >= LEAST_SOUND
    yield f"rows with two modes: {modes:.0%}, at most {MOST_MODES:.0%}", modes <= MOST_MODES
    yield f"time: {wall_s:.0f} s, goal {LONGEST_S:.0f} s", wall_s <= LONGEST_S


def main() -> int:
    """Run the job, print a table and a verdict for each goal, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--config", type=Path, default=ROOT / "config.json")
    parser.add_argument("flags", nargs="*", help="flags of hpcbench run, behind --")
    given = parser.parse_args()
    quiet: list[Run] = []
    print("run   ok  sound  modes   good  time (s)  noise")
    for number, run in enumerate(runs(given.ranks, given.config, given.flags), 1):
        print(f"{number:3}  {run.ok:3}  {run.sound:5}  {run.modes:5}  {run.good_share:5.0%}  "
              f"{run.wall_s:8.1f}  {' '.join(run.noise) or 'none'}", flush=True)
        quiet += [run] * (not run.noise)
        if len(quiet) == given.runs or number == 3 * given.runs:
            break
    if len(quiet) < given.runs:
        print(f"{len(quiet)} of {given.runs} runs on a quiet machine: no verdict")
        return 3
    reached = list(lines(quiet))
    for line, is_met in reached:
        print(f"{'met' if is_met else 'MISSED':6}  {line}")
    return int(not all(is_met for _, is_met in reached))


if __name__ == "__main__":
    sys.exit(main())

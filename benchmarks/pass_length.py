"""How long must a pass be? Intervals when only the first milliseconds of each pass count.

    python benchmarks/pass_length.py [--passes 9] [--seconds 0.27]

Two ranks call the collectives of config.json on backend mpi, with two sizes. Every pass uses its
time: none is precise enough for what is asked. Then only the first 3, 10, 30 and 100 ms of each
pass count, and at last the whole pass, always as many samples of each pass. Warm-ups do not count.

Printed for each length: the samples of the middle row, the farther end of its interval from the
median, the range of the medians of passes without the least and the greatest, and how many rows are
narrow as `row_bound.py` says it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.trace.schema import UNTIMED
from launching import run_sweep
from row_bound import COLLECTIVES, SIZES, WARMUP, Interval, interval

LENGTHS_MS = (3.0, 10.0, 30.0, 100.0, float("inf"))
NEVER_PRECISE = 1e-6

Times = npt.NDArray[np.float64]


def main() -> int:
    """Run the sweep once and print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.27, help="of a row in a pass")
    given = parser.parse_args()
    rows = measured(given.passes, given.seconds)
    print(f"{'ms of each pass':>15} {'samples':>8} {'farther end':>12} {'range':>8}  narrow rows")
    for length_ms in LENGTHS_MS:
        parts = [beginnings(passes, length_ms) for passes in rows]
        print(line(length_ms, [interval(each) for each in parts],
                   [inner_range(each) for each in parts]))
    return 0


def measured(passes: int, seconds: float) -> list[list[tuple[Times, Times]]]:
    """Return of each row and pass when samples began (s) and how long they took (s)."""
    config = {"name": "pass_length",
              "measure": {"warmup": WARMUP, "iterations": "auto", "precision": NEVER_PRECISE,
                          "max_iterations": 1_000_000, "passes": passes,
                          "budget_s": passes * seconds * len(COLLECTIVES) * len(SIZES)},
              "output": {"plots": False},
              "benchmarks": [{"kind": "collective", "collective": list(COLLECTIVES),
                              "backend": "mpi", "size": list(SIZES)}]}
    with tempfile.TemporaryDirectory() as folder, \
            h5py.File(run_sweep(2, config, Path(folder)) / "results.h5", locking=False) as file:
        stored = {name: column[:] for name, column in file["samples"].items()}
        cases = len(file["cases/case_id"])
    timed = (stored["flags"] & UNTIMED) == 0
    return [[_of_pass(stored, timed & (stored["case"] == case) & (stored["pass_index"] == number))
             for number in range(passes)] for case in range(cases)]


def _of_pass(
    stored: Mapping[str, npt.NDArray[np.int64]], chosen: npt.NDArray[np.bool_],
) -> tuple[Times, Times]:
    starts, ends = (np.stack([stored[name][chosen & (stored["rank"] == rank)] for rank in range(2)])
                    for name in ("start_ns", "end_ns"))
    first_ns = starts.min(axis=0)
    return (first_ns - first_ns[0]) / 1e9, (ends.max(axis=0) - first_ns) / 1e9


def beginnings(passes: Sequence[tuple[Times, Times]], length_ms: float) -> list[Times]:
    """Return the times of samples that began so early, as many of each pass, spread over it."""
    early = [times_s[began_s * 1e3 <= length_ms] for began_s, times_s in passes]
    least = min(part.size for part in early)
    return [part[((np.arange(least) + 0.5) * part.size / least).astype(np.intp)] for part in early]


def inner_range(passes: Sequence[Times]) -> float:
    """Return the range of medians without the least and the greatest, over the median."""
    medians = sorted(float(np.median(part)) for part in passes)
    inner = medians[1:-1] or medians
    return (inner[-1] - inner[0]) / statistics.median(medians)


def line(length_ms: float, found: Sequence[Interval], ranges: Sequence[float]) -> str:
    """Return what is printed for one length."""
    length = f"{length_ms:.0f}" if np.isfinite(length_ms) else "all"
    narrow = sum(each.is_narrow for each in found)
    return (f"{length:>15} {statistics.median(each.samples for each in found):8.0f} "
            f"{statistics.median(each.farther for each in found):12.1%} "
            f"{statistics.median(ranges):8.1%} {narrow:8} of {len(found)}")


if __name__ == "__main__":
    sys.exit(main())

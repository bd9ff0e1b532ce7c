"""How often `hpcbench history` finds a step, and how often one in noise; and how fast it is.

    python benchmarks/history.py [--series 200] [--runs 0] [--folder DIR]

Series have a value a run: a step of 3, 5 or 10 % within 1 or 3 % of noise (standard deviation), at
a place between a third and two thirds of 40 and 60 runs; the noise is independent, or neighbours
correlate by 0.5. A step counts as found within one run of its place. Noise alone is of 14, 30 and
60 runs: also of two modes, with heavy tails (Student's t of 2 degrees), and log-normal. Two modes
that last for several runs are shown, and no goal: named as states, they are no step.

Goals: 90 % of the steps of 5 % are found in 1 % of noise, and at most 5 % of series of noise have
one; beside runs at the other level, before it or after it, 90 % of the steps of 10 % in 0.5 % of
noise are found. The exit code is 1 if a goal is missed. With ``--runs`` as many stored runs of 60
cases are written to a folder, if it has none yet, and `hpcbench history` reads them: goal 20 s of
CPU for 1,000, and 1 s where it has its index.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from hpcbench.fleet.history.change_points import steps, two_states  # noqa: E402
from hpcbench.statistics.order import Values  # noqa: E402
from nights import plan_of_nights, write_night  # noqa: E402

BESIDE = ((60, 30, (6, 14, 22)), (60, 30, (6, 14, 22, 50)), (60, 20, (10,)), (60, 40, (50,)))
"""Runs, the first of a lasting step, and those that are at the other of its levels."""
CASES, GOAL_FOUND, GOAL_FALSE = 60, 0.9, 0.05
Random = np.random.Generator


def correlated(random: Random, n: int, correlation: float) -> Values:
    """Return values of unit deviation of which neighbours correlate."""
    values = random.standard_normal(n)
    for at in range(1, n):
        values[at] = correlation * values[at - 1] + values[at] * (1 - correlation ** 2) ** 0.5
    return values


NOISE: Mapping[str, Callable[[Random, int], Values]] = {
    "independent": lambda random, n: random.standard_normal(n),
    "AR(.3)": lambda random, n: correlated(random, n, 0.3),
    "AR(.5)": lambda random, n: correlated(random, n, 0.5),
    "AR(.6)": lambda random, n: correlated(random, n, 0.6),
    "two modes": lambda random, n: 0.3 * random.standard_normal(n) + 4 * (random.random(n) < 0.3),
    "t of 2": lambda random, n: np.clip(random.standard_t(2, n), -50, 50),
    "log-normal": lambda random, n: np.exp(1.5 * random.standard_normal(n)) / 2,
    "lasting modes": lambda random, n: 0.3 * random.standard_normal(n)
    + 4 * (correlated(random, n, 0.7) > 0.5),
}
NO_GOAL = ("lasting modes",)


def places(values: Values, seed: int) -> list[int]:
    """Return where a series has steps, and is not in two states in turn."""
    found = [one.index for one in steps(values, seed)]
    return found if two_states(values, found) is None else []


def found_share(random: Random, n: int, size: float, noise: float, correlation: float,
                series: int) -> float:
    found = 0
    for seed in range(series):
        at = int(random.integers(n // 3, 2 * n // 3 + 1))
        values = np.exp(noise * correlated(random, n, correlation))
        values[at:] *= 1 + size
        found += any(abs(one - at) <= 1 for one in places(values, seed))
    return found / series


def found_beside(random: Random, n: int, at: int, others: Sequence[int], series: int) -> float:
    is_upper = np.arange(n) >= at
    is_upper[[*others]] ^= True
    return sum(any(abs(one - at) <= 1 for one in places(
        np.exp(0.005 * random.standard_normal(n)) * np.where(is_upper, 1.1, 1.0), seed))
        for seed in range(series)) / series


def judge_statistics(series: int) -> bool:
    random, is_met = np.random.default_rng(0), True
    for n in (40, 60):
        for noise, correlation in ((0.01, 0.0), (0.01, 0.5), (0.03, 0.0), (0.03, 0.5)):
            shares = {size: found_share(random, n, size, noise, correlation, series)
                      for size in (0.03, 0.05, 0.1)}
            print(f"{n} runs, noise {noise:.0%}, correlation {correlation}: found " + ", ".join(
                f"{share:.0%} of steps of {size:.0%}" for size, share in shares.items()))
            is_met &= shares[0.05] >= GOAL_FOUND or noise > 0.01
    for name, draw in NOISE.items():
        shares = {n: sum(bool(places(np.exp(0.01 * draw(random, n)), seed))
                         for seed in range(series)) / series for n in (14, 30, 60)}
        print(f"noise, {name}: a step in " + ", ".join(
            f"{share:.1%} of {n} runs" for n, share in shares.items()))
        is_met &= max(shares.values()) <= GOAL_FALSE or name in NO_GOAL
    for n, at, others in BESIDE:
        share = found_beside(random, n, at, others, series)
        print(f"{n} runs, a step at {at} beside {others} at the other level: {share:.0%} found")
        is_met &= share >= GOAL_FOUND
    return is_met


def judge_speed(folder: Path, runs: int) -> bool:
    """Write nights, of which a third of the cases is 5 % slower from the middle on, and read them.
    """
    random, plan = np.random.default_rng(0), plan_of_nights(CASES)
    is_slow = np.arange(CASES) % 3 == 0
    for night in range(runs):
        if not (folder / f"night{night:04}").exists():
            medians_s = 1e-3 * np.exp(0.01 * random.standard_normal(CASES))
            medians_s[is_slow] *= 1.05 if night >= runs // 2 else 1
            write_night(folder, night, medians_s.tolist(), plan)
    is_met = True
    for what, words, limit_s in (("without an index", (), 20.0), ("for the index", (
            "--index", str(folder / "index.parquet")), 20.0), ("from the index", (
                "--index", str(folder / "index.parquet")), 1.0)):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "hpcbench", "history", str(folder), "-q", *words],
            capture_output=True, text=True, check=False)
        lasted, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(done.stdout.strip() or done.stderr.strip())
        print(f"{runs} runs of {CASES} cases {what}: {lasted:.1f} s, {cpu_s:.2f} s of CPU, "
              f"{after.ru_maxrss >> 10} MiB at most")
        is_met &= done.returncode == 0 and (runs < 1000 or cpu_s <= limit_s * runs / 1000)
    return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    is_met = judge_statistics(given.series) if given.series else True
    if given.runs:
        with TemporaryDirectory() as temporary:
            is_met &= judge_speed(given.folder or Path(temporary), given.runs)
    print("goals: met" if is_met else "goals: missed")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())

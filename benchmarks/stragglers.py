"""How often is one of equal ranks named, and how often is a slow rank found? No MPI, no torch.

    python benchmarks/stragglers.py [--reports 1000] [--rows 4] [--steps 30] [--passes 3]

A report has ``rows`` trainings. In each row the ranks' times until ready, until arrived, and of a
phase are compared as the deriver of trainings does (`statistics.standing_out`), and all comparisons
of the report are corrected as `reduce.comparison` does. Equal ranks differ in these ways:

- iid: lognormal noise of 5 %, independent.
- ar: the same, of which neighbours correlate by 0.8 (an AR(1) process within each pass).
- bimodal: each step of a rank is 1.5 times as long with a chance of 0.3.
- passes: in each pass each rank has a speed of its own (5 %), beside 2 % of noise.
- shared: ranks on half as many cores. Each rank moves to a random core with a chance of 1/4 before
  a step, and to a new one in each pass; those on a core share it.

Goal: at most 1 % of reports name any rank. Then one rank of one row takes 10, 20 and 50 % longer
in every step: how often is it found, and how often another one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.hypothesis_tests import find_slowest, holm, pass_medians

GOAL, CLEAR_PART = 0.01, 0.01
Times = npt.NDArray[np.float64]
Make = Callable[[np.random.Generator, int, int], Times]


def main() -> None:
    """Print a row for each way in which ranks are equal, and one for each slowness."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reports", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, 8])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--passes", type=int, default=3)
    given = parser.parse_args()
    rng = np.random.default_rng(20_261_122)
    print(f"{given.rows} rows, {given.steps} steps in {given.passes} passes")
    print("equal ranks: reports that name any of them")
    for ranks in given.ranks:
        shares = {name: sum(bool(report(rng, make, ranks, given)) for _ in range(given.reports))
                  / given.reports for name, make in EQUAL.items()}
        print(f"{ranks:3} ranks  " + "  ".join(
            f"{name} {share:.1%}{'' if share <= GOAL else ' MISSED'}"
            for name, share in shares.items()))
    print("a slow rank: reports that name it (those that name another)")
    for ranks in given.ranks:
        print(f"{ranks:3} ranks  " + "  ".join(
            found(rng, name, slower, ranks, given)
            for name in ("iid", "ar", "passes") for slower in (0.1, 0.2, 0.5)))


def found(
    rng: np.random.Generator, name: str, slower: float, ranks: int, given: argparse.Namespace,
) -> str:
    """Return how often a slow rank is found, as text."""
    n = max(1, given.reports // 10)
    named = [report(rng, EQUAL[name], ranks, given, slower) for _ in range(n)]
    right, wrong = (sum((row == 0 and rank == 0) is is_right for one in named for row, rank in one)
                    for is_right in (True, False))
    return f"{name} +{slower:.0%}: {min(1.0, right / n):.0%} ({wrong / n:.0%})"


def report(
    rng: np.random.Generator, make: Make, ranks: int, given: argparse.Namespace,
    slower: float = 0.0,
) -> set[tuple[int, int]]:
    """Return which (row, rank) a report names; rank 0 of row 0 is so much slower."""
    lengths = [len(part) for part in np.array_split(np.arange(given.steps), given.passes)]
    who, chances = [], []
    for row in range(given.rows):
        ready = np.concatenate([make(rng, ranks, length) for length in lengths], axis=1)
        ready[0] *= 1 + slower * (row == 0)
        skew = np.abs(rng.normal(0, 0.002, ready.shape))
        for times in (ready, ready + skew, ready * rng.lognormal(np.log(0.6), 0.02, ready.shape)):
            step = float(np.median(ready.max(axis=0)))
            medians = pass_medians(times, lengths)
            if medians is not None:
                known = find_slowest(medians, CLEAR_PART * step)
                who.append((row, known.row))
                chances.append(known.chance)
    return {one for one, holds in zip(who, holm(chances, GOAL), strict=True) if holds}


def iid(rng: np.random.Generator, ranks: int, steps: int) -> Times:
    """Return independent lognormal times, (rank, step)."""
    return rng.lognormal(0, 0.05, (ranks, steps))


def ar(rng: np.random.Generator, ranks: int, steps: int, correlation: float = 0.8) -> Times:
    """Return lognormal times whose neighbours correlate."""
    values = rng.standard_normal((ranks, steps))
    for at in range(1, steps):
        values[:, at] = correlation * values[:, at - 1] + np.sqrt(
            1 - correlation**2) * values[:, at]
    return np.asarray(np.exp(0.05 * values))


def bimodal(rng: np.random.Generator, ranks: int, steps: int) -> Times:
    """Return times of which some are half as long again."""
    return np.asarray(iid(rng, ranks, steps) * np.where(rng.random((ranks, steps)) < 0.3, 1.5, 1))


def of_passes(rng: np.random.Generator, ranks: int, steps: int) -> Times:
    """Return times of ranks that each have a speed of their own in a pass."""
    return rng.lognormal(0, 0.05, (ranks, 1)) * rng.lognormal(0, 0.02, (ranks, steps))


def shared(rng: np.random.Generator, ranks: int, steps: int) -> Times:
    """Return times of ranks that share half as many cores, and now and then move to another."""
    cores = max(1, ranks // 2)
    core = rng.permutation(ranks) % cores
    times = np.empty((ranks, steps))
    for step in range(steps):
        moves = rng.random(ranks) < 0.25
        core = np.where(moves, rng.integers(cores, size=ranks), core)
        times[:, step] = np.bincount(core, minlength=cores)[core]
    return np.asarray(times * rng.lognormal(0, 0.02, times.shape))


EQUAL: dict[str, Make] = {
    "iid": iid, "ar": ar, "bimodal": bimodal, "passes": of_passes, "shared": shared}


if __name__ == "__main__":
    main()

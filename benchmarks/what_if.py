"""Are gains of another setting named? Measured calls with a planted gain, judged as `advise` does.

    python benchmarks/what_if.py [--jobs 400] [--seed 0]

A job has 1 to 5 forms of calls, each measured at present and otherwise in 9 passes. Times of a pass
vary by 2 to 8 %; passes of one run, which are pairs, also by 10 % that both sides share. The other
setting takes 20 % less, the same, or 20 % more. Goals: 90 % of gains named, and at most 2 % of what
is none. Exit code 1: a goal is missed.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from hpcbench.interop.answers.isolated_calls import ComparedCalls, ratio_of
from hpcbench.interop.answers.what_if import PREDICTED, PROOF_PASSES, REAL, verdict_of

OTHER = {"20 % less": 0.8, "equal": 1.0, "20 % more": 1.2}
SHARED, OWN = 0.10, (0.02, 0.08)
RUNS = (0, 1)
LEAST_NAMED, MOST_WRONG = 0.90, 0.02


def measured(random: np.random.Generator, ratio: float, *, pairs: bool) -> list[ComparedCalls]:
    """Return the times of the passes of each form, at present and otherwise, in s."""
    passes, forms = range(PROOF_PASSES), int(random.integers(1, 6))
    own = random.uniform(*OWN)
    shared = random.lognormal(0, SHARED, PROOF_PASSES) if pairs else np.ones(PROOF_PASSES)

    def times(run: int, base_s: float) -> dict[tuple[int, int, int], float]:
        each_s = base_s * shared * random.lognormal(0, own, PROOF_PASSES)
        return {(run, 0, number): float(each_s[number]) for number in passes}

    bases_s = 10 ** random.uniform(-5, -2, forms)
    return [ComparedCalls(float(random.integers(1, 500)), times(0, base_s),
                 times(0 if pairs else 1, ratio * base_s)) for base_s in bases_s]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=400, help="jobs of each kind")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    random, missed = np.random.default_rng(given.seed), False
    for how, gain in (("pairs", REAL), ("two runs", PREDICTED)):
        for name, ratio in OTHER.items():
            found = [verdict_of(ratio_of(measured(random, ratio, pairs=how == "pairs"), RUNS))
                     for _ in range(given.jobs)]
            named = found.count(gain) / given.jobs
            missed |= named < LEAST_NAMED if ratio < 1 else named > MOST_WRONG
            print(f"{how:8} {name:9} {given.jobs} jobs: a gain named in {named:.1%}")
    print(f"goals: at least {LEAST_NAMED:.0%} of gains, at most {MOST_WRONG:.0%} of others: "
          f"{'missed' if missed else 'met'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

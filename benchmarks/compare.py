"""How often does `hpcbench compare` call a change that is none, and find one that is there?

    python benchmarks/compare.py [--comparisons 400] [--cases 59] [--spread 0.01]

Synthetic medians of launches, log-normal, whose standard deviation between launches is ``spread``:

- equal sides of 5 launches: at most 1 % of the cases may be called slower or faster;
- all cases 5 % slower, 5 launches a side: at least 95 % of them must be found;
- one case 5 % slower, 7 launches a side: it must be found in at least 95 % of the comparisons.

The exit code is 1 if one of them is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.answers.compare import FASTER, SLOWER, SideComparison, compare
from hpcbench.answers.compare_inputs import CaseOfSide
from hpcbench.plan.case import planned_canary

CALLED = (SLOWER, FASTER)
CHANGE = 1.05


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked for: ``change`` of the first ``changed`` cases, found in at least ``least``.

    Without a change at most ``most`` of all cases may be called.
    """

    name: str
    launches: int
    changed: int
    least: float = 0.0
    most: float = 1.0


def side(
    rng: np.random.Generator, times_s: npt.NDArray[np.float64], launches: int, spread: float,
) -> Mapping[str, CaseOfSide]:
    """Return a side whose cases have these true times."""
    case = planned_canary(2, 1.0, 1.0)
    drawn = times_s[:, None] * np.exp(rng.normal(0, spread, (len(times_s), launches)))
    return {str(at): CaseOfSide(case, tuple(row)) for at, row in enumerate(drawn.tolist())}


def measured(goal: Goal, given: argparse.Namespace, rng: np.random.Generator) -> float:
    """Return the share of cases that were called: of the changed ones, or of all."""
    called = 0
    for _ in range(given.comparisons):
        first = np.exp(rng.uniform(-12, -2, given.cases))
        second = first * np.where(np.arange(given.cases) < goal.changed, CHANGE, 1.0)
        found = compare(side(rng, first, goal.launches, given.spread),
                        side(rng, second, goal.launches, given.spread), ("A", "B"))
        called += _called(found, goal.changed or given.cases, right=bool(goal.changed))
    return called / (given.comparisons * (goal.changed or given.cases))


def _called(found: SideComparison, cases: int, *, right: bool) -> int:
    verdicts = (SLOWER,) if right else CALLED
    return sum(case.verdict in verdicts for case in found.cases if int(case.key) < cases)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each goal with what was measured; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--comparisons", type=int, default=400)
    parser.add_argument("--cases", type=int, default=59)
    parser.add_argument("--spread", type=float, default=0.01)
    given = parser.parse_args(arguments)
    goals = (Goal("equal sides", 5, 0, most=0.01),
             Goal("all 5 % slower", 5, given.cases, least=0.95),
             Goal("one 5 % slower", 7, 1, least=0.95))
    missed = 0
    print(f"{'sides':<16}{'launches':>9}{'called':>10}   goal")
    for goal in goals:
        share = measured(goal, given, np.random.default_rng(1))
        met = goal.least <= share <= goal.most
        missed += not met
        wanted = f">= {goal.least:.0%}" if goal.changed else f"<= {goal.most:.0%}"
        print(f"{goal.name:<16}{goal.launches:>9}{share:>10.2%}   {wanted}: "
              f"{'met' if met else 'missed'}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())

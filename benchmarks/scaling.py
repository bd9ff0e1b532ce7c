"""How often are verdicts and laws of scaling wrong? A simulation, no machine.

    python benchmarks/scaling.py [--repeats 1000] [--spread 0.01] [--launches 5]

Medians of launches are log-normal. First: how often an efficiency that is just not good is called
good, and one that is good is found. Then: how often the 95 % interval of a law's parameter holds
the true one. Last: a law that was fitted within a node of 8 ranks, drawn out to nodes whose link
is slower. The exit code is 1 if a goal is missed: at most 5 % wrong verdicts, intervals that hold
at least 93 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.scaling_laws import Law, amdahl, universal
from hpcbench.analysis.scaling_series import EXCELLENT, GOOD, verdict
from hpcbench.answers.compare import compare
from hpcbench.answers.compare_inputs import CaseOfSide
from hpcbench.plan.case import planned_canary

MOST_WRONG, LEAST_HELD = 0.05, 0.93
EFFICIENCIES = {0.79: "good", 0.89: "excellent", 0.81: "below good", 0.85: "good",
                0.95: "excellent", 0.70: "below good"}
"""True efficiency -> the verdict that is counted; of the first three it is wrong."""
N_WRONG = 3
RANKS = ((1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64))
PART, SIGMA, KAPPA = 0.05, 0.02, 0.0005
NODE, LINK = 8, 0.1
"""Ranks of a node, and what each further node adds to the time, as a share of one rank's."""
Random = np.random.Generator
Array = npt.NDArray[np.float64]


def verdicts(random: Random, repeats: int, spread: float, launches: int) -> Iterator[float]:
    """Yield how often each efficiency gets the verdict that is counted."""
    case = planned_canary(2)
    assert case is not None
    for true, word in EFFICIENCIES.items():
        called = 0
        for _ in range(repeats):  # each is a topic of one series
            base, beside = np.exp(spread * random.standard_normal((2, launches)))
            time = CaseOfSide(case, tuple((beside / true).tolist()))
            found = compare(
                {share: CaseOfSide(case, tuple((base / float(share)).tolist()))
                 for share in (str(GOOD), str(EXCELLENT))},
                dict.fromkeys((str(GOOD), str(EXCELLENT)), time), ("border", "measured"))
            called += verdict(*found.cases) == word
        yield called / repeats


def rates_of(ranks: Array) -> Array:
    """Return the true rates by the universal law."""
    return ranks / (1 + SIGMA * (ranks - 1) + KAPPA * ranks * (ranks - 1))


def held(random: Random, repeats: int, spread: float, ranks: Sequence[int]) -> Mapping[str, float]:
    """Return how often the interval of each parameter holds it; one at its bound holds nothing."""
    n = np.array(ranks, dtype=np.float64)
    counts = dict.fromkeys(("s", "sigma", "kappa"), 0)
    for _ in range(repeats):
        noise = np.exp(spread * random.standard_normal((2, n.size)))
        laws: tuple[Law, ...] = (
            amdahl(ranks, ((PART + (1 - PART) / n) * noise[0]).tolist()),
            universal(ranks, (rates_of(n) * noise[1]).tolist()))
        known = {name: one for law in laws for name, one in law.parameters.items()}
        for name, true in (("s", PART), ("sigma", SIGMA), ("kappa", KAPPA)):
            low, high = known[name].low, known[name].high
            counts[name] += low is not None and high is not None and low <= true <= high
    return {name: count / repeats for name, count in counts.items()}


def drawn_out(nodes: int) -> float:
    """Return by which share a law of one node promises more than the nodes then do."""
    ranks = [1, 2, 4, 6, NODE]
    law = universal(ranks, [n / (1 + SIGMA * (n - 1)) for n in ranks])
    sigma, kappa = (law.parameters[name].value for name in ("sigma", "kappa"))
    n = nodes * NODE
    promised = n / (1 + sigma * (n - 1) + kappa * n * (n - 1))
    return promised * (1 + SIGMA * (n - 1) + LINK * (nodes - 1)) / n - 1


def main() -> int:
    """Print the three tables; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--spread", type=float, default=0.01)
    parser.add_argument("--launches", type=int, default=5)
    chosen = parser.parse_args()
    random, missed = np.random.default_rng(0), False
    print("| efficiency | verdict | share |\n|---|---|---|")
    shares = verdicts(random, chosen.repeats, chosen.spread, chosen.launches)
    for at, ((true, word), share) in enumerate(zip(EFFICIENCIES.items(), shares, strict=True)):
        wrong = at < N_WRONG
        missed |= wrong and share > MOST_WRONG
        print(f"| {true:.0%} | {word}{' (wrong)' * wrong} | {share:.1%} |")
    print("\n| ranks | s | sigma | kappa |\n|---|---|---|---|")
    for ranks in RANKS:
        found = held(random, chosen.repeats, chosen.spread, ranks)
        missed |= min(found.values()) < LEAST_HELD
        print(f"| {ranks[0]} to {ranks[-1]} | "
              + " | ".join(f"{share:.1%}" for share in found.values()) + " |")
    print("\n| nodes | promised beyond what they do |\n|---|---|")
    for nodes in (1, 2, 4, 8, 16):
        print(f"| {nodes} | {drawn_out(nodes):.0%} |")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

"""What is the least that RS_after or AR_after takes over a link of 1 Gbit/s? Parts of one run.

    python benchmarks/overlap_bound.py [--order RS_after] [--passes 9] [--bare-passes 25]

Needs root: hosts, link and extents are those of overlap.py. k is chosen so that product and
communication take equally long. hpcbench's implementations of tp_rowwise in that order take turns
in a job. Then the same product and messages take turns on the same hosts, without hpcbench
(overlap_bare.py):

- the product alone, twice (A/A), and in the pieces of chunked_pipeline
- the communication alone: what is needed by TCP sockets or gloo's messages; gloo's collective
- both together. With nothing awaited, all is sent from the start and nothing is added: this is the
  floor of core and link. Overlapped, pieces are sent when they are made and added when they come.

A call takes as long as the slower rank; a turn has the median of its calls. Shown are medians over
passes, and the geometric mean of the ratios within a pass with its 95 % interval. The longer part
is what overlap.py means: the product or gloo's collective. Its reduce_scatter sends twice what is
needed.

The goal is at most 1.15 times the longer part for hpcbench's best. It counts as reached, too, where
the bare script shows that gloo does not allow it: where all that it does at once by gloo lies
above 1.15. What sockets take stands beside it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from hpcbench.reduce.records import pass_medians_s  # noqa: E402
from hpcbench.reduce.results import CaseResult  # noqa: E402
from launching import fail, mpirun  # noqa: E402
from overlap import (  # noqa: E402
    GOAL_LONGEST,
    PARTS,
    PROBLEMS,
    RANKS,
    Job,
    Problem,
    label_of,
    table,
    value,
)
from overlap_variants import AGAIN, ORDERS, PRODUCT, SOCKETS, Variants  # noqa: E402
from paired import judged  # noqa: E402
from ratios import Ratio, ratio  # noqa: E402
from virtual_hosts import inside, one_rank_each, why_not  # noqa: E402

BARE = Path(__file__).with_name("overlap_bare.py")


@dataclass(frozen=True)
class Best:
    """hpcbench's best implementation: its name, and its time over the longer part."""

    label: str
    times_longest: float
    over_passes: Ratio


@dataclass(frozen=True)
class Turns:
    """Median times, and CPU times of the busier rank, of each variant and pass in s."""

    variants: Variants
    times_s: Mapping[str, np.ndarray]
    cpu_s: Mapping[str, np.ndarray]

    def over_longer(self, name: str, communication: str | None = None) -> Ratio:
        """Return a variant's time over the longer of product and communication, gloo's if None."""
        communicated_s = self.times_s[communication or self.variants.communication]
        return ratio(self.times_s[name], np.maximum(self.times_s[PRODUCT], communicated_s))

    def floor(self, names: Sequence[str]) -> Ratio:
        """Return the least of some variants over the longer part: a slower one is no limit."""
        return min(map(self.over_longer, names), key=lambda found: found.mean)

    @property
    def chance(self) -> Ratio:
        """Return how far equal turns are apart."""
        return ratio(self.times_s[AGAIN], self.times_s[PRODUCT])


def main() -> None:
    """Measure hpcbench and the bare script, and print both and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--passes", type=int, default=9, help="of hpcbench's job")
    parser.add_argument("--iterations", type=int, default=6, help="of a case in each of them")
    parser.add_argument("--bare-passes", type=int, default=25, help="of the bare script")
    parser.add_argument("--calls", type=int, default=6, help="of a variant in each of them")
    parser.add_argument("--order", choices=ORDERS, default="RS_after")
    parser.add_argument("--keep", type=Path, help="folder for the results of all runs")
    given = parser.parse_args()
    if why := why_not(given.rate):
        fail(f"no virtual hosts (root, ip, tc with tbf and nsenter are needed): {why}")
    with tempfile.TemporaryDirectory() as folder:
        job = Job(given.keep or Path(folder), given.passes, given.iterations, given.rate)
        problem = job.balance(next(item for item in PROBLEMS if item.order == given.order))
        print(f"{problem}, link; load {os.getloadavg()[0]:.1f}")
        best = best_of(job.run(problem))
        turns = without_hpcbench(problem, given.rate, given.bare_passes, given.calls)
    print(f"\nwithout hpcbench; load {os.getloadavg()[0]:.1f}")
    show(turns)
    verdict, is_reached = judge(best, turns)
    print(verdict)
    sys.exit(int(not is_reached))


def best_of(cases: Sequence[CaseResult]) -> Best:
    """Print hpcbench's table; return the implementation that is best against torch."""
    compared = table(cases)
    label = max(compared, key=lambda each: value(compared[each].speedup))
    times_s = {label_of(item): np.array(pass_medians_s(item), dtype=float) for item in cases}
    longer_s = np.maximum(*(times_s[name] for name in PARTS))
    return Best(label, value(compared[label].times_longest), ratio(times_s[label], longer_s))


def without_hpcbench(problem: Problem, rate: str, passes: int, calls: int) -> Turns:
    """Run the bare script with a rank on each of two such hosts."""
    with tempfile.TemporaryDirectory() as folder:
        extents = {"m": problem.m, "n": problem.n, "k": problem.k // RANKS, "passes": passes,
                   "calls": calls}
        mpirun(RANKS, [BARE, folder, "--order", problem.order,
                   *(f"--{name}={number}" for name, number in extents.items())],
               before=inside(RANKS, rate), options=one_rank_each(RANKS),
               env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"})
        ranks = np.stack([np.load(Path(folder) / f"{rank}.npy") for rank in range(RANKS)])
    times_s, cpu_s = np.median(ranks.max(axis=0), axis=-1)
    variants = ORDERS[problem.order]
    return Turns(variants, dict(zip(variants.names, times_s, strict=True)),
                 dict(zip(variants.names, cpu_s, strict=True)))


def show(turns: Turns) -> None:
    """Print a line for each variant."""
    print(f"{'':<30}{'median ms':>10}{'CPU ms':>8}  x the longer part{'':<6}"
          f"  x the longer of {PRODUCT} and {SOCKETS}")
    for name in turns.variants.names:
        print(f"{name:<30}{np.median(turns.times_s[name]) * 1e3:10.1f}"
              f"{np.median(turns.cpu_s[name]) * 1e3:8.1f}  {turns.over_longer(name).text:<23}"
              f"  {turns.over_longer(name, SOCKETS).text}")
    print(f"A/A: {turns.chance.text}")


def judge(best: Best, turns: Turns) -> tuple[str, bool]:
    """Return the verdict, and whether the goal is met, or cannot be with gloo."""
    floor = turns.floor(turns.variants.by_gloo)
    found = (f"best: {best.label}, {best.times_longest:.2f} x the longer part (mean "
             f"{best.over_passes.text}; goal {GOAL_LONGEST:g}); floor by gloo "
             f"{floor.text}, by sockets {turns.floor(turns.variants.by_sockets).text}")
    if best.times_longest <= GOAL_LONGEST:
        return f"{found}  met", True
    if floor.mean > 1 and judged(floor, turns.chance, GOAL_LONGEST - 1) == "missed":
        return f"{found}  limit of gloo shown", True
    return f"{found}  missed", False


if __name__ == "__main__":
    main()

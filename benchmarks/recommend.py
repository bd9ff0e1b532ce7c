"""How often does `hpcbench advise` name a winner where there is none, and find one that there is?

    python benchmarks/recommend.py [--reports 400] [--tasks 30] [--passes 9] [--jitter 0.01]

Synthetic medians of passes of one launch: ``tasks`` sizes of an all_reduce in two ways. A drift of
the machine, which both share, has a standard deviation of 20 % from pass to pass; each median has a
log-normal jitter of its own.

- equal ways: at most 1 % of the reports may name any winner;
- one way 10 % slower in all tasks: at least 95 % of the tasks must have their winner;
- one way 10 % slower in one task: it must be found in at least 95 % of the reports.

The exit code is 1 if one of them is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcbench.answers.answer import CLEAR, Run, TopicOptions
from hpcbench.answers.recommend import Recommendations, recommend
from hpcbench.plan.case import Case, Plan, planned_canary
from hpcbench.reduce.results import CaseResult, Results, RunInfo, Statistics, Timing

DRIFT, SLOWER = 0.2, 1.1


class NoSamples:
    """A source without samples: recommendations need the medians of passes only."""

    def samples(self, case_id: str) -> None:
        """Return None."""

    def time_series(self, table: str, column: str) -> tuple[()]:
        """Return nothing."""
        return ()


def canary() -> Case:
    """Return a case to make others of."""
    return planned_canary(2, 1.0, 1.0)


def result(case: Case, medians_s: Sequence[float]) -> CaseResult:
    """Return a case whose passes have these medians."""
    middle = float(np.median(medians_s))
    none = dict.fromkeys((
        "unflagged_median_s", "first_call_s", "communicator_s", "last_in_s", "local_max_s",
        "imbalance_s", "enqueue_s", "device_s", "clock_bound_s", "quickest_rank",
        "quickest_share"))
    timing = Timing(fold="global", calls=1, n_warmup=0, n_ramp=0, n_late=0, n_outlier=0,
                    unflagged_n=0, quality=(), stop_reasons=(), launch_medians_s=(middle,),
                    pass_medians_s=tuple(medians_s), **none)  # type: ignore[arg-type]
    stats = Statistics(len(medians_s), middle, None, middle, middle, middle, None, None, middle)
    return CaseResult(case, "ok", "", None, "cpu", 0, stats, {}, timing)


def report(given: argparse.Namespace, slower: int, rng: np.random.Generator) -> Recommendations:
    """Return what is recommended of a run in which one way is slower in the first tasks."""
    base, items = canary(), []
    for size in range(given.tasks):
        work = replace(base.workload, requested_bytes=size)  # type: ignore[type-var]
        drift = np.exp(rng.normal(0, DRIFT, given.passes))
        for backend in ("gloo", "mpi"):
            factor = SLOWER if backend == "mpi" and size < slower else 1.0
            own = np.exp(rng.normal(0, given.jitter, given.passes))
            case = replace(base, case_id=f"{backend}{size}", backend=backend, workload=work)
            items.append(result(case, (1e-3 * factor * drift * own).tolist()))
    plan = Plan("synthetic", 2, given.passes, tuple(item.case for item in items), 0, {}, "0")
    info = RunInfo("synthetic", "0", "0", 2, (0, 1), ("n",), "", {}, {}, "0")
    return recommend([Run("FILE", Results(info, plan, tuple(items), ()), NoSamples())],
                     TopicOptions())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each goal with what was measured; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reports", type=int, default=400)
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--jitter", type=float, default=0.01)
    given, missed = parser.parse_args(arguments), 0
    for name, slower in (("equal ways", 0), ("all 10 % slower", given.tasks),
                         ("one 10 % slower", 1)):
        rng = np.random.default_rng(1)
        found = [report(given, slower, rng) for _ in range(given.reports)]
        clear = [[one.value for one in each.preferences if one.certainty == CLEAR]
                 for each in found]
        named = sum(map(bool, clear)) / given.reports
        right = sum(min(values.count("gloo"), max(slower, 1)) for values in clear) / (
            given.reports * max(slower, 1))
        met = named <= 0.01 if not slower else right >= 0.95
        missed += not met
        share, goal = (named, "<= 1 % of reports") if not slower else (right, ">= 95 %")
        print(f"{name:<16} {share:>8.2%}   {goal}: {'met' if met else 'missed'}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())

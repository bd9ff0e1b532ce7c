"""How often does the diagnosis name the rank that straggles, and how often one of equal ranks?

    python benchmarks/diagnose.py [--sweeps 1000] [--ranks 2 4 16] [--passes 9] [--steps 10]
        [--pass-noise 0]

Synthetic stamps of steps go through folding, comparing and `analysis.diagnose`; late starts are
compared from their medians. There is no MPI and no torch. A sweep has ``rows`` trainings of
``passes`` x ``steps`` steps. Each phase of each rank has 1 % of noise (standard deviation) from
step to step, and ``pass-noise`` from pass to pass. A fault makes a random rank late, in all rows,
by a share of the step:

- phase: it takes longer in forward or in backward;
- start: it starts late, as the fault ``slow`` makes it.

Goals: at most 1 % of clean sweeps name any rank; of faulty ones at least 99 % name the right rank,
in the right phase, and no other; the lateness is within 20 % in at least 99 %. Of two ranks that
holds from 10 % on: what differs from pass to pass may last (benchmarks/dependent_passes.py). A
start counts from 10 % of a step on. The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.diagnose import RankComparison, diagnose
from hpcbench.answers.answer import Run, TopicOptions
from hpcbench.config.load import check_config
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.comparison import LATE_START, compared
from hpcbench.reduce.kind_facts import BEFORE_THE_CALL
from hpcbench.reduce.records import Observations, with_records
from hpcbench.reduce.results import (
    Arrival,
    CaseResult,
    CaseSamples,
    Results,
    RunInfo,
    Statistics,
    Steps,
    Timing,
)
from hpcbench.reduce.timing import CLEAR_LATENESS
from hpcbench.statistics.hypothesis_tests import pass_medians
from hpcbench.trace.schema import ARRIVAL, NO_DEVICE_TIME

PHASES = {"data": 0.5e6, "forward": 6.5e6, "backward": 13e6}
SYNC, STEP = 2e6, 22e6
"""Nanoseconds of a clean step."""
NOISE, GOAL_CLEAN, GOAL_RIGHT, SIZE = 0.01, 0.01, 0.99, 0.2
LATE, OF_TWO = (0.05, 0.1, 0.2), 0.1
"""Shares of a step; of two ranks the goals hold from the second one on."""
Random = np.random.Generator
Times = npt.NDArray[np.float64]


class NoSamples:
    """A source without samples: the diagnosis needs records only."""

    def samples(self, case_id: str) -> None:
        """Return None."""

    def time_series(self, table: str, column: str) -> tuple[()]:
        """Return nothing."""
        return ()


@dataclass(frozen=True)
class Fault:
    """A rank that is late by ``late`` of a clean step, in a phase or before the call."""

    rank: int
    phase: str
    late: float


def noisy(random: Random, ranks: int, given: argparse.Namespace) -> Times:
    """Return factors about 1 of the steps of all passes, (rank, step)."""
    own = random.normal(0, NOISE, (ranks, given.passes * given.steps))
    of_pass = random.normal(0, given.pass_noise, (ranks, given.passes)) if given.pass_noise else 0
    return np.asarray(np.exp(own + np.repeat(of_pass, given.steps, axis=1)
                             if given.pass_noise else own))


def stamps(random: Random, ranks: int, fault: Fault | None, given: argparse.Namespace
           ) -> tuple[CaseSamples, Times]:
    """Return the stamps of one training, and how late each rank starts its steps, (rank, step)."""
    parts = {name: length * noisy(random, ranks, given) for name, length in PHASES.items()}
    skew = np.abs(random.normal(0, 2e3, parts["data"].shape))
    if fault and fault.phase == BEFORE_THE_CALL:
        skew[fault.rank] += fault.late * STEP
    elif fault:
        parts[fault.phase][fault.rank] += fault.late * STEP
    ready = np.sum(list(parts.values()), axis=0)
    begin = 2 * STEP * np.arange(ready.shape[1])
    start = begin + skew
    sync = SYNC * np.exp(random.normal(0, NOISE, ready.shape[1]))
    end = np.broadcast_to((start + ready).max(axis=0) + sync, ready.shape)
    phases = {**parts, "exchange": end - start - ready, f"{ARRIVAL}0": ready}
    none = np.full(ready.shape, NO_DEVICE_TIME, np.int64)
    samples = CaseSamples(
        tuple(range(ranks)), np.zeros(ready.shape[1], np.int64),
        np.repeat(np.arange(given.passes), given.steps), start.astype(np.int64),
        end.astype(np.int64), none, none, np.zeros(ready.shape, np.int64),
        {name: values.astype(np.int64) for name, values in phases.items()})
    return samples, skew


def result(case: Case, samples: CaseSamples, skew_ns: Times, given: argparse.Namespace
           ) -> CaseResult:
    """Return the case as the reducer has it, as far as the diagnosis looks."""
    steps_s = (samples.end_ns - samples.start_ns) / 1e9
    times_s = (samples.end_ns.max(axis=0) - samples.start_ns.min(axis=0)) / 1e9
    middle = float(np.median(times_s))
    medians = pass_medians((skew_ns - skew_ns.min(axis=0)) / 1e9, [given.steps] * given.passes)
    start = compared(LATE_START, samples.ranks, medians, CLEAR_LATENESS * middle)
    none: dict[str, Any] = dict.fromkeys((
        "unflagged_median_s", "first_call_s", "communicator_s", "last_in_s", "local_max_s",
        "imbalance_s", "enqueue_s", "device_s", "clock_bound_s", "quickest_rank",
        "quickest_share"))
    steps = Steps(samples.ranks, tuple(np.median(steps_s, axis=1).tolist()),
                  (0.0,) * len(samples.ranks), 0.0, (), (), (Arrival(0, (), 0, 0.0, 0.0),))
    timing = Timing(fold="global", calls=1, n_warmup=0, n_ramp=0, n_late=0, n_outlier=0,
                    unflagged_n=0, quality=(), stop_reasons=(), launch_medians_s=(middle,),
                    late_start=start, steps=steps, **none)
    stats = Statistics(times_s.size, middle, None, middle, middle, middle, None, None, middle)
    return CaseResult(case, "ok", "", None, "cpu", 0, stats, {}, timing)


def cases(ranks: int, rows: int) -> tuple[Case, ...]:
    """Return trainings of several batch sizes on so many ranks."""
    sweep = {"benchmarks": [{
        "kind": "training", "name": "rows", "model": "transformer-tiny", "strategies": ["data"],
        "layers": 2, "hidden": 32, "seq_length": 16, "vocab": 64,
        "batch_size": list(range(1, rows + 1)), "backend": "gloo", "device": "cpu"}],
        "measure": {"iterations": 10}}
    return make_plan(check_config(sweep, "rows"), ranks).cases


def looks(random: Random, planned: Sequence[Case], fault: Fault | None,
          given: argparse.Namespace) -> list[RankComparison]:
    """Return the looks of one sweep that name a rank."""
    observed, items = Observations(), []
    for case in planned:
        samples, skew = stamps(random, case.world_size, fault, given)
        items.append(result(case, samples, skew, given))
        observed.add(items[-1], samples)
    ranks = planned[0].world_size
    info = RunInfo("synthetic", "0", "0", ranks, tuple(range(ranks)), ("n",), "", {}, {}, "0")
    plan = Plan("synthetic", ranks, given.passes, tuple(planned), 0, {}, "0")
    found = with_records(Results(info, plan, tuple(items), ()), observed=observed)
    if found.missing_kinds:
        raise RuntimeError(f"no records: {found.missing_kinds}")
    return [one for one in diagnose([Run("FILE", found, NoSamples())], TopicOptions()).checks
            if one.is_clear]


def faults(random: Random, ranks: int, name: str, late: float, sweeps: int) -> Iterator[Fault]:
    """Yield the fault of each sweep."""
    for _ in range(sweeps):
        phase = BEFORE_THE_CALL if name == "start" else str(random.choice(["forward", "backward"]))
        yield Fault(int(random.integers(ranks)), phase, late)


def right(found: Sequence[RankComparison], fault: Fault) -> tuple[bool, bool]:
    """Return whether the right rank and no other is named, in its phase; and its size is right.

    Sizes are those of the row in which most of a call is lost, which the sentence has.
    """
    named = {(one.rank, one.phase) for one in found} == {(fault.rank, fault.phase)}
    if not named:
        return False, False
    worst = max(found, key=lambda one: one.share.value)
    return True, abs(worst.behind_s.value * 1e9 / (fault.late * STEP) - 1) <= SIZE


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each number of ranks and fault; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sweeps", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 16])
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pass-noise", type=float, default=0.0)
    given, missed = parser.parse_args(arguments), False
    random = np.random.default_rng(20_261_123)
    for ranks in given.ranks:
        planned = cases(ranks, given.rows)
        clean = sum(bool(looks(random, planned, None, given))
                    for _ in range(given.sweeps)) / given.sweeps
        missed |= clean > GOAL_CLEAN
        print(f"{ranks:3} ranks  clean: {clean:.2%} name any{_word(clean <= GOAL_CLEAN)}",
              flush=True)
        for name, late in (*(("phase", late) for late in LATE), ("start", LATE[-1])):
            known = [right(looks(random, planned, fault, given), fault)
                     for fault in faults(random, ranks, name, late, given.sweeps)]
            shares = [sum(each) / len(known) for each in zip(*known, strict=True)]
            is_met = min(shares) >= GOAL_RIGHT or ranks == 2 and late < OF_TWO
            missed |= not is_met
            print(f"{ranks:3} ranks  {name} +{late:.0%}: right rank and phase {shares[0]:.1%}, "
                  f"size within {SIZE:.0%} {shares[1]:.1%}{_word(is_met)}",
                  flush=True)
    return int(missed)


def _word(met: bool) -> str:
    return "" if met else " MISSED"


if __name__ == "__main__":
    sys.exit(main())

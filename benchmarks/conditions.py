"""How often do topics `conditions` and `waits` find what slows a run down, and how often nothing?

    python benchmarks/conditions.py [--runs 1000] [--cases 10] [--ranks 4] [--passes 9]

Synthetic runs go through `analysis.drift`, `analysis.disturbed` and `analysis.causes`; there is no
MPI and no torch. A run has the medians of ``cases`` in ``passes``, each with 2 % of noise (standard
deviation), and readings of clocks and of waits for a core in each pass. Clean runs are of four
sorts: independent passes, noise that all cases have in common, neighbours that correlate by 0.5,
and readings that change by 20 % in a third of the passes and cost nothing.

In faulty runs all cases or one drift by a share of their time; a clock is lower, or a rank waits
for its core, in a third of the passes; or it always waits. Ranks by themselves are compared over as
many passes: of 4 stages with 3 replicas each, or 3 ranks that exchange.

Goals: at most 1 % of clean runs name anything, and of each fault at least 95 % are found as what
they are, with nothing else. The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.conditions import Conditions, conditions
from hpcbench.analysis.waits import COMPUTE, LINK, WORK, causes_of, settled_causes
from hpcbench.answers.answer import Run, TopicOptions
from hpcbench.config.load import check_config
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.kind_facts import EXCHANGE, OWN_WORK, RankWork
from hpcbench.reduce.results import (
    CaseResult,
    RankTelemetry,
    Results,
    RunInfo,
    Statistics,
    TimeSeries,
    Timing,
    Usage,
)

NOISE, CALL_S, PASS_NS, GAP_NS = 0.02, 10e-3, 2_000_000_000, 100_000_000
GOAL_CLEAN, GOAL_FOUND, MHZ = 0.01, 0.95, 1410
STAGES, REPLICAS = 4, 3
Random = np.random.Generator
Times = npt.NDArray[np.float64]
Found = frozenset[str]


class Readings:
    """A source of readings alone: ``lost`` are shares by table, (rank, pass of any case)."""

    def __init__(self, clocks: Times, waits: Times) -> None:
        self._clocks, self._waits = clocks, waits

    def samples(self, case_id: str) -> None:
        """Return None."""

    def time_series(self, table: str, column: str) -> list[TimeSeries]:
        """Return clocks and waits of each rank; nothing else was read."""
        begins = _begins(self._waits.shape[1])
        if (table, column) == ("gpu", "sm_mhz"):
            at = begins + PASS_NS // 2
            return [TimeSeries(rank, "gpu", at, np.round(MHZ * (1 - lost)).astype(np.int64))
                    for rank, lost in enumerate(self._clocks)]
        if (table, column) != ("process", "wait_ns"):
            return []
        at = np.stack([begins, begins + PASS_NS], axis=1).ravel()
        return [TimeSeries(rank, "worker", at, np.repeat(np.cumsum(lost) * PASS_NS, 2).astype(
            np.int64) - np.stack([lost * PASS_NS, 0 * lost], axis=1).ravel().astype(np.int64))
            for rank, lost in enumerate(self._waits)]


def _begins(count: int) -> npt.NDArray[np.int64]:
    return np.arange(count, dtype=np.int64) * (PASS_NS + GAP_NS)


def cases(count: int, ranks: int) -> tuple[Case, ...]:
    """Return so many collectives on so many ranks."""
    sizes = [str(1024 * 2 ** at) for at in range(count)]
    sweep = {"benchmarks": [{"kind": "collective", "collective": "all_reduce", "backend": "gloo",
                             "device": "cpu", "size": sizes}]}
    return make_plan(check_config(sweep, "conditions"), ranks).cases


def noise(random: Random, given: argparse.Namespace, sort: str) -> Times:
    """Return factors about 1 of the passes of all cases, (case, pass)."""
    own = random.normal(0, NOISE, (given.cases, given.passes))
    if sort == "common":
        own = own / 2 + random.normal(0, NOISE, given.passes)
    if sort == "alike":
        for at in range(1, given.passes):
            own[:, at] = 0.5 * own[:, at - 1] + np.sqrt(0.75) * own[:, at]
    return np.asarray(np.exp(own))


def run_of(
    random: Random, planned: Sequence[Case], given: argparse.Namespace, factors: Times,
    lost: tuple[Times, Times],
) -> Conditions:
    """Return what is said of one run; ``lost`` are shares of clocks and cores, (rank, pass)."""
    none: dict[str, Any] = dict.fromkeys((
        "unflagged_median_s", "first_call_s", "communicator_s", "last_in_s", "local_max_s",
        "imbalance_s", "enqueue_s", "device_s", "clock_bound_s", "quickest_rank",
        "quickest_share"))
    begins = _begins(given.cases * given.passes).reshape(given.passes, given.cases)
    items = []
    for at, case in enumerate(planned):
        times = CALL_S * factors[at]
        middle = float(np.median(times))
        timing = Timing(fold="global", calls=1, n_warmup=0, n_ramp=0, n_late=0, n_outlier=0,
                        unflagged_n=0, quality=(), stop_reasons=(), launch_medians_s=(middle,),
                        pass_medians_s=tuple(times.tolist()), **none)
        spans = tuple((int(one), int(one) + PASS_NS) for one in begins[:, at])
        stats = Statistics(90, middle, None, middle, middle, middle, None, None, middle)
        items.append(CaseResult(case, "ok", "", None, "cpu", 0, stats, {}, timing,
                                usage=Usage(given.passes, spans_ns=spans)))
    # a pass of the run is one turn over all cases: readings are of each case in it
    wide = [np.repeat(one, given.cases, axis=1) for one in lost]
    clocks = wide[0] + np.abs(random.normal(0, 0.002, wide[0].shape))
    waits = np.clip(wide[1] + np.abs(random.normal(0, 0.01, wide[1].shape)), 0, 0.9)
    ranks = tuple(range(given.ranks))
    info = RunInfo("synthetic", "0", "0", given.ranks, ranks, ("n",), "", {}, {}, "0")
    plan = Plan("synthetic", given.ranks, given.passes, tuple(planned), 0, {}, "0")
    told = tuple(RankTelemetry(rank, 0, 2.0) for rank in ranks)
    results = Results(info, plan, tuple(items), (), telemetry=told)
    return conditions([Run("FILE", results, Readings(clocks, waits))], TopicOptions())


def named(found: Conditions) -> Found:
    """Return what is named, in words."""
    drifting = [one for one in found.drifts if one.is_clear]
    words = {"drift of all" if not one.case_id else "drift of one" for one in drifting}
    words |= {f"{one.condition} of {one.row}" for one in found.following if one.is_cause}
    if not any(one.is_cause for one in found.following):  # else it is evidence at most
        words |= {"follows" for one in found.following if one.is_clear}
    words |= {f"waiting {one.waiting.row}" for one in found.disturbed if one.waiting}
    words |= {f"low clock {one.clock.row}" for one in found.disturbed if one.clock}
    return frozenset(words)


def faulty(
    random: Random, given: argparse.Namespace, fault: str, size: float,
) -> tuple[Times, tuple[Times, Times], set[str]]:
    """Return factors (case, pass), lost clocks and cores (rank, pass), and what should be named."""
    factors = np.ones((given.cases, given.passes))
    clocks, waits = np.zeros((2, given.ranks, given.passes))
    rank, course = int(random.integers(given.ranks)), np.linspace(0, 1, given.passes)
    hit = random.permutation(given.passes) < -(-given.passes // 3)
    if fault == "drift of all":
        factors *= 1 + size * course
        return factors, (clocks, waits), {fault}
    if fault == "drift of one":
        factors[random.integers(given.cases)] *= 1 + size * course
        return factors, (clocks, waits), {fault}
    if fault == "always waiting":
        waits[rank] = size
        return factors, (clocks, waits), {f"waiting {rank}"}
    of = clocks if fault == "clocks" else waits
    of[rank, hit] = size
    factors[:, hit] /= 1 - size
    return factors, (clocks, waits), {f"{fault} of {rank}"}


def work_of(random: Random, passes: int, fault: str, size: float) -> tuple[RankWork, Found]:
    """Return times of ranks by themselves, and what should be named of them."""
    ranks = REPLICAS if fault in ("link", "late", "clean exchange") else STAGES * REPLICAS
    times = 1e-2 * np.exp(random.normal(0, 0.01, (ranks, passes)))
    ready = 2e-2 * np.exp(random.normal(0, 0.002, (ranks, passes)))
    rank = int(random.integers(ranks))
    stages = tuple(at % STAGES for at in range(ranks))
    if fault in ("link", "late", "clean exchange"):
        if fault == "link":
            times[rank] *= 1 + size
        if fault == "late":
            ready[rank] += size * 1e-2
        work = RankWork(EXCHANGE, tuple(range(ranks)), _table(times), (0,) * ranks, "",
                        _table(ready))
        return work, frozenset({f"{LINK} {rank}"} if fault == "link" else ())
    if fault == "rank":
        times[rank] *= 1 + size
        return RankWork(OWN_WORK, tuple(range(ranks)), _table(times), stages, "stage"), frozenset(
            {f"{COMPUTE} {rank}"})
    slow = int(random.integers(STAGES))
    if fault == "stage":
        times[[at for at in range(ranks) if stages[at] == slow]] *= 1 + size
    return RankWork(OWN_WORK, tuple(range(ranks)), _table(times), stages, "stage"), frozenset(
        {f"{WORK} {slow}"} if fault == "stage" else ())


def _table(values: Times) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, values.tolist()))


def causes_named(work: RankWork) -> Found:
    """Return the causes that are named of one report."""
    return frozenset(f"{one.cause} {one.who}" for one in settled_causes([*causes_of(work)])
                     if one.is_clear)


def shown(what: str, hits: Sequence[bool], *, is_clean: bool) -> bool:
    """Print a line; return whether a goal is missed."""
    share = sum(hits) / len(hits)
    missed = share > GOAL_CLEAN if is_clean else share < GOAL_FOUND
    said = "name any" if is_clean else "found as what it is, and nothing else"
    print(f"{what:<28} {share:7.2%} {said}{' MISSED' if missed else ''}", flush=True)
    return missed


def repeated(count: int, make: Callable[[], bool]) -> list[bool]:
    """Return what so many runs said."""
    return [make() for _ in range(count)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each sort of run; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--passes", type=int, default=9)
    given, missed = parser.parse_args(arguments), False
    random = np.random.default_rng(20_261_124)
    planned = cases(given.cases, given.ranks)

    def clean(sort: str) -> bool:
        nothing = np.zeros((given.ranks, given.passes))
        return bool(named(run_of(random, planned, given, noise(random, given, sort),
                                 (nothing, nothing))))

    def unrelated() -> bool:
        """Return whether waits and clocks that cost nothing are named as a cause."""
        lost = [faulty(random, given, fault, 0.2)[1][at]
                for at, fault in enumerate(("clocks", "waits"))]
        said = named(run_of(random, planned, given, noise(random, given, ""),
                            (lost[0], lost[1])))
        return any(not word.startswith("waiting") for word in said)

    def found(fault: str, size: float) -> bool:
        factors, lost, right = faulty(random, given, fault, size)
        said = named(run_of(random, planned, given, factors * noise(random, given, ""), lost))
        return said - ({"drift of one"} if fault == "drift of all" else set()) == right

    def caused(fault: str, size: float) -> bool:
        work, right = work_of(random, given.passes, fault, size)
        said = causes_named(work)
        return said == right if right else bool(said)

    for sort in ("independent", "common", "alike"):
        missed |= shown(f"clean, {sort}", repeated(given.runs, partial(clean, sort)),
                        is_clean=True)
    missed |= shown("clean, unrelated readings", repeated(given.runs, unrelated), is_clean=True)
    for fault, size in (("drift of all", 0.1), ("drift of all", 0.2), ("drift of all", 0.3),
                        ("drift of one", 0.2), ("drift of one", 0.4),
                        ("clocks", 0.1), ("clocks", 0.2), ("waits", 0.1), ("waits", 0.3),
                        ("always waiting", 0.1)):
        missed |= shown(f"{fault}, {size:.0%}", repeated(
            given.runs, partial(found, fault, size)), is_clean=False)
    for fault, size in (("clean stages", 0.0), ("clean exchange", 0.0), ("late", 0.3),
                        ("rank", 0.1), ("stage", 0.1), ("link", 0.1), ("link", 0.2)):
        missed |= shown(f"{fault}, {size:.0%}", repeated(
            given.runs, partial(caused, fault, size)),
            is_clean=fault in ("clean stages", "clean exchange", "late"))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

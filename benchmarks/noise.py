"""How often is anything named in noise of many kinds, and found where it is there?

    python benchmarks/noise.py [--reports 300] [--claims recommend by ...] [--kinds iid ...]

A simulation, no machine. A claim is a row; a column is a kind of noise, that of all times alike. In
`recommend` and `by` noise follows time: cases run in the order of the protocol, and take one value
each after the other. In `blocks` one backend runs after the other (MPI itself does). In `own` each
case has noise of its own, from pass to pass, as if states stayed with a setting: those that last
are as a difference is, so that no share is promised; in `launch` from launch to launch, with 2 % of
each pass. In `links` it follows time in the rounds of the protocol. `ranks` counts ranks that are
named and are not slowest in each pass, by `LASTING`; `named` all, as a state that lasts for all
passes makes a rank slow in them. Kinds:

- iid, ar 0.3, ar 0.6: lognormal by 5 %, independent or an AR(1) process of that correlation;
- modes: 30 % of the times are half as long again; states 3, states 8: a mode is drawn anew
  after so many values on average; heavy: Student's t with 2 degrees of freedom;
- machine: round trips of a socket, as measured on a busy machine (data/round_trips_ns.csv); each
  series is a part of them; medians: of 20 each, as passes have.

Cells are shares of reports in which anything is named, in per cent; at most 1 % may be. Of all
intervals at most 5 % may be unflagged and miss the median (7 % of 5 passes: of two modes all 5 lie
in one by chance in 6); `flagged` has no limit. Then, of `iid`, the share of cases found that differ
by 5 and by 10 %. The exit code is 1 if a share is greater than allowed, by more than 3 standard
errors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.machine import cells_of, slow_links, slow_ranks
from hpcbench.answers.answer import CLEAR, Run, TopicOptions
from hpcbench.answers.compare import FASTER, SLOWER, compare
from hpcbench.answers.compare_inputs import CaseOfSide
from hpcbench.answers.recommend import recommend
from hpcbench.interop.answers.causes import INCONCLUSIVE, TRANSFER, CallCause, CallTimes, judged
from hpcbench.kinds.hardware.plan.pairs import rounds
from hpcbench.plan.case import Case, Plan, planned_canary
from hpcbench.plan.order import shuffled
from hpcbench.reduce.comparison import compared, holm_corrected
from hpcbench.reduce.results import CaseResult, Results, RunInfo, Statistics, Timing
from hpcbench.reduce.timing import CI_LEVEL, precision_of
from hpcbench.statistics.interval import median_interval
from hpcbench.statistics.steady import steady_from

Random = np.random.Generator
Values = npt.NDArray[np.float64]
Kind = Callable[[Random, int, int], Values]
SPREAD, APART, UPPER, OF_MODES = 0.05, np.log(1.5), 0.3, 0.02
CASES = 4
"""Of a sweep: so many run before the next pass of one."""
MEASURED = Path(__file__).parent / "data" / "round_trips_ns.csv"
LASTING = 1.2
"""A rank takes so many times as long as each other one in each pass: between modes, beyond 5 %."""
ERRORS = 3.0
"""Standard errors of a share by which it may exceed what is allowed."""


def autoregressive(correlation: float, spread: float = SPREAD) -> Kind:
    def make(random: Random, series: int, n: int) -> Values:
        noise = random.standard_normal((series, n))
        for at in range(1, n):
            noise[:, at] = (correlation * noise[:, at - 1]
                            + np.sqrt(1 - correlation ** 2) * noise[:, at])
        return spread * noise
    return make


def modes(stay: float) -> Kind:
    """Return series of two modes, drawn anew after so many values on average."""
    def make(random: Random, series: int, n: int) -> Values:
        upper, anew = random.random((series, n)) < UPPER, random.random((series, n))
        for at in range(1, n):
            upper[:, at] = np.where(anew[:, at] < 1 / stay, upper[:, at], upper[:, at - 1])
        return APART * upper + OF_MODES * random.standard_normal((series, n))
    return make


def heavy(random: Random, series: int, n: int) -> Values:
    return SPREAD * random.standard_t(2, (series, n))


@lru_cache(maxsize=1)
def measured_logs() -> Values:
    return np.log(np.loadtxt(MEASURED, skiprows=1))


def machine(random: Random, series: int, n: int) -> Values:
    return part_of(measured_logs(), random, series, n)


def machine_passes(random: Random, series: int, n: int) -> Values:
    return part_of(np.median(measured_logs().reshape(-1, 20), axis=1), random, series, n)


def part_of(values: Values, random: Random, series: int, n: int) -> Values:
    length = min(n, values.size // 2)  # a longer series is of several parts
    starts = random.integers(values.size - length, size=(series, -(-n // length), 1))
    return values[starts + np.arange(length)].reshape(series, -1)[:, :n]


KINDS: dict[str, Kind] = {
    "iid": autoregressive(0.0), "ar 0.3": autoregressive(0.3), "ar 0.6": autoregressive(0.6),
    "modes": modes(1.0), "states 3": modes(3.0), "states 8": modes(8.0), "heavy": heavy,
    "machine": machine, "medians": machine_passes}


@dataclass(frozen=True, slots=True)
class Claim:
    """What is said of noise: ``share`` of what differs by a factor that is named, or of reports
    that name anything where it is 1; at most ``allowed`` of these."""

    share: Callable[[Kind, Random, int, float], float]
    allowed: float = 0.01
    power: bool = True


class NoSamples:
    """A source without samples: recommendations need the medians of passes only."""

    def samples(self, case_id: str) -> None:
        """Return None."""

    def time_series(self, table: str, column: str) -> tuple[()]:
        """Return nothing."""
        return ()


@lru_cache(maxsize=1)
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


Placed = Callable[[Kind, Random, int, int], Values]
"""Return noise of two settings of so many tasks in so many passes, (setting, task, pass)."""


def own(kind: Kind, random: Random, tasks: int, passes: int) -> Values:
    return kind(random, 2 * tasks, passes).reshape(2, tasks, passes)


def in_order(kind: Kind, random: Random, tasks: int, passes: int, blocks: int = 1) -> Values:
    """Place one series of noise as the protocol has the cases run, in blocks with workers each."""
    times = kind(random, 1, 2 * tasks * passes)[0]
    of_block = 2 * tasks // blocks
    cases = [replace(canary(), index=index) for index in range(of_block)]
    seed = int(random.integers(2 ** 31))
    at = [block * of_block + case.index for number in range(passes) for block in range(blocks)
          for case in shuffled(cases, "shuffled", seed, number)]
    placed = np.empty((2 * tasks, passes))
    placed[at, np.repeat(np.arange(passes), 2 * tasks)] = times
    return placed.reshape(2, tasks, passes)


def by_launch(
    kind: Kind, random: Random, tasks: int, passes: int, launches: int,
) -> Values:
    own = np.repeat(kind(random, 2 * tasks, launches), passes // launches, axis=1)
    return (own + OF_MODES * random.standard_normal(own.shape)).reshape(2, tasks, passes)


def recommended(tasks: int, passes: int, launches: int = 1, placed: Placed = in_order) -> Claim:
    """A winner of two backends in a run of so many sizes."""
    def share(kind: Kind, random: Random, reports: int, factor: float) -> float:
        found = []
        for _ in range(reports):
            logs = placed(kind, random, tasks, passes * launches)
            shared = random.normal(0, 0.2, (tasks, passes * launches))
            times = 1e-3 * np.exp(logs + shared)
            times[1] *= factor
            base, items = canary(), []
            for size in range(tasks):
                work = replace(base.workload, requested_bytes=size)  # type: ignore[type-var]
                for backend, of in zip(("gloo", "mpi"), times, strict=True):
                    case = replace(base, case_id=f"{backend}{size}", backend=backend,
                                   workload=work)
                    items.append(result(case, of[size].tolist()))
            plan = Plan("synthetic", 2, passes, tuple(one.case for one in items), 0, {}, "0")
            info = RunInfo("synthetic", "0", "0", 2, (0, 1), ("n",), "", {}, {}, "0")
            said = recommend([Run("FILE", Results(info, plan, tuple(items), ()), NoSamples())],
                             TopicOptions())
            clear = [one.value for one in said.preferences if one.certainty == CLEAR]
            found.append(bool(clear) if factor == 1 else clear.count("gloo") / tasks)
        return float(np.mean(found))
    return Claim(share)


def by(cases: int, passes: int, placed: Placed = in_order) -> Claim:
    """Cases called slower or faster by `compare --by`."""
    def share(kind: Kind, random: Random, reports: int, factor: float) -> float:
        found = []
        for _ in range(reports):
            times = np.exp(placed(kind, random, cases, passes))
            times[1] *= factor
            first, second = ({str(at): CaseOfSide(canary(), (float(np.median(row)),), ((
                tuple(row.tolist()),),)) for at, row in enumerate(side)} for side in times)
            said = compare(first, second, ("A", "B"), in_launch=True)
            found.append(any(one.verdict in (SLOWER, FASTER) for one in said.cases)
                         if factor == 1 else len(said.having(SLOWER)) / cases)
        return float(np.mean(found))
    return Claim(share)


def links(ranks: int, passes: int, samples: int = 10) -> Claim:
    """A slow link, one way, among ranks on nodes of two."""
    ways = [way for of_round in rounds(ranks) for pair in of_round for way in (pair, pair[::-1])]

    def share(kind: Kind, random: Random, reports: int, factor: float) -> float:
        hosts = np.arange(ranks) // 2
        distances = (hosts[:, None] != hosts[None, :]).astype(np.int64)
        found = []
        for _ in range(reports):
            times = kind(random, 1, len(ways) * passes * samples)[0]  # one way after the other
            logs = np.full((ranks, ranks, passes, samples), np.nan)
            logs[tuple(np.transpose(ways))] = times.reshape(passes, samples, -1).transpose(2, 0, 1)
            logs[0, ranks - 1] += np.log(factor)
            matrices = np.exp(-np.median(logs, axis=3).transpose(2, 0, 1))
            whole = np.exp(-np.median(logs.reshape(ranks, ranks, -1), axis=2))
            cells = cells_of(whole, distances, hosts, [*matrices], each_way=True)
            named = slow_links(cells, 0.01, each_way=True).found
            found.append(bool(named) if factor == 1 else
                         [one.who for one in named] == [(0, ranks - 1)])
        return float(np.mean(found))
    return Claim(share)


def rank_rates(ranks: int, passes: int, samples: int = 10) -> Claim:
    """A slow one among ranks that are measured at the same time, each with noise of its own."""
    def share(kind: Kind, random: Random, reports: int, factor: float) -> float:
        found = []
        for _ in range(reports):
            logs = kind(random, ranks, passes * samples * CASES)
            logs = logs.reshape(ranks, passes, -1)[:, :, :samples].copy()
            logs[0] += np.log(factor)
            each, whole = np.median(logs, axis=2).T, np.median(logs.reshape(ranks, -1), axis=1)
            named = slow_ranks(np.exp(-whole)[None], np.exp(-each), 0.01).found
            found.append(bool(named) if factor == 1 else [one.rank for one in named] == [0])
        return float(np.mean(found))
    return Claim(share)


def caused(calls: int, isolated: int) -> Claim:
    """Another cause than transfer of calls that take what they take in isolation."""
    def times(kind: Kind, random: Random, n: int, factor: float) -> CallTimes:
        transfer = 1e-3 * factor * np.exp(kind(random, 1, n)[0])
        return CallTimes(transfer, np.abs(random.normal(0, 5e-5, n)), {0: n // 2, 1: n - n // 2})

    def share(kind: Kind, random: Random, reports: int, factor: float) -> float:
        said = [judged(CallCause("", calls, calls, 0), times(kind, random, calls, factor),
                       times(kind, random, isolated, 1.0)).cause for _ in range(reports)]
        return float(np.mean([one not in (TRANSFER, INCONCLUSIVE) for one in said]))
    return Claim(share, power=False)


def ramps(passes: int, samples: int) -> Claim:
    """First samples of a pass that are cut; with a factor, the first 10 take so much longer."""
    def share(kind: Kind, random: Random, reports: int, factor: float) -> float:
        times = np.exp(kind(random, reports * passes, samples))
        times[:, :10] *= factor
        return float(np.mean([any(steady_from(part))
                              for part in times.reshape(reports, passes, samples)]))
    return Claim(share)


def stragglers(ranks: int, passes: int, rows: int = 6, lasting: float = LASTING) -> Claim:
    """A slow one among equal ranks, that is not slow by ``lasting`` in each pass."""
    def is_wrong(at: int | None, times: Values) -> bool:
        others = np.delete(times, at or 0, axis=0).max(axis=0)
        return not bool(np.all(times[at or 0] > lasting * others))

    def share(kind: Kind, random: Random, reports: int, factor: float) -> float:
        found = []
        for _ in range(reports):
            times = np.exp(kind(random, rows * ranks, passes).reshape(rows, ranks, passes))
            times[:, 0] *= factor
            named = [one for one in holm_corrected([
                compared(str(at), range(ranks), row, 0.01) for at, row in enumerate(times)])
                if one.is_clear]
            found.append(any(is_wrong(one.rank, times[int(one.what)]) for one in named)
                         if factor == 1 else sum(one.rank == 0 for one in named) / rows)
        return float(np.mean(found))
    return Claim(share)


def intervals(passes: int, samples: int, *, flagged: bool = False) -> Claim:
    """Intervals that are not flagged and do not hold the median, or those that are ``flagged``."""
    def share(kind: Kind, random: Random, reports: int, factor: float) -> float:
        true = float(np.median(kind(random, 200_000, 1)))
        held = []
        for _ in range(reports):
            times = [*np.exp(kind(random, passes, samples))]
            every = np.concatenate(times)
            known = precision_of(times, median_interval(every, CI_LEVEL, [samples] * passes),
                                 (float(np.median(every)),), repeats=False)
            if flagged or not known.reliable:
                held.append(flagged and not known.reliable)
            else:
                assert known.low_s is not None and known.high_s is not None
                held.append(not known.low_s <= np.exp(true) <= known.high_s)
        return float(np.mean(held))
    return Claim(share, 1.0 if flagged else 0.05 if passes != 5 else 0.07, power=False)


CLAIMS: dict[str, Claim] = {
    **{f"recommend {tasks} x {passes}": recommended(tasks, passes)
       for tasks, passes in ((30, 3), (30, 9), (30, 20), (1, 3), (1, 9), (1, 20), (3, 5))},
    "recommend 30, 4 launches": recommended(30, 3, 4),
    "recommend 1 x 9, 3 launches": recommended(1, 9, 3),
    **{f"blocks {tasks} x 9": recommended(tasks, 9, placed=partial(in_order, blocks=2))
       for tasks in (30, 1)},
    **{f"own {tasks} x {passes}": replace(recommended(tasks, passes, placed=own), allowed=1.0)
       for tasks, passes in ((30, 3), (30, 9), (1, 9))},
    **{f"by {cases} x {passes}": by(cases, passes) for cases, passes in ((30, 3), (30, 9), (1, 9))},
    **{f"launch 1 x 9, {launches}": replace(
        recommended(1, 9, launches, partial(by_launch, launches=launches)),
        allowed=1.0, power=False) for launches in (1, 2, 3, 8)},
    "by 30 x 9, own": replace(by(30, 9, own), allowed=1.0),
    **{f"links {ranks} x {passes}": links(ranks, passes)
       for ranks, passes in ((4, 8), (8, 3), (16, 3), (8, 9))},
    **{f"rates {ranks} x {passes}": rank_rates(ranks, passes)
       for ranks, passes in ((8, 4), (8, 9), (16, 9))},
    "causes 200, 30": caused(200, 30), "ramp 3 x 30": ramps(3, 30), "ramp 9 x 100": ramps(9, 100),
    **{f"ranks {ranks} x {passes}": stragglers(ranks, passes)
       for ranks, passes in ((2, 9), (4, 3), (4, 9), (16, 9))},
    **{f"named {ranks} x 9": replace(stragglers(ranks, 9, lasting=np.inf), allowed=1.0, power=False)
       for ranks in (2, 4)},
    **{f"flagged {passes} x 30": intervals(passes, 30, flagged=True) for passes in (1, 3, 5)},
    **{f"interval {passes} x 30": intervals(passes, 30) for passes in (1, 3, 5, 9)}}
FACTORS = (1.05, 1.1)


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a claim errs more often than it may."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reports", type=int, default=300)
    parser.add_argument("--claims", nargs="+", default=[""], help="first letters of their names")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], metavar="KIND")
    given, missed = parser.parse_args(words), False
    print(f"{'% that err':<26}" + "".join(f"{kind:>10}" for kind in given.kinds)
          + "".join(f"{f'{factor:g}x':>8}" for factor in FACTORS))
    for name, claim in CLAIMS.items():
        if not name.startswith(tuple(given.claims)):
            continue
        shares = [claim.share(KINDS[kind], np.random.default_rng(1), given.reports, 1.0)
                  for kind in given.kinds]
        found = [claim.share(KINDS["iid"], np.random.default_rng(2), max(given.reports // 4, 1),
                             factor) for factor in FACTORS] if claim.power else []
        most = claim.allowed + ERRORS * np.sqrt(
            claim.allowed * (1 - claim.allowed) / given.reports)
        missed |= max(shares) > most
        print(f"{name:<26}" + "".join(
            f"{100 * share:>9.1f}{'!' if share > most else ' '}" for share in shares)
            + "".join(f"{100 * share:>8.0f}" for share in found), flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

"""Stalls of training steps, from their stamps, and which share of the ranks' time is useful.

A rank is ready when it has its own last gradient, on its own clock from its own begin of the step:
neither start skew nor clock error is in it. Ready ranks wait for the slowest rank, late begins
included, so that no wait is taken for a slow exchange.

Where ranks meet once a step, the time until ready and the optimizer is useful, the rest is waiting
and communication. Where they meet within a pass, only steps without communication show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.training.derive import slow_ranks
from hpcbench.kinds.training.derive.dispersion import MIN_N, chance_of_excess, dispersion
from hpcbench.kinds.training.derive.rates import WEAK
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce import fold
from hpcbench.reduce.comparison import NEEDED, PRECISE, Comparison
from hpcbench.reduce.metric import Values
from hpcbench.reduce.results import Arrival, CaseResult, CaseSamples
from hpcbench.statistics.hypothesis_tests import MOST_PASSES, medians_by_pass, pairs_wanted
from hpcbench.statistics.interval import median_interval
from hpcbench.statistics.order import Interval
from hpcbench.trace.schema import ARRIVAL
from hpcbench.units import three_digits

SYNC = "sync"
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SyncVariance:
    """How the exchange varies, from when the last rank is ready, beside computing in the same
    steps.

    The coefficients of variation of computing are the medians of the ranks. ``deviation_share``:
    mean absolute deviation of the exchange over the median step. ``chance``: how likely chance
    makes it vary more than AS_MUCH times as much as computing; ``is_high`` corrects for all
    comparisons of the report."""

    median_s: float
    cv: float
    robust_cv: float
    compute_cv: float
    compute_robust_cv: float
    deviation_share: float
    chance: float
    is_high: bool


def sync_variance(
    sync_s: Times, compute_s: Times, step_s: Times,
) -> tuple[SyncVariance | None, str]:
    """Return how the exchange (step,) varies beside computing (rank, step); or None, and why."""
    n = sync_s.size
    if n < MIN_N:
        return None, f"{n} steps are fewer than {MIN_N}"
    if np.median(sync_s) <= 0 or np.median(compute_s, axis=1).min() <= 0:
        return None, "its stamps are too coarse: a median time is 0"
    sync, computes = dispersion(sync_s), [dispersion(times_s) for times_s in compute_s]
    reference = np.mean([_relative(times_s) for times_s in compute_s], axis=0)
    chance = chance_of_excess(_relative(sync_s), reference)
    share = sync.deviation_s / float(np.median(step_s))
    return SyncVariance(
        median_s=sync.median_s, cv=sync.cv, robust_cv=sync.robust_cv,
        compute_cv=float(np.median([one.cv for one in computes])),
        compute_robust_cv=float(np.median([one.robust_cv for one in computes])),
        deviation_share=share, chance=chance, is_high=share >= slow_ranks.CLEAR_PART), ""


def _relative(times_s: Times) -> Times:
    middle = np.median(times_s)
    return np.asarray(np.abs(times_s - middle) / middle)


_BEFORE_READY = ("data", "forward", "backward")


@dataclass(frozen=True, slots=True)
class LastRank:
    """The rank that is ready significantly later than the others.

    ``last_share``: share of steps in which it is last. ``behind_s``: after the next one, 99 %
    interval. ``phase`` is ``phase_s`` longer than the others' median; empty if unknown."""

    rank: int
    last_share: float
    behind_s: Interval
    behind_share: float
    phase: str
    phase_s: float


@dataclass(frozen=True, slots=True)
class Stalls:
    """The stalls that stamps show; None and a reason (``missing``) where they show nothing; without
    ``last`` and ``last_missing`` no rank is late by much.

    Medians of each of ``ranks``: ``ready_s`` from its begin to its last gradient, ``wait_s`` from
    there until the slowest rank, which may have begun late, is ready. ``stall_share``: the share of
    step time in such waits, 95 % interval."""

    n_steps: int = 0
    ranks: tuple[int, ...] = ()
    ready_s: tuple[float, ...] = ()
    wait_s: tuple[float, ...] = ()
    stall_share: Interval | None = None
    last: LastRank | None = None
    last_missing: str = ""
    sync: SyncVariance | None = None
    sync_missing: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Stamps:
    """Seconds of the counted steps, (rank, step); ``passes``: the number of steps of each pass.
    ``late_s``: how much later than the first rank each begins, the median of its pass; 0 where no
    clock shows it."""

    ranks: tuple[int, ...]
    passes: tuple[int, ...]
    step_s: Times
    ready_s: Times
    phase_s: Mapping[str, Times]
    late_s: Times

    @property
    def wait_s(self) -> Times:
        """Return the time from when each rank is ready until the slowest rank is, (rank, step)."""
        arrive_s = self.late_s + self.ready_s
        return np.asarray(arrive_s.max(axis=0) - arrive_s)


def stalls(item: CaseResult, samples: CaseSamples, ready: Comparison | None) -> Stalls:
    """Return the stalls of a training; ``ready`` compares when its ranks are ready."""
    work = training_of(item.case)
    if missing := why_not(item.case, work, samples):
        return Stalls(missing=missing)
    stamps = stamps_of(item, samples)
    wait_s = stamps.wait_s
    stalled = wait_s.mean(axis=0) / stamps.step_s.max(axis=0)
    interval = median_interval(stalled, 0.95, stamps.passes)
    ends = (interval.low, interval.high) if interval and interval.reliable else (None, None)
    last, last_missing = last_rank(stamps, ready)
    sync, sync_missing = _sync(item.case, stamps)
    return Stalls(
        n_steps=stamps.step_s.shape[1], ranks=stamps.ranks, ready_s=_medians(stamps.ready_s),
        wait_s=_medians(wait_s), stall_share=Interval(float(np.median(stalled)), *ends), last=last,
        last_missing=last_missing, sync=sync, sync_missing=sync_missing)


def why_not(case: Case, work: Training, samples: CaseSamples) -> str:
    """Return why the stamps do not show when ranks are ready; nothing where they do."""
    if len(samples.ranks) == 1:
        return "there is one rank, which waits for nobody"
    if case.batch > 1:
        return f"a sample of mode {case.mode} is {case.batch} steps, whose stamps are added up"
    if slow_ranks.waits_within(work) or not _arrivals(samples):
        return (f"ranks of {work.strategy} wait for each other within their passes over the model: "
                "no stamp separates a rank's own work from waiting")
    return ""


def _arrivals(samples: CaseSamples) -> list[str]:
    names = (name for name in samples.phases if name.startswith(ARRIVAL))
    return sorted(names, key=lambda name: int(name.removeprefix(ARRIVAL)))


def stamps_of(item: CaseResult, samples: CaseSamples) -> Stamps:
    passes, counted = slow_ranks.counted_steps(item.case, samples)
    ready = _arrivals(samples)[slow_ranks.deciding(item.case)]
    ready_s = samples.phases[ready][:, counted] / 1e9
    return Stamps(
        samples.ranks, passes, fold.sample_durations_ns(samples)[:, counted] / 1e9, ready_s,
        {name: times[:, counted] / 1e9 for name, times in fold.durations(samples).items()},
        _late_s(slow_ranks.arrival(item), ready_s, passes))


def _late_s(arrival: Arrival | None, ready_s: Times, passes: Sequence[int]) -> Times:
    """Return how late each rank begins: when it arrives after the first one's begin, by the global
    clock, less what it takes until then, by its own."""
    if arrival is None or len(arrival.pass_median_s) != len(passes):
        return np.zeros_like(ready_s)
    late_s = np.transpose(arrival.pass_median_s) - medians_by_pass(ready_s, passes)
    return np.repeat(late_s - late_s.min(axis=0), passes, axis=1)


def last_rank(stamps: Stamps, ready: Comparison | None) -> tuple[LastRank | None, str]:
    """Return the rank that may be late, and why that is unknown where there is none or it does not
    hold."""
    if ready is None:
        return None, ""
    if ready.chance is None or ready.rank is None:
        return None, NEEDED
    row, ready_s = stamps.ranks.index(ready.rank), stamps.ready_s
    longer_s = {  # than the median of the other ranks
        name: float(np.median(times[row] - np.median(np.delete(times, row, axis=0), axis=0)))
        for name, times in stamps.phase_s.items() if name in _BEFORE_READY}
    phase = max(longer_s, key=lambda name: longer_s[name], default="")
    last = LastRank(
        rank=ready.rank, last_share=float(np.mean(ready_s[row] == ready_s.max(axis=0))),
        behind_s=Interval(ready.apart_s, ready.low_s, ready.high_s),
        behind_share=ready.apart_s / float(np.median(stamps.step_s.max(axis=0))),
        phase=phase, phase_s=longer_s.get(phase, 0.0))
    return last, _hidden(last, len(stamps.passes))


def _hidden(last: LastRank, passes: int) -> str:
    """Return up to which delay noise hides, and in how many passes it would not; "" where the delay
    is a small share of the step at most."""
    behind_s, share = last.behind_s.value, last.behind_share
    shares = last.behind_s.map(lambda end_s: end_s / behind_s * share if behind_s > 0 else 0.0)
    if shares.ends[1] <= PRECISE:
        return ""
    wanted = pairs_wanted(shares, passes, max(share, PRECISE - share), 1.0)
    return (f"noise hides delays up to {three_digits(100 * shares.ends[1])} % of the step; "
            f"use {wanted or f'over {MOST_PASSES}'} passes")


def _sync(case: Case, stamps: Stamps) -> tuple[SyncVariance | None, str]:
    if case.backend == slow_ranks.BLOCKING:
        return None, f"calls of backend {slow_ranks.BLOCKING} block within the backward pass"
    if "exchange" not in stamps.phase_s:
        return None, "its exchange is no phase of its own"
    return sync_variance(stamps.phase_s["exchange"].min(axis=0), stamps.ready_s,
                         stamps.step_s.max(axis=0))


def _medians(times_s: Times) -> tuple[float, ...]:
    return tuple(np.median(times_s, axis=1).tolist())


STAMPS, WITHOUT = "stamps", "steps without communication"


@dataclass(frozen=True, slots=True)
class Useful:
    """The seconds of a step in which each rank does useful work, from STAMPS or WITHOUT
    (``source``); ``parallel`` is their mean over the step, above 1 where times contradict."""

    source: str
    seconds: tuple[float, ...]
    parallel: float


def shown_share(share: float | None) -> float | None:
    """Return an efficiency, from 0 to 1; None where times contradict it."""
    return share if share is not None and share <= 1 else None


ACCEPTABLE = 0.8
"""Factors below are worth a check."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Factors of POP (https://co-design.pop-coe.eu/metrics), from 0 to 1: parallel efficiency (mean
    useful time over run time) = load balance (mean over greatest) x communication (greatest over
    run time) = ... x serialisation (greatest over time on an ideal network) x transfer (that over
    run time). ``serialisation`` and ``transfer`` are None where unknown."""

    parallel: float
    load_balance: float
    communication: float
    serialisation: float | None = None
    transfer: float | None = None


def of_two_factors(useful_s: Sequence[float], elapsed_s: float) -> Efficiency | None:
    greatest = max(useful_s, default=0.0)
    if not (greatest > 0 and elapsed_s > 0):
        return None
    mean = float(np.mean(useful_s))
    return Efficiency(mean / elapsed_s, mean / greatest, greatest / elapsed_s)


def of_steps_that_meet(
    before_s: Times, after_s: Times, step_s: Times, late_s: Times | float = 0.0,
) -> Efficiency | None:
    """Return all factors of steps in which ranks meet once; None without time. ``before_s`` and
    ``after_s``, (rank, step), are useful seconds before and after it, ``step_s`` (step,) the whole.
    On an ideal network a step takes the greatest of either, the former from when the first rank
    begins: others do ``late_s`` later."""
    known = of_two_factors((before_s + after_s).sum(axis=1).tolist(), float(step_s.sum()))
    if known is None:
        return None
    busy_s = before_s.max(axis=0) + after_s.max(axis=0)
    until_met_s = (late_s + before_s).max(axis=0) + after_s.max(axis=0)
    ideal_s = float(np.maximum(busy_s, np.minimum(until_met_s, step_s)).sum())
    greatest = float((before_s + after_s).sum(axis=1).max())
    return Efficiency(known.parallel, known.load_balance, known.communication,
                      greatest / ideal_s, ideal_s / float(step_s.sum()))


def _efficiencies(
    source: str, useful_s: tuple[float, ...], of: Efficiency,
) -> Values:
    """Return the values of POP's efficiencies, and the least of those that are below ACCEPTABLE."""
    factors = {"load_balance": of.load_balance, "communication_efficiency": of.communication,
               "serialisation": of.serialisation, "transfer": of.transfer}
    parts = {name: share for name, share in factors.items() if share is not None
             and not (name == "communication_efficiency" and source == STAMPS)}
    least = min(parts, key=lambda name: parts[name])
    return {**factors, "useful": Useful(source, useful_s, of.parallel), "efficiency_of": source,
            "efficiency_score": shown_share(of.parallel),
            "efficiency_limit": least if parts[least] < ACCEPTABLE else None}


def from_stamps(item: CaseResult, samples: CaseSamples) -> Values:
    """Return the efficiencies that the stamps of a case show, none where they show waiting."""
    work, case = training_of(item.case), item.case
    if len(samples.ranks) == 1 and case.batch == 1:
        _, counted = slow_ranks.counted_steps(case, samples)
        step_s = fold.sample_durations_ns(samples)[:, counted] / 1e9
        before_s, after_s, late_s = step_s, np.zeros_like(step_s), np.zeros_like(step_s)
    elif (why_not(case, work, samples) or case.backend == slow_ranks.BLOCKING
          or "broadcast" in work.calls):
        return {}  # the last: ranks send each other in the optimizer what they updated
    else:
        stamps = stamps_of(item, samples)
        step_s, before_s, late_s = stamps.step_s, stamps.ready_s, stamps.late_s
        after_s = stamps.phase_s.get("optimizer", np.zeros_like(step_s))
    solved = of_steps_that_meet(before_s, after_s, step_s.max(axis=0), late_s)
    return {} if solved is None else _efficiencies(
        STAMPS, tuple((before_s + after_s).mean(axis=1).tolist()), solved)


def from_partner(item: CaseResult, steps: slow_ranks.OwnSteps) -> Values:
    """Return the efficiencies that steps without communication show."""
    if item.statistics is None or len(steps.own_s) < 2:
        return {}
    useful_s = tuple(own.median for own in steps.own_s)
    solved = of_two_factors(useful_s, item.statistics.median_s)
    return {} if solved is None else _efficiencies(WITHOUT, useful_s, solved)


def beside_base(own: Values, base: Values) -> Values:
    """Return how the useful time scales from the base, where both have one source: useful seconds
    for a sample there over those here, and that times the parallel efficiency.

    A sample needs as much useful time on any number of ranks where computing scales: factor 1."""
    here, there = own.get("useful"), base.get("useful")
    if here is None or there is None:
        return {}
    if here.source != there.source and own["scaling_base_ranks"] > 1:
        return {}
    samples = len(here.seconds) / len(there.seconds) if own["scaling"] == WEAK else 1.0
    factor = sum(there.seconds) * samples / sum(here.seconds)
    return {"computation_scaling": factor, "global_efficiency": factor * here.parallel}

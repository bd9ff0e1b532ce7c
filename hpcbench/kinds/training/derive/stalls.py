"""Stalls of training steps, from their stamps: who makes the others wait, how long, how surely.

A rank is ready when it has its own last gradient. The time until then counts from the rank's own
begin of the step, on its own clock: neither start skew nor the error of clocks is in it. Ranks
whose own gradients are there wait for the last one, whatever is exchanged meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.training.derive.slow_ranks import BLOCKING, counted_steps, waits_within
from hpcbench.kinds.training.derive.sync_variance import SyncVariance, sync_variance
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case
from hpcbench.reduce import fold
from hpcbench.reduce.comparison import NEEDED, Comparison
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.statistics.interval import median_interval
from hpcbench.trace.schema import ARRIVAL

_BEFORE_READY = ("data", "forward", "backward")
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over steps; ``low`` to ``high`` is its interval, None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class LastRank:
    """The rank that has its own last gradient so much later than the others that it is named.

    Attributes:
        rank: who.
        last_share: the share of steps in which it is the last of all.
        behind_s: how long after the next one (`reduce.comparison.Comparison`), 99 % interval.
        behind_share: that over the median step.
        phase: the phase in which most of it arises; empty if that is not known.
        phase_s: how much longer that phase is than the median of the others.
    """

    rank: int
    last_share: float
    behind_s: Estimate
    behind_share: float
    phase: str
    phase_s: float


@dataclass(frozen=True, slots=True)
class Stalls:
    """What the stamps of a training say of its stalls; None where they say nothing.

    Attributes:
        n_steps: the steps that it is made of.
        ranks: those of the next two.
        ready_s: each rank's median time from its begin to its own last gradient.
        wait_s: each rank's median time from there until the last rank is ready.
        stall_share: the share of the ranks' time in a step that is such waiting, 95 % interval.
        last: the rank that is named.
        last_missing: why it cannot be told whether one is late.
        sync: how the exchange of gradients varies.
        sync_missing: why that cannot be told.
        missing: why nothing can be told of any of it.
    """

    n_steps: int = 0
    ranks: tuple[int, ...] = ()
    ready_s: tuple[float, ...] = ()
    wait_s: tuple[float, ...] = ()
    stall_share: Estimate | None = None
    last: LastRank | None = None
    last_missing: str = ""
    sync: SyncVariance | None = None
    sync_missing: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Stamps:
    """Seconds of the steps that count, (rank, step): of steps, phases, and until ready.

    ``passes`` are the numbers of steps of each pass, in order.
    """

    ranks: tuple[int, ...]
    passes: tuple[int, ...]
    step_s: Times
    ready_s: Times
    phase_s: Mapping[str, Times]


def stalls(item: CaseResult, samples: CaseSamples, ready: Comparison | None) -> Stalls:
    """Return what the stamps of a training with all its communication say.

    ``ready`` compares when its ranks are ready.
    """
    work = training_of(item.case)
    if missing := why_not(item.case, work, samples):
        return Stalls(missing=missing)
    stamps = stamps_of(item.case, samples)
    wait_s = stamps.ready_s.max(axis=0) - stamps.ready_s
    stalled = wait_s.mean(axis=0) / stamps.step_s.max(axis=0)
    last, last_missing = last_rank(stamps, ready)
    sync, sync_missing = _sync(item.case, stamps)
    return Stalls(
        n_steps=stamps.step_s.shape[1], ranks=stamps.ranks, ready_s=_medians(stamps.ready_s),
        wait_s=_medians(wait_s), stall_share=_estimate(stalled, stamps.passes), last=last,
        last_missing=last_missing, sync=sync, sync_missing=sync_missing)


def why_not(case: Case, work: Training, samples: CaseSamples) -> str:
    """Return why the stamps cannot tell when ranks are ready; nothing where they can."""
    if len(samples.ranks) == 1:
        return "there is one rank, which waits for nobody"
    if case.batch > 1:
        return f"a sample of mode {case.mode} is {case.batch} steps, whose stamps are added up"
    if waits_within(work) or not _arrivals(samples):
        return (f"ranks of {work.strategy} wait for each other within their passes over the model: "
                "no stamp separates a rank's own work from waiting")
    return ""


def _arrivals(samples: CaseSamples) -> list[str]:
    """Return the names of the moments at buckets, in the order of the buckets."""
    names = (name for name in samples.phases if name.startswith(ARRIVAL))
    return sorted(names, key=lambda name: int(name.removeprefix(ARRIVAL)))


def stamps_of(case: Case, samples: CaseSamples) -> Stamps:
    """Return the steps that count: from the steady state on, as many of each pass."""
    passes, counted = counted_steps(case, samples)
    arrivals = _arrivals(samples)
    ready = arrivals[0 if case.backend == BLOCKING else -1]
    return Stamps(
        samples.ranks, passes, fold.waits_ns(samples)[:, counted] / 1e9,
        samples.phases[ready][:, counted] / 1e9,
        {name: times[:, counted] / 1e9 for name, times in fold.durations(samples).items()})


def last_rank(stamps: Stamps, ready: Comparison | None) -> tuple[LastRank | None, str]:
    """Return the rank that may be late; or None, and why it cannot be told whether one is, if so.

    Whether it is, the comparison says once those of the whole report are known.
    """
    if ready is None:
        return None, ""
    if ready.chance is None or ready.rank is None:
        return None, NEEDED
    return _named(stamps, stamps.ranks.index(ready.rank), ready), ""


def _behind(times_s: Times, row: int) -> Times:
    """Return how long after the median of the other ranks a rank is in each step, (step,)."""
    return np.asarray(times_s[row] - np.median(np.delete(times_s, row, axis=0), axis=0))


def _named(stamps: Stamps, row: int, ready: Comparison) -> LastRank:
    ready_s = stamps.ready_s
    longer_s = {name: float(np.median(_behind(times, row)))
                for name, times in stamps.phase_s.items() if name in _BEFORE_READY}
    phase = max(longer_s, key=lambda name: longer_s[name], default="")
    return LastRank(
        rank=stamps.ranks[row], last_share=float(np.mean(ready_s[row] == ready_s.max(axis=0))),
        behind_s=Estimate(ready.apart_s, ready.low_s, ready.high_s),
        behind_share=ready.apart_s / float(np.median(stamps.step_s.max(axis=0))),
        phase=phase, phase_s=longer_s.get(phase, 0.0))


def _sync(case: Case, stamps: Stamps) -> tuple[SyncVariance | None, str]:
    """Return how the exchange varies, once the last rank is ready; or why that is not known."""
    if case.backend == BLOCKING:
        return None, f"calls of backend {BLOCKING} block within the backward pass"
    if "exchange" not in stamps.phase_s:
        return None, "its exchange is no phase of its own"
    return sync_variance(stamps.phase_s["exchange"].min(axis=0), stamps.ready_s,
                         stamps.step_s.max(axis=0))


def _estimate(values: Times, passes: tuple[int, ...]) -> Estimate:
    interval = median_interval(values, 0.95, passes)
    ends = (interval.low, interval.high) if interval and interval.reliable else (None, None)
    return Estimate(float(np.median(values)), *ends)


def _medians(times_s: Times) -> tuple[float, ...]:
    return tuple(np.median(times_s, axis=1).tolist())

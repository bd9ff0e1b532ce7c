"""Which rank of a training may be slow, and where; `comparisons` say whether it holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.training.derive.exposed import Exposure
from hpcbench.kinds.training.plan.shares import is_dynamic
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case
from hpcbench.reduce import fold
from hpcbench.reduce.comparison import Comparison, compared
from hpcbench.reduce.results import Arrival, CaseResult, CaseSamples, Phase, Steps
from hpcbench.reduce.stack import pass_slices
from hpcbench.statistics.standing_out import are_enough, pass_medians
from hpcbench.trace.schema import ARRIVAL

CLEAR_SHARE, CLEAR_RATIO = 0.8, 1.1
"""A rank is named where it stands out in so many of the steps, by so much of the other end."""
CLEAR_PART = 0.01
"""Share of a step: what is shorter is not reported."""
READY, ARRIVES, STEP = "ready", "arrives", "step"
"""Names of comparisons beside those of phases."""
BLOCKING = "mpi"
"""The backend whose exchange blocks the rank itself, in each call: behind the first call a rank's
times hold waits for others."""


@dataclass(frozen=True, slots=True)
class SlowPhase:
    """A rank that stands out in a phase in ``share`` of the steps.

    ``is_shortest``: all ranks leave the phase together, and the slow rank has the shortest, since
    the others wait for it; else the slow rank has the longest. ``ratio`` is longest / shortest.
    """

    phase: str
    rank: int
    share: float
    is_shortest: bool
    ratio: float


@dataclass(frozen=True, slots=True)
class LateRank:
    """The rank that arrives last at the exchange of gradients in ``share`` of the steps.

    ``behind_s`` is how far behind the median of the others; ``first_behind_s`` the same at the
    first of ``buckets`` buckets, None where another rank is the last there, or it is the same one.
    """

    rank: int
    share: float
    behind_s: float
    buckets: int
    first_behind_s: float | None


@dataclass(frozen=True, slots=True)
class SlowAlone:
    """The slowest rank without communication, beside the quickest; ``ratio`` of the two times.

    ``low`` to ``high`` are the ratios of the passes' medians, from the least to the greatest.
    ``case_id`` is that of the steps without communication.
    """

    rank: int
    step_s: float
    quickest_rank: int
    quickest_step_s: float
    ratio: float
    low: float
    high: float
    case_id: str


def slow_phases(item: CaseResult, late: LateRank | None) -> Iterator[SlowPhase]:
    """Yield the ranks that are slow in a phase; stages of a pipeline differ anyway."""
    steps = _alike(item)
    if steps is None:
        return
    together = _together(item, steps)
    for phase in steps.phases:
        ratio = max(phase.median_s) / max(min(phase.median_s), 1e-9)
        if max(phase.median_s) < CLEAR_PART * median(steps.step_s) or ratio < CLEAR_RATIO:
            continue
        if not (late and phase.name == "exchange"):
            yield from _stands_out(phase, together, ratio)


def _alike(item: CaseResult) -> Steps | None:
    """Return the steps of a training whose several ranks have the same to do."""
    work, steps = training_of(item.case), item.timing.steps if item.timing else None
    several = steps is not None and len(steps.ranks) > 1
    return steps if several and work.pp == 1 and work.trains else None


def _stands_out(phase: Phase, together: Collection[str], ratio: float) -> Iterator[SlowPhase]:
    shortest = phase.name in together
    rank = phase.quickest_rank if shortest else phase.slowest_rank
    share = (phase.quickest_share if shortest else phase.slowest_share) or 0
    if rank is not None and share >= CLEAR_SHARE:
        yield SlowPhase(phase.name, rank, share, shortest, ratio)


def _together(item: CaseResult, steps: Steps) -> set[str]:
    overlaps = bool(steps.arrivals) and item.case.backend != BLOCKING
    return _left_together(training_of(item.case), overlaps=overlaps)


def _left_together(work: Training, *, overlaps: bool) -> set[str]:
    """Return the phases that all ranks leave together: their length does not reveal who is slow.

    ``overlaps``: gradients are exchanged in buckets while ranks compute on; else backward waits.
    """
    waiting = {"exchange", "forward_backward"} | (set() if overlaps else {"backward"})
    waiting |= {"forward", "backward"} if waits_within(work) else set()
    return waiting | ({"optimizer"} if "broadcast" in work.calls else set())  # of what it updated


def waits_within(work: Training) -> bool:
    """Return whether ranks wait for each other within their passes over the model."""
    gathers = "all_gather" in work.calls and not is_dynamic(work)  # which tells speeds by one
    return work.tp > 1 or work.pp > 1 or gathers


def late_rank(item: CaseResult) -> LateRank | None:
    """Return the rank that arrives last where gradients are exchanged; None if none stands out."""
    steps = _alike(item)
    if steps is None or not steps.arrivals:
        return None
    first, last = steps.arrivals[0], _deciding(item, steps.arrivals)
    if last.last_share < CLEAR_SHARE or last.behind_s < CLEAR_PART * max(steps.step_s):
        return None
    is_same = first is last or first.last_rank != last.last_rank
    return LateRank(last.last_rank, last.last_share, last.behind_s, last.bucket,
                    None if is_same else first.behind_s)


def _deciding(item: CaseResult, arrivals: Sequence[Arrival]) -> Arrival:
    """Return the exchange that tells who is late: if it blocks the rank, the first of them."""
    return arrivals[0 if item.case.backend == BLOCKING else -1]


def slow_alone(exposure: Exposure) -> SlowAlone | None:
    """Return which rank computes slowly; None of pipelines, whose stages differ."""
    if exposure.idle_share or len(exposure.own_s) < 2:
        return None
    by_time = sorted(zip(exposure.own_s, exposure.ranks, strict=True),
                     key=lambda pair: pair[0].median)
    (least, quick), (most, slow) = by_time[0], by_time[-1]
    ratio = most.median / least.median
    if ratio < CLEAR_RATIO:
        return None
    return SlowAlone(slow, most.median, quick, least.median, ratio, most.least / least.greatest,
                     most.greatest / least.least, exposure.off_case)


def comparisons(item: CaseResult, samples: CaseSamples) -> Iterator[Comparison]:
    """Yield each comparison of the ranks of a case; stages of a pipeline differ anyway.

    Of a training they are in the whole of its own work until ready, at the exchange, and in each
    phase; without communication in the step.
    """
    work, steps = training_of(item.case), item.timing.steps if item.timing else None
    if steps is None or len(steps.ranks) < 2 or work.pp > 1 or work.communication == "only":
        return
    passes, counted = counted_steps(item.case, samples)
    least_s = CLEAR_PART * max(steps.step_s)

    def over(what: str, times_ns: npt.NDArray[np.int64], *, shortest: bool = False) -> Comparison:
        medians_s = pass_medians(times_ns[:, counted] / 1e9, passes)
        return compared(what, steps.ranks, medians_s, least_s, shortest=shortest)

    if not work.trains:
        yield over(STEP, fold.waits_ns(samples))
        return
    if steps.arrivals:
        at = _deciding(item, steps.arrivals)
        yield over(READY, samples.phases[f"{ARRIVAL}{at.bucket}"])
        if at.pass_median_s and are_enough(passes):
            yield compared(ARRIVES, steps.ranks, np.array(at.pass_median_s).T, least_s)
    together = _together(item, steps)
    for name, times_ns in fold.durations(samples).items():
        yield over(name, times_ns, shortest=name in together)


def counted_steps(
    case: Case, samples: CaseSamples,
) -> tuple[tuple[int, ...], npt.NDArray[np.bool_]]:
    """Return how many steps of each pass count, and which, (step,): from the steady state on."""
    counted = fold.fold_samples(case, samples, fold.extreme_waits(samples), None).counted
    return tuple(int(counted[part].sum()) for part in pass_slices(samples)), counted

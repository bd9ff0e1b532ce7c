"""How much of a training's communication is exposed: its steps beside those without communication.

A training has two partners in a run, the same in all but communication: ``off`` takes the same
steps without any, ``only`` makes the calls of a step and nothing else. Numbers are made pass by
pass, as those of primitives are (`statistics.overlap`): drift cancels. Nothing is clipped.

Which rank of a training may be slow, and where; `comparisons` say whether it holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.training.derive.pipeline import idle_shares, predicted_bubble
from hpcbench.kinds.training.plan.step import is_dynamic
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case
from hpcbench.reduce import fold
from hpcbench.reduce.comparison import Comparison, compared
from hpcbench.reduce.records import median_s, nearest, pass_medians_s, why_unpaired
from hpcbench.reduce.results import Arrival, CaseResult, CaseSamples, Phase, Steps
from hpcbench.reduce.stack import pass_slices
from hpcbench.statistics import overlap
from hpcbench.statistics.hypothesis_tests import are_enough, pass_medians
from hpcbench.trace.schema import ARRIVAL

OFF, ONLY = "off", "only"


@dataclass(frozen=True, slots=True)
class Exposure:
    """What a training's partners show of its communication; None where there is no such number.

    Attributes:
        off_s, only_s: medians of the partners.
        exposed_s: t - t(off).
        exposed_share: that as a share of t.
        overhead: t / t(off) - 1.
        efficiency: (t(off) + t(only) - t) / min(t(off), t(only)).
        ranks: those of the next two.
        own_s: each rank's own time of a step without communication: how fast it computes.
        idle_share: 1 - own time / t of each rank of a pipeline: it waits, or communicates.
        bubble: the share of a pipeline's time in which ranks wait, as its schedule predicts.
        off_case: the id of the steps without communication; empty where there are none.
        uneven_bubble: the same of each rank if the ranks compute as long as ``own_s`` says: what
            of ``idle_share`` is more is communication.
        missing: why there are no such numbers, where the run has partners of any training.
    """

    off_s: float | None = None
    only_s: float | None = None
    exposed_s: overlap.OverPasses | None = None
    exposed_share: overlap.OverPasses | None = None
    overhead: overlap.OverPasses | None = None
    efficiency: overlap.OverPasses | None = None
    ranks: tuple[int, ...] = ()
    own_s: tuple[overlap.OverPasses, ...] = ()
    idle_share: tuple[overlap.OverPasses, ...] = ()
    bubble: float | None = None
    off_case: str = ""
    uneven_bubble: tuple[float, ...] = ()
    missing: tuple[str, ...] = ()


UNPAIRED = Exposure()


def exposures(items: Iterable[CaseResult]) -> Mapping[str, Exposure]:
    """Return what is known of each training with statistics that has a partner, by its id."""
    return {item.case.case_id: _exposure(item, same) for same in _groups(items)
            for item in same if _trains(item) and item.statistics is not None
            and not all(map(_trains, same))}


def paired(items: Iterable[CaseResult]) -> set[str]:
    """Return the ids of those partners that are shown beside their training: ok, as it is."""
    timed = ([item for item in same if item.statistics is not None] for same in _groups(items))
    return {item.case.case_id for same in timed if any(map(_trains, same))
            for item in same if not _trains(item)}


def _trains(item: CaseResult) -> bool:
    return training_of(item.case).trains


def _groups(items: Iterable[CaseResult]) -> Iterable[list[CaseResult]]:
    """Return the trainings that are partners: the same in all but communication."""
    groups: dict[tuple[object, ...], list[CaseResult]] = defaultdict(list)
    for item in items:
        case, work = item.case, item.case.workload
        if isinstance(work, Training):
            groups[replace(work, communication="on", calls=()), case.backend, case.device,
                   case.world_size, case.env, case.mode, case.batch].append(item)
    return groups.values()


def _exposure(item: CaseResult, same: Sequence[CaseResult]) -> Exposure:
    partners = {name: nearest(item, (
        other for other in same if training_of(other.case).communication == name))
        for name in (OFF, ONLY)}
    missing = {name: reason for name, other in partners.items()
               if (reason := why_unpaired(name, "training", item, other))}
    off, only = (None if name in missing else other for name, other in partners.items())
    own, without, alone = pass_medians_s(item), pass_medians_s(off), pass_medians_s(only)
    efficiency = overlap.overlap_efficiency(own, without, alone)
    if efficiency is None and not missing:
        missing["both"] = f"there is no pass in which {OFF} and {ONLY} were both run, too"
    ranks, times_s = _by_rank(off)
    own_s = _of_each(overlap.over_passes(lambda time: time, times) for times in times_s)
    work = training_of(item.case)
    is_pipeline = work.pp > 1
    return Exposure(
        off_s=median_s(off), only_s=median_s(only),
        exposed_s=overlap.exposed_communication_s(own, without),
        exposed_share=overlap.exposed_share(own, without), overhead=overlap.overhead(own, without),
        efficiency=efficiency, ranks=ranks, own_s=own_s,
        idle_share=_of_each(overlap.over_passes(lambda on, off: 1 - off / on, own, times)
                            for times in times_s if is_pipeline),
        off_case=off.case.case_id if off is not None else "",
        bubble=predicted_bubble(work) if is_pipeline else None,
        uneven_bubble=idle_shares(work, [own.median for own in own_s]) if (
            is_pipeline and own_s) else (),
        missing=tuple(f"communication {reason}" for reason in missing.values()))


def _of_each(values: Iterable[overlap.OverPasses | None]) -> tuple[overlap.OverPasses, ...]:
    return tuple(one for one in values if one is not None)


def _by_rank(off: CaseResult | None) -> tuple[tuple[int, ...], list[overlap.PassTimes]]:
    """Return the ranks, and of each the median of its own time in every pass."""
    steps = off.timing.steps if off is not None and off.timing else None
    if steps is None or not any(steps.pass_step_s):
        return (), []
    return steps.ranks, [[times[row] if times else None for times in steps.pass_step_s]
                         for row in range(len(steps.ranks))]


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

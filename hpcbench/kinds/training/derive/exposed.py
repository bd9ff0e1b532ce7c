"""How much of a training's communication is exposed: its steps beside those without communication.

A training has two partners in a run, the same in all but communication: ``off`` takes the same
steps without any, ``only`` makes the calls of a step and nothing else. Numbers are made pass by
pass, as those of primitives are (`statistics.overlap`): drift cancels. Nothing is clipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcbench.kinds.training.derive.pipeline import idle_shares, predicted_bubble
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.reduce.partners import median_s, nearest, pass_medians_s, why_unpaired
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics import overlap

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

"""Which rank of a training may be slow, its exposed communication, and the bubble of a pipeline.

A training has two partners in a run, the same in all but communication: ``off`` takes the same
steps without any, ``only`` makes the calls of a step and nothing else. They are compared pass by
pass (`statistics.overlap`).

Schedules of torch.distributed.pipelining are pure functions here; tests hold them equal to torch
2.13's. Sources: GPipe arXiv:1811.06965, 1F1B and interleaved 1F1B arXiv:2104.04473, looped BFS
arXiv:2211.05953, zero bubble (ZB1P, ZBV) arXiv:2401.10241, DualPipeV
github.com/deepseek-ai/DualPipe. p ranks, m micro-batches, v stages a rank. A result is sent when
its computation has ended; a next stage on the same rank has it immediately. DualPipeV alone has
pairs of a forward and a backward (``OVERLAP_F_B``): torch 2.13 computes one after the other and
sends both results behind the second."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.training.plan.spec import pipelining
from hpcbench.kinds.training.plan.step import is_dynamic, stages_of
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce import fold
from hpcbench.reduce.comparison import Comparison, compared
from hpcbench.reduce.metric import Records, Values, values_over_passes
from hpcbench.reduce.records import median_s, nearest, pass_medians_s, why_unpaired
from hpcbench.reduce.results import Arrival, CaseResult, CaseSamples, Steps
from hpcbench.reduce.stack import pass_slices
from hpcbench.statistics import overlap
from hpcbench.statistics.hypothesis_tests import are_enough, pass_medians
from hpcbench.trace.schema import ARRIVAL

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
"""``B`` is a whole backward; ``I`` and ``W`` are its halves: gradients of inputs, of weights."""
_COSTS: Mapping[str, float] = MappingProxyType(
    {FORWARD: 1.0, BACKWARD: 2.0, INPUT: 1.0, WEIGHT: 1.0})
"""The time of each computation: a backward has two products for each of a forward's."""
_OLDEST = -1
_LEADING = "F of a pair"  # a step: a forward whose result is sent behind the backward that follows


class Op(NamedTuple):
    """A computation of one micro-batch in one stage; ``leads``: its result is sent after the next
    one."""

    kind: str
    stage: int
    microbatch: int
    leads: bool = False


_Step = tuple[str, int]
_Result = tuple[str, int, int]


def predicted_bubble(work: Training) -> float | None:
    pipelined = pipelining(work)
    if pipelined is None:
        return None
    schedule, stages_per_rank, microbatches = pipelined
    layers = [float(len(stage.blocks)) for stage in stages_of(work)[:work.pp]]
    return bubble_share(schedule.name, work.pp, microbatches, stages_per_rank, layers)


def idle_shares(work: Training, own_s: Sequence[float]) -> tuple[float, ...]:
    """Return the share of a step in which each rank of a pipelined training waits.

    As `predicted_bubble`, but each rank's computations take ``own_s`` together. Neighbours are
    ranks of a tensor group, then of a pipeline."""
    pipelined = pipelining(work)
    if pipelined is None:
        return ()
    schedule, stages_per_rank, microbatches = pipelined
    orders = _orders(schedule.name, work.pp, microbatches, stages_per_rank)
    units = [_busy(ops) for ops in orders]
    shares = [0.0] * len(own_s)
    for replica in range(len(own_s) // (work.pp * work.tp)):
        for part in range(work.tp):
            line = [(replica * work.pp + stage) * work.tp + part for stage in range(work.pp)]
            paces = [own_s[rank] / unit for rank, unit in zip(line, units, strict=True)]
            step_s = max(replay(orders, work.pp * stages_per_rank, paces).values())
            for rank in line:
                shares[rank] = 1 - own_s[rank] / step_s
    return tuple(shares)


def bubble_share(schedule: str, ranks: int, microbatches: int, stages_per_rank: int = 1,
                 paces: Sequence[float] | None = None) -> float:
    """Return the share of ``ranks`` x step in which ranks wait, if nothing but the order costs.

    Stages take the same time, or ``paces`` of each rank as long; communication none. For GPipe,
    1F1B, LoopedBFS and Interleaved1F1B with whole rounds (p - 1) / (v m + p - 1) (arXiv:2104.04473,
    2.2). Raises KeyError, ValueError."""
    orders, paces = _orders(schedule, ranks, microbatches, stages_per_rank), paces or [1.0] * ranks
    step = max(replay(orders, ranks * stages_per_rank, paces).values())
    busy = sum(pace * _busy(ops) for pace, ops in zip(paces, orders, strict=True))
    return 1 - busy / (ranks * step)


def replay(
    orders: list[list[Op]], stages: int, paces: Sequence[float] | None = None,
) -> dict[Op, float]:
    """Return when each computation ends, from 0; ``paces`` multiply the costs of each rank.

    Raises ValueError if ranks wait for each other for ever."""
    ends: dict[Op, float] = {}
    results = _Results(orders)
    free, paces = [0.0] * len(orders), paces or [1.0] * len(orders)
    left = [list(reversed(ops)) for ops in orders]
    while any(left):
        before = len(ends)
        for rank, ops in enumerate(left):
            while ops and (ready := _ready(ops[-1], stages, results)) is not None:
                op = ops.pop()
                free[rank] = ends[op] = max(free[rank], ready) + _COSTS[op.kind] * paces[rank]
                results.add(op, ends[op])
        if len(ends) == before:
            raise ValueError(f"no rank can go on: {[ops[-1] for ops in left if ops]}")
    return ends


class _Results:
    """When results are there: at their end on the rank that computes them, elsewhere when sent."""

    def __init__(self, orders: Sequence[Sequence[Op]]) -> None:
        self._rank_of = {op.stage: rank for rank, ops in enumerate(orders) for op in ops}
        self._ended: dict[_Result, float] = {}
        self._sent: dict[_Result, float] = {}
        self._deferred: dict[int, _Result] = {}
        """Rank -> the result that is sent behind the next one."""

    def add(self, op: Op, end: float) -> None:
        if op.kind == WEIGHT:  # nobody else needs it
            return
        kind = BACKWARD if op.kind == INPUT else op.kind
        rank, result = self._rank_of[op.stage], (kind, op.stage, op.microbatch)
        self._ended[result] = end
        if op.leads:
            self._deferred[rank] = result
            return
        self._sent[result] = end
        if rank in self._deferred:
            self._sent[self._deferred.pop(rank)] = end

    def there(self, kind: str, stage: int, microbatch: int, needed_in: int) -> float | None:
        """Return when a result is where another stage needs it, None if that is not known yet."""
        near = self._rank_of.get(stage) == self._rank_of[needed_in]
        return (self._ended if near else self._sent).get((kind, stage, microbatch))


def _ready(op: Op, stages: int, results: _Results) -> float | None:
    kind, stage, number, _ = op
    if kind == WEIGHT:
        return results.there(BACKWARD, stage, number, stage)
    if kind == FORWARD:
        return results.there(FORWARD, stage - 1, number, stage) if stage else 0.0
    own = results.there(FORWARD, stage, number, stage)
    if own is None or stage == stages - 1:
        return own
    after = results.there(BACKWARD, stage + 1, number, stage)
    return None if after is None else max(own, after)


def _busy(ops: Iterable[Op]) -> float:
    return sum(_COSTS[op.kind] for op in ops)


def _orders(schedule: str, p: int, m: int, v: int) -> list[list[Op]]:
    return [order(schedule, p, m, v, rank) for rank in range(p)]


def order(schedule: str, p: int, m: int, v: int, rank: int) -> list[Op]:
    """Return a rank's computations of one step in order. Raises KeyError for an unknown schedule.
    """
    if schedule == "LoopedBFS":
        stages = range(rank, p * v, p)
        return [*(Op(FORWARD, stage, number) for stage in stages for number in range(m)),
                *(Op(BACKWARD, stage, number) for stage in reversed(stages)
                  for number in reversed(range(m)))]
    steps: Mapping[str, Callable[[int, int, int, int], Iterable[_Step]]] = {
        "GPipe": lambda _p, m, _v, rank: [*[(FORWARD, rank)] * m, *[(BACKWARD, rank)] * m],
        "1F1B": _one_by_one, "Interleaved1F1B": _interleaved,
        "InterleavedZeroBubble": partial(_interleaved, halves=True),
        "ZBVZeroBubble": _zero_bubble_v, "DualPipeV": _dual_pipe_v}
    return [op for op in _numbered(steps[schedule](p, m, v, rank)) if op.microbatch < m]


def _numbered(steps: Iterable[_Step]) -> Iterator[Op]:
    """Number the micro-batches: each stage takes them in turn, weights the oldest put off."""
    done: Counter[_Step] = Counter()
    put_off: list[tuple[int, int]] = []
    for kind, stage in steps:
        if kind == WEIGHT:
            pending = next((item for item in put_off if stage in (item[0], _OLDEST)), None)
            if pending is not None:
                put_off.remove(pending)
                yield Op(WEIGHT, *pending)
            continue
        leads = kind == _LEADING
        way = (FORWARD if leads or kind == FORWARD else BACKWARD, stage)
        yield Op(FORWARD if leads else kind, stage, done[way], leads)
        if kind == INPUT:
            put_off.append((stage, done[way]))
        done[way] += 1


def _one_by_one(p: int, m: int, _v: int, rank: int) -> list[_Step]:
    """Forward p - rank times, then one backward and one forward in turn (torch's Schedule1F1B)."""
    ahead = min(m, p - rank)
    return [*[(FORWARD, rank)] * ahead,
            *[(BACKWARD, rank), (FORWARD, rank)] * (m - ahead), *[(BACKWARD, rank)] * ahead]


def _interleaved(p: int, m: int, v: int, rank: int, *, halves: bool = False) -> Iterator[_Step]:
    """Take the stages in rounds; in ``halves`` weights are put off by ``rank`` backwards (ZB1P)."""
    each, total = m // max(1, m // p), m * v
    forwards = [number // each % v * p + rank for number in range(total)]
    ahead = min((v - 1) * each + (1 if halves else 2) * (p - 1 - rank), total)
    for number in range(total + ahead):
        if number < total:
            yield FORWARD, forwards[number]
        if number >= ahead:
            yield INPUT if halves else BACKWARD, (v - 1) * p + 2 * rank - forwards[number - ahead]
        if halves and number - ahead >= rank:
            yield WEIGHT, _OLDEST
    yield from [(WEIGHT, _OLDEST)] * (min(rank, total) * halves)


def _zero_bubble_v(p: int, m: int, _v: int, rank: int) -> Iterator[_Step]:
    """Two stages on a rank; for at least 2p - 1 micro-batches, those past m are left out."""
    down, up = rank, 2 * p - 1 - rank
    count = max(2 * p - 1, m)
    forward_down, forward_up = 2 * p - 1 - rank, p
    yield from [(FORWARD, down)] * (2 * (p - rank) - 1)
    yield from [(FORWARD, up), (FORWARD, down)] * rank
    yield from [(FORWARD, up), (INPUT, up), (WEIGHT, up)] * (p - rank)
    for number in range(count - forward_up):
        if number < count - forward_down:
            yield FORWARD, down
        yield from [(INPUT, down), (WEIGHT, down), (FORWARD, up), (INPUT, up), (WEIGHT, up)]
    yield from [(INPUT, down), (INPUT, up)] * rank
    yield from [(INPUT, down), (WEIGHT, down)] * (p - rank)
    yield from [(WEIGHT, up)] * rank
    yield from [(WEIGHT, down)] * rank


def _dual_pipe_v(p: int, m: int, _v: int, rank: int) -> Iterator[_Step]:
    """Two stages on a rank; halves of pairs, meant to overlap, come one after the other."""
    down, up = rank, 2 * p - 1 - rank
    after = p - rank - 1
    yield from [(FORWARD, down)] * (2 * after)
    yield from [(FORWARD, down), (FORWARD, up)] * (rank + 1)
    yield from [(INPUT, up), (WEIGHT, _OLDEST), (FORWARD, up)] * after
    main = [(_LEADING, down), (BACKWARD, up), (_LEADING, up), (BACKWARD, down)] * (
        m - 2 * p + rank + 1)
    if not after:  # the last rank's first pair is none
        main[0] = FORWARD, down
    yield from main
    yield from [(BACKWARD, up), (_LEADING, up), (BACKWARD, down)] * after
    # the weights of the second half of the last backwards are put off into the gaps after them
    last = [stage for _ in range(rank + 1) for stage in (up, down)]
    whole = len(last) // 4 * 2 + 1 - rank % 2
    yield from ((BACKWARD if number < whole else INPUT, stage) for number, stage in enumerate(last))
    yield from [(WEIGHT, _OLDEST), (INPUT, down)] * after
    yield from [(WEIGHT, _OLDEST)] * (rank + 1)


OFF, ONLY = "off", "only"


@dataclass(frozen=True, slots=True)
class OwnSteps:
    """The steps of each of ``ranks`` in the partner without communication, ``off_case``.

    ``own_s``: each rank's step; ``idle_share`` of a pipeline 1 - own / t. ``uneven_bubble``: that
    which the schedule predicts of these times."""

    ranks: tuple[int, ...] = ()
    own_s: tuple[overlap.OverPasses, ...] = ()
    idle_share: tuple[overlap.OverPasses, ...] = ()
    uneven_bubble: tuple[float, ...] = ()
    off_case: str = ""


NO_STEPS = OwnSteps()


def exposures(items: Iterable[CaseResult]) -> Records:
    """Return the values of each training that has partners, by case id."""
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


def _exposure(item: CaseResult, alike: Sequence[CaseResult]) -> Values:
    """Return the values with t, t(off), t(only) of the same pass: ``exposed_s`` t - t(off),
    ``exposed_share`` of t, ``communication_overhead`` t / t(off) - 1, ``overlap_efficiency``
    (t(off) + t(only) - t) / min(t(off), t(only))."""
    partners = {name: nearest(item, (
        other for other in alike if training_of(other.case).communication == name))
        for name in (OFF, ONLY)}
    missing = {name: reason for name, other in partners.items()
               if (reason := why_unpaired(name, "training", item, other))}
    off, only = (None if name in missing else other for name, other in partners.items())
    own, without, alone = pass_medians_s(item), pass_medians_s(off), pass_medians_s(only)
    efficiency = overlap.overlap_efficiency(own, without, alone)
    if efficiency is None and not missing:
        missing["both"] = f"there is no pass in which {OFF} and {ONLY} were both run, too"
    work = training_of(item.case)
    return {
        "off_s": median_s(off), "only_s": median_s(only),
        **values_over_passes("exposed_s", overlap.exposed_communication_s(own, without)),
        **values_over_passes("exposed_share", overlap.exposed_share(own, without)),
        **values_over_passes("communication_overhead", overlap.overhead(own, without)),
        **values_over_passes("overlap_efficiency", efficiency),
        "bubble_predicted": predicted_bubble(work) if work.pp > 1 else None,
        "own_steps": _own_steps(item, off),
        "not_paired": tuple(f"communication {reason}" for reason in missing.values())}


def _own_steps(item: CaseResult, off: CaseResult | None) -> OwnSteps:
    work, own = training_of(item.case), pass_medians_s(item)
    ranks, times_s = _by_rank(off)
    own_s = tuple(over for times in times_s
                  if (over := overlap.over_passes(lambda time: time, times)) is not None)
    is_pipeline = work.pp > 1
    return OwnSteps(
        ranks, own_s, tuple(idle for times in times_s if is_pipeline and (
            idle := overlap.over_passes(lambda on, off: 1 - off / on, own, times)) is not None),
        idle_shares(work, [own.median for own in own_s]) if is_pipeline and own_s else (),
        off.case.case_id if off is not None else "")


def _by_rank(off: CaseResult | None) -> tuple[tuple[int, ...], list[overlap.PassTimes]]:
    steps = off.timing.steps if off is not None and off.timing else None
    if steps is None or not any(steps.pass_step_s):
        return (), []
    return steps.ranks, [[times[row] if times else None for times in steps.pass_step_s]
                         for row in range(len(steps.ranks))]


CLEAR_SHARE, CLEAR_RATIO = 0.8, 1.1
"""A rank is named where it stands out in so many of the steps, by so much of the other end."""
CLEAR_PART = 0.01  # share of a step: what is shorter is not reported
READY, ARRIVES, STEP = "ready", "arrives", "step"  # names of comparisons beside those of phases
BLOCKING = "mpi"
"""The backend whose exchange blocks the rank itself, in each call: behind the first call a rank's
times hold waits for others."""


@dataclass(frozen=True, slots=True)
class SlowPhase:
    """A rank that stands out in a phase in ``share`` of the steps.

    ``is_shortest``: all leave the phase together, so the slow rank has the shortest; else the
    longest. ``ratio`` is longest / shortest."""

    phase: str
    rank: int
    share: float
    is_shortest: bool
    ratio: float


@dataclass(frozen=True, slots=True)
class LateRank:
    """The rank that arrives last at the exchange of gradients in ``share`` of the steps.

    ``behind_s``: after the median of the others; ``first_behind_s``: at the first of ``buckets``,
    None where another rank is last there."""

    rank: int
    share: float
    behind_s: float
    buckets: int
    first_behind_s: float | None


@dataclass(frozen=True, slots=True)
class SlowAlone:
    """The slowest rank without communication, beside the quickest; ``low`` to ``high``: ratios of
    passes."""

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
        if late and phase.name == "exchange":
            continue
        shortest = phase.name in together
        rank = phase.quickest_rank if shortest else phase.slowest_rank
        share = (phase.quickest_share if shortest else phase.slowest_share) or 0
        if rank is not None and share >= CLEAR_SHARE:
            yield SlowPhase(phase.name, rank, share, shortest, ratio)


def _alike(item: CaseResult) -> Steps | None:
    """Return the steps of a training whose several ranks have the same to do."""
    work, steps = training_of(item.case), item.timing.steps if item.timing else None
    several = steps is not None and len(steps.ranks) > 1
    return steps if several and work.pp == 1 and work.trains else None


def _together(item: CaseResult, steps: Steps) -> set[str]:
    """Return the phases that all ranks leave together: their length does not show who is slow."""
    work, waiting = training_of(item.case), {"exchange", "forward_backward"}
    if not steps.arrivals or item.case.backend == BLOCKING:
        waiting.add("backward")
    waiting |= {"forward", "backward"} if waits_within(work) else set()
    return waiting | ({"optimizer"} if "broadcast" in work.calls else set())  # of what it updated


def waits_within(work: Training) -> bool:
    gathers = "all_gather" in work.calls and not is_dynamic(work)  # dynamic: speeds only
    return work.tp > 1 or work.pp > 1 or gathers


def late_rank(item: CaseResult) -> LateRank | None:
    steps = _alike(item)
    last = arrival(item)
    if steps is None or last is None:
        return None
    if last.last_share < CLEAR_SHARE or last.behind_s < CLEAR_PART * max(steps.step_s):
        return None
    first = steps.arrivals[0]
    is_same = first is last or first.last_rank != last.last_rank
    return LateRank(last.last_rank, last.last_share, last.behind_s, last.bucket,
                    None if is_same else first.behind_s)


def arrival(item: CaseResult) -> Arrival | None:
    """Return the arrivals at the last exchange, or at the first if an exchange blocks the rank."""
    arrivals = item.timing.steps.arrivals if item.timing and item.timing.steps else ()
    return arrivals[deciding(item.case)] if arrivals else None


def deciding(case: Case) -> int:
    """Return which exchange of a step shows who is late: the last, but the first if calls block."""
    return 0 if case.backend == BLOCKING else -1


def slow_alone(steps: OwnSteps) -> SlowAlone | None:
    if steps.idle_share or len(steps.own_s) < 2:
        return None
    by_time = sorted(zip(steps.own_s, steps.ranks, strict=True),
                     key=lambda pair: pair[0].median)
    (least, quick), (most, slow) = by_time[0], by_time[-1]
    ratio = most.median / least.median
    if ratio < CLEAR_RATIO:
        return None
    return SlowAlone(slow, most.median, quick, least.median, ratio, most.least / least.greatest,
                     most.greatest / least.least, steps.off_case)


def comparisons(item: CaseResult, samples: CaseSamples) -> Iterator[Comparison]:
    """Yield each comparison of the ranks of a case; stages of a pipeline differ anyway."""
    work, steps = training_of(item.case), item.timing.steps if item.timing else None
    if steps is None or len(steps.ranks) < 2 or work.pp > 1 or work.communication == "only":
        return
    passes, counted = counted_steps(item.case, samples)
    least_s = CLEAR_PART * max(steps.step_s)

    def over(what: str, times_ns: npt.NDArray[np.int64], *, shortest: bool = False) -> Comparison:
        medians_s = pass_medians(times_ns[:, counted] / 1e9, passes)
        return compared(what, steps.ranks, medians_s, least_s, shortest=shortest)

    if not work.trains:
        yield over(STEP, fold.sample_durations_ns(samples))
        return
    if (at := arrival(item)) is not None:
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
    counted = fold.fold_samples(case, samples, fold.extreme_durations(samples), None).counted
    return tuple(int(counted[part].sum()) for part in pass_slices(samples)), counted

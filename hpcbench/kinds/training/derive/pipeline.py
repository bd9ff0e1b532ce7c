"""How long the ranks of a pipeline wait for each other, computed from the schedule alone.

The schedules are those of torch.distributed.pipelining, written out as pure functions, so that a
pipeline's bubble is known without torch. Tests hold computations and times equal to those of torch
2.13, with the messages that it sends. Sources: GPipe arXiv:1811.06965, 1F1B and interleaved 1F1B
arXiv:2104.04473, looped BFS arXiv:2211.05953, zero bubble (ZB1P, ZBV) arXiv:2401.10241, DualPipeV
github.com/deepseek-ai/DualPipe. p is the number of ranks, m of micro-batches, v of stages on one.

torch sends a result when its computation has ended, and receives before the computation that
needs it. DualPipeV alone has pairs of a forward and a backward (``OVERLAP_F_B`` in
torch/distributed/pipelining/schedules.py). torch 2.13 computes their halves one after the other
and sends the results of both behind the second. A next stage on the same rank has its input at
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from hpcbench.kinds.training.plan.registry import pipelining
from hpcbench.kinds.training.plan.workload import Training

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
"""``B`` is a whole backward; ``I`` and ``W`` are its halves: gradients of inputs, of weights."""
_COSTS: Mapping[str, float] = MappingProxyType(
    {FORWARD: 1.0, BACKWARD: 2.0, INPUT: 1.0, WEIGHT: 1.0})
"""The time of each computation: a backward has two products for each of a forward's."""
_OLDEST = -1
_LEADING = "F of a pair"
"""A step: a forward whose result is sent behind the backward that follows."""


class Op(NamedTuple):
    """What a rank computes for one micro-batch in one stage.

    ``leads``: its result is sent when the next computation of the rank has ended, too.
    """

    kind: str
    stage: int
    microbatch: int
    leads: bool = False


_Step = tuple[str, int]
_Result = tuple[str, int, int]


def predicted_bubble(work: Training) -> float | None:
    """Return the share of its ranks' time in which a training waits, None without a pipeline."""
    pipelined = pipelining(work)
    if pipelined is None:
        return None
    schedule, stages_per_rank, microbatches = pipelined
    return bubble_share(schedule.name, work.pp, microbatches, stages_per_rank)


def idle_shares(work: Training, own_s: Sequence[float]) -> tuple[float, ...]:
    """Return the share of a step in which each rank of a pipelined training waits.

    As `predicted_bubble`, but the computations of each rank take ``own_s`` together instead of as
    long as those of any other. Ranks are those of the training: neighbours in a tensor group, then
    in a pipeline. Nothing is known of a strategy that is not installed.
    """
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


def bubble_share(
    schedule: str, ranks: int, microbatches: int, stages_per_rank: int = 1,
) -> float:
    """Return the share of ``ranks`` x step in which ranks wait, if nothing but the order costs.

    All stages take the same time and communication none; the step is from the first forward to
    the last backward of any rank. The schedule is replayed: each computation begins when its
    rank is free and what it needs has been sent to it. For GPipe, 1F1B, LoopedBFS and
    Interleaved1F1B with whole rounds this is (p - 1) / (v m + p - 1) (arXiv:2104.04473, 2.2).
    There are p ranks, m micro-batches and v stages a rank. Raises KeyError for an unknown
    schedule, ValueError for numbers with which it cannot be run.
    """
    orders = _orders(schedule, ranks, microbatches, stages_per_rank)
    step = max(replay(orders, ranks * stages_per_rank).values())
    return 1 - sum(map(_busy, orders)) / (ranks * step)


def replay(
    orders: list[list[Op]], stages: int, paces: Sequence[float] | None = None,
) -> dict[Op, float]:
    """Return when each computation ends, the first begins at 0.

    ``paces``: by how much each rank takes longer than the costs say. Raises ValueError if ranks
    wait for each other for ever.
    """
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
    """When results are there: where they were computed at once, elsewhere when they are sent."""

    def __init__(self, orders: Sequence[Sequence[Op]]) -> None:
        self._rank_of = {op.stage: rank for rank, ops in enumerate(orders) for op in ops}
        self._ended: dict[_Result, float] = {}
        self._sent: dict[_Result, float] = {}
        self._held: dict[int, _Result] = {}
        """Rank -> the result that is sent behind the next one."""

    def add(self, op: Op, end: float) -> None:
        if op.kind == WEIGHT:  # nobody else needs it
            return
        rank, result = self._rank_of[op.stage], _result(op.kind, op.stage, op.microbatch)
        self._ended[result] = end
        if op.leads:
            self._held[rank] = result
            return
        self._sent[result] = end
        if rank in self._held:
            self._sent[self._held.pop(rank)] = end

    def there(self, kind: str, stage: int, microbatch: int, needed_in: int) -> float | None:
        """Return when a result is where another stage is, None if that is not known yet."""
        near = self._rank_of.get(stage) == self._rank_of[needed_in]
        return (self._ended if near else self._sent).get(_result(kind, stage, microbatch))


def _result(kind: str, stage: int, microbatch: int) -> _Result:
    """Return what tells a result: the gradient of an input is that of either backward."""
    return BACKWARD if kind == INPUT else kind, stage, microbatch


def _ready(op: Op, stages: int, results: _Results) -> float | None:
    """Return when all is there that an operation needs, None if that is not known yet."""
    kind, stage, number, _ = op
    if kind == WEIGHT:
        return results.there(INPUT, stage, number, stage)
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
    """Return what a rank computes in one step, in order. Raises KeyError for an unknown schedule.

    Numbers that do not suit the schedule (`plan.schedules.unscheduled`) give an order that cannot
    be run.
    """
    if schedule == "LoopedBFS":
        return _looped(p, m, v, rank)
    steps: Mapping[str, Callable[[int, int, int, int], Iterable[_Step]]] = {
        "GPipe": _fill_and_drain, "1F1B": _one_by_one, "Interleaved1F1B": _interleaved,
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


def _looped(p: int, m: int, v: int, rank: int) -> list[Op]:
    stages = range(rank, p * v, p)
    return [*(Op(FORWARD, stage, number) for stage in stages for number in range(m)),
            *(Op(BACKWARD, stage, number) for stage in reversed(stages)
              for number in reversed(range(m)))]


def _fill_and_drain(_p: int, m: int, _v: int, rank: int) -> list[_Step]:
    return [*[(FORWARD, rank)] * m, *[(BACKWARD, rank)] * m]


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
    """Two stages on a rank; for at least 2p - 1 micro-batches, of which those past m are left out.

    Warm-up, steady state, and a cool-down in which weights that were put off are made up for.
    """
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
    yield from ((BACKWARD if number < whole else INPUT, stage)
                for number, stage in enumerate(last))
    yield from [(WEIGHT, _OLDEST), (INPUT, down)] * after
    yield from [(WEIGHT, _OLDEST)] * (rank + 1)

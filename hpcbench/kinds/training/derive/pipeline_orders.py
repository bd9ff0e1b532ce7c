"""In what order each rank of a pipeline computes: the schedules of torch.distributed.pipelining.

Written out here, as pure functions, so that a plan knows a pipeline's bubble without torch. A test
holds them equal to what torch 2.13 runs. Sources: GPipe arXiv:1811.06965, 1F1B and interleaved 1F1B
arXiv:2104.04473, looped BFS arXiv:2211.05953, zero bubble (ZB1P, ZBV) arXiv:2401.10241,
DualPipeV github.com/deepseek-ai/DualPipe.

p is the number of ranks, m of micro-batches, v of stages on a rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
"""``B`` is a whole backward; ``I`` and ``W`` are its halves: gradients of inputs, of weights."""
_OLDEST = -1


class Op(NamedTuple):
    """What a rank computes for one micro-batch in one stage."""

    kind: str
    stage: int
    microbatch: int


_Step = tuple[str, int]


def order(schedule: str, p: int, m: int, v: int, rank: int) -> list[Op]:
    """Return what a rank computes in one step, in order. Raises KeyError for an unknown schedule.

    Numbers that do not suit the schedule (`plan.schedules.unscheduled`) give an order
    that cannot be run.
    """
    if schedule == "LoopedBFS":
        return _looped(p, m, v, rank)
    steps: Mapping[str, Callable[[int, int, int, int], Iterable[_Step]]] = {
        "GPipe": _fill_and_drain, "1F1B": _one_by_one, "Interleaved1F1B": _interleaved,
        "InterleavedZeroBubble": _interleaved_zero_bubble, "ZBVZeroBubble": _zero_bubble_v,
        "DualPipeV": _dual_pipe_v}
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
        way = (FORWARD if kind == FORWARD else BACKWARD, stage)
        yield Op(kind, stage, done[way])
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


def _stages_in_turn(p: int, m: int, v: int, rank: int) -> tuple[int, list[int]]:
    """Return the size of a round, and the stage of each forward; backwards mirror them."""
    each = m // max(1, m // p)
    return each, [number // each % v * p + rank for number in range(m * v)]


def _interleaved(p: int, m: int, v: int, rank: int) -> Iterator[_Step]:
    each, forwards = _stages_in_turn(p, m, v, rank)
    backwards = [(v - 1) * p + 2 * rank - stage for stage in forwards]
    ahead = min((v - 1) * each + 2 * (p - 1 - rank), m * v)
    for number in range(m * v + ahead):
        if number < m * v:
            yield FORWARD, forwards[number]
        if number >= ahead:
            yield BACKWARD, backwards[number - ahead]


def _interleaved_zero_bubble(p: int, m: int, v: int, rank: int) -> Iterator[_Step]:
    """Put the gradients of weights off by ``rank`` backwards (ZB1P)."""
    each, forwards = _stages_in_turn(p, m, v, rank)
    backwards = [(v - 1) * p + 2 * rank - stage for stage in forwards]
    ahead = min((v - 1) * each + p - 1 - rank, m * v)
    for number in range(m * v + ahead):
        if number < m * v:
            yield FORWARD, forwards[number]
        if number >= ahead:
            yield INPUT, backwards[number - ahead]
        if number - ahead >= rank:
            yield WEIGHT, _OLDEST
    for _ in range(min(rank, m * v)):
        yield WEIGHT, _OLDEST


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
    """Two stages on a rank; torch computes the pairs that overlap one after the other."""
    down, up = rank, 2 * p - 1 - rank
    after = p - rank - 1
    yield from [(FORWARD, down)] * (2 * after)
    yield from [(FORWARD, down), (FORWARD, up)] * (rank + 1)
    yield from [(INPUT, up), (WEIGHT, _OLDEST), (FORWARD, up)] * after
    yield from [(FORWARD, down), (BACKWARD, up), (FORWARD, up), (BACKWARD, down)] * (
        m - 2 * p + rank + 1)
    yield from [(BACKWARD, up), (FORWARD, up), (BACKWARD, down)] * after
    # the weights of the second half of the last backwards are put off into the gaps after them
    last = [stage for _ in range(rank + 1) for stage in (up, down)]
    whole = len(last) // 4 * 2 + 1 - rank % 2
    yield from ((BACKWARD if number < whole else INPUT, stage)
                for number, stage in enumerate(last))
    yield from [(WEIGHT, _OLDEST), (INPUT, down)] * after
    yield from [(WEIGHT, _OLDEST)] * (rank + 1)

"""The bubble of a pipeline as its schedule tells it, against closed forms and drawn examples."""

from __future__ import annotations

import pytest

from hpcbench.kinds.training.derive.slow_ranks import (
    BACKWARD,
    FORWARD,
    Op,
    bubble_share,
    order,
    replay,
)
from hpcbench.kinds.training.plan.spec import SCHEDULES, schedule_of, stages_on, unscheduled

WHOLE_BACKWARDS = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS")
PIPELINES = [(schedule.name, p, v, m) for schedule in SCHEDULES for p in (1, 2, 3, 4, 8)
             for v in (1, 2, 3) for m in (p, 2 * p, 4 * p)
             if unscheduled(schedule, p, v, m) is None]


@pytest.mark.parametrize(("name", "p", "v", "m"), PIPELINES)
def test_bubbles_are_those_of_the_closed_forms(name: str, p: int, v: int, m: int) -> None:
    """Zero-bubble schedules have work of 3 units per stage, of which nobody waits for 1.

    DualPipeV would wait as little, but torch holds back what forwards of pairs return.
    """
    units = v * m if name in WHOLE_BACKWARDS else 3 * v * m
    waits = 2 * (p - 1) if name == "DualPipeV" else p - 1
    found = bubble_share(name, p, m, v)
    if m >= 2 * p or name in WHOLE_BACKWARDS:
        assert found == pytest.approx(waits / (units + waits)), (name, p, v, m)
    assert 0 <= found < 1


def test_one_micro_batch_keeps_one_rank_busy() -> None:
    assert bubble_share("GPipe", 4, 1) == pytest.approx(3 / 4)


def test_a_schedule_that_waits_less_is_distinguished() -> None:
    shares = [bubble_share(name, 4, 16, v) for name, v in (
        ("1F1B", 1), ("Interleaved1F1B", 2), ("Interleaved1F1B", 4), ("ZBVZeroBubble", 2))]
    assert shares == sorted(shares, reverse=True) and len(set(shares)) == 4


@pytest.mark.parametrize(("name", "p", "v", "m"), PIPELINES)
def test_every_stage_does_every_micro_batch_once(name: str, p: int, v: int, m: int) -> None:
    ops = [op for rank in range(p) for op in order(name, p, m, v, rank)]
    assert len(set(ops)) == len(ops)
    cells = {(stage, number) for stage in range(p * v) for number in range(m)}
    whole = {op[1:3] for op in ops if op.kind == BACKWARD}
    halves = [{op[1:3] for op in ops if op.kind == kind} for kind in "IW"]
    assert {op[1:3] for op in ops if op.kind == FORWARD} == cells
    assert halves[0] == halves[1] == cells - whole
    for rank in range(p):
        own = {op.stage for op in order(name, p, m, v, rank)}
        assert own == set(stages_on(schedule_of(name), p, rank, v))


def test_ranks_that_wait_for_each_other_are_reported() -> None:
    forwards = [[Op(FORWARD, 0, 0)], [Op(FORWARD, 1, 1)]]
    with pytest.raises(ValueError, match="no rank can go on"):
        replay(forwards, 2)


@pytest.mark.parametrize(("name", "ranks", "stages", "microbatches", "reason"), [
    ("1F1B", 4, 1, 3, "as many micro-batches as stages: 3 micro-batches are fewer than 4 stages"),
    ("1F1B", 4, 2, 8, "stages per rank: 1F1B has 1, not 2"),
    ("DualPipeV", 2, 2, 3, "fewer than 4 stages"),
    ("ZBVZeroBubble", 2, 3, 4, "stages per rank: ZBVZeroBubble has 2, not 3"),
    ("LoopedBFS", 2, 1, 4, "LoopedBFS needs 2 stages per rank, not 1"),
    ("Interleaved1F1B", 2, 2, 5, "5 cannot be divided evenly into 2 rounds"),
])
def test_what_a_schedule_cannot_do_has_a_reason(
    name: str, ranks: int, stages: int, microbatches: int, reason: str,
) -> None:
    assert reason in str(unscheduled(schedule_of(name), ranks, stages, microbatches))

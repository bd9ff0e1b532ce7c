"""The orders that bubbles are predicted from are those that torch's schedules compute in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining.schedules import get_schedule_class

from hpcbench.kinds.training.derive.pipeline import Op, order
from hpcbench.kinds.training.plan.schedules import SCHEDULES, Schedule, unscheduled

KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_orders_are_torchs(schedule: Schedule) -> None:
    sizes = [(p, m, v) for p, m in ((1, 3), (2, 3), (2, 4), (3, 8), (4, 3), (4, 8), (4, 10))
             for v in (1, 2, 3) if unscheduled(schedule, p, v, m) is None]
    assert len(sizes) >= 4
    for p, m, v in sizes:
        theirs = _orders(schedule, p, m, v)
        for rank in range(p):
            ours = order(schedule.name, p, m, v, rank)
            assert ours == theirs[rank], (p, m, v, rank)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_torch_refuses_what_we_refuse(schedule: Schedule) -> None:
    """But for micro-batches and stages that torch takes and that mean something else."""
    for p, m, v in [(p, m, v) for p, m in ((2, 1), (2, 5), (3, 5)) for v in (1, 2)]:
        reason = unscheduled(schedule, p, v, m)
        if reason is not None and "stages per rank" not in reason:
            with pytest.raises(ValueError, match="icrobatches"):
                get_schedule_ops(schedule.name, p, m, v)


def _orders(schedule: Schedule, p: int, m: int, v: int) -> list[list[Op]]:
    if schedule.most_stages == 1:  # torch's lists are not what these run: they have loops of calls
        return [_calls(schedule.name, p, m, rank) for rank in range(p)]
    return [list(_flat(actions)) for actions in get_schedule_ops(schedule.name, p, m, v)]


def _flat(actions: Any) -> Iterator[Op]:
    for action in actions:
        if action is not None and action.sub_actions:
            yield from _flat(action.sub_actions)
        elif action is not None:
            kind = KINDS[action.computation_type.name]
            yield Op(kind, action.stage_index, action.microbatch_index)


def _calls(name: str, p: int, m: int, rank: int) -> list[Op]:
    """Return what a schedule of one stage a rank calls of its stage."""
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.stage_index, stage.num_stages, stage.is_last = rank, p, False
    for receive_or_send in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops",
                            "get_bwd_send_ops"):
        getattr(stage, receive_or_send).return_value = []
    found: list[Op] = []
    stage.forward_one_chunk.side_effect = (
        lambda number, *_args, **_options: found.append(Op("F", rank, number)))
    stage.backward_one_chunk.side_effect = (
        lambda number, **_options: found.append(Op("B", rank, number)))
    schedule = get_schedule_class(name)(stage, m)
    with mock.patch.object(schedule, "_initialize_stage"):
        schedule._step_microbatches()
    return found

"""The orders that bubbles are predicted from are those in which torch computes and sends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import pytest
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from hpcbench.kinds.training.derive.slow_ranks import Op, bubble_share, order, replay
from hpcbench.kinds.training.plan.spec import SCHEDULES, Schedule, unscheduled

KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
COSTS = {"F": 1, "B": 2, "I": 1, "W": 1}
SIZES = ((1, 3), (2, 3), (2, 4), (3, 8), (4, 3), (4, 8), (4, 10))


class Message(NamedTuple):
    """One end of a message of a micro-batch: ``way`` is F or B, ``stage`` the one that gets it."""

    end: str
    way: str
    stage: int
    microbatch: int

    def other(self) -> Message:
        """Return the other end."""
        return self._replace(end="recv" if self.end == "send" else "send")


class Wait(NamedTuple):
    """Waiting until both ends of a message have been posted."""

    message: Message


Program = Sequence[Op | Message | Wait]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_orders_are_torchs(schedule: Schedule) -> None:
    for p, m, v in _sizes(schedule):
        theirs = _programs(schedule, p, m, v)
        for rank in range(p):
            ours = order(schedule.name, p, m, v, rank)
            assert ours == [entry for entry in theirs[rank] if isinstance(entry, Op)], (p, m, v)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_times_are_those_of_torchs_own_messages(schedule: Schedule) -> None:
    """A message passes when torch has posted both ends, of which its program waits for some."""
    for p, m, v in _sizes(schedule):
        ours = replay([order(schedule.name, p, m, v, rank) for rank in range(p)], p * v)
        assert ours == _ends(_programs(schedule, p, m, v)), (p, m, v)


@pytest.mark.parametrize(("p", "m", "bubble"), [
    (4, 8, 0.1111), (4, 16, 0.0588), (8, 16, 0.1273)])
def test_torch_sends_after_both_halves_of_a_pair(p: int, m: int, bubble: float) -> None:
    """DualPipeV as torch runs it waits longer than it would if each half sent when it ended."""
    ends = _ends(_programs(SCHEDULES[-1], p, m, 2))
    theirs = 1 - sum(COSTS[op.kind] for op in ends) / (p * max(ends.values()))
    assert theirs == pytest.approx(bubble, abs=5e-5)
    assert bubble_share("DualPipeV", p, m, 2) == pytest.approx(theirs)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_torch_refuses_what_we_refuse(schedule: Schedule) -> None:
    """But for micro-batches and stages that torch takes and that mean something else."""
    for p, m, v in [(p, m, v) for p, m in ((2, 1), (2, 5), (3, 5)) for v in (1, 2)]:
        reason = unscheduled(schedule, p, v, m)
        if reason is not None and "stages per rank" not in reason:
            with pytest.raises(ValueError, match="icrobatches"):
                get_schedule_ops(schedule.name, p, m, v)


def _sizes(schedule: Schedule) -> list[tuple[int, int, int]]:
    sizes = [(p, m, v) for p, m in SIZES for v in (1, 2, 3)
             if unscheduled(schedule, p, v, m) is None]
    assert len(sizes) >= 4
    return sizes


def _ends(programs: Sequence[Program]) -> dict[Op, float]:
    """Return when each computation ends: a message takes no time, a backward two of a forward."""
    clocks, posted = [0.0] * len(programs), dict[Message, float]()
    ends: dict[Op, float] = {}
    left = [deque(program) for program in programs]
    while any(left):
        before = sum(map(len, left))
        for rank, program in enumerate(left):
            while program:
                entry = program[0]
                if isinstance(entry, Op):
                    clocks[rank] += COSTS[entry.kind]
                    ends[entry] = clocks[rank]
                elif isinstance(entry, Message):
                    posted[entry] = clocks[rank]
                elif entry.message.other() in posted:
                    clocks[rank] = max(clocks[rank], posted[entry.message.other()])
                else:
                    break
                program.popleft()
        assert sum(map(len, left)) < before, "torch's ranks wait for each other for ever"
    return ends


def _programs(schedule: Schedule, p: int, m: int, v: int) -> list[list[Op | Message | Wait]]:
    if schedule.most_stages == 1:  # torch's lists are not what these run: they have loops of calls
        return [_called(schedule.name, p, m, rank) for rank in range(p)]
    return [list(_lowered(actions))
            for actions in get_schedule_ops(schedule.name, p, m, v, with_comms=True)]


def _lowered(actions: Sequence[Any]) -> Iterator[Op | Message | Wait]:
    """Yield what torch's runtime does for its actions: it waits for what it posted to receive."""
    received = set()
    for action in actions:
        name, number = action.computation_type.name, action.microbatch_index
        if name[:5] in ("SEND_", "RECV_"):
            end, way = name.lower()[:4], name[-1]
            further = 0 if end == "recv" else 1 if way == "F" else -1
            message = Message(end, way, action.stage_index + further, number)
            received |= {message} if end == "recv" else set()
            yield message
        parts = action.sub_actions or [action] * (name in KINDS)
        for at, part in enumerate(parts):
            kind, stage, number = (KINDS[part.computation_type.name], part.stage_index,
                                   part.microbatch_index)
            message = Message("recv", "F" if kind == "F" else "B", stage, number)
            if kind != "W" and message in received:
                yield Wait(message)
            yield Op(kind, stage, number, at + 1 < len(parts))


def _called(name: str, p: int, m: int, rank: int) -> list[Op | Message | Wait]:
    """Return what a schedule of one stage a rank calls."""
    found: list[Op | Message | Wait] = []
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.stage_index, stage.num_stages, stage.is_last = rank, p, False
    for call, end, way, to, there in (
            ("get_fwd_recv_ops", "recv", "F", rank, rank > 0),
            ("get_fwd_send_ops", "send", "F", rank + 1, rank < p - 1),
            ("get_bwd_recv_ops", "recv", "B", rank, rank < p - 1),
            ("get_bwd_send_ops", "send", "B", rank - 1, rank > 0)):
        getattr(stage, call).side_effect = (
            lambda number, made=(end, way, to), there=there: [Message(*made, number)] * there)
    stage.forward_one_chunk.side_effect = (
        lambda number, *_args, **_options: found.append(Op("F", rank, number)))
    stage.backward_one_chunk.side_effect = (
        lambda number, **_options: found.append(Op("B", rank, number)))

    def post(messages: list[Message], desc: str) -> list[Message]:
        found.extend(messages)
        return messages

    schedule = schedules.get_schedule_class(name)(stage, m)
    with mock.patch.object(schedule, "_initialize_stage"), mock.patch.multiple(
            schedules, _batch_p2p=post,
            _sorted_batch_p2p=lambda messages, desc: {0: post(messages, desc)},
            _wait_batch_p2p=lambda works: found.extend(map(Wait, works))):
        schedule._step_microbatches()
    return found

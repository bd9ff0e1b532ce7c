"""The schedules of pipeline parallelism: what each is, and its limits on stages and micro-batches.

They are those of torch.distributed.pipelining (``get_schedule_class``), under its names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Schedule:
    """One order of forwards and backwards of micro-batches.

    Attributes:
        name: torch's.
        stages_per_rank: the least number of stages on a rank.
        most_stages: the greatest, None: any.
        placement: where stage s of p ranks is: ``loop``: on rank s mod p; ``v``: down and up
            again, so that the first and the last stage are both on rank 0.
        full: whether there must be as many micro-batches as stages.
        rounds: whether micro-batches go in rounds of about as many as there are ranks, of equal
            size.
        halves: whether gradients of activations and of weights are computed apart.
    """

    name: str
    stages_per_rank: int
    most_stages: int | None
    placement: Literal["loop", "v"] = "loop"
    full: bool = False
    rounds: bool = False
    halves: bool = False


SCHEDULES = (
    Schedule("1F1B", 1, 1, full=True),
    Schedule("GPipe", 1, 1),
    Schedule("Interleaved1F1B", 2, None, rounds=True),
    Schedule("LoopedBFS", 2, None),
    Schedule("InterleavedZeroBubble", 2, None, rounds=True, halves=True),
    Schedule("ZBVZeroBubble", 2, 2, placement="v", halves=True),
    Schedule("DualPipeV", 2, 2, placement="v", full=True, halves=True),
)
AUTO = "auto"
"""For ``stages_per_rank``: as many as the schedule needs."""
SCHEDULE_NAMES = tuple(schedule.name for schedule in SCHEDULES)


def schedule_of(name: str) -> Schedule:
    """Return the schedule of a name. Raises KeyError."""
    return {schedule.name: schedule for schedule in SCHEDULES}[name]


class Pipelining(NamedTuple):
    """How a training is pipelined."""

    schedule: Schedule
    stages_per_rank: int
    microbatches: int


def stages_on(schedule: Schedule, ranks: int, rank: int, stages_per_rank: int) -> tuple[int, ...]:
    """Return the indices of the stages on a rank, in the order of the model."""
    if schedule.placement == "v":
        return rank, 2 * ranks - 1 - rank
    return tuple(range(rank, ranks * stages_per_rank, ranks))


def unscheduled(
    schedule: Schedule, ranks: int, stages_per_rank: int, microbatches: int,
) -> str | None:
    """Return why the schedule does not go with these numbers, or None."""
    name, stages = schedule.name, ranks * stages_per_rank
    if stages_per_rank < schedule.stages_per_rank:
        return f"{name} needs {schedule.stages_per_rank} stages per rank, not {stages_per_rank}"
    if schedule.most_stages is not None and stages_per_rank > schedule.most_stages:
        return f"stages per rank: {name} has {schedule.most_stages}, not {stages_per_rank}"
    if schedule.full and microbatches < stages:
        return (f"{name} needs as many micro-batches as stages: {microbatches} micro-batches are "
                f"fewer than {stages} stages")
    count = max(1, microbatches // ranks)
    if schedule.rounds and microbatches % count:
        return (f"{name} deals micro-batches in rounds of equal size: {microbatches} cannot be "
                f"divided evenly into {count} rounds")
    return None

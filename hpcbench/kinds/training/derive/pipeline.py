"""How long the ranks of a pipeline wait for each other, computed from the schedule alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hpcbench.kinds.training.derive.pipeline_orders import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Op,
    order,
)
from hpcbench.kinds.training.plan.lookup import pipelining
from hpcbench.kinds.training.plan.workload import Training

COSTS: Mapping[str, float] = MappingProxyType(
    {FORWARD: 1.0, BACKWARD: 2.0, INPUT: 1.0, WEIGHT: 1.0})
"""The time of each computation: a backward has two products for each of a forward's."""


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
    orders = [order(schedule.name, work.pp, microbatches, stages_per_rank, rank)
              for rank in range(work.pp)]
    units = [sum(COSTS[op.kind] for op in ops) for ops in orders]
    shares = [0.0] * len(own_s)
    for replica in range(len(own_s) // (work.pp * work.tp)):
        for part in range(work.tp):
            line = [(replica * work.pp + stage) * work.tp + part for stage in range(work.pp)]
            paces = [own_s[rank] / unit for rank, unit in zip(line, units, strict=True)]
            step_s = max(replay(orders, work.pp * stages_per_rank, paces=paces).values())
            for rank in line:
                shares[rank] = 1 - own_s[rank] / step_s
    return tuple(shares)


def bubble_share(
    schedule: str, ranks: int, microbatches: int, stages_per_rank: int = 1,
    costs: Mapping[str, float] = COSTS,
) -> float:
    """Return the share of ``ranks`` x step in which ranks wait, if nothing but the order costs.

    All stages take the same time and communication none; the step is from the first forward to
    the last backward of any rank. The schedule is replayed: each computation begins when its
    rank is free and what it needs is there. For GPipe, 1F1B, LoopedBFS and Interleaved1F1B with
    whole rounds this is (p - 1) / (v m + p - 1) (arXiv:2104.04473, 2.2). There are p ranks, m
    micro-batches and v stages a rank. Raises KeyError for an unknown schedule, ValueError for
    numbers with which it cannot be run.
    """
    orders = [order(schedule, ranks, microbatches, stages_per_rank, rank)
              for rank in range(ranks)]
    ends = replay(orders, ranks * stages_per_rank, costs)
    busy = sum(costs[op.kind] for ops in orders for op in ops)
    return 1 - busy / (ranks * max(ends.values()))


def replay(
    orders: list[list[Op]], stages: int, costs: Mapping[str, float] = COSTS,
    paces: Sequence[float] | None = None,
) -> dict[Op, float]:
    """Return when each computation ends, the first begins at 0.

    ``paces``: by how much each rank takes longer than ``costs``. Raises ValueError if ranks wait
    for each other for ever.
    """
    ends: dict[Op, float] = {}
    free, paces = [0.0] * len(orders), paces or [1.0] * len(orders)
    left = [list(reversed(ops)) for ops in orders]
    while any(left):
        before = len(ends)
        for rank, ops in enumerate(left):
            while ops and (ready := _ready(ops[-1], stages, ends)) is not None:
                op = ops.pop()
                free[rank] = ends[op] = max(free[rank], ready) + costs[op.kind] * paces[rank]
        if len(ends) == before:
            raise ValueError(f"no rank can go on: {[ops[-1] for ops in left if ops]}")
    return ends


def _ready(op: Op, stages: int, ends: Mapping[Op, float]) -> float | None:
    """Return when all is there that an operation needs, None if that is not known yet."""
    kind, stage, number = op
    if kind == WEIGHT:
        return ends.get(Op(INPUT, stage, number))
    if kind == FORWARD:
        return ends.get(Op(FORWARD, stage - 1, number)) if stage else 0.0
    own = ends.get(Op(FORWARD, stage, number))
    if own is None or stage == stages - 1:
        return own
    after = ends.get(Op(BACKWARD, stage + 1, number), ends.get(Op(INPUT, stage + 1, number)))
    return None if after is None else max(own, after)

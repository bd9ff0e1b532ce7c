"""How the samples of a step are divided among replicas: evenly, or by how fast each is."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hpcbench.kinds.training.plan.registry import layout_of
from hpcbench.kinds.training.plan.workload import Training

EVERY = 4
"""Steps between two divisions: a rank's speed is the median of them."""
SPEED_BYTES = 8
"""In which replicas exchange, in every step, how long a sample took each of them."""
_GROWTH = 2
"""A replica gets at most so many times its even share, so that its memory is bounded."""


def is_dynamic(work: Training) -> bool:
    """Return whether samples are divided by speed."""
    return layout_of(work).balanced


def least_share(work: Training) -> int:
    """Return the samples that every replica keeps: one in each part of an accumulation."""
    return work.accumulation


def most_share(work: Training) -> int:
    """Return the samples that a replica may get at most."""
    if not is_dynamic(work):
        return work.batch_size
    others = (work.dp - 1) * least_share(work)
    return min(_GROWTH * work.batch_size, work.global_batch - others)


def even_shares(work: Training) -> tuple[int, ...]:
    """Return the samples of each replica where all have the same."""
    return (work.batch_size,) * work.dp


def divide(work: Training, costs: Sequence[float]) -> tuple[int, ...]:
    """Return the samples of each replica, all of the global batch, for the shortest step.

    ``costs`` is each replica's time for one sample. Each sample goes to the replica that would be
    done first with it: no division in whole samples has a shorter longest time. Of equals the
    first gets it, so that all ranks come to the same.
    """
    least, most = least_share(work), most_share(work)
    shares = [least] * work.dp
    waiting = [((least + 1) * cost, replica) for replica, cost in enumerate(costs)]
    heapq.heapify(waiting)
    for _ in range(work.global_batch - least * work.dp):
        _, replica = heapq.heappop(waiting)
        shares[replica] += 1
        if shares[replica] < most:
            heapq.heappush(waiting, ((shares[replica] + 1) * costs[replica], replica))
    return tuple(shares)


def unlike_shares(work: Training) -> tuple[int, ...]:
    """Return shares as of replicas of which each is slower than the one before."""
    return divide(work, [1.0 + replica for replica in range(work.dp)])


def unfit_to_balance(work: Training) -> str | None:
    """Return why there is nothing that could be balanced, or None."""
    if not is_dynamic(work):
        return None
    if work.dp == 1:
        return "balance=dynamic moves samples between replicas, of which there is one"
    if work.batch_size <= least_share(work):
        return (f"balance=dynamic has nothing to move: each of {work.accumulation} parts "
                f"(accumulation) of {work.batch_size} samples (batch_size) has but one")
    return None

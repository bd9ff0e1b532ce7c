"""How the samples of a step are divided among replicas: evenly, or by how fast each is.

Which parts of a model a rank has: all layers, or those of its stages.

What follows from a layout for the steps of a training.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbench.config.axes import DTYPE_BYTES
from hpcbench.kinds.training.plan.activations import Kept
from hpcbench.kinds.training.plan.any_model import AnyShape, end_tensors, part_tensors
from hpcbench.kinds.training.plan.models import Tensor
from hpcbench.kinds.training.plan.registry import layout_of, pipelining
from hpcbench.kinds.training.plan.spec import Layout, Pipelining, stages_on
from hpcbench.kinds.training.plan.workload import CHUNKED, Training

EVERY = 4
"""Steps between two divisions: a rank's speed is the median of them."""
SPEED_BYTES = 8
"""In which replicas exchange, in every step, how long a sample took each of them."""
_GROWTH = 2
"""A replica gets at most so many times its even share, so that its memory is bounded."""


def is_dynamic(work: Training) -> bool:
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
    if not is_dynamic(work):
        return None
    if work.dp == 1:
        return "balance=dynamic moves samples between replicas, of which there is one"
    if work.batch_size <= least_share(work):
        return (f"balance=dynamic has nothing to move: each of {work.accumulation} parts "
                f"(accumulation) of {work.batch_size} samples (batch_size) has but one")
    return None


@dataclass(frozen=True, slots=True)
class Stage:
    """What a rank of a pipeline has of a model; without a pipeline it has all.

    Attributes:
        rank: number in the pipeline.
        blocks: the numbers of its blocks.
        first: whether it has what is before the blocks: embedding or stem.
        last: whether it has the head.
        alone: whether the head is no neighbour of the embedding, so that a tied weight is copied.
        under_way: micro-batches of which it keeps what forward has left, each of a part of
            the blocks, as a number of all of them.
        ahead: the blocks whose results go to another rank.
        behind: the blocks on other ranks whose results it got, and which get the gradients.
    """

    rank: int = 0
    blocks: tuple[int, ...] = ()
    first: bool = True
    last: bool = True
    alone: bool = False
    under_way: float = 1
    ahead: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()

    def tensors(self, shape: AnyShape) -> list[Tensor]:
        before, after = end_tensors(shape, alone=self.alone)
        return [*(before if self.first else ()),
                *(item for number in self.blocks for item in part_tensors(shape, number)),
                *(after if self.last else ())]


def stages_of(work: Training) -> list[Stage]:
    """Return what each rank of a pipeline has, one entry where there is none."""
    pipelined = pipelining(work)
    if pipelined is None:
        return [Stage(blocks=tuple(range(work.layers)))]
    return [_stage(work, pipelined, rank) for rank in range(work.pp)]


def _stage(work: Training, pipelined: Pipelining, rank: int) -> Stage:
    schedule, per_rank, _ = pipelined
    own = stages_on(schedule, work.pp, rank, per_rank)
    last = work.pp * per_rank - 1
    each = work.layers // (last + 1)
    return Stage(
        rank=rank, first=0 in own, last=last in own, alone=True,
        blocks=tuple(number for stage in own for number in range(stage * each, (stage + 1) * each)),
        under_way=_under_way(pipelined, work.pp, rank),
        ahead=tuple((stage + 1) * each - 1 for stage in own
                    if stage != last and stage + 1 not in own),
        behind=tuple(stage * each - 1 for stage in own if stage != 0 and stage - 1 not in own))


def _under_way(pipelined: Pipelining, ranks: int, rank: int) -> float:
    """Return how many micro-batches a rank keeps at once, at most.

    Narayanan et al. (arXiv 2104.04473), section 2.2: 1F1B keeps no more than there are ranks
    behind; interleaved, its warm-up of parts of the blocks. Of the others all may be kept.
    """
    schedule, per_rank, microbatches = pipelined
    if schedule.name == "1F1B":
        return min(microbatches, ranks - rank)
    if schedule.name == "Interleaved1F1B":
        warm_up = (per_rank - 1) * ranks + 2 * (ranks - rank - 1) + 1
        return min(microbatches, warm_up / per_rank)
    return microbatches


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from a layout for the steps of a training.

    Attributes:
        layout: how it lies on the ranks.
        kept: how activations are kept.
        parts: micro-batches of a step.
        samples: samples of one micro-batch of the replica that has most.
        tokens: tokens of these; 0 if samples are images.
    """

    layout: Layout
    kept: Kept
    parts: int
    samples: int
    tokens: int


def step_of(work: Training) -> Step:
    layout, mixed = layout_of(work), work.dtype != "fp32"
    element = DTYPE_BYTES[work.dtype]
    kept = Kept(
        element=element, wide=element if layout.groups else 4,
        copies=mixed and layout.groups is None, adapters=layout.adapters, tp=work.tp,
        by_tokens=layout.by_tokens, by_words=layout.by_words,
        chunked=work.loss == CHUNKED)
    parts = work.accumulation * (layout.pipeline.microbatches if layout.pipeline else 1)
    samples = -(-most_share(work) // parts)
    return Step(layout, kept, parts, samples, samples * work.seq_length)

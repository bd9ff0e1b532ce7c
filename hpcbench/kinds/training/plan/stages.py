"""Which parts of a model a rank has: all layers, or those of its stages."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.kinds.training.plan.any_model import AnyShape, end_tensors, part_tensors
from hpcbench.kinds.training.plan.registry import pipelining
from hpcbench.kinds.training.plan.schedules import Pipelining, stages_on
from hpcbench.kinds.training.plan.tensors import Tensor
from hpcbench.kinds.training.plan.workload import Training


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
        """Return the parameters of these parts."""
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

"""Which parameters a rank has: of all layers or of its stages, and how it holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.kinds.training.plan.adapters import is_narrow, low_rank_tensors
from hpcbench.kinds.training.plan.any_model import AnyShape, end_tensors, model_of, part_tensors
from hpcbench.kinds.training.plan.models import shape_of
from hpcbench.kinds.training.plan.registry import adapters_of, pipelining
from hpcbench.kinds.training.plan.schedules import Pipelining, stages_on
from hpcbench.kinds.training.plan.tensors import COLUMNWISE, ROWWISE, Tensor
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


def tensors_of(work: Training, stage: Stage) -> list[Tensor]:
    """Return the parameters of these parts as a tensor-parallel rank has them, the first one."""
    return _divided(stage.tensors(model_of(work)), work.tp)


def held_blocks(work: Training, stage: Stage) -> list[list[Tensor]]:
    """Return the same of each block, as they are held."""
    return [laid_out(work, _divided(part_tensors(model_of(work), number), work.tp))
            for number in stage.blocks]


def laid_out(work: Training, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters as they are held, adapters behind the weights that have them.

    Without adapters these are the parameters as they are: fp32, all of them trained.
    """
    adapters = adapters_of(work)
    if adapters is None:
        return list(parameters)
    narrow, tensors = DTYPE_BYTES[work.dtype], []
    for item in parameters:
        held = item._replace(trained=False)
        if adapters.packs(item.name):
            held = held._replace(extents=(-(-item.elements // 2), 1), element_bytes=1)
        elif is_narrow(shape_of(work), item.name):
            held = held._replace(element_bytes=narrow)
        tensors.append(held)
        tensors += low_rank_tensors(item, adapters.rank) if adapters.has(item.name) else ()
    return tensors


def _divided(parameters: Sequence[Tensor], tp: int) -> list[Tensor]:
    """Return a tensor-parallel rank's part of each parameter, that of the first rank."""
    return [item._replace(extents=_part(item, tp)) for item in parameters]


def _part(item: Tensor, tp: int) -> tuple[int, ...]:
    product, _, kind = item.name.rpartition(".")
    rows, *columns = item.extents
    if product.endswith(COLUMNWISE) or product in ("embedding.tokens", "head.logits"):
        return (-(-rows // tp), *columns)
    if product.endswith(ROWWISE) and kind == "weight":
        return (rows, -(-columns[0] // tp))
    return item.extents

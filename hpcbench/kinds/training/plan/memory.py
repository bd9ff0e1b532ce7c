"""The memory use of a training's rank at the moments of a step at which it may be largest.

Pure arithmetic from the extents. Which tensors are there was read off torch 2.13 by
`benchmarks/memory.py`; docs/training.md has the errors. Allocators keep more. The parameters of a
rank are laid out once for all batches, dtypes and optimizers of a sweep."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import NamedTuple

from hpcbench.config.axes import DTYPE_BYTES
from hpcbench.kinds.training.plan import any_model, models
from hpcbench.kinds.training.plan import step as steps
from hpcbench.kinds.training.plan.experts import is_of_experts
from hpcbench.kinds.training.plan.spec import (
    Groups,
    adapters_of,
    buckets,
    layout_of,
    travelling_bytes,
)
from hpcbench.kinds.training.plan.workload import (
    CROSS_ENTROPY,
    IN_8_BITS,
    OFFLOAD,
    Training,
)
from hpcbench.operations.models import ModelShape
from hpcbench.records import dataclass

_KEPT = 256  # layouts that are kept: of a few models, one of them in the stages of a large pipeline


class RankParameters(NamedTuple):
    """The parameters of a tensor-parallel rank (``whole``), as held with adapters (``local``), by
    block."""

    whole: models.Parameters
    local: models.Parameters
    blocks: tuple[models.Parameters, ...]


class _Parts(NamedTuple):
    """The parts of a model that a rank has; ``held``: bytes of an element of what is trained,
    ``narrow``: of what is frozen in the dtype."""

    shape: any_model.AnyShape
    stage: steps.Stage
    tp: int
    ep: int
    adapters: models.Adapters | None
    narrow: int
    held: int


def rank_parameters(work: Training, stage: steps.Stage) -> RankParameters:
    adapters = adapters_of(work)
    spread = layout_of(work).experts
    only_parts = steps.Stage(blocks=stage.blocks, first=stage.first, last=stage.last,
                             alone=stage.alone)
    return _parameters_of(_Parts(
        any_model.model_of(work), only_parts, work.tp, spread.ep if spread else 1, adapters,
        DTYPE_BYTES[work.dtype] if adapters else 0, work.weight_bytes))


@lru_cache(maxsize=_KEPT)
def sharded(
    local: models.Parameters, shards: int, of_experts: Groups | None = None,
) -> models.Parameters:
    """Return a rank's shards; ``of_experts``: `Layout.expert_groups`."""
    if shards == 1:
        return local
    return models.Parameters(tuple(item._replace(extents=(
        (item.extents[0], item.extents[1] // of_experts.shards, *item.extents[2:])
        if of_experts and is_of_experts(item.name) else
        (-(-item.extents[0] // shards), *item.extents[1:]))) for item in local.tensors))


@lru_cache(maxsize=_KEPT)
def _parameters_of(parts: _Parts) -> RankParameters:
    def laid_out(tensors: list[models.Tensor]) -> models.Parameters:
        return models.Parameters(tuple(_laid_out(parts, [
            item._replace(extents=_part(item, parts)) for item in tensors])))

    tensors, numbers = parts.stage.tensors(parts.shape), parts.stage.blocks
    whole = models.Parameters(tuple(
        item._replace(extents=_part(item, parts)) for item in tensors))
    if isinstance(parts.shape, any_model.ResNetShape):
        blocks = tuple(laid_out(any_model.part_tensors(parts.shape, one)) for one in numbers)
    else:  # blocks of a transformer are alike, but for those without experts: one object
        kinds = {models.has_experts(parts.shape, one): one for one in numbers}
        made = {kind: laid_out(any_model.part_tensors(parts.shape, one))
                for kind, one in kinds.items()}
        blocks = tuple(made[models.has_experts(parts.shape, one)] for one in numbers)
    return RankParameters(whole, laid_out(tensors), blocks)


def _laid_out(parts: _Parts, parameters: Iterable[models.Tensor]) -> list[models.Tensor]:
    adapters, shape = parts.adapters, parts.shape
    if adapters is None:
        return [item._replace(element_bytes=parts.held) for item in parameters]
    assert isinstance(shape, ModelShape)  # noqa: S101  (no plan has adapters of others)
    tensors = []
    for item in parameters:
        stored = item._replace(trained=False)
        if adapters.packs(item.name):
            stored = stored._replace(extents=(-(-item.elements // 2), 1), element_bytes=1)
        elif models.is_narrow(shape, item.name):
            stored = stored._replace(element_bytes=parts.narrow)
        tensors.append(stored)
        if adapters.has(item.name):
            tensors += [*models.divided_adapters(item, adapters.rank, parts.tp),
                        *models.magnitudes(item, adapters)]
    return tensors


def _part(item: models.Tensor, parts: _Parts) -> tuple[int, ...]:
    product, _, kind = item.name.rpartition(".")
    (rows, *columns), tp = item.extents, parts.tp
    if is_of_experts(item.name):
        inner = kind == "down"  # the last extent, else that in the middle
        return (rows // parts.ep, *(extent // (tp if place == inner else 1)
                                    for place, extent in enumerate(columns)))
    if product.endswith(models.COLUMNWISE) or product in ("embedding.tokens", "head.logits"):
        return (-(-rows // tp), *columns)
    if product.endswith(models.ROWWISE) and kind == "weight":
        return (rows, -(-columns[0] // tp))
    return item.extents


WEIGHT_BYTES = 4  # of fp32: losses, gradients between micro-batches, and most that is trained
STATES: Mapping[str, int] = MappingProxyType({"adamw": 2, IN_8_BITS: 2, "sgd": 0})
"""Numbers of the optimizer for each weight; sgd has no momentum."""
_LEAST_IN_8_BITS, _SCALED_BLOCK, _CODES = 4096, 256, 256
"""bitsandbytes' AdamW8bit: smaller parameters have fp32 states; a block shares a scale, and each of
the two states has a table of what its codes stand for."""
_TABLE = "embedding.tokens.weight"
_SUMMED = 3  # copies in fp32 while a norm of DoRA is taken: B A, scaled, and the sum
_STEP_BYTES = 4  # adamw counts the steps of each parameter in an fp32 number of its own
ERROR = 0.1
"""The share by which a prediction may be off: the most that docs/training.md lists, rounded up."""
LOSS, LAST_BLOCK, FIRST_BLOCK, ENDS, UPDATE = (
    "loss", "backward of the last block", "backward of the first block",
    "backward of the embedding", "optimizer step")
"""The moments, in the order of a step. Between the blocks, what is there changes evenly."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank at one moment of a step.

    ``buffers``: gradient buckets, gathered parameters, copies in the dtype, running statistics, and
    the optimizer's temporaries. Parameters and optimizer are exact."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    buffers: int = 0
    moment: str = ""

    @property
    def total(self) -> int:
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        return {"parameters": self.parameters, "gradients": self.gradients,
                "optimizer": self.optimizer, "activations": self.activations,
                "buffers": self.buffers}


class _Rank(NamedTuple):
    """A rank's parameters: as in `RankParameters`, and its ``own`` after sharding."""

    work: Training
    stage: steps.Stage
    step: steps.Step
    shape: any_model.AnyShape
    whole: models.Parameters
    local: models.Parameters
    own: models.Parameters
    blocks: tuple[models.Parameters, ...]


def memory_of(work: Training, stage: steps.Stage) -> Memory:
    return max(moments(work, stage), key=lambda memory: memory.total)


def moments(work: Training, stage: steps.Stage) -> tuple[Memory, ...]:
    """Return the memory use at each moment, of the rank with most in the stage's group."""
    step, (whole, local, blocks) = steps.step_of(work), rank_parameters(work, stage)
    layout = step.layout
    rank = _Rank(work, stage, step, any_model.model_of(work), whole, local,
                 sharded(local, layout.shards, layout.expert_groups), blocks)
    parameters = rank.own.held_bytes + models.scale_bytes(layout.adapters, whole.tensors)
    optimizer = 0 if work.offload_state else states_of(work, rank.own.trained, layout.state_ranks)
    always = _always(rank)
    return tuple(
        Memory(parameters, gradients, optimizer, kept, always + buffers, moment)
        for moment, gradients, kept, buffers in zip(
            (LOSS, LAST_BLOCK, FIRST_BLOCK, ENDS, UPDATE), _gradients(rank), _activations(rank),
            _buffers(rank, optimizer), strict=True))


def states_of(work: Training, own: models.Parameters, ranks: int) -> int:
    """Return the bytes that the optimizer keeps for parameters, of the fullest of the ranks that
    divide them; with weights of its own."""
    return max(_states(work, share) for share in _shares(own, ranks))


def _states(work: Training, own: models.Parameters) -> int:
    master = own.elements * WEIGHT_BYTES * work.has_master
    if work.optimizer == IN_8_BITS:
        return master + _bytes_in_8_bits(own)
    element = WEIGHT_BYTES if work.has_master else work.weight_bytes
    each = STATES[work.optimizer]
    return master + each * own.elements * element + bool(each) * len(own.tensors) * _STEP_BYTES


def offloaded_bytes(work: Training) -> int:
    """Return the bytes of the host's memory that a rank's optimizer takes where it is offloaded:
    states, and weights and gradients of its own."""
    if not work.offload_state:
        return 0
    layout, taken = layout_of(work), []
    for stage in steps.stages_of(work):
        local = sharded(rank_parameters(work, stage).local, layout.shards,
                        layout.expert_groups)
        for own in _shares(local, layout.state_ranks):
            weights = own.elements * WEIGHT_BYTES if work.has_master else 2 * own.held_bytes
            taken.append(_states(work, own) + weights)
    return max(taken)


@lru_cache(maxsize=_KEPT)
def _bytes_in_8_bits(own: models.Parameters) -> int:
    sizes = [item.elements for item in own.tensors]
    packed = [size for size in sizes if size >= _LEAST_IN_8_BITS]
    of_packed = sum(size + -(-size // _SCALED_BLOCK) * WEIGHT_BYTES for size in packed)
    tables = WEIGHT_BYTES * _CODES * bool(packed)
    return STATES[IN_8_BITS] * (
        of_packed + tables + (sum(sizes) - sum(packed)) * WEIGHT_BYTES)


@lru_cache(maxsize=_KEPT)
def _shares(own: models.Parameters, ranks: int) -> Sequence[models.Parameters]:
    """Return what each rank updates: ZeRO gives the emptiest the largest left."""
    if ranks == 1:
        return (own,)
    shares: list[list[models.Tensor]] = [[] for _ in range(ranks)]
    filled = [(0, rank) for rank in range(ranks)]
    for item in sorted(own.tensors, key=lambda one: one.elements, reverse=True):
        elements, least = filled[0]
        shares[least].append(item)
        heapq.heapreplace(filled, (elements + item.elements, least))
    return tuple(models.Parameters(tuple(share)) for share in shares if share)


def _gradients(rank: _Rank) -> tuple[int, ...]:
    layout = rank.step.layout
    # Where all micro-batches are under way together, none has left a gradient yet.
    several = rank.step.parts > max(rank.stage.in_flight, 1)
    full, whole = rank.own.trained.held_bytes, rank.local.trained.held_bytes
    # Between two exchanges FSDP adds up whole gradients.
    earlier = full if several or (layout.buckets and layout.buckets.are_views) else 0
    if layout.groups and several and rank.step.parts > layout.groups.exchanges:
        earlier = whole
    if layout.groups:
        # Blocks that are done have shards of gradients; parts that are no block are done last.
        done = sum(block.trained.held_bytes for block in rank.blocks[2:])
        first = max(done // layout.shards, earlier if earlier == full else 0)
        return earlier, earlier, first, full, full
    head = _head_elements(rank) * rank.work.weight_bytes
    return earlier, max(earlier, min(head, full)), full, full, full


def _head_elements(rank: _Rank) -> int:
    tied = isinstance(rank.shape, ModelShape) and rank.shape.tied and not rank.stage.alone
    return sum(item.elements for item in rank.local.trained.tensors if rank.stage.last and (
        item.name.startswith("head.") or (tied and item.name == _TABLE)))


def _activations(rank: _Rank) -> tuple[int, ...]:
    work, stage, step = rank.work, rank.stage, rank.step
    if isinstance(rank.shape, any_model.ResNetShape):
        return _of_images(rank, rank.shape)
    kept, shape = step.kept, rank.shape
    kinds = [models.has_experts(shape, number) for number in stage.blocks]
    made = {kind: _block_bytes(rank, shape, has_experts=kind) for kind in {*kinds}}
    full, works = zip(*(made[kind] for kind in kinds), strict=True)
    offloads = work.checkpointing == OFFLOAD
    left = 0 if offloads else steps.recomputed_bytes(shape, kept, work.checkpointing)
    of_rest = steps.block_bytes(shape, kept) if work.checkpointing == models.ATTENTION else None
    # what each block does not keep
    again = [((of_rest or one) - left) * (offloads or models.is_recomputed(
        work.checkpointing, number)) for number, one in zip(stage.blocks, full, strict=True)]
    before = stage.first * steps.embedding_bytes(shape, kept)
    behind = stage.last * steps.head_bytes(shape, kept)
    logits = steps.logits_of(shape,
                             kept) * kept.element if stage.last and step.layout.pipeline else 0
    unkept = 0 if again[0] else steps.unkept_bytes(shape, kept)
    everything = sum(full) - sum(again) + before + behind + logits - unkept
    others = everything * (stage.in_flight - 1)
    loss = steps.loss_bytes(shape, kept) * stage.last
    # A block that is computed again has what it kept before among the rest.
    of_token = (others + everything + loss, others + everything - behind + works[-1] + again[-1],
                others + before + full[0] - unkept + works[0], others + before, 0)
    return tuple(int(step.tokens * each) for each in of_token)


def _block_bytes(rank: _Rank, shape: ModelShape, *, has_experts: bool) -> tuple[float, float]:
    """Return the bytes of a token that a block keeps, and those of gradients in its backward."""
    spread, kept, tokens = rank.step.layout.experts, rank.step.kept, rank.step.tokens
    if not (has_experts and spread):
        return steps.block_bytes(shape, kept), steps.working_bytes(shape, kept)
    share = steps.share_of(rank.work, rank.stage)
    return (steps.expert_block_bytes(shape, kept, tokens, share, spread.dedup == "rank"),
            steps.expert_working_bytes(shape, kept, tokens, share))


def activations_on_host(work: Training, stage: steps.Stage) -> int:
    """Return the bytes that a rank's blocks keep on the host, of one micro-batch: what they keep of
    it, and autocast's copies of their weights."""
    shape, step = any_model.model_of(work), steps.step_of(work)
    if work.checkpointing != OFFLOAD or isinstance(shape, any_model.ResNetShape):
        return 0
    copies = sum(_products(block, step.kept.element) for block in rank_parameters(
        work, stage).blocks) * step.kept.element if step.kept.copies else 0
    of_blocks = step.tokens * steps.block_bytes(shape, step.kept) * len(stage.blocks)
    return of_blocks - step.tokens * steps.unkept_bytes(shape, step.kept) + copies


def _of_images(rank: _Rank, shape: any_model.ResNetShape) -> tuple[int, ...]:
    blocks, samples, element = rank.stage.blocks, rank.step.samples, rank.step.kept.element
    everything = any_model.resnet_kept_bytes(shape, blocks, samples, element)
    others = everything * (rank.stage.in_flight - 1)
    # the gradients of a block's result, sum and last norm, while its backward begins
    works = [3 * samples * any_model.sent_elements(shape, block) * element
             for block in (max(blocks), min(blocks))]
    last = others + everything + works[0]
    first = others + any_model.resnet_kept_bytes(shape, blocks[:1], samples, element) + works[1]
    return int(last), int(last), int(first), int(first), 0


def _always(rank: _Rank) -> int:
    """Return the bytes of DDP's buckets, of PowerSGD's unsent rest, and of running statistics."""
    shape, exchange = rank.shape, rank.step.layout.buckets
    total = (any_model.running_bytes(shape, rank.stage.blocks)
             if isinstance(shape, any_model.ResNetShape) else 0)
    if exchange:
        whole = rank.local.trained.held_bytes
        total += whole * (not exchange.are_views) + whole * (exchange.hook == "powersgd")
    return total


def _buffers(rank: _Rank, states: int) -> tuple[int, ...]:
    """Return the other buffers; one 4-bit weight is unpacked while its block runs, and for DoRA
    one product of A and B is added to a weight."""
    groups, adapters, packed = rank.step.layout.groups, rank.step.layout.adapters, 0
    if adapters and isinstance(rank.shape, ModelShape):
        packed = rank.step.kept.element * max((
            item.elements for item in models.block_tensors(rank.shape)
            if adapters.packs(item.name)), default=0)
        packed += adapters.dora * _SUMMED * WEIGHT_BYTES * max(
            item.elements for item in models.block_tensors(rank.shape) if adapters.has(item.name))
    loss, last, first, ends = _gathered(rank, groups) if groups else _copied(rank)
    if rank.step.kept.loss != CROSS_ENTROPY:  # earlier parts have left their gradient of the head
        loss += _head_elements(rank) * rank.step.kept.element
    return loss, last + packed, first + packed, ends, _updating(rank, states)


def _gathered(rank: _Rank, groups: Groups) -> tuple[int, int, int, int]:
    """Return the gathered parameters and their gradients at each moment.

    In backward a block and its gradients are whole, in the dtype; the next is being gathered, and
    gradients of the one before exchanged. The root stays whole, with a gradient for each
    use. Where nothing is divided torch copies all the same."""
    element = rank.step.kept.element

    whole_bytes = partial(_whole_bytes, element)
    sizes = sorted(models.of_each(whole_bytes, rank.blocks), reverse=True)
    trained = [block.trained.elements for block in rank.blocks]
    root, every, two = whole_bytes(rank.local) - sum(sizes), sum(sizes), sum(sizes[:2])
    gradients, head = max(trained) * element, _head_elements(rank) * element
    of_root = rank.local.trained.elements - sum(trained)
    in_backward = root + gradients + head
    exchanged = max(trained) * groups.gradient_bytes
    one = two if groups.reshard else sizes[0]
    # Where blocks stay whole, there is most in the block before the last: that one is given up.
    kept = every - sizes[0] + exchanged if len(sizes) > 1 else every
    return (root + (0 if groups.reshard else every),
            in_backward + (two if groups.reshard else max(every, kept)),
            in_backward + one + exchanged,
            root + of_root * (element + groups.gradient_bytes) + min(head, of_root * element))


@lru_cache(maxsize=_KEPT)
def _whole_bytes(element: int, parameters: models.Parameters) -> int:
    return sum(item.elements * travelling_bytes(item, element) for item in parameters.tensors)


def _copied(rank: _Rank) -> tuple[int, int, int, int]:
    """Return autocast's copies of weights, for each micro-batch under way.

    An embedding's gradient is there twice when it is added to what there is of it."""
    shape, stage, kept = rank.shape, rank.stage, rank.step.kept
    products = _products(rank.local, kept.element) if kept.copies else 0
    tied = isinstance(shape, ModelShape) and shape.tied and stage.last and not stage.alone
    logits = -(-rank.work.vocab // rank.work.tp) * rank.work.hidden if tied else 0
    copies = kept.copies * kept.element * (products + logits)
    others = int(copies * (stage.in_flight - 1))
    table = [item.elements for item in rank.local.trained.tensors
             if item.name == _TABLE and (rank.step.parts > 1 or tied)]
    exchange, compressed = rank.step.layout.buckets, 0
    if exchange and exchange.hook == "powersgd":  # a copy of a bucket, and what of it is unsent
        filled = buckets(rank.local.trained.tensors, exchange.mib)
        compressed = 2 * WEIGHT_BYTES * max(
            sum(item.elements for item in bucket) for bucket in filled)
    return (others + copies, others + copies, others + copies // len(stage.blocks),
            others + max(sum(table) * rank.work.weight_bytes, compressed))


@lru_cache(maxsize=_KEPT)
def _products(local: models.Parameters, element: int) -> int:
    return sum(item.elements for item in local.tensors if len(item.extents) > 1
               and item.element_bytes > element and not item.name.startswith("embedding."))


def _updating(rank: _Rank, states: int) -> int:
    """Return the optimizer's temporaries.

    AdamW takes roots of second moments: on GPUs, of all parameters together; DTensors come one
    after another, with two intermediate results. Its own fp32 weights are none, and get gradients
    in fp32."""
    work, own = rank.work, rank.own.trained
    if not states:
        return 0
    rooted = bool(STATES[work.optimizer]) and work.optimizer != IN_8_BITS
    if work.has_master:
        most = max(share.elements for share in _shares(own, rank.step.layout.state_ranks))
        return most * WEIGHT_BYTES * (1 + rooted)
    if rank.step.layout.groups is None and work.tp == 1:
        return rooted * states // 2
    return rooted * 2 * work.weight_bytes * max(item.elements for item in own.tensors)


"""What a rank of a training holds at the moments of a step at which it may hold most.

Pure arithmetic from the extents. Which tensors are there was read off torch 2.13 by
`benchmarks/memory.py`, which follows every allocation of a step; docs/training.md has the errors.
What an allocator keeps beyond that is not in it. A sweep trains the same model in many batches,
dtypes and optimizers: the parameters of a rank are laid out once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import NamedTuple

from hpcbench.config.axes import DTYPE_BYTES
from hpcbench.kinds.training.plan import any_model, models
from hpcbench.kinds.training.plan.spec import Groups, adapters_of, buckets, travelling_bytes
from hpcbench.kinds.training.plan.step import (
    Stage,
    Step,
    block_bytes,
    embedding_bytes,
    head_bytes,
    logit_bytes,
    loss_bytes,
    recomputed_bytes,
    step_of,
    working_bytes,
)
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.models import ModelShape

_KEPT = 256
"""Layouts that are kept: of a few models, one of them in the stages of a large pipeline."""


class Held(NamedTuple):
    """What a rank holds of a model.

    ``whole`` are its parameters as a tensor-parallel rank has them, the first one; ``local`` what
    it holds of these, adapters behind the weights that have them; ``blocks`` the same of each
    block. Blocks of a transformer are alike, and one object.
    """

    whole: models.Parameters
    local: models.Parameters
    blocks: tuple[models.Parameters, ...]


class _Parts(NamedTuple):
    """The parts of a model that a rank has, and all that says how it holds them.

    ``narrow`` are the bytes of what is frozen and held in the dtype of the arithmetic: 0 without
    adapters, where nothing is.
    """

    shape: any_model.AnyShape
    stage: Stage
    tp: int
    adapters: models.Adapters | None
    narrow: int


def held_of(work: Training, stage: Stage) -> Held:
    """Return the parameters of these parts of a training's model as the first rank holds them."""
    adapters = adapters_of(work)
    only_parts = Stage(blocks=stage.blocks, first=stage.first, last=stage.last, alone=stage.alone)
    return _held(_Parts(any_model.model_of(work), only_parts, work.tp, adapters,
                        DTYPE_BYTES[work.dtype] if adapters else 0))


@lru_cache(maxsize=_KEPT)
def sharded(local: models.Parameters, shards: int) -> models.Parameters:
    """Return the first rank's shards of parameters: it has most where they are uneven."""
    if shards == 1:
        return local
    return models.Parameters(tuple(item._replace(
        extents=(-(-item.extents[0] // shards), *item.extents[1:])) for item in local.tensors))


@lru_cache(maxsize=_KEPT)
def _held(parts: _Parts) -> Held:
    whole = _divided(parts.stage.tensors(parts.shape), parts.tp)
    return Held(models.Parameters(tuple(whole)), models.Parameters(tuple(_laid_out(parts, whole))),
                _blocks(parts))


def _blocks(parts: _Parts) -> tuple[models.Parameters, ...]:
    """Return the parameters of each block as they are held."""
    def block(number: int) -> models.Parameters:
        own = _divided(any_model.part_tensors(parts.shape, number), parts.tp)
        return models.Parameters(tuple(_laid_out(parts, own)))

    if isinstance(parts.shape, any_model.ResNetShape):
        return tuple(block(number) for number in parts.stage.blocks)
    return (block(0),) * len(parts.stage.blocks)


def _laid_out(parts: _Parts, parameters: Iterable[models.Tensor]) -> list[models.Tensor]:
    """Return the parameters as they are held, adapters behind the weights that have them."""
    adapters, shape = parts.adapters, parts.shape
    if adapters is None:
        return list(parameters)
    assert isinstance(shape, ModelShape)  # noqa: S101  (no plan has adapters of others)
    tensors = []
    for item in parameters:
        held = item._replace(trained=False)
        if adapters.packs(item.name):
            held = held._replace(extents=(-(-item.elements // 2), 1), element_bytes=1)
        elif models.is_narrow(shape, item.name):
            held = held._replace(element_bytes=parts.narrow)
        tensors.append(held)
        tensors += models.low_rank_tensors(item, adapters.rank) if adapters.has(item.name) else ()
    return tensors


def _divided(parameters: Sequence[models.Tensor], tp: int) -> list[models.Tensor]:
    """Return a tensor-parallel rank's part of each parameter, that of the first rank."""
    return [item._replace(extents=_part(item, tp)) for item in parameters]


def _part(item: models.Tensor, tp: int) -> tuple[int, ...]:
    product, _, kind = item.name.rpartition(".")
    rows, *columns = item.extents
    if product.endswith(models.COLUMNWISE) or product in ("embedding.tokens", "head.logits"):
        return (-(-rows // tp), *columns)
    if product.endswith(models.ROWWISE) and kind == "weight":
        return (rows, -(-columns[0] // tp))
    return item.extents


WEIGHT_BYTES = 4
"""What is trained, its gradients and states are fp32 whatever the arithmetic is in."""
STATES: Mapping[str, int] = MappingProxyType({"adamw": 2, "sgd": 0})
"""Numbers of the optimizer for each weight; sgd has no momentum."""
_TABLE = "embedding.tokens.weight"
_STEP_BYTES = 4
"""adamw counts the steps of each parameter in an fp32 number of its own."""
ERROR = 0.1
"""By what share a prediction may be off: the most that docs/training.md lists, rounded up."""
LOSS, LAST_BLOCK, FIRST_BLOCK, ENDS, UPDATE = (
    "loss", "backward of the last block", "backward of the first block",
    "backward of the embedding", "optimizer step")
"""The moments, in the order of a step. Between the blocks, what is there changes evenly."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank at one moment of a step.

    ``parameters`` and ``optimizer`` are exact, and so are ``gradients`` at the optimizer's step;
    ``activations`` are what forward passes left for backward, and what backward works on;
    ``buffers`` are buckets of gradients, gathered parameters, gradients that are exchanged, copies
    of weights in the dtype of the arithmetic, running statistics, and what the optimizer works on.
    """

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
    """A rank's parts of a model: ``local`` before, ``own`` after parameters are sharded.

    ``whole``: see `Held`.
    """

    work: Training
    stage: Stage
    step: Step
    shape: any_model.AnyShape
    whole: models.Parameters
    local: models.Parameters
    own: models.Parameters
    blocks: tuple[models.Parameters, ...]


def memory_of(work: Training, stage: Stage) -> Memory:
    """Return what the rank with these parts of the model holds at the moment with most."""
    return max(moments(work, stage), key=lambda memory: memory.total)


def moments(work: Training, stage: Stage) -> tuple[Memory, ...]:
    """Return what that rank holds at each moment; of its group it is the rank with most."""
    rank = _rank(work, stage)
    layout = rank.step.layout
    parameters = rank.own.held_bytes + models.scale_bytes(layout.adapters, rank.whole.tensors)
    optimizer = _state_bytes(work.optimizer, rank.own.trained, layout.state_ranks)
    always = _always(rank)
    return tuple(
        Memory(parameters, gradients, optimizer, kept, always + buffers, moment)
        for moment, gradients, kept, buffers in zip(
            (LOSS, LAST_BLOCK, FIRST_BLOCK, ENDS, UPDATE), _gradients(rank), _activations(rank),
            _buffers(rank, optimizer), strict=True))


def _rank(work: Training, stage: Stage) -> _Rank:
    step, (whole, local, blocks) = step_of(work), held_of(work, stage)
    return _Rank(work, stage, step, any_model.model_of(work), whole, local,
                 sharded(local, step.layout.shards), blocks)


@lru_cache(maxsize=_KEPT)
def _state_bytes(optimizer: str, own: models.Parameters, ranks: int) -> int:
    """Return the states' bytes of the rank with most: ZeRO gives who has least the largest left."""
    if not STATES[optimizer]:
        return 0
    shares = [(0, 0)] * ranks  # elements and parameters of each
    for elements in sorted((item.elements for item in own.tensors), reverse=True):
        least = min(range(ranks), key=lambda rank: shares[rank][0])
        shares[least] = (shares[least][0] + elements, shares[least][1] + 1)
    return max(elements * STATES[optimizer] * WEIGHT_BYTES + count * _STEP_BYTES
               for elements, count in shares)


def _gradients(rank: _Rank) -> tuple[int, ...]:
    """Return the bytes of gradients at each moment.

    Between two exchanges FSDP adds up whole gradients, in fp32: nothing of them is divided then.
    """
    layout = rank.step.layout
    # Where all micro-batches are under way at once, none has left a gradient yet.
    several = rank.step.parts > max(rank.stage.under_way, 1)
    full = rank.own.trained.elements * WEIGHT_BYTES
    whole = rank.local.trained.elements * WEIGHT_BYTES
    earlier = full if several or (layout.buckets and layout.buckets.are_views) else 0
    if layout.groups and several and rank.step.parts > layout.groups.exchanges:
        earlier = whole
    if layout.groups:
        # Shards of gradients are there of blocks that are done; what is no block is done last.
        done = sum(_trained_elements(rank.blocks[2:]))
        first = max(done * WEIGHT_BYTES // layout.shards, earlier if earlier == full else 0)
        return earlier, earlier, first, full, full
    head = _head_elements(rank) * WEIGHT_BYTES
    return earlier, max(earlier, min(head, full)), full, full, full


def _head_elements(rank: _Rank) -> int:
    """Return what has a gradient before the blocks have: the head, and a weight tied to it."""
    tied = isinstance(rank.shape, ModelShape) and rank.shape.tied and not rank.stage.alone
    return sum(item.elements for item in rank.local.trained.tensors if rank.stage.last and (
        item.name.startswith("head.") or (tied and item.name == _TABLE)))


def _trained_elements(blocks: Sequence[models.Parameters]) -> list[int]:
    return [block.trained.elements for block in blocks]


def _activations(rank: _Rank) -> tuple[int, ...]:
    """Return the bytes of activations at each moment, of all micro-batches that are under way."""
    work, stage, step = rank.work, rank.stage, rank.step
    if isinstance(rank.shape, any_model.ResNetShape):
        return _of_images(rank, rank.shape)
    kept, shape = step.kept, rank.shape
    full = block_bytes(shape, kept)
    less = recomputed_bytes(shape, kept, models.keeps_products(work.checkpointing))
    again = [models.is_recomputed(work.checkpointing, number) for number in stage.blocks]
    before = stage.first * embedding_bytes(shape, kept)
    behind = stage.last * head_bytes(shape, kept)
    logits = logit_bytes(shape, kept) if stage.last and step.layout.pipeline else 0
    everything = sum(less if each else full for each in again) + before + behind + logits
    works = working_bytes(shape, kept)
    # A block that is computed again has what it kept before among the rest.
    block = [works + (full - less if each else 0) for each in (again[-1], again[0])]
    others = everything * (stage.under_way - 1)
    loss = loss_bytes(shape, kept) * stage.last
    first = less if again[0] else full
    of_token = (others + everything + loss, others + everything - behind + block[0],
                others + before + first + block[1], others + before, 0)
    return tuple(int(step.tokens * each) for each in of_token)


def _of_images(rank: _Rank, shape: any_model.ResNetShape) -> tuple[int, ...]:
    """Return the same of a ResNet, whose blocks have other extents from stage to stage."""
    blocks, samples, element = rank.stage.blocks, rank.step.samples, rank.step.kept.element
    everything = any_model.resnet_kept_bytes(shape, blocks, samples, element)
    others = everything * (rank.stage.under_way - 1)
    works = [any_model.resnet_working_bytes(shape, block, samples, element)
             for block in (max(blocks), min(blocks))]
    last = others + everything + works[0]
    first = others + any_model.resnet_kept_bytes(shape, blocks[:1], samples, element) + works[1]
    return int(last), int(last), int(first), int(first), 0


def _always(rank: _Rank) -> int:
    """Return the bytes of buckets of DDP, what PowerSGD has not sent, and running statistics."""
    shape, exchange = rank.shape, rank.step.layout.buckets
    held = (any_model.running_bytes(shape, rank.stage.blocks)
            if isinstance(shape, any_model.ResNetShape) else 0)
    if exchange:
        whole = rank.local.trained.elements * WEIGHT_BYTES
        held += whole * (not exchange.are_views) + whole * (exchange.hook == "powersgd")
    return held


def _buffers(rank: _Rank, states: int) -> tuple[int, ...]:
    """Return the bytes of buffers at each moment, beside those that are always there.

    One weight that is held in 4 bits is there as numbers while its block runs.
    """
    groups, packed = rank.step.layout.groups, _largest_packed(rank) * rank.step.kept.element
    of_blocks = _gathered(rank, groups) if groups else _copied(rank)
    loss, last, first, ends = of_blocks
    if rank.step.kept.chunked:  # the parts before have left their gradient of the head
        loss += _head_elements(rank) * rank.step.kept.element
    return loss, last + packed, first + packed, ends, _updating(rank, states)


def _gathered(rank: _Rank, groups: Groups) -> tuple[int, int, int, int]:
    """Return what is whole of parameters that are spread block by block, and of their gradients.

    In backward a block is whole, and so are its gradients, in the dtype. The next block is being
    gathered, and gradients of the one before are being exchanged, in fp32. What is no block is
    whole from forward to the end, with a gradient of its own for each of its uses. Where nothing
    is divided torch copies all the same, in fp32, too.
    """
    element = rank.step.kept.element

    whole_bytes = partial(_whole_bytes, element)
    sizes = sorted(models.of_each(whole_bytes, rank.blocks), reverse=True)
    trained = _trained_elements(rank.blocks)
    root, every, two = whole_bytes(rank.local) - sum(sizes), sum(sizes), sum(sizes[:2])
    gradients, head = max(trained) * element, _head_elements(rank) * element
    of_root = rank.local.trained.elements - sum(trained)
    in_backward = root + gradients + head
    exchanged = max(trained) * WEIGHT_BYTES
    one = two if groups.reshard else sizes[0]
    # Where blocks stay whole, there is most in the block before the last: that one is given up.
    kept = every - sizes[0] + exchanged if len(sizes) > 1 else every
    return (root + (0 if groups.reshard else every),
            in_backward + (two if groups.reshard else max(every, kept)),
            in_backward + one + exchanged,
            root + of_root * (element + WEIGHT_BYTES) + min(head, of_root * element))


@lru_cache(maxsize=_KEPT)
def _whole_bytes(element: int, parameters: models.Parameters) -> int:
    """Return the bytes of parameters when they are gathered for arithmetic in so many bytes."""
    return sum(item.elements * travelling_bytes(item, element) for item in parameters.tensors)


def _copied(rank: _Rank) -> tuple[int, int, int, int]:
    """Return autocast's copies of weights, of each micro-batch that is under way, and what else.

    They are of all products that are not held in its dtype. The gradient of an embedding is there
    twice when it is added to what there is of it.
    """
    shape, stage, kept = rank.shape, rank.stage, rank.step.kept
    products = _products(rank.local, kept.element) if kept.copies else 0
    tied = isinstance(shape, ModelShape) and shape.tied and stage.last and not stage.alone
    logits = -(-rank.work.vocab // rank.work.tp) * rank.work.hidden if tied else 0
    copies = kept.copies * kept.element * (products + logits)
    others = int(copies * (stage.under_way - 1))
    table = [item.elements for item in rank.local.trained.tensors
             if item.name == _TABLE and (rank.step.parts > 1 or tied)]
    return (others + copies, others + copies, others + copies // len(stage.blocks),
            others + max(sum(table) * WEIGHT_BYTES, _compressed(rank)))


@lru_cache(maxsize=_KEPT)
def _products(local: models.Parameters, element: int) -> int:
    """Return the elements of products that are held in more bytes than ``element`` has."""
    return sum(item.elements for item in local.tensors if len(item.extents) > 1
               and item.element_bytes > element and not item.name.startswith("embedding."))


def _compressed(rank: _Rank) -> int:
    """Return what PowerSGD works on: a copy of a bucket, and what it leaves of it unsent."""
    exchange = rank.step.layout.buckets
    if exchange is None or exchange.hook != "powersgd":
        return 0
    filled = buckets(rank.local.trained.tensors, exchange.mib)
    return 2 * WEIGHT_BYTES * max(sum(item.elements for item in bucket) for bucket in filled)


def _updating(rank: _Rank, states: int) -> int:
    """Return what the optimizer works on.

    AdamW takes the root of its second moments. On GPUs torch updates all parameters of a group
    together, and so has all roots at once; of DTensors it updates one after another, with two
    intermediate results.
    """
    if not states:
        return 0
    if rank.step.layout.groups is None and rank.work.tp == 1:
        return states // 2
    return 2 * WEIGHT_BYTES * max(item.elements for item in rank.own.trained.tensors)


def _largest_packed(rank: _Rank) -> int:
    """Return the elements of the largest weight that is held in 4 bits, 0 if there is none."""
    adapters, shape = adapters_of(rank.work), rank.shape
    if adapters is None or not isinstance(shape, ModelShape):
        return 0
    return max((item.elements for item in models.block_tensors(shape) if adapters.packs(item.name)),
               default=0)

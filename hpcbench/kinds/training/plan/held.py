"""The parameters that a rank holds.

A sweep trains the same model in many batches, dtypes and optimizers, and the parameters of a rank
are the same in all of them. So they are laid out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.kinds.training.plan.adapters import Adapters, is_narrow, low_rank_tensors
from hpcbench.kinds.training.plan.any_model import AnyShape, model_of, part_tensors
from hpcbench.kinds.training.plan.registry import adapters_of
from hpcbench.kinds.training.plan.resnet import ResNetShape
from hpcbench.kinds.training.plan.stages import Stage
from hpcbench.kinds.training.plan.tensors import COLUMNWISE, ROWWISE, Parameters, Tensor
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

    whole: Parameters
    local: Parameters
    blocks: tuple[Parameters, ...]


class _Parts(NamedTuple):
    """The parts of a model that a rank has, and all that says how it holds them.

    ``narrow`` are the bytes of what is frozen and held in the dtype of the arithmetic: 0 without
    adapters, where nothing is.
    """

    shape: AnyShape
    stage: Stage
    tp: int
    adapters: Adapters | None
    narrow: int


def held_of(work: Training, stage: Stage) -> Held:
    """Return the parameters of these parts of a training's model as the first rank holds them."""
    adapters = adapters_of(work)
    only_parts = Stage(blocks=stage.blocks, first=stage.first, last=stage.last, alone=stage.alone)
    return _held(_Parts(model_of(work), only_parts, work.tp, adapters,
                        DTYPE_BYTES[work.dtype] if adapters else 0))


@lru_cache(maxsize=_KEPT)
def sharded(local: Parameters, shards: int) -> Parameters:
    """Return the first rank's shards of parameters: it has most where they are uneven."""
    if shards == 1:
        return local
    return Parameters(tuple(item._replace(
        extents=(-(-item.extents[0] // shards), *item.extents[1:])) for item in local.tensors))


@lru_cache(maxsize=_KEPT)
def _held(parts: _Parts) -> Held:
    whole = _divided(parts.stage.tensors(parts.shape), parts.tp)
    return Held(Parameters(tuple(whole)), Parameters(tuple(_laid_out(parts, whole))),
                _blocks(parts))


def _blocks(parts: _Parts) -> tuple[Parameters, ...]:
    """Return the parameters of each block as they are held."""
    def block(number: int) -> Parameters:
        own = _divided(part_tensors(parts.shape, number), parts.tp)
        return Parameters(tuple(_laid_out(parts, own)))

    if isinstance(parts.shape, ResNetShape):
        return tuple(block(number) for number in parts.stage.blocks)
    return (block(0),) * len(parts.stage.blocks)


def _laid_out(parts: _Parts, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters as they are held, adapters behind the weights that have them.

    Without adapters these are the parameters as they are: fp32, all of them trained.
    """
    adapters, shape = parts.adapters, parts.shape
    if adapters is None:
        return list(parameters)
    assert isinstance(shape, ModelShape)  # noqa: S101  (no plan has adapters of others)
    tensors = []
    for item in parameters:
        held = item._replace(trained=False)
        if adapters.packs(item.name):
            held = held._replace(extents=(-(-item.elements // 2), 1), element_bytes=1)
        elif is_narrow(shape, item.name):
            held = held._replace(element_bytes=parts.narrow)
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

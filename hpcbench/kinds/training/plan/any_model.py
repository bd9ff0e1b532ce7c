"""The models of both kinds, transformers and ResNets, where a plan treats them alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcbench.kinds.training.plan import models as tensors
from hpcbench.kinds.training.plan import resnet
from hpcbench.kinds.training.plan.adapters import Adapters
from hpcbench.kinds.training.plan.flops import EXECUTED, flops, forward_again, recomputed
from hpcbench.kinds.training.plan.models import (
    Tensor,
    named_extents,
    parameters,
    shape_of,
    with_extents,
)
from hpcbench.kinds.training.plan.registry import adapters_of
from hpcbench.kinds.training.plan.resnet import RESNETS, ResNetShape
from hpcbench.kinds.training.plan.workload import CHUNKED, Training
from hpcbench.operations.models import MODELS, ModelShape

AnyShape = ModelShape | ResNetShape
NAMES = (*MODELS, *RESNETS)
"""All models that sweeps may name."""
EXTENTS = {**dict.fromkeys(MODELS, ("layers", "hidden", "heads", "kv_heads", "inner", "vocab",
                                    "seq_length")),
           **dict.fromkeys(RESNETS, ("layers", "width", "classes", "image_size"))}
"""Model -> the keys of a sweep that give it other extents."""


def model_of(work: Training) -> AnyShape:
    return resnet.resnet_of(work) if work.of_images else shape_of(work)


def published(name: str) -> AnyShape:
    """Return the shape of a model as published. Raises KeyError of unknown names."""
    return RESNETS[name] if name in RESNETS else MODELS[name]


def shape_with(name: str, **extents: int | None) -> AnyShape | str:
    """Return the named model with other extents, or why there is none. Raises KeyError."""
    return (resnet.resnet_with_extents(name, **extents) if name in RESNETS else
            with_extents(name, **extents))


def differences(name: str, extents: Mapping[str, str | int]) -> dict[str, Any]:
    """Return the fields of `Training` that say how extents differ from the published ones.

    Raises KeyError of unknown names.
    """
    numbers = {key: value for key, value in extents.items() if isinstance(value, int)}
    own = extents_of(published(name))
    differ = [key for key, value in numbers.items() if value != own[key]]
    reshaped = {"heads", "kv_heads"} & {*differ} or [
        key for key in differ if numbers[key] > int(own[key])]
    return {"changed": bool(differ), "shrunk": bool(differ) and not reshaped,
            "named_extents": (resnet.named_extents if name in RESNETS else named_extents)(
                name, numbers)}


def extents_of(shape: AnyShape) -> dict[str, str | int]:
    if isinstance(shape, ResNetShape):
        return {"family": resnet.FAMILY, "layers": shape.layers, "width": shape.width,
                "classes": shape.classes, "image_size": shape.image,
                **dict.fromkeys(("hidden", "heads", "kv_heads", "inner", "vocab", "seq_length"),
                                0)}
    return {name: getattr(shape, name) for name in (
        "family", "layers", "hidden", "heads", "kv_heads", "inner", "vocab", "seq_length")}


def parameters_of(shape: AnyShape) -> int:
    return resnet.resnet_parameters(shape) if isinstance(shape, ResNetShape) else parameters(shape)


def flops_of(
    shape: AnyShape, samples: int, adapters: Adapters | None = None,
) -> tuple[tuple[str, int], ...]:
    """Return the model's FLOPs of one training step, for each definition there is of its kind.

    Of a ResNet what is executed is counted: the other definitions are of transformers.
    """
    if isinstance(shape, ResNetShape):
        return ((EXECUTED, resnet.resnet_flops(shape, samples)),)
    return flops(shape, samples, adapters)


def flops_again(work: Training, definition: str, *, nominal: bool = False) -> int:
    """Return the FLOPs that checkpointing and a chunked loss add to a step, none of a ResNet.

    Of checkpointing they are those that torch executes, or ``nominal`` ones, as papers count them.
    """
    shape = model_of(work)
    if isinstance(shape, ResNetShape):
        return 0
    logits = 2 * shape.vocab * shape.hidden * shape.seq_length if work.loss == CHUNKED else 0
    count = forward_again if nominal else recomputed
    return logits * work.global_batch + count(
        shape, work.global_batch, work.checkpointing, definition, adapters_of(work))


def part_tensors(shape: AnyShape, number: int) -> list[Tensor]:
    if isinstance(shape, ResNetShape):
        return resnet.resnet_block_tensors(shape, number)
    return tensors.block_tensors(shape, number)


def end_tensors(shape: AnyShape, *, alone: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Return the parameters before the first block, and those behind the last one.

    ``alone``: the latter are on another rank than the former, so that a tied weight is copied.
    """
    if isinstance(shape, ResNetShape):
        return resnet.stem_tensors(shape), resnet.resnet_head_tensors(shape)
    return tensors.embedding_tensors(shape), tensors.head_tensors(shape, alone=alone)

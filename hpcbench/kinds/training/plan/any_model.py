"""ResNets of bottleneck blocks, and models of both kinds where a plan treats them alike.

Source: He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385 (2015), table 1.
The stride is in the 3 x 3 convolution, not the first: torchvision and MLPerf call this ResNet-50.

Activations that forward keeps are added up operation by operation, as for transformers (`step`). A
test compares them with those of torch 2.13 on the CPU. A convolution keeps its input, and a batch
norm its input and two statistics of each channel. A ReLU keeps its result, which is the next
convolution's input; pooling keeps which pixel was the largest. All of it is in the dtype of the
arithmetic, unlike the residual of a transformer under autocast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcbench.config.axes import unknown_name
from hpcbench.errors import UsageError
from hpcbench.kinds.training.plan import extents as other_extents
from hpcbench.kinds.training.plan import models
from hpcbench.kinds.training.plan.model_file import (
    EXTENTS,
    SUFFIX,
    architecture_of,
    label_of,
    whole_shape,
)
from hpcbench.kinds.training.plan.spec import adapters_of
from hpcbench.kinds.training.plan.workload import CHUNKED, Training
from hpcbench.operations.models import HUB, MODELS, ModelShape
from hpcbench.records import dataclass

FAMILY = "resnet"
EXPANSION = 4  # how many times as many channels a block returns as it has inside
STEM_KERNEL = 7
COLOURS = 3
NARROW = 16  # width up to which a ResNet is one for tests: see `is_narrow`
_STATISTIC = 4
_INDEX = 8  # bytes of a class, of the place of the largest pixel, and of a count of batches


@dataclass(frozen=True, slots=True)
class ResNetShape:
    """Blocks in each of the four stages, channels of the stem, logits, and pixels of a side."""

    blocks: tuple[int, ...]
    width: int
    classes: int
    image: int

    @property
    def layers(self) -> int:
        return sum(self.blocks)

    @property
    def is_narrow(self) -> bool:
        """Return whether biases of norms begin far above 0 (`NARROW_BIAS`): ReLUs pass almost all.

        Strategies are tried on such models: elsewhere a rounding error changes a whole gradient."""
        return self.width <= NARROW


RESNETS: Mapping[str, ResNetShape] = MappingProxyType({
    "resnet50": ResNetShape((3, 4, 6, 3), 64, 1000, 224)})


def resnet_with_extents(
    name: str, layers: int | None = None, width: int | None = None, classes: int | None = None,
    image_size: int | None = None,
) -> ResNetShape | str:
    """Return the named model with these extents, or why there is none. Raises KeyError."""
    whole = RESNETS[name]
    least = {"layers": (layers, len(whole.blocks)), "width": (width, 1), "classes": (classes, 1),
             "image_size": (image_size, 1)}
    for key, (value, fewest) in least.items():
        if value is not None and value < fewest:
            of_stage = ", one block for each stage" * (key == "layers")
            return f"{key}={value} is less than {fewest}{of_stage}"
    return ResNetShape(_stage_blocks(whole.blocks, layers or whole.layers), width or whole.width,
                       classes or whole.classes, image_size or whole.image)


def _stage_blocks(blocks: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return the blocks of each stage: dealt out in turn to those with fewer than the whole model.

    More are of the last stage but one, where ResNet-101 has 17 more than ResNet-50."""
    added = max(layers - sum(blocks), 0)
    left, counts = layers - added, [0] * len(blocks)
    while left:
        for stage, most in enumerate(blocks):
            if left and counts[stage] < most:
                counts[stage] += 1
                left -= 1
    counts[-2] += added
    return tuple(counts)


def resnet_of(work: Training) -> ResNetShape:
    return ResNetShape(_stage_blocks(RESNETS[work.model].blocks, work.layers), work.width,
                       work.classes, work.image_size)


class Convolution(NamedTuple):
    """One convolution and its batch norm; ``extent`` is that of its result."""

    name: str
    outputs: int
    inputs: int
    kernel: int
    extent: int

    @property
    def products(self) -> int:
        return self.outputs * self.inputs * self.kernel**2 * self.extent**2

    def tensors(self, convolution: str, norm: str) -> list[models.Tensor]:
        kernel = (self.outputs, self.inputs, self.kernel, self.kernel)
        return [models.Tensor(f"{convolution}.weight", kernel),
                *(models.Tensor(f"{norm}.{name}", (self.outputs,)) for name in ("weight", "bias"))]


class Bottleneck(NamedTuple):
    """One block: channels, stride, and height and width of its input."""

    inputs: int
    inner: int
    stride: int
    extent: int

    @property
    def outputs(self) -> int:
        return EXPANSION * self.inner

    @property
    def extent_behind(self) -> int:
        return self.extent if self.stride == 1 else halved(self.extent)

    @property
    def projected(self) -> bool:
        return self.stride != 1 or self.inputs != self.outputs

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        behind = self.extent_behind
        projection = Convolution("projection", self.outputs, self.inputs, 1, behind)
        return (Convolution("narrow", self.inner, self.inputs, 1, self.extent),
                Convolution("middle", self.inner, self.inner, 3, behind),
                Convolution("wide", self.outputs, self.inner, 1, behind),
                *((projection,) if self.projected else ()))

    @property
    def kept_elements(self) -> int:
        """Return the elements kept of an image: all convolutions', two ReLUs' and the block's
        result."""
        convolutions = self.convolutions
        return sum(one.outputs * one.extent**2 for one in (*convolutions, *convolutions[:3]))


@lru_cache(maxsize=64)
def bottlenecks(shape: ResNetShape) -> tuple[Bottleneck, ...]:
    blocks: list[Bottleneck] = []
    inputs, extent = shape.width, halved(halved(shape.image))
    for stage, count in enumerate(shape.blocks):
        first = Bottleneck(inputs, shape.width * 2**stage, 2 if stage else 1, extent)
        inputs, extent = first.outputs, first.extent_behind
        blocks += [first, *[Bottleneck(inputs, first.inner, 1, extent)] * (count - 1)]
    return tuple(blocks)


def _stem(shape: ResNetShape) -> Convolution:
    return Convolution("stem", shape.width, COLOURS, STEM_KERNEL, halved(shape.image))


def features(shape: ResNetShape) -> int:
    return bottlenecks(shape)[-1].outputs


def resnet_parameters(shape: ResNetShape) -> int:
    before, after = end_tensors(shape, alone=False)
    blocks = (item for number in range(shape.layers) for item in part_tensors(shape, number))
    return sum(item.elements for item in (*before, *blocks, *after))


def stage_flops(shape: ResNetShape, blocks: Sequence[int], samples: int) -> int:
    """Return the FLOPs of a step of these blocks and the ends beside them.

    Backward has twice those of forward, but no gradient of the images: as torch's FlopCounterMode.
    """
    every = bottlenecks(shape)
    products = sum(one.products for number in blocks for one in every[number].convolutions)
    products += features(shape) * shape.classes * (shape.layers - 1 in blocks)
    return samples * 2 * (3 * products + 2 * _stem(shape).products * (0 in blocks))


def sent_elements(shape: ResNetShape, number: int) -> int:
    block = bottlenecks(shape)[number]
    return block.outputs * block.extent_behind**2


def _norm_channels(shape: ResNetShape, blocks: Sequence[int]) -> list[int]:
    every = bottlenecks(shape)
    return [*([shape.width] if 0 in blocks else []),
            *(one.outputs for number in blocks for one in every[number].convolutions)]


def running_bytes(shape: ResNetShape, blocks: Sequence[int]) -> int:
    channels = _norm_channels(shape, blocks)
    return 2 * 4 * sum(channels) + _INDEX * len(channels)


def resnet_kept_bytes(shape: ResNetShape, blocks: Sequence[int], samples: int, element: int) -> int:
    every, has_stem = bottlenecks(shape), 0 in blocks
    has_head = shape.layers - 1 in blocks
    of_image = sum(every[number].kept_elements for number in blocks) * element
    if has_stem:  # image, result of the convolution, that behind norm and ReLU, and what is pooled
        before, behind = halved(shape.image), halved(halved(shape.image))
        elements = COLOURS * shape.image**2 + 2 * shape.width * before**2
        of_image += elements * element + shape.width * behind**2 * (element + _INDEX)
    if has_head:  # the mean that is multiplied, logarithms of the probabilities, and the class
        of_image += features(shape) * element + 4 * shape.classes + _INDEX
    counted = _STATISTIC * has_head  # the loss keeps how many there were
    return samples * of_image + counted + 2 * _STATISTIC * sum(_norm_channels(shape, blocks))


def halved(extent: int) -> int:
    return (extent + 1) // 2


AnyShape = ModelShape | ResNetShape
NAMES = (*MODELS, *RESNETS)  # all models that sweeps may name
_OF_RESNET = ("layers", "width", "classes", "image_size")


def extents_named(name: str) -> tuple[str, ...]:
    """Return the keys of a sweep that give a model other extents."""
    return _OF_RESNET if name in RESNETS else EXTENTS


def model_of(work: Training) -> AnyShape:
    return resnet_of(work) if work.of_images else models.shape_of(work)


def published(name: str) -> AnyShape:
    """Return the shape of a shipped model or of a file; raises as `whole_shape`."""
    return RESNETS[name] if name in RESNETS else whole_shape(name)


def why_no_model(name: str) -> str | None:
    """Return what is wrong with the name of a model, or in the file that it names, or None."""
    if not name.endswith(SUFFIX):
        return None if name in NAMES else unknown_name(
            name, NAMES, HUB, of_others={hub.lower(): hub for hub in HUB} | {
                hub.partition("/")[2].lower(): hub for hub in HUB})
    try:
        whole_shape(name)
    except UsageError as error:
        return str(error)
    return None


def shape_with(name: str, **extents: int | None) -> AnyShape | str:
    """Return the named model with other extents, or why there is none. Raises KeyError."""
    return (resnet_with_extents(name, **extents) if name in RESNETS else
            other_extents.with_extents(name, **extents))


def neighbours(name: str, given: Mapping[str, int]) -> Iterator[tuple[str, int, Sequence[int]]]:
    """Yield extents that may be others: as `extents.neighbours`. Raises KeyError."""
    if name in RESNETS:
        return ((key, value, other_extents.steps(value)) for key, value in given.items())
    return other_extents.neighbours(name, given)


def differences(name: str, extents: Mapping[str, str | int]) -> dict[str, Any]:
    """Return `Training`'s fields about extents that are not as published. Raises KeyError."""
    numbers = {key: value for key, value in extents.items() if isinstance(value, int)}
    own = extents_of(published(name))
    differ = [key for key, value in numbers.items() if value != own[key]]
    reshaped = {"heads", "kv_heads"} & {*differ} or [
        key for key in differ if numbers[key] > int(own[key])]
    if name in RESNETS:  # labels name layers, width and image anyhow
        named = (("classes", numbers["classes"]),) * (numbers["classes"] > RESNETS[name].classes)
    else:
        named = other_extents.named_extents(name, numbers)
    return {"changed": bool(differ), "shrunk": bool(differ) and not reshaped,
            "named_extents": named}


def extents_of(shape: AnyShape) -> dict[str, str | int]:
    if isinstance(shape, ResNetShape):
        return {"family": FAMILY, "layers": shape.layers, "width": shape.width,
                "classes": shape.classes, "image_size": shape.image,
                **dict.fromkeys(EXTENTS[1:], 0)}
    return {name: getattr(shape, name) for name in ("family", *EXTENTS)}


def model_fields(name: str) -> dict[str, Any]:
    """Return `Training`'s fields of the model of this name, which a file gives a label."""
    return {"model": label_of(name), "architecture": (
        architecture_of(whole_shape(name)) if name.endswith(SUFFIX) else ())}


def parameters_of(shape: AnyShape) -> int:
    return resnet_parameters(shape) if isinstance(shape, ResNetShape) else models.parameters(shape)


def flops_of(
    shape: AnyShape, samples: int, adapters: models.Adapters | None = None,
) -> tuple[tuple[str, int], ...]:
    if isinstance(shape, ResNetShape):
        return ((models.EXECUTED, stage_flops(shape, range(shape.layers), samples)),)
    return models.flops(shape, samples, adapters)


def flops_again(work: Training, definition: str, *, nominal: bool = False) -> int:
    """Return the FLOPs that checkpointing, a chunked loss and norms of DoRA add to a step, none of
    a ResNet.

    Those of checkpointing are as torch executes them, or ``nominal``, as papers count them."""
    shape = model_of(work)
    if isinstance(shape, ResNetShape):
        return 0
    logits = 2 * shape.vocab * shape.hidden * shape.seq_length if work.loss == CHUNKED else 0
    count = models.forward_again if nominal else models.recomputed
    adapters = adapters_of(work)
    norms = models.magnitude_flops(shape, work.checkpointing, adapters)
    return (logits * work.global_batch + norms * work.accumulation * work.dp + count(
        shape, work.global_batch, work.checkpointing, definition, adapters))


def part_tensors(shape: AnyShape, number: int) -> list[models.Tensor]:
    if not isinstance(shape, ResNetShape):
        return models.block_tensors(shape, number)
    prefix = f"blocks.{number}"
    return [item for one in bottlenecks(shape)[number].convolutions
            for item in one.tensors(f"{prefix}.{one.name}", f"{prefix}.{one.name}_norm")]


def end_tensors(shape: AnyShape, *, alone: bool) -> tuple[list[models.Tensor], list[models.Tensor]]:
    """Return the parameters before the first block, and behind the last; ``alone``: elsewhere."""
    if isinstance(shape, ResNetShape):
        return (_stem(shape).tensors("stem.convolution", "stem.norm"),
                [models.Tensor("head.logits.weight", (shape.classes, features(shape))),
                 models.Tensor("head.logits.bias", (shape.classes,))])
    return models.embedding_tensors(shape), models.head_tensors(shape, alone=alone)

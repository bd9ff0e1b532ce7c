"""ResNets of bottleneck blocks: extents, what may be shrunk, parameters and FLOPs.

Source: He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385 (2015), table 1.
The stride is in the 3 x 3 convolution, not the first: torchvision and MLPerf call this ResNet-50.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from hpcbench.kinds.training.plan.workload import Training

FAMILY = "resnet"
EXPANSION = 4
"""How many times as many channels a block returns as it has inside."""
STEM_KERNEL = 7
COLOURS = 3
NARROW = 16
"""Width up to which a ResNet is one for tests: see `is_narrow`."""


@dataclass(frozen=True, slots=True)
class ResNetShape:
    """A ResNet.

    Attributes:
        blocks: number of blocks in each of the four stages; each has twice the channels and half
            the extent of the one before.
        width: channels of the stem, and inside of the blocks of the first stage.
        classes: number of logits.
        image: height and width of the images, in pixels.
    """

    blocks: tuple[int, ...]
    width: int
    classes: int
    image: int

    @property
    def layers(self) -> int:
        """Return the number of blocks of all stages."""
        return sum(self.blocks)

    @property
    def is_narrow(self) -> bool:
        """Return whether biases of norms begin far above 0 (`NARROW_BIAS`), not about 0.

        Such a model is one that strategies are tried on: almost all of its ReLUs pass what comes,
        since one that does not because of a rounding error has another gradient altogether.
        """
        return self.width <= NARROW


RESNETS: Mapping[str, ResNetShape] = MappingProxyType({
    "resnet50": ResNetShape((3, 4, 6, 3), 64, 1000, 224),
})


def shrink_resnet(name: str, layers: int | None = None, width: int | None = None,
                  classes: int | None = None, image_size: int | None = None) -> ResNetShape | str:
    """Return the named model with smaller extents, or why there is no such model.

    What is None stays as published. Stages lose blocks evenly: each keeps as many as it had, or as
    the others. Raises KeyError of unknown names.
    """
    whole = RESNETS[name]
    limits = {"layers": (layers, len(whole.blocks), whole.layers), "width": (width, 1, whole.width),
              "classes": (classes, 1, whole.classes), "image_size": (image_size, 1, whole.image)}
    for key, (value, least, most) in limits.items():
        if value is not None and not least <= value <= most:
            return f"{key}={value} is not within {least} to {most}, what {name} has"
    return ResNetShape(_spread(whole.blocks, layers or whole.layers), width or whole.width,
                       classes or whole.classes, image_size or whole.image)


def _spread(blocks: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Return how many of ``layers`` blocks each stage has: one each in turn while it has any."""
    left, counts = layers, [0] * len(blocks)
    while left:
        for stage, most in enumerate(blocks):
            if left and counts[stage] < most:
                counts[stage] += 1
                left -= 1
    return tuple(counts)


def resnet_of(work: Training) -> ResNetShape:
    """Return the shape of the ResNet that a case trains. Raises KeyError of unknown models."""
    return ResNetShape(_spread(RESNETS[work.model].blocks, work.layers), work.width, work.classes,
                       work.image_size)


class Bottleneck(NamedTuple):
    """One block: channels, stride, and height and width of its input.

    It is projected where input and output differ.
    """

    inputs: int
    inner: int
    stride: int
    extent: int

    @property
    def outputs(self) -> int:
        """Return the channels that the block returns."""
        return EXPANSION * self.inner

    @property
    def extent_behind(self) -> int:
        """Return height and width of what the block returns."""
        return self.extent if self.stride == 1 else halved(self.extent)

    @property
    def projected(self) -> bool:
        """Return whether a convolution brings the input to the extents of the output."""
        return self.stride != 1 or self.inputs != self.outputs


def bottlenecks(shape: ResNetShape) -> tuple[Bottleneck, ...]:
    """Return the blocks of all stages in order."""
    return tuple(_bottlenecks(shape))


def _bottlenecks(shape: ResNetShape) -> Iterator[Bottleneck]:
    inputs, extent = shape.width, halved(halved(shape.image))
    for stage, count in enumerate(shape.blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            bottleneck = Bottleneck(inputs, shape.width * 2**stage, stride, extent)
            yield bottleneck
            inputs, extent = bottleneck.outputs, bottleneck.extent_behind


def features(shape: ResNetShape) -> int:
    """Return the channels that the last block returns."""
    return bottlenecks(shape)[-1].outputs


def resnet_parameters(shape: ResNetShape) -> int:
    """Return the number of parameters: convolutions, batch norms, and the last product."""
    stem = COLOURS * shape.width * STEM_KERNEL**2 + 2 * shape.width
    head = (features(shape) + 1) * shape.classes
    return stem + sum(_block_parameters(block) for block in bottlenecks(shape)) + head


def _block_parameters(block: Bottleneck) -> int:
    inner, outputs = block.inner, block.outputs
    convolutions = block.inputs * inner + 9 * inner * inner + inner * outputs
    projection = (block.inputs + 2) * outputs if block.projected else 0
    return convolutions + 2 * (inner + inner + outputs) + projection


def resnet_flops(shape: ResNetShape, samples: int) -> int:
    """Return the FLOPs of convolutions and the last product in one training step.

    A multiplication and an addition are 2. Backward has twice those of forward, but no gradient of
    the images. It is what torch.utils.flop_counter.FlopCounterMode counts.
    """
    return stage_flops(shape, range(shape.layers), samples)


def stage_flops(shape: ResNetShape, blocks: range | tuple[int, ...], samples: int) -> int:
    """Return the FLOPs of a step of the blocks of these numbers, and of the ends beside them."""
    every = bottlenecks(shape)
    stem = halved(shape.image)**2 * COLOURS * shape.width * STEM_KERNEL**2
    products = sum(_products(every[number]) for number in blocks)
    products += features(shape) * shape.classes * (shape.layers - 1 in blocks)
    return samples * 2 * (3 * products + 2 * stem * (0 in blocks))


def _products(block: Bottleneck) -> int:
    """Return the multiplications of one forward pass of a block on one image."""
    behind = 9 * block.inner**2 + block.inner * block.outputs
    behind += block.projected * block.inputs * block.outputs
    return block.extent**2 * block.inputs * block.inner + block.extent_behind**2 * behind


def halved(extent: int) -> int:
    """Return the extent behind a stride of 2."""
    return (extent + 1) // 2

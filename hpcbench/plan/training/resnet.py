"""ResNets of bottleneck blocks: extents, parameters and FLOPs.

He et al., Deep Residual Learning for Image Recognition, arXiv:1512.03385 (2015), table 1, with the
stride in the 3 x 3 convolution instead of the first: what torchvision and MLPerf call ResNet-50.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

EXPANSION = 4
"""How many times as many channels a block returns as it has inside."""
STEM_KERNEL = 7
COLOURS = 3


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


RESNETS: Mapping[str, ResNetShape] = MappingProxyType({
    "resnet50": ResNetShape((3, 4, 6, 3), 64, 1000, 224),
})


class Bottleneck(NamedTuple):
    """Channels and stride of one block; it is projected where input and output differ."""

    inputs: int
    inner: int
    stride: int

    @property
    def outputs(self) -> int:
        """Return the channels that the block returns."""
        return EXPANSION * self.inner

    @property
    def projected(self) -> bool:
        """Return whether a convolution brings the input to the extents of the output."""
        return self.stride != 1 or self.inputs != self.outputs


def bottlenecks(shape: ResNetShape) -> tuple[Bottleneck, ...]:
    """Return the blocks of all stages in order."""
    return tuple(_bottlenecks(shape))


def _bottlenecks(shape: ResNetShape) -> Iterator[Bottleneck]:
    inputs = shape.width
    for stage, count in enumerate(shape.blocks):
        for block in range(count):
            found = Bottleneck(inputs, shape.width * 2**stage, 2 if stage and not block else 1)
            yield found
            inputs = found.outputs


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
    extent = _halved(shape.image)
    stem = extent**2 * COLOURS * shape.width * STEM_KERNEL**2
    extent = _halved(extent)
    products = features(shape) * shape.classes
    for block in bottlenecks(shape):
        products += extent**2 * block.inputs * block.inner
        extent = extent if block.stride == 1 else _halved(extent)
        behind = 9 * block.inner**2 + block.inner * block.outputs
        products += extent**2 * (behind + block.projected * block.inputs * block.outputs)
    return samples * 2 * (3 * products + 2 * stem)


def _halved(extent: int) -> int:
    """Return the extent behind a stride of 2."""
    return (extent + 1) // 2
